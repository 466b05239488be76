"""What a user's loop trains, and its tape: opened at the first batch, continued, closed."""

import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import msgspec
import numpy as np
import torch
from torch import Tensor, nn

from ..data.batch import Augment, Batch
from ..data.dataset import Instances
from ..data.strides import Orders
from ..distributed import ddp, fsdp
from ..distributed.gather import GatheringLayout, ShardedExecutor
from ..distributed.ranks import RankReducer, Reducer
from ..distributed.shards import explain_other_ranks
from ..distributed.tape import ShardWriter
from ..engine.binding import TorchBinding
from ..engine.executor import Executor
from ..engine.inspect import inspect_run, names_by_group
from ..engine.losses import NAMED_LOSSES
from ..engine.objective import Objective, Penalty
from ..engine.optim import Optimizer
from ..engine.precision import Autocast, Precision, allowed_kernels
from ..engine.state import Layout, State, check_signature
from ..errors import DrossWarning, InputChanged, InvalidInput
from ..tape.format import Manifest, describe
from ..tape.reader import Tape
from ..tape.retention import Keep
from ..tape.writer import TapeWriter
from .average import AverageWatch


@dataclass(frozen=True)
class UserLoop:
    """What a loop trains, and how."""

    model: nn.Module
    called: nn.Module  # the model as the loop calls it: perhaps compiled, or wrapped by DDP
    optimizer: torch.optim.Optimizer
    loss_name: str
    loss: Callable[..., Tensor]
    penalty: Penalty | None
    augment: Augment | None
    keep: Keep
    seed: int
    device: torch.device
    dtype: torch.dtype
    instances: Instances | None  # the training set, where the recorder was given it
    ranks: Reducer
    autocast: Autocast | None = None  # that the recorder computes in; None: as it finds it
    expected_steps: int | None = None  # about so many steps will be taken, where that is known

    @property
    def loss_argument(self) -> str | Callable[..., Tensor]:
        """The loss as `dross.train` takes it: a name or a function."""
        return self.loss_name if self.loss_name in NAMED_LOSSES else self.loss


class LoopTape:
    """The tape that a loop is recorded on."""

    # known from the first batch on
    executor: Executor
    binding: TorchBinding
    writer: TapeWriter | ddp.NoTape

    def __init__(self, loop: UserLoop, folder: str | os.PathLike, earlier: Manifest | None):
        """earlier: the manifest of a tape to be continued."""
        self.loop = loop
        self.folder = folder
        self.earlier = earlier
        self.is_open = False
        #: of a batch's tensors in memory; None until the first one comes
        self.orders: Orders | None = None if earlier is None else earlier.orders
        #: the hyperparameters of the first and the last step on a tape that is continued
        self._earlier_hyperparams: tuple[np.ndarray, np.ndarray] | None = None
        self._restored: Tensor | None = None  # theta, until the first step after a resume

    @property
    def steps(self) -> int:
        """How many steps are recorded, those before a resume included."""
        if self.is_open:
            return self.writer.next_step
        return self.earlier.steps if self.earlier else 0

    @property
    def epoch_before(self) -> int:
        """The epoch of the last step before a resume; 0 if there is none."""
        segments = self.earlier.segments if self.earlier else ()
        return segments[-1].epochs[1] if segments else 0

    def restore(self) -> None:
        """Put the model and the optimizer where the tape to be continued ends."""
        if self.earlier is None:
            return
        loop = self.loop
        manifest = self.earlier
        ranks = loop.ranks.size if fsdp.is_sharded(loop.model) else 1
        if manifest.shards != ranks:
            raise explain_other_ranks(self.folder, manifest.shards, ranks)
        layout = manifest.layout
        check_signature(manifest.model, loop.model, layout)
        self._check_groups(layout)
        pure = manifest.optimizer.for_layout(layout)
        optimizer_name = type(loop.optimizer).__name__
        if manifest.loss != loop.loss_name or optimizer_name != pure.name:
            raise InputChanged(
                f"The tape was recorded with loss {manifest.loss} and {pure.name}, but this loop "
                f"uses {loop.loss_name} and {optimizer_name}. Continue it with the same loss and "
                "optimizer."
            )
        tape = Tape(self.folder)
        if fsdp.is_sharded(loop.model):
            assert isinstance(loop.ranks, RankReducer)
            tape, layout, pure = fsdp.own_shards(tape, layout, pure, loop.ranks)
        state = tape.end_state().map(lambda t: t.to(loop.device))
        binding = TorchBinding(loop.model, loop.optimizer, layout, pure)
        binding.write(state, slots=bool(manifest.steps))
        self._restored = state.theta if manifest.steps else None
        if manifest.steps:
            ends = (tape.step(tape.first), tape.step(manifest.steps - 1))
            self._earlier_hyperparams = (ends[0].hyperparams, ends[1].hyperparams)

    def take_restored(self) -> Tensor | None:
        """Theta as `restore` has left it, once; None where nothing was restored.

        A loop that loads a checkpoint of its own after that does not continue the tape.
        """
        restored, self._restored = self._restored, None
        return restored

    def _check_groups(self, layout: Layout) -> None:
        """Refuse an optimizer that trains other parameters than those on the tape."""
        now = names_by_group(dict(self.loop.model.named_parameters()), self.loop.optimizer)
        known = set(layout.names)
        trained = [[name for name in names if name in known] for names in now]
        recorded: dict[int, list[str]] = {}
        for name, group in zip(layout.names, layout.group_of):
            recorded.setdefault(group, []).append(name)
        if [names for names in trained if names] != list(recorded.values()):
            raise InputChanged(
                "The optimizer's parameters or parameter groups differ from those on the tape: the "
                f"recorded run trained {', '.join(layout.names[:3])}"
                f"{' ...' if len(layout.names) > 3 else ''} in {len(recorded)} "
                f"group{'s' * (len(recorded) > 1)}. Create it as it was when the run was recorded."
            )

    def check_continued(self, hyperparams: np.ndarray) -> None:
        """Warn if the first step after a resume looks as if its schedule had not been restored.

        The tape cannot restore it: a scheduler changes the optimizer from outside. A value is
        suspicious if it did not change on the tape and does now, or if it is that of step 0 again.
        """
        if self._earlier_hyperparams is None:
            return
        first, last = self._earlier_hyperparams
        self._earlier_hyperparams = None
        suspicious = (hyperparams != last) & ((first == last) | (hyperparams == first))
        columns = self.binding.optimizer.columns
        changed = [
            f"{columns[column]} {hyperparams[group, column]:g} (the last recorded step used "
            f"{last[group, column]:g})"
            for group, column in np.argwhere(suspicious)
        ]
        if changed and self.loop.ranks.rank == 0:
            warnings.warn(
                f"Step {self.steps}, the first after resuming, uses {', '.join(changed[:4])}. "
                "If this is not intended, restore the optimizer's settings and its learning rate "
                "scheduler before the first step: load their state, or call scheduler.step() "
                "`recorder.steps` times.",
                DrossWarning,
                stacklevel=2,
            )

    def open(self, batch: Batch, cast: Autocast | None) -> None:
        """Inspect the model with its first batch, and begin or continue the tape.

        Arguments:
            batch: the first one. Any later one changes nothing.
            cast: the autocast that it is computed in.
        """
        if self.is_open:
            return
        known = self.earlier.precision.autocast if self.earlier else None
        if cast is not None and known is not None:
            cast = replace(cast, backward=known.backward)
        precision = Precision(autocast=cast, kernels=allowed_kernels())
        if fsdp.is_sharded(self.loop.model):
            state = self._open_shards(batch, precision)
        else:
            state = self._open_whole(batch, precision)
        if self.earlier is None:
            self.writer.flush(state)
        self.is_open = True

    def _open_whole(self, batch: Batch, precision: Precision) -> State:
        loop = self.loop
        objective, pure = inspect_run(
            loop.model,
            loop.optimizer,
            loop.loss_argument,
            loop.penalty,
            batch.x,
            batch.y,
            precision=precision,
        )
        ddp.check_recordable(objective, loop.ranks)
        self.executor = Executor(objective, threads=self._threads)
        self.binding = TorchBinding(loop.model, loop.optimizer, objective.layout, pure)
        state = self.binding.read()
        if loop.ranks.rank > 0:
            self.writer = ddp.NoTape(self.steps)
        else:
            self.writer = TapeWriter(
                self.folder,
                self._describe(objective, pure),
                loop.keep,
                state.nbytes,
                loop.expected_steps,
            )
        return state

    def _open_shards(self, batch: Batch, precision: Precision) -> State:
        """The same for a loop under fully_shard. All ranks do this at once."""
        loop = self.loop
        ranks = loop.ranks
        assert isinstance(ranks, RankReducer)
        bare = Objective(
            loop.model, Layout((), (), (), ()), loop.loss, loop.loss_name, precision=precision
        )
        objective, sharded, pure = fsdp.inspect_sharded(bare, loop.optimizer, batch, ranks)
        self.executor = ShardedExecutor(sharded)
        self.binding = TorchBinding(loop.model, loop.optimizer, sharded.layout, pure)
        state = self.binding.read()
        self.writer = ShardWriter(
            self.folder,
            self._describe(objective, pure),
            loop.keep,
            sum(ranks.gather(state.nbytes)),
            loop.expected_steps,
            ranks=ranks,
        )
        return state

    def settle_backward(self, inside: bool) -> None:
        """Note whether backward() runs inside autocast. It is known when it runs first."""
        objective = self.executor.objective
        assert objective.precision.autocast is not None
        cast = replace(objective.precision.autocast, backward=inside)
        precision = replace(objective.precision, autocast=cast)
        self.executor = type(self.executor)(
            replace(objective, precision=precision), threads=self.executor.threads
        )
        self.note(precision=precision)

    def settle_orders(self, orders: Orders) -> None:
        """Note how the tensors of a batch lie in memory as the model sees them."""
        self.orders = orders
        self.note(orders=orders)

    def note(self, **entries: Any) -> None:
        """Let the manifest say this from its next commit on."""
        if isinstance(self.writer, TapeWriter):
            self.writer.manifest = msgspec.structs.replace(self.writer.manifest, **entries)

    @property
    def rehearsing(self) -> Reducer:
        """Who adds up the parts of a rehearsed step; shards come out of their passes summed."""
        layout = self.binding.layout
        return (layout.ranks if isinstance(layout, GatheringLayout) else None) or self.loop.ranks

    @property
    def _threads(self) -> int | None:
        """CPU threads of the loop, by which its sums round."""
        return torch.get_num_threads() if self.loop.device.type == "cpu" else None

    def _describe(self, objective: Objective, pure: Optimizer) -> Manifest:
        loop = self.loop
        return describe(
            objective,
            pure,
            augment=loop.augment,
            keep=loop.keep,
            seed=loop.seed,
            device=loop.device,
            instances=loop.instances,
            orders=self.orders or (),
            foreign=True,
            threads=self._threads,
            earlier=self.earlier,
        )

    def save(self) -> None:
        """Write what is open, and name it in the manifest at once."""
        if self.is_open:
            self.writer.save(self.binding.read())

    def finish(
        self,
        *,
        whole: bool,
        complete: bool,
        buffers: dict[str, Tensor] | None,
        before: State | None = None,
        average: AverageWatch | None = None,
    ) -> None:
        """Write what is still open.

        Arguments:
            whole: whether the last step is known from its beginning to its end.
            complete: whether the loop came to its end.
            buffers: of the model before micro-batches that no step followed, if there are any.
            before: the state before the step that failed, where it opens a segment.
            average: the averaged model that is watched, if there is one.
        """
        if self.is_open and not self.steps:
            self.writer.discard()  # a tape without a step would only be in the way
        elif self.is_open and whole:
            state = self.binding.read()
            state = state if buffers is None else replace(state, buffers=buffers)
            record = None if average is None else average.record(self.binding)
            self.writer.finish(state, complete=complete, average=record)
        elif self.is_open and type(self.writer) is TapeWriter:  # ranks may have failed apart
            self.writer.finish_before_open(before)
        if complete and not self.steps:
            raise InvalidInput(
                "Nothing was recorded, because the optimizer has taken no step. Call "
                "optimizer.step() after each batch of recorder.step or recorder.observe, on the "
                "optimizer that was passed to the recorder."
            )

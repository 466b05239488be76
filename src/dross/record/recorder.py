"""Record a training loop that somebody else owns.

The recorder computes the forward pass, hands out one loss per instance and watches what the loop
does with them: the gradient that arrives at the losses is each instance's weight in the step, and
the optimizer's own hooks say when a step is taken. At the start of every segment the step is
rehearsed from the recorded state; a step that cannot be reproduced is refused then and there.
"""

import atexit
import os
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from ..data.batch import Augment, Batch, MicroBatch
from ..data.dataset import Instances, check_ids, make_batch, move_to
from ..data.seeds import use_seed
from ..errors import BadInput, DrossWarning, NotReplayable, NotSupported, TapeMismatch
from ..execution.executor import Executor
from ..influence.run import Run
from ..replay.recording import checksum
from ..step.clipping import Clip, ClipNorm, ClipValue
from ..step.inspect_model import count_of, device_and_dtype, inspect_run, unwrap_model
from ..step.layout import Layout, check_signature
from ..step.loss import NAMED_LOSSES, check_per_instance, find_loss
from ..step.objective import Penalty
from ..step.optimizers import Optimizer, check_same_structure, read_optimizer
from ..step.state import State
from ..step.step import Step
from ..tape.manifest import RunSettings, check_same_run, describe
from ..tape.reader import Tape
from ..tape.retention import DefaultRetention, Keep
from ..tape.writer import TapeWriter, check_resume, prepare_folder
from . import ddp
from .finite_check import check_finite
from .gradient_watch import GradientWatch
from .live_model import LiveModel
from .rehearsal import check_autocast, check_epoch, check_first_batch, rehearse

# by the optimizer they listen to
_RECORDERS: "weakref.WeakValueDictionary[int, Recorder]" = weakref.WeakValueDictionary()


class Recorder:
    """Writes a tape of your own loop.

        recorder = dross.Recorder(model, optimizer, "cross_entropy", "runs/mine")
        for epoch in range(20):
            for ids, x, y in loader:                     # DataLoader(dross.indexed(train_set), ...)
                with recorder.step(ids, x, y, epoch=epoch) as losses:
                    losses.mean().backward(); optimizer.step(); optimizer.zero_grad()
        run = recorder.run(train_set)

    A `with recorder.step(...)` in which the optimizer takes no step is a micro-batch: gradient
    accumulation is recorded as it happens. Any weighting that is linear in the losses is recorded
    too; one that is not, such as (losses ** 2).mean(), is recorded as the weights it had, and that
    these would change is not seen: put such a function into `loss`. Clip with
    `recorder.clip_grad_norm_(1.0)`.

    Under DistributedDataParallel each rank makes a recorder of its own, with the wrapped model, and
    steps it with its own batches; the first rank writes one tape of them all. The folder must be
    one that every rank sees.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        loss: Any,
        tape: str | os.PathLike,
        *,
        penalty: Penalty | None = None,
        augment: Augment | None = None,
        keep: Keep | None = None,
        train_set: Any = None,
        seed: int = 0,
        overwrite: bool = False,
        resume: bool | str | os.PathLike = False,
    ):
        """Listen to an optimizer from now on.

        Arguments:
            model: the model that the loop trains.
            optimizer: its torch.optim optimizer.
            loss: as for `dross.train`.
            tape: the folder that the run is recorded in.
            penalty, augment, keep, seed, overwrite: as for `dross.train`.
            train_set: where it is known, the first batch is compared with it.
            resume: True goes on with what an interrupted loop left in `tape`: model and optimizer
                are put where it stopped, and `steps` says how many of the loop's steps to skip.
                Naming that folder means the same.

        Raises:
            TapeExists: where there is a tape already.
            TapeMismatch: where the tape to be continued is of another model, loss or optimizer.
        """
        if (former := _RECORDERS.get(id(optimizer))) is not None:
            former._save_what_there_is()  # it must not listen to the same optimizer
        _RECORDERS[id(optimizer)] = self
        self.called, self.model, self.optimizer = (
            model,
            unwrap_model(ddp.bare_module(model)),
            optimizer,
        )
        self._ranks = ddp.ranks_of(model)
        self.loss_name, self.loss = find_loss(loss)
        self.penalty, self.augment, self.seed = penalty, augment, seed
        self.keep = DefaultRetention() if keep is None else keep
        self.device, self.dtype = device_and_dtype(self.model)
        given = (self.device, self.dtype, self.keep.memory)
        self.instances = None if train_set is None else Instances(train_set, *given)
        self.folder = tape
        wants_resume = check_resume(resume, tape)
        self._earlier = self._ranks.on_first(
            lambda: prepare_folder(tape, overwrite=overwrite, resume=wants_resume)
        )
        self._executor: Executor | None = None  # these three are known at the first batch
        self._live: LiveModel | None = None
        self._writer: TapeWriter | ddp.NoTape | None = None
        self._pending: list[tuple[MicroBatch, Batch]] = []  # their gradients wait for a step
        self._before: State | None = None  # the state they were computed from, where it is needed
        self._buffers: dict[str, Tensor] = {}  # before them: a forward pass moves these at once
        self._after: Tensor | None = None  # theta as the last recorded step left it
        self._clip: Clip | None = None
        self._inside, self._stepped, self._closed = False, False, False
        self._stepping = False  # between the optimizer's two hooks
        self._epoch = 0
        self._losses: list[Tensor] = []
        self._gradients = GradientWatch(self.model)
        before = lambda _, args, kwargs: self._about_to_step(args, kwargs)
        self._handles = [
            optimizer.register_step_pre_hook(before),
            optimizer.register_step_post_hook(lambda *_: self._has_stepped()),
            *self._gradients.handles,
        ]
        own = weakref.ref(self)
        self._at_exit = lambda: (recorder := own()) and recorder._save_what_there_is()
        atexit.register(self._at_exit)  # Ctrl-C in a loop still leaves every step that was taken
        if self._earlier is not None:
            self._restore(self._earlier)

    @property
    def steps(self) -> int:
        """How many steps are recorded; after a resume, how many of the loop's steps to skip."""
        if self._writer is not None:
            return self._writer.next
        return self._earlier["steps"] if self._earlier else 0

    @contextmanager
    def step(self, ids: Any, x: Any, y: Any, *, epoch: int | None = None) -> Iterator[Tensor]:
        """Yields one loss per instance of the batch [B], ready for backward().

        Arguments:
            ids: the instances' ids [B].
            x: the inputs, as the data set has them.
            y: the labels.
            epoch: counts up; needed by keep=LastEpochs.

        Raises:
            NotReplayable: for a step that could not be reproduced.
        """
        if self._closed:
            raise BadInput("This recorder is closed.")
        if self._inside:
            raise BadInput("recorder.step was entered twice: finish one batch before the next.")
        check_autocast(self.device)
        self._epoch = check_epoch(epoch, self._epoch, self.keep)
        batch, ids = self._make_batch(ids, x, y)
        before = self._begin(batch)
        weights = np.zeros(len(ids))
        self._inside, self._stepped = True, False
        self._pending.append((MicroBatch(ids, weights), batch))
        try:
            yield self._forward(batch, weights)
        except BaseException:
            if not self._stepped and not self._stepping:
                # once backward() has run, its gradient is mixed with those of the other
                # micro-batches: all of them go
                used = bool(weights.any())
                self._withdraw(self._buffers if used else before, everything=used)
            raise
        finally:
            self._inside = False
        if not self._stepped and not weights.any():
            self._withdraw(before)
            raise NotReplayable(
                "backward() was not called on the losses of this batch, so the batch has no part "
                "in any step."
            )

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """torch.nn.utils.clip_grad_norm_ over the parameters in training, recorded.

        Call it between backward() and optimizer.step().
        """
        parameters = self._declare(ClipNorm(float(max_norm)))
        norm = torch.nn.utils.clip_grad_norm_(parameters, max_norm)
        self._gradients.accept()
        return norm

    def clip_grad_value_(self, limit: float) -> None:
        """torch.nn.utils.clip_grad_value_ over the parameters in training, recorded."""
        torch.nn.utils.clip_grad_value_(self._declare(ClipValue(float(limit))), limit)
        self._gradients.accept()

    def close(self) -> None:
        """Write what is still open and mark the tape complete."""
        if self._closed:
            return
        if self._pending:
            warnings.warn(
                f"{len(self._pending)} micro-batches were computed after step {self.steps - 1} and "
                "no optimizer step followed. They did not change the parameters and are left out "
                "of the recording.",
                DrossWarning,
                stacklevel=2,
            )
        self._check_untouched()
        self._finish(complete=True)
        self._ranks.from_first(None)  # the tape is there before anyone opens it

    def run(self, train_set: Any = None) -> Run:
        """Close the tape and open it as a run.

        Arguments:
            train_set: the data set, where the recorder was not given it.
        """
        self.close()
        if train_set is None and self.instances is not None:
            train_set = self.instances.source
        if train_set is None:
            raise BadInput("Pass the training set: recorder.run(train_set).")
        loss = self._given_loss()
        return Run.open(self.folder, self.model, train_set, loss, self.penalty, self.augment)

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if kind is None:
            self.close()
        else:
            self._save_what_there_is()

    # --- before and after a forward pass --------------------------------------------------------------

    def _make_batch(self, ids: Any, x: Any, y: Any) -> tuple[Batch, np.ndarray]:
        most = len(self.instances) if self.instances else np.iinfo(np.int32).max
        ids = check_ids(ids, most, "Instance ids")
        x, y = (tree_map(lambda t: move_to(t, self.device, self.dtype), part) for part in (x, y))
        if len(ids) != count_of(y):
            raise BadInput(
                f"{len(ids)} ids came with {count_of(y)} labels: pass the id of every instance of "
                "the batch."
            )
        if self.instances is not None and self._executor is None:
            check_first_batch(self.instances, ids, x, y)
        position = (self.steps, ddp.place_among_ranks(len(self._pending), self._ranks))
        where = (self.seed, position, self.augment, self.device, self.dtype)
        return make_batch(x, y, MicroBatch(ids), *where), ids

    def _begin(self, batch: Batch) -> dict[str, Tensor]:
        """Look at the model, and keep its state where the tape wants it. Returns its buffers."""
        live = self._live if self._live is not None else self._discover(batch)
        assert self._writer is not None
        buffers = live.layout.read_buffers(self.model)
        if self._pending:
            return buffers
        self._check_untouched()
        if self._writer.is_full(self._epoch):
            self._writer.flush(live.read())
        self._before = live.read() if self._writer.wants_state() else None
        self._buffers = buffers
        return buffers

    def _forward(self, batch: Batch, weights: np.ndarray) -> Tensor:
        """The losses of the user's own model. backward() leaves each one's weight in `weights`."""
        assert self._executor is not None
        objective = self._executor.objective
        with use_seed(self.device, batch.seed):
            outputs = self.called(batch.x)
        losses = check_per_instance(self.loss(outputs, batch.y), len(batch.c))
        if self.penalty is not None:
            losses = losses + objective.penalty_at(dict(self.model.named_parameters()))
        earlier = len(self._pending) > 1

        def watch(arrived: Tensor) -> None:
            if not weights.any():
                self._gradients.check_start(objective.layout, self.steps, accumulating=earlier)
                if ddp.find_ddp(self.called) is not None:
                    ddp.after_averaging(self._gradients.accept)
            weights.__iadd__(arrived.detach().double().cpu().numpy())

        losses.register_hook(watch)
        self._losses = [*self._losses, losses.detach()] if earlier else [losses.detach()]
        return losses

    def _withdraw(self, buffers: dict[str, Tensor], everything: bool = False) -> None:
        """Forget the last batch (or all that wait), and what its forward pass did to the model."""
        del self._pending[0 if everything else -1 :]
        self._clip = None
        own = dict(self.model.named_buffers())
        with torch.no_grad():
            for name, value in buffers.items():
                own[name].copy_(value)

    def _declare(self, clip: Clip) -> list[Tensor]:
        """Note the clip, and name the parameters that it is for."""
        if self._clip is not None:
            raise NotSupported(
                "The gradient is clipped twice in one step: dross follows one clip per step."
            )
        if self._live is None:
            raise BadInput("There is nothing to clip before the first recorder.step.")
        self._clip = clip
        parameters = self._live.parameters
        return [parameters[name] for name in self._live.layout.names]

    # --- around the optimizer's step ------------------------------------------------------------------

    def _about_to_step(self, args: tuple, kwargs: dict) -> None:
        if self._closed:
            return
        if any(callable(given) for given in (*args, *kwargs.values())):
            raise NotSupported(
                "optimizer.step(closure) computes losses that the recorder does not see. Call "
                "optimizer.step() without it."
            )
        if not self._inside:
            raise NotReplayable(
                "optimizer.step() ran outside `with recorder.step(...)` after step "
                f"{self.steps - 1}."
            )
        if self._stepped:
            raise NotReplayable(
                "The optimizer stepped twice in one `with recorder.step(...)`, at step "
                f"{self.steps}."
            )
        assert self._live is not None
        self._gradients.check_step(self._live.layout, self.optimizer, self.steps)
        self._stepping = True

    def _has_stepped(self) -> None:
        if self._closed:
            return
        live, writer, executor = self._live, self._writer, self._executor
        assert live is not None and writer is not None and executor is not None
        pure = live.optimizer
        check_same_structure(pure, read_optimizer(self.optimizer, pure.group_sizes, live.groups))
        own = [micro.simplify() for micro, _ in self._pending]
        shared = ddp.share_step(self._ranks, own, writer.opens_segment())
        step = Step(shared.micros, live.numbers(), self._epoch, self._clip)
        places = (ddp.place_among_ranks(k, self._ranks) for k in range(len(own)))
        micros = [shared.micros[place] for place in places]
        pairs = zip(micros, self._pending)
        batches = [replace(batch, c=self._weights(micro)) for micro, (_, batch) in pairs]
        g, after = self._gradients.flat(live.layout), live.read_theta()
        ids = np.concatenate([micro.ids for micro in micros])
        check_finite(self.steps, State(after), g, self._losses, ids, kept=writer.first)
        opens = shared.opens_segment
        if opens:
            assert self._before is not None
            given = (executor, pure, self._before, step, batches, after)
            rehearse(*given, self._ranks, self.steps)
        writer.add(step, self._before, None, checksum(batches[0]) if opens else 0)
        self._after = after
        self._pending, self._clip, self._stepped, self._stepping = [], None, True, False

    def _weights(self, micro: MicroBatch) -> Tensor:
        return torch.as_tensor(micro.weights, dtype=self.dtype, device=self.device)

    def _is_untouched(self) -> bool:
        """Whether the parameters are where the last recorded step left them."""
        if self._after is None or self._live is None:
            return True
        return torch.equal(self._live.read_theta(), self._after)

    def _check_untouched(self) -> None:
        if not self._is_untouched():
            raise NotReplayable(
                f"The model's parameters were changed after step {self.steps - 1} by something "
                "other than the optimizer (clamping, averaging, loading a checkpoint). Close the "
                "recorder first, or leave them alone while recording."
            )

    # --- the beginning and the end --------------------------------------------------------------------

    def _discover(self, batch: Batch) -> LiveModel:
        if not self.model.training:
            raise BadInput("The model is in eval mode: call model.train() before recording a step.")
        given = (self._given_loss(), self.penalty, batch.x, batch.y)
        objective, pure = inspect_run(self.model, self.optimizer, *given)
        ddp.check_recordable(objective, self._ranks)
        self._executor = Executor(objective)
        self._live = LiveModel(self.model, self.optimizer, objective.layout, pure)
        if self._ranks.rank > 0:
            self._writer = ddp.NoTape(self.steps)
            return self._live
        settings = RunSettings(
            objective=objective,
            optimizer=pure,
            loss_name=self.loss_name,
            augment=self.augment,
            keep=self.keep,
            seed=self.seed,
            planned=None,
            device=self.device,
            instances=self.instances,
            foreign=True,
        )
        manifest = describe(settings)
        if self._earlier is not None:
            check_same_run(self._earlier, manifest)
            manifest = self._earlier
        state = self._live.read()
        self._writer = TapeWriter(self.folder, manifest, self.keep, state.nbytes, None)
        if self._earlier is None:
            self._writer.flush(state)
        return self._live

    def _given_loss(self):
        return self.loss_name if self.loss_name in NAMED_LOSSES else self.loss

    def _restore(self, earlier: dict) -> None:
        """Put the model and the optimizer where the tape left off."""
        layout = Layout.from_json(earlier["layout"], earlier["model"])
        check_signature(earlier["model"], self.model, layout)
        pure = Optimizer.from_json(earlier["optimizer"], layout.group_sizes)
        if earlier["loss"] != self.loss_name or type(self.optimizer).__name__ != pure.name:
            raise TapeMismatch(
                f"The tape was recorded with loss {earlier['loss']} and {pure.name}; this is "
                f"{self.loss_name} and {type(self.optimizer).__name__}. Continue it with the same."
            )
        state = Tape(self.folder).end_state().map(lambda t: t.to(self.device))
        live = LiveModel(self.model, self.optimizer, layout, pure)
        live.write(state, slots=bool(earlier["steps"]))

    def _save_what_there_is(self) -> None:
        """After an exception or at exit.

        Where it struck inside the optimizer, the open segment has no known end and is lost.
        """
        if not self._closed:
            self._finish(complete=False)

    def _finish(self, complete: bool) -> None:
        self._closed = True
        for handle in self._handles:
            handle.remove()
        atexit.unregister(self._at_exit)
        whole = not self._stepping and (complete or self._is_untouched())
        if self._writer is not None and self._live is not None and whole:
            state = self._live.read()
            buffers = self._buffers if self._pending else state.buffers
            self._writer.finish(replace(state, buffers=buffers), complete=complete)
        elif complete and self._earlier is None:
            raise BadInput("Nothing was recorded.")

"""Record a training loop that somebody else owns.

The recorder computes the forward pass, hands out one loss per instance and watches what the loop does with them: the gradient
that arrives at the losses is each instance's weight in the step, and the optimizer's own hooks tell when a step is taken. At
the start of every segment the step is rehearsed from the recorded state; a step that cannot be reproduced is refused then
and there, not when somebody wants scores.
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
from torch.utils._pytree import tree_leaves, tree_map

from ..data.batch import Augment, Batch
from ..data.dataset import Instances, check_ids, make_batch, placed
from ..data.seeds import seeded
from ..errors import BadInput, DrossWarning, NotReplayable, NotSupported, TapeMismatch
from ..influence.run import Run
from ..replay.recording import checksum
from ..replay.take_steps import take_step
from ..step.clipping import Clip, ClipNorm, ClipValue
from ..step.inspect_model import count_of, device_and_dtype, discover, moving_groups, unwrapped
from ..step.layout import Layout, State, check_signature
from ..step.loss import NAMED, check_per_instance, resolve
from ..step.objective import Objective, Penalty
from ..step.optimizers import (
    Optimizer,
    check_same_structure,
    current_numbers,
    read_slots,
    understand,
    write_slots,
)
from ..step.step import Micro, Step, advance
from ..tape.manifest import RunSettings, check_same_run, describe
from ..tape.reader import Tape
from ..tape.retention import DefaultRetention, Keep
from ..tape.writer import TapeWriter, prepare_folder
from .ddp import NoTape, after_averaging, bare, check_recordable, parallel, place, ranks_of, tell
from .gradient_watch import GradientWatch
from .train import check_finite

_RECORDERS: "weakref.WeakValueDictionary[int, Recorder]" = (
    weakref.WeakValueDictionary()
)  # by the optimizer they listen to


class Recorder:
    """Writes a tape of your own loop.

        recorder = dross.Recorder(model, optimizer, "cross_entropy", "runs/mine")
        for epoch in range(20):
            for ids, x, y in loader:                               # DataLoader(dross.indexed(train_set), ...)
                with recorder.step(ids, x, y, epoch=epoch) as losses:
                    losses.mean().backward(); optimizer.step(); optimizer.zero_grad()
        run = recorder.run(train_set)

    A `with recorder.step(...)` in which the optimizer takes no step is a micro-batch: gradient accumulation is recorded as it
    happens. Any weighting that is linear in the losses is recorded too; one that is not, such as (losses ** 2).mean(), is recorded
    as the weights it had, and that these would change is not seen: put such a function into `loss`. Clip with
    `recorder.clip_grad_norm_(1.0)`.

    Under DistributedDataParallel each rank makes a recorder of its own, with the wrapped model, and steps it with its own batches; the
    first rank writes one tape of them all. The folder must be one that every rank sees.
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
        resume: bool = False,
    ):
        if (former := _RECORDERS.get(id(optimizer))) is not None:
            former._save_what_there_is()  # an abandoned one must not listen to the same optimizer
        _RECORDERS[id(optimizer)] = self
        self.called, self.model, self.optimizer = model, unwrapped(bare(model)), optimizer
        self._ranks = ranks_of(model)
        self.loss_name, self.loss = resolve(loss)
        self.penalty, self.augment, self.seed = penalty, augment, seed
        self.keep = DefaultRetention() if keep is None else keep
        self.device, self.dtype = device_and_dtype(self.model)
        self.instances = (
            None
            if train_set is None
            else Instances(train_set, self.device, self.dtype, self.keep.memory)
        )
        self.folder = tape
        self._earlier = self._ranks.first_does(
            lambda: prepare_folder(tape, overwrite=overwrite, resume=resume)
        )
        self._objective: Objective | None = None
        self._pure: Optimizer | None = None
        self._writer: TapeWriter | NoTape | None = None
        self._pending: list[
            tuple[Micro, Batch]
        ] = []  # micro-batches whose gradients wait for the optimizer's step
        self._before: State | None = None  # the state they were computed from, where it is needed
        self._buffers: dict[
            str, Tensor
        ] = {}  # the buffers before them: a forward pass moves these at once
        self._stepping = False  # between the optimizer's two hooks
        self._after: Tensor | None = None  # theta as the last recorded step left it
        self._clip: Clip | None = None
        self._inside, self._stepped, self._closed = False, False, False
        self._epoch = 0
        self._losses: list[Tensor] = []
        self._gradients = GradientWatch(self.model)
        self._handles = [
            optimizer.register_step_pre_hook(
                lambda _, args, kwargs: self._about_to_step(args, kwargs)
            ),
            optimizer.register_step_post_hook(lambda *_: self._has_stepped()),
            *self._gradients.handles,
        ]
        own = weakref.ref(self)
        self._at_exit = lambda: (recorder := own()) and recorder._save_what_there_is()
        atexit.register(
            self._at_exit
        )  # Ctrl-C in the middle of a loop still leaves every step that was taken
        if self._earlier is not None:
            self._restore(self._earlier)

    @property
    def steps(self) -> int:
        """How many steps are recorded; after `resume=True`, how many of the loop's steps to skip."""
        if self._writer is not None:
            return self._writer.next
        return self._earlier["steps"] if self._earlier else 0

    @contextmanager
    def step(self, ids: Any, x: Any, y: Any, *, epoch: int | None = None) -> Iterator[Tensor]:
        """Yields one loss per instance of the batch, ready for backward()."""
        if self._closed:
            raise BadInput("This recorder is closed.")
        if self._inside:
            raise BadInput("recorder.step was entered twice: finish one batch before the next.")
        if torch.is_autocast_enabled(self.device.type):
            raise NotSupported(
                "Autocast is on: dross replays in the model's own type. Record without autocast."
            )
        if epoch is None and self.keep.last_epochs is not None:
            raise BadInput(
                "LastEpochs has to know the epochs: recorder.step(ids, x, y, epoch=epoch)."
            )
        if epoch is not None and int(epoch) < self._epoch:
            raise BadInput(
                f"Epoch {epoch} came after epoch {self._epoch}: epochs count up, through all phases of a run."
            )
        self._epoch = self._epoch if epoch is None else int(epoch)
        ids = check_ids(
            ids, len(self.instances) if self.instances else np.iinfo(np.int32).max, "Instance ids"
        )
        x, y = (tree_map(lambda t: placed(t, self.device, self.dtype), part) for part in (x, y))
        if len(ids) != count_of(y):
            raise BadInput(
                f"{len(ids)} ids came with {count_of(y)} labels: pass the id of every instance of the batch."
            )
        self._check_against_data_set(ids, x, y)
        position = (self.steps, place(len(self._pending), self._ranks))
        batch = make_batch(
            x, y, Micro(ids), self.seed, position, self.augment, self.device, self.dtype
        )
        before = self._begin(batch)
        weights = np.zeros(len(ids))
        self._inside, self._stepped = True, False
        self._pending.append((Micro(ids, weights), batch))
        try:
            yield self._forward(batch, weights)
        except BaseException:
            if not self._stepped and not self._stepping:
                # once backward() has run, its gradient is mixed with those of the other micro-batches: all of them go
                self._withdraw(
                    self._buffers if weights.any() else before, everything=bool(weights.any())
                )
            raise
        finally:
            self._inside = False
        if not self._stepped and not weights.any():
            self._withdraw(before)
            raise NotReplayable(
                "backward() was not called on the losses of this batch, so the batch has no part in any step."
            )

    def _withdraw(self, buffers: dict[str, Tensor], everything: bool = False) -> None:
        """The last batch (or all that wait) has no part in any step: forget it, and what its forward pass did to the model."""
        del self._pending[0 if everything else -1 :]
        self._clip = None
        own = dict(self.model.named_buffers())
        with torch.no_grad():
            for name, value in buffers.items():
                own[name].copy_(value)

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """torch.nn.utils.clip_grad_norm_ over the parameters in training, recorded. Between backward() and optimizer.step()."""
        norm = torch.nn.utils.clip_grad_norm_(self._declare(ClipNorm(float(max_norm))), max_norm)
        self._gradients.accept()
        return norm

    def clip_grad_value_(self, limit: float) -> None:
        """torch.nn.utils.clip_grad_value_ over the parameters in training, recorded."""
        torch.nn.utils.clip_grad_value_(self._declare(ClipValue(float(limit))), limit)
        self._gradients.accept()

    def _declare(self, clip: Clip) -> list[Tensor]:
        """Note the clip, and name the parameters that it is for."""
        if self._clip is not None:
            raise NotSupported(
                "The gradient is clipped twice in one step: dross follows one clip per step."
            )
        if self._objective is None:
            raise BadInput("There is nothing to clip before the first recorder.step.")
        self._clip = clip
        parameters = dict(self.model.named_parameters())
        return [parameters[name] for name in self._objective.layout.names]

    def close(self) -> None:
        """Write what is still open and mark the tape complete."""
        if self._closed:
            return
        if self._pending:
            warnings.warn(
                f"{len(self._pending)} micro-batches were computed after step {self.steps - 1} and no optimizer step followed. They did "
                "not change the parameters and are left out of the recording.",
                DrossWarning,
                stacklevel=2,
            )
        self._check_untouched()
        self._finish(complete=True)
        self._ranks.first(None)  # the tape is there before anyone opens it

    def run(self, train_set: Any = None) -> Run:
        """Close the tape and open it as a run."""
        self.close()
        source = (
            train_set
            if train_set is not None
            else (self.instances.source if self.instances else None)
        )
        if source is None:
            raise BadInput("Pass the training set: recorder.run(train_set).")
        return Run.open(
            self.folder, self.model, source, self._given_loss(), self.penalty, self.augment
        )

    def __enter__(self) -> "Recorder":
        return self

    def __exit__(self, kind, error, traceback) -> None:
        if kind is None:
            self.close()
        else:
            self._save_what_there_is()

    # --- what happens around a step -----------------------------------------------------------------------------------------

    def _begin(self, batch: Batch) -> dict[str, Tensor]:
        """Before a forward pass: look at the model, and keep its state where the tape wants it. Returns its buffers."""
        objective = self._objective if self._objective is not None else self._discover(batch)
        assert self._writer is not None
        buffers = objective.layout.read_buffers(self.model)
        if self._pending:
            return buffers
        self._check_untouched()
        if self._writer.is_full(self._epoch):
            self._writer.flush(self._state())
        self._before = self._state() if self._writer.wants_state() else None
        self._buffers = buffers
        return buffers

    def _is_untouched(self) -> bool:
        """Whether the parameters are where the last recorded step left them."""
        return (
            self._after is None
            or self._objective is None
            or torch.equal(self._objective.layout.read(self.model)[0], self._after)
        )

    def _check_untouched(self) -> None:
        if not self._is_untouched():
            raise NotReplayable(
                f"The model's parameters were changed after step {self.steps - 1} by something other than the optimizer (clamping, "
                "averaging, loading a checkpoint). Close the recorder first, or leave them alone while recording."
            )

    def _forward(self, batch: Batch, weights: np.ndarray) -> Tensor:
        """The losses of the user's own model on this batch. backward() will leave each one's weight in `weights`."""
        objective = self._objective
        assert objective is not None
        with seeded(self.device, batch.seed):
            outputs = self.called(batch.x)
        losses = check_per_instance(self.loss(outputs, batch.y), len(batch.c))
        if self.penalty is not None:
            losses = losses + objective.penalty_at(dict(self.model.named_parameters()))
        earlier = len(self._pending) > 1

        def watch(arrived: Tensor) -> None:
            if not weights.any():
                self._gradients.check_start(objective.layout, self.steps, accumulating=earlier)
                if parallel(self.called) is not None:
                    after_averaging(self._gradients.accept)
            weights.__iadd__(arrived.detach().double().cpu().numpy())

        losses.register_hook(watch)
        self._losses = [*self._losses, losses.detach()] if earlier else [losses.detach()]
        return losses

    def _about_to_step(self, args: tuple, kwargs: dict) -> None:
        if self._closed:
            return
        if any(callable(given) for given in (*args, *kwargs.values())):
            raise NotSupported(
                "optimizer.step(closure) computes losses that the recorder does not see. Call optimizer.step() without it."
            )
        if not self._inside:
            raise NotReplayable(
                f"optimizer.step() ran outside `with recorder.step(...)` after step {self.steps - 1}."
            )
        if self._stepped:
            raise NotReplayable(
                f"The optimizer stepped twice in one `with recorder.step(...)`, at step {self.steps}."
            )
        assert self._objective is not None
        self._gradients.check_step(self._objective.layout, self.optimizer, self.steps)
        self._stepping = True

    def _has_stepped(self) -> None:
        if self._closed:
            return
        assert self._objective is not None and self._pure is not None and self._writer is not None
        groups = moving_groups(self._objective.layout, self.model, self.optimizer)
        check_same_structure(self._pure, understand(self.optimizer, self._pure.group_sizes, groups))
        numbers = current_numbers(self._pure, groups)
        told = tell(
            self._ranks,
            [micro.simplified() for micro, _ in self._pending],
            self._writer.opens_segment(),
        )
        step = Step(told.micros, numbers, self._epoch, self._clip)
        own = [told.micros[place(k, self._ranks)] for k in range(len(self._pending))]
        batches = [
            Batch(
                batch.x,
                batch.y,
                torch.as_tensor(micro.weights, dtype=self.dtype, device=self.device),
                batch.seed,
            )
            for micro, (_, batch) in zip(own, self._pending)
        ]
        g = self._gradients.flat(self._objective.layout)
        after = self._objective.layout.read(self.model)[0]
        ids = np.concatenate([micro.ids for micro in own])
        check_finite(self.steps, State(after), g, self._losses, ids, kept=self._writer.first)
        if told.opens_segment:
            self._rehearse(step, batches, after)
        self._writer.add(
            step, self._before, None, checksum(batches[0]) if told.opens_segment else 0
        )
        self._after = after
        self._pending, self._clip, self._stepped, self._stepping = [], None, True, False

    def _rehearse(self, step: Step, batches: list[Batch], after: Tensor) -> None:
        """Take the step once more as a pure function, and compare."""
        assert self._objective is not None and self._pure is not None and self._before is not None
        with self._objective.training():
            _, g, _ = take_step(self._objective, self._pure, self._before, step, batches)
            (g,) = self._ranks.total(g)  # each rank rehearses its own batches
            state = advance(self._pure, self._before, step, g, {})
        difference = float((state.theta - after).abs().max())
        moved = float((after - self._before.theta).abs().max())
        if not difference <= 100 * torch.finfo(self.dtype).eps ** 0.5 * max(
            moved, torch.finfo(self.dtype).tiny
        ):
            raise NotReplayable(
                f"Step {self.steps} cannot be reproduced: the optimizer moved the parameters by up to {moved:.2e}, a replay "
                f"differs by {difference:.2e}. Does the loop add something to the loss that is not in the losses it was given (use "
                "penalty=), weight them in a way that is not linear, draw random numbers outside "
                "the model, or change the model by hand?"
            )

    def _discover(self, batch: Batch) -> Objective:
        if not self.model.training:
            raise BadInput("The model is in eval mode: call model.train() before recording a step.")
        self._objective, self._pure = discover(
            self.model, self.optimizer, self._given_loss(), self.penalty, batch.x, batch.y
        )
        check_recordable(self._objective, self._ranks)
        if self._ranks.rank > 0:
            self._writer = NoTape(self.steps)
            return self._objective
        settings = RunSettings(
            objective=self._objective,
            optimizer=self._pure,
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
        state = self._state()
        self._writer = TapeWriter(self.folder, manifest, self.keep, state.nbytes, None)
        if self._earlier is None:
            self._writer.flush(state)
        return self._objective

    def _given_loss(self):
        return self.loss_name if self.loss_name in NAMED else self.loss

    def _state(self) -> State:
        assert self._objective is not None and self._pure is not None
        layout, parameters = self._objective.layout, dict(self.model.named_parameters())
        theta, buffers = layout.read(self.model)
        numbers = current_numbers(self._pure, moving_groups(layout, self.model, self.optimizer))
        slots, clock = read_slots(self._pure, self.optimizer, layout, parameters, theta, numbers)
        return State(theta, {name: slot.clone() for name, slot in slots.items()}, buffers, clock)

    def _restore(self, earlier: dict) -> None:
        """Put the model and the optimizer where the tape left off."""
        layout = Layout.from_json(earlier["layout"], earlier["model"])
        check_signature(earlier["model"], self.model, layout)
        pure = Optimizer.from_json(earlier["optimizer"], layout.group_sizes)
        if earlier["loss"] != self.loss_name or type(self.optimizer).__name__ != pure.name:
            raise TapeMismatch(
                f"The tape was recorded with loss {earlier['loss']} and {pure.name}; this is {self.loss_name} and "
                f"{type(self.optimizer).__name__}. Continue it with the same."
            )
        state = Tape(self.folder).end_state().map(lambda t: t.to(self.device))
        layout.write(state, self.model)
        if earlier["steps"]:
            write_slots(
                pure,
                self.optimizer,
                layout,
                dict(self.model.named_parameters()),
                state.slots,
                state.clock,
            )

    def _check_against_data_set(self, ids: np.ndarray, x: Any, y: Any) -> None:
        """A data set that answers twice differently cannot be replayed; find out at the first batch."""
        if self.instances is None or self._objective is not None:
            return
        seen = tree_leaves((x, y))
        again = tree_leaves(self.instances[ids])
        same = len(seen) == len(again) and all(
            a.shape == b.shape and torch.equal(a, b) for a, b in zip(seen, again)
        )
        if not same:
            raise NotReplayable(
                "The first batch is not what the data set gives for its ids. Record the inputs as the data set has them and pass "
                "random transforms as augment=, which is replayed."
            )

    def _save_what_there_is(self) -> None:
        """After an exception or at exit. Where it struck inside the optimizer, the open segment has no known end and is lost."""
        if not self._closed:
            self._finish(complete=False)

    def _finish(self, complete: bool) -> None:
        self._closed = True
        for handle in self._handles:
            handle.remove()
        atexit.unregister(self._at_exit)
        if self._writer is not None and not self._stepping and (complete or self._is_untouched()):
            state = self._state()
            buffers = self._buffers if self._pending else state.buffers
            self._writer.finish(replace(state, buffers=buffers), complete=complete)
        elif complete and self._earlier is None:
            raise BadInput("Nothing was recorded.")

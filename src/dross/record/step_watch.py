"""Watch what a loop does between one step of its optimizer and the next.

The gradient that arrives at the losses is each instance's weight in the step, and the optimizer's
own hooks say when a step is taken.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..data.batch import Batch, MicroBatch
from ..data.seeds import use_seed
from ..errors import BadInput, NotReplayable, NotSupported
from ..replay.recording import checksum
from ..step.clipping import Clip
from ..step.loss import check_per_instance
from ..step.optimizers import check_same_structure, read_optimizer
from ..step.state import State
from ..step.step import Step
from . import ddp
from .average_watch import AverageWatch
from .finite_check import check_finite
from .gradient_watch import GradientWatch
from .loop_tape import LoopTape, OpenTape, UserLoop
from .rehearsal import check_epoch, rehearse


class StepWatch:
    """The step that a loop is about to take, and its record once it is taken."""

    def __init__(self, loop: UserLoop, tape: LoopTape):
        self.loop, self.tape = loop, tape
        self.gradients = GradientWatch(loop.model)
        self.inside = False  # a `with recorder.step(...)`
        self.stepping = False  # between the optimizer's two hooks
        self._stepped = False  # in this `with recorder.step(...)`
        self._epoch = tape.epoch_before
        self._clip: Clip | None = None
        self._pending: list[tuple[MicroBatch, Batch]] = []  # their gradients wait for a step
        self._losses: list[Tensor] = []  # of the pending micro-batches
        self._before: State | None = None  # the state they were computed from, where it is needed
        self._buffers: dict[str, Tensor] = {}  # before them: a forward pass moves these at once
        self._after: Tensor | None = None  # theta as the last recorded step left it
        self.average: AverageWatch | None = None

    # --- before and after a forward pass ----------------------------------------------------------

    def set_epoch(self, epoch: int | None) -> None:
        """Note the epoch of the next micro-batch, as the loop says it."""
        self._epoch = check_epoch(epoch, self._epoch, self.loop.keep)

    @property
    def position(self) -> tuple[int, int]:
        """The step and the place in it of the next micro-batch. Its random numbers follow it."""
        place = ddp.place_among_ranks(len(self._pending), self.loop.ranks)
        return self.tape.steps, place

    @property
    def pending(self) -> int:
        """How many micro-batches wait for a step."""
        return len(self._pending)

    @contextmanager
    def micro_batch(self, ids: np.ndarray, batch: Batch) -> Iterator[Tensor]:
        """Yields the losses of a micro-batch [B]; what fails inside is undone."""
        before = self._begin(batch)
        weights = np.zeros(len(ids))
        self.inside, self._stepped = True, False
        self._pending.append((MicroBatch(ids, weights), batch))
        try:
            yield self._forward(batch, weights)
        except BaseException:
            if not self._stepped and not self.stepping:
                # once backward() has run, its gradient is mixed with those of the other
                # micro-batches: all of them go
                used = bool(weights.any())
                self._withdraw(self._buffers if used else before, everything=used)
            raise
        finally:
            self.inside = False
        if not self._stepped and not weights.any():
            self._withdraw(before)
            raise NotReplayable(
                "backward() was not called on the losses of this batch, so the batch has no part "
                "in any step."
            )

    def _begin(self, batch: Batch) -> dict[str, Tensor]:
        """Keep the model's state where the tape needs it. Returns the model's buffers."""
        opened = self.tape.open(batch)
        live, writer = opened.live, opened.writer
        buffers = live.layout.read_buffers(self.loop.model)
        self.poll_average()
        if self._pending:
            return buffers
        self.check_untouched()
        if writer.is_full(self._epoch):
            writer.flush(live.read())
        self._before = live.read() if writer.wants_state() else None
        self._buffers = buffers
        return buffers

    def _forward(self, batch: Batch, weights: np.ndarray) -> Tensor:
        """The losses of the user's own model. backward() leaves each one's weight in `weights`."""
        loop, objective = self.loop, self._opened.executor.objective
        with use_seed(loop.device, batch.seed):
            outputs = loop.called(batch.x)
        losses = check_per_instance(loop.loss(outputs, batch.y), len(batch.c))
        if loop.penalty is not None:
            losses = losses + objective.penalty_at(dict(loop.model.named_parameters()))
        accumulating = len(self._pending) > 1

        def watch(arrived: Tensor) -> None:
            if not weights.any():
                given = (objective.layout, self.tape.steps)
                self.gradients.check_start(*given, accumulating=accumulating)
                if ddp.find_ddp(loop.called) is not None:
                    ddp.after_averaging(self.gradients.accept)
            weights.__iadd__(arrived.detach().double().cpu().numpy())

        losses.register_hook(watch)
        self._losses = [*self._losses, losses.detach()] if accumulating else [losses.detach()]
        return losses

    def _withdraw(self, buffers: dict[str, Tensor], everything: bool = False) -> None:
        """Forget the last batch (or all that wait), and what its forward pass did to the model."""
        del self._pending[0 if everything else -1 :]
        self._clip = None
        own = dict(self.loop.model.named_buffers())
        with torch.no_grad():
            for name, value in buffers.items():
                own[name].copy_(value)

    def declare_clip(self, clip: Clip) -> list[Tensor]:
        """Note that the gradient is about to be clipped. Returns the parameters in training."""
        if self._clip is not None:
            raise NotSupported(
                "The gradient is clipped twice in one step: dross follows one clip per step."
            )
        if self.tape.opened is None:
            raise BadInput("There is nothing to clip before the first recorder.step.")
        self._clip = clip
        live = self.tape.opened.live
        parameters = live.parameters
        return [parameters[name] for name in live.layout.names]

    # --- around the optimizer's step --------------------------------------------------------------

    def before_step(self, args: tuple, kwargs: dict) -> None:
        """Refuse a step of the optimizer that could not be replayed. args, kwargs: its own."""
        if any(callable(given) for given in (*args, *kwargs.values())):
            raise NotSupported(
                "optimizer.step(closure) computes losses that the recorder does not see. Call "
                "optimizer.step() without it."
            )
        steps = self.tape.steps
        self.poll_average(halfway=True)
        if not self.inside:
            raise NotReplayable(
                f"optimizer.step() ran outside `with recorder.step(...)` after step {steps - 1}."
            )
        if self._stepped:
            raise NotReplayable(
                f"The optimizer stepped twice in one `with recorder.step(...)`, at step {steps}."
            )
        self.gradients.check_step(self._opened.live.layout, self.loop.optimizer, steps)
        self.stepping = True

    def after_step(self) -> None:
        """Write the step that the optimizer has taken; rehearse it where it opens a segment."""
        opened, ranks, t = self._opened, self.loop.ranks, self.tape.steps
        live, writer = opened.live, opened.writer
        pure = live.optimizer
        check_same_structure(
            pure, read_optimizer(self.loop.optimizer, pure.group_sizes, live.groups)
        )
        own = [micro.simplify() for micro, _ in self._pending]
        shared = ddp.share_step(ranks, own, writer.opens_segment(), self.tape.notes)
        step = Step(shared.micros, live.numbers(), self._epoch, self._clip)
        places = (ddp.place_among_ranks(k, ranks) for k in range(len(own)))
        micros = [shared.micros[place] for place in places]
        pairs = zip(micros, self._pending)
        batches = [replace(batch, c=self._weights(micro)) for micro, (_, batch) in pairs]
        g, after = self.gradients.flat(live.layout), live.read_theta()
        ids = np.concatenate([micro.ids for micro in micros])
        check_finite(t, State(after), g, self._losses, ids, kept=writer.first)
        opens = shared.opens_segment
        if opens:
            assert self._before is not None
            given = (opened.executor, pure, self._before, step, batches, after)
            rehearse(*given, ranks, t)
        writer.add(step, self._before, None, checksum(batches[0]) if opens else 0)
        self._after = after
        self._pending, self._clip, self._stepped, self.stepping = [], None, True, False

    def _weights(self, micro: MicroBatch) -> Tensor:
        return torch.as_tensor(micro.weights, dtype=self.loop.dtype, device=self.loop.device)

    @property
    def _opened(self) -> OpenTape:
        assert self.tape.opened is not None  # by the first micro-batch
        return self.tape.opened

    # --- between steps ----------------------------------------------------------------------------

    @property
    def is_untouched(self) -> bool:
        """Whether the parameters are where the last recorded step left them."""
        if self._after is None:
            return True
        return torch.equal(self._opened.live.read_theta(), self._after)

    def poll_average(self, *, halfway: bool = False) -> None:
        """Note what an averaged model has taken up of the parameters as they are now."""
        if self.average is not None and self.tape.opened is not None:
            halfway = halfway or bool(self._pending)
            self.average.poll(self.tape.steps, self.tape.opened.live, halfway=halfway)

    def check_untouched(self) -> None:
        """Refuse parameters that something other than the optimizer has changed."""
        if not self.is_untouched:
            raise NotReplayable(
                f"The model's parameters were changed after step {self.tape.steps - 1} by "
                "something other than the optimizer (clamping, averaging, loading a checkpoint). "
                "Close the recorder first, or leave them alone while recording."
            )

    @property
    def buffers_before_pending(self) -> dict[str, Tensor] | None:
        """The model's buffers before the micro-batches that wait for a step, if there are any."""
        return self._buffers if self._pending else None

"""Take the planned steps of a run and write them to a tape."""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice

import numpy as np
import torch

from .._progress import progress_bar
from ..data.batch import Augment, LazyBatch, MicroBatch
from ..data.dataset import Instances
from ..engine.device import HostCopy, side_stream
from ..engine.executor import Executor
from ..engine.optim import Optimizer
from ..engine.state import State
from ..engine.step import Clip, Step, take_step, take_steps
from ..errors import DrossError, InvalidInput
from ..replay.recording import checksum
from ..tape.writer import TapeWriter
from .finite_check import check_finite
from .training_plan import BatchPlan

_MAX_UNCHECKED_STEPS = 64
_MAX_UNCHECKED_BYTES = 256 << 20


@dataclass(frozen=True)
class TrainingLoop:
    """Algorithm 1: all that the steps of a run depend on."""

    executor: Executor
    optimizer: Optimizer
    instances: Instances
    plan: BatchPlan
    numbers: np.ndarray  # [T, G, H]: the optimizer's at every step
    augment: Augment | None
    clip: Clip | None
    seed: int

    def run(self, writer: TapeWriter, state: State, progress: bool) -> State:
        """Take the steps that are left. The tape keeps those that were taken, whatever happens."""
        complete, writer.ends = False, {writer.next: state}
        left = self.plan.steps - writer.next
        with self.executor.training(), progress_bar("training", left, show=progress) as advance:
            try:
                state = self._take_all(writer, state, advance)
                complete = True
            except ValueError as error:
                if isinstance(error, DrossError):
                    raise
                raise InvalidInput(
                    f"Step {writer.next} cannot be taken: {error} (BatchNorm cannot train on a "
                    "single instance.)"
                ) from error
            except BaseException as error:
                error.add_note(
                    f"dross: the run at {writer.folder} is kept; dross.train(..., resume=True) "
                    "continues from there."
                )
                raise
            finally:
                writer.finish(complete=complete)
        return state

    def _take_all(self, writer: TapeWriter, state: State, advance: Callable[[int], None]) -> State:
        t, coming = writer.next, self.plan.from_step(writer.next)
        waiting: list[_TakenRow] = []  # not yet checked: a GPU computes the next row meanwhile
        while block := list(islice(coming, _MAX_UNCHECKED_STEPS)):
            steps = [self._step(k, *planned) for k, planned in enumerate(block, start=t)]
            micros = [step.micros for step in steps]
            batches = self.instances.lazy_batches(micros, t, self.seed, self.augment)
            at_once = _count_unchecked(state)
            for k in range(0, len(steps), at_once):
                part = slice(k, k + at_once)
                waiting.append(self._take_row(state, steps[part], batches[part], t + k))
                state = waiting[-1].states[-1]
                if len(waiting) > int(state.theta.is_cuda):
                    self._write(waiting.pop(0), writer, advance)
            t += len(steps)
        for row in waiting:
            self._write(row, writer, advance)
        return state

    def _step(self, t: int, ids: np.ndarray, epoch: int) -> Step:
        micros = (MicroBatch(ids),) if len(ids) else ()
        return Step(micros, self.numbers[t], epoch, self.clip)

    def _take_row(
        self, state: State, steps: list[Step], batches: list[list[LazyBatch]], first: int
    ) -> "_TakenRow":
        states, finite = [state], []
        if any(step.clip for step in steps):
            for step, own in zip(steps, batches):
                after, g, _ = take_step(self.executor, self.optimizer, states[-1], step, own)
                states.append(after)
                finite.append(torch.isfinite(g).all())  # clipping can make it finite again
        else:
            states += take_steps(self.executor, self.optimizer, state, steps, batches)
        seen = {"total": states[-1].theta.sum()}  # finite only if theta is
        seen |= {"finite": torch.stack(finite)} if finite else {}
        return _TakenRow(first, steps, batches, states, HostCopy(seen))

    def _write(self, row: "_TakenRow", writer: TapeWriter, advance: Callable[[int], None]) -> None:
        self._check(row)
        with side_stream(row.states[0].theta.device):
            pairs = zip(row.states, row.states[1:])
            for step, batches, (before, after) in zip(row.steps, row.batches, pairs):
                writer.make_room(step.epoch)
                opens = bool(batches) and writer.opens_segment()
                writer.add(step, before, after, checksum(batches[0]) if opens else 0)
                advance(1)

    def _check(self, row: "_TakenRow") -> None:
        """Find the step that is not finite. Theta stays so after it: the last one shows it."""
        if row.is_finite:
            return
        taken = zip(row.steps, row.batches, row.states)
        for t, (step, batches, before) in enumerate(taken, start=row.first):
            given = (self.executor, self.optimizer, before, step, batches)
            after, g, losses = take_step(*given)
            check_finite(t, after, g, losses, step.ids, kept=row.first)


@dataclass(frozen=True)
class _TakenRow:
    """Steps that have been taken."""

    first: int
    steps: list[Step]
    batches: list[list[LazyBatch]]
    states: list[State]  # before the first step, and after each
    seen: HostCopy

    @property
    def is_finite(self) -> bool:
        seen = self.seen.wait().values()
        finite = (torch.isfinite(t).all() if t.is_floating_point() else t.all() for t in seen)
        return all(bool(each) for each in finite)


def _count_unchecked(state: State) -> int:
    """How many steps to take before checking that they were finite: a GPU waits for the check."""
    if not state.theta.is_cuda:
        return 1
    return max(1, min(_MAX_UNCHECKED_STEPS, _MAX_UNCHECKED_BYTES // max(state.nbytes, 1)))

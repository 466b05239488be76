"""Take the steps of a recorded run again while some instances are absent, K runs side by side.

A replica from which nothing is removed runs beside them. Changes are measured against the replica,
because rounding differs between one model and many and would look like an effect.
"""

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..data.batch import Batch
from ..data.lazy_batch import AnyBatch, LazyBatch
from ..distributed.job_pool import local_workers
from ..engine.device import available_memory, try_to_fit
from ..engine.norms import statistics_of
from ..engine.state import State
from ..engine.step import Step, sum_over_batches, take_step
from ..engine.step import advance as advance_state
from ..errors import Diverged, DrossError, DrossWarning, NotSupported, first_line
from ..replay.average import Average
from ..replay.recording import Recording
from ..replay.replay_check import check_same
from ..support.closeness import ONE_PERCENT, OTHER_ORDER, is_close, size
from ..support.progress import progress_bar

MAX_MODELS_AT_ONCE = 256
_SINGLE_RUNS_IN_A_CHUNK = 16  # in a chunk, where they do not go side by side

Advance = Callable[[int], None]
Buffers = dict[str, Tensor]


def replay_without(
    recording: Recording,
    groups: Sequence[np.ndarray],
    *,
    window: tuple[int, int],
    absent: str,
    progress: bool,
    average: Average | None = None,
) -> Iterator[State]:
    """States with a leading axis, in chunks: the replica first, then the groups in their order.

    average: the runs' averages take the place of their last states.
    """
    first, stop = window
    start = recording.state_at(first)
    recording.check_unchanged()
    executor, runs = (
        recording.executor,
        CounterfactualRuns(recording, start, first, stop, absent, average),
    )
    together = absent == "weight" or runs.batchnorm_can_skip_absent(groups)
    count = _even_size(len(groups), _count_fitting(recording, start, first))
    count = count if together else _SINGLE_RUNS_IN_A_CHUNK
    total, at = (stop - first) * len(groups), 0
    nothing = np.zeros(0, dtype=np.int64)
    with progress_bar("counterfactual runs", total, show=progress, unit="model steps") as advance:
        while at < len(groups):
            chunk = [nothing, *groups[at : at + count]]
            if not together:
                replica = runs.replay_alone(nothing, lambda _: None)
                others = [runs.replay_alone(group, advance) for group in chunk[1:]]
                yield runs.stack([replica, *others])
                at += len(chunk) - 1
                continue
            attempt = _Attempt(advance)
            try:
                replay, free = partial(runs.replay_together, chunk, attempt), executor.free_memory
                states = try_to_fit(replay, count, what="models at once", free=free)
            except (DrossError, torch.OutOfMemoryError):
                raise
            except (RuntimeError, ValueError, NotImplementedError) as error:
                together, count = False, _SINGLE_RUNS_IN_A_CHUNK
                attempt.take_back()
                _warn_of_one_by_one(error, len(groups))
                continue
            if states is None:
                count = _even_size(len(groups) - at, count // 2)
                attempt.take_back()
                continue
            yield states
            at += len(chunk) - 1


class _Attempt:
    """Moves a progress bar for models side by side; the replica among them does not count."""

    def __init__(self, advance: Advance):
        self.advance, self.done = advance, 0

    def __call__(self, models: int) -> None:
        """All of them have taken a step."""
        self.done += models - 1
        self.advance(models - 1)

    def take_back(self) -> None:
        """The steps have to be taken once more."""
        self.advance(-self.done)


def _warn_of_one_by_one(error: Exception, count: int) -> None:
    warnings.warn(
        f"Many copies of this model cannot run at once ({first_line(error)}): {count} "
        "counterfactual runs will be done one after the other, which takes longer and gives the "
        "same numbers.",
        DrossWarning,
        stacklevel=3,
    )


@dataclass(frozen=True)
class CounterfactualRuns:
    """Steps first..stop-1 of a recorded run, from its state `start` on, with instances absent."""

    recording: Recording
    start: State
    first: int
    stop: int
    absent: str  # "weight" or "batch": see counterfactual.ABSENT
    average: Average | None = None  # how the runs are averaged

    def replay_together(self, groups: Sequence[np.ndarray], advance: Advance) -> State:
        """The states without each group, side by side: a leading axis [K]."""
        executor, optimizer = self.recording.executor, self.recording.optimizer
        count, device, cut = len(groups), self.recording.device, self.absent == "batch"
        present = torch.from_numpy(self._present(groups)).to(device)
        state = self.start.map(lambda t: t.expand(count, *t.shape).contiguous())
        checked = False  # whether a step of the replica was compared with that step taken alone
        total = self._add(None, state, self.first)
        with executor.training():
            for t, step, batches in self.recording.recorded_steps(self.first, self.stop):
                if not checked and cut:
                    self._check_cuts(step, batches)

                thetas, scale = state.theta, step.scale

                def gradients(batch: LazyBatch, buffers: Buffers, thetas=thetas, scale=scale):
                    w = present[:, batch.ids.to(device)].to(batch.c)  # [K, B]
                    return executor.gradients(thetas, buffers, batch.scaled(scale), w, cut)

                g, buffers = sum_over_batches(batches, state.buffers, gradients, state.theta)
                checked = checked or self._check_replica(state, g, step, batches)
                state = advance_state(optimizer, state, step, g, buffers)
                total = self._add(total, state, t + 1)
                advance(count)
        state = _check_finite(state)
        return state if self.average is None else self.average.of_runs(total, state)

    def stack(self, runs: Sequence[tuple[State, State | None]]) -> State:
        """What `replay_together` gives, of runs that were taken one after the other."""
        state = State.stack([state for state, _ in runs])
        if self.average is None:
            return state
        totals = [total for _, total in runs if total is not None]
        return self.average.of_runs(State.stack(totals) if totals else None, state)

    def _add(self, total: State | None, state: State, t: int) -> State | None:
        return None if self.average is None else self.average.add(total, state, t)

    def replay_alone(self, group: np.ndarray, advance: Advance) -> tuple[State, State | None]:
        """The state without one group, by the same function that trained the model; and the sum
        that makes its average.

        With nothing removed it must arrive where the training did.
        """
        executor, optimizer, state = self.recording.executor, self.recording.optimizer, self.start
        total = self._add(None, state, self.first)
        with executor.training():
            for t, step, all_batches in self.recording.recorded_steps(self.first, self.stop):
                batches, w = self._what_is_left(step, all_batches, group)
                try:
                    state, _, _ = take_step(executor, optimizer, state, step, batches, w)
                except ValueError as error:
                    raise NotSupported(
                        f"Step {t} cannot be taken with what is left of its batch: {error}"
                    ) from error
                total = self._add(total, state, t + 1)
                advance(1)
        state = _check_finite(state)
        if not len(group):
            expected = self.recording.state_at(self.stop)
            check_same(state, expected, self.stop, self.recording.tape)
        return state, total

    def _present(self, groups: Sequence[np.ndarray]) -> np.ndarray:
        """bool [K, N]: which instances each run has."""
        present = np.ones((len(groups), len(self.recording.instances)), dtype=bool)
        for k, group in enumerate(groups):
            present[k, group] = False
        return present

    def _what_is_left(
        self, step: Step, batches: Sequence[AnyBatch], group: np.ndarray
    ) -> tuple[Sequence[AnyBatch], list[Tensor] | None]:
        """What a model sees of a step when a group is absent, and with which weights."""
        present = [~np.isin(micro.ids, group) for micro in step.micros]
        if self.absent == "batch":
            pairs = zip(batches, present)
            return [batch.load().select(mask) for batch, mask in pairs if mask.any()], None
        return batches, [_as_weights(mask, batch) for mask, batch in zip(present, batches)]

    # --- whether models may go side by side -------------------------------------------------------

    def batchnorm_can_skip_absent(self, groups: Sequence[np.ndarray]) -> bool:
        """Whether BatchNorm can leave absent instances out, in every batch of every run.

        It has no statistics of a single instance, and none of an empty batch.
        """
        objective = self.recording.objective
        if not set(objective.layout.moving_buffers) <= set(statistics_of(objective.model)):
            return False
        if not objective.layout.moving_buffers:
            return True
        for start in range(0, len(groups), MAX_MODELS_AT_ONCE):
            present = self._present(groups[start : start + MAX_MODELS_AT_ONCE])
            steps = self.recording.recorded_steps(self.first, self.stop)
            micros = (micro for _, step, _ in steps for micro in step.micros)
            if not all(present[:, micro.ids].sum(1).min() > 1 for micro in micros):
                return False
        return True

    def _check_cuts(self, step: Step, batches: Sequence[LazyBatch]) -> None:
        """Find a layer that mixes instances and does not leave absent ones out.

        Tried on a batch that lacks every second instance.
        """
        executor, start = self.recording.executor, self.start
        for micro, batch in zip(step.micros, batches):
            mask = np.arange(len(micro.ids)) % 2 == 0
            if mask.sum() < 2:
                continue
            one, loaded = start.map(lambda t: t[None]), batch.load()
            w = _as_weights(mask, batch)[None]
            together, _ = executor.plain_gradients(loaded, one.theta, one.buffers, w, True)
            rest = loaded.select(mask)
            alone, _, _ = executor.plain_gradient(rest, start.theta, start.buffers, None)
            if not is_close(together[0], alone, ONE_PERCENT):
                raise RuntimeError("its layers see the absent instances of a batch")

    def _check_replica(
        self, state: State, g: Tensor, step: Step, batches: Sequence[AnyBatch]
    ) -> bool:
        """Check that the replica, which comes first, takes the same step side by side as alone.

        Inside vmap some layers draw other random numbers. False: the gradient is 0, so nothing was
        compared.
        """
        executor, optimizer = self.recording.executor, self.recording.optimizer
        nobody = np.zeros(0, dtype=np.int64)
        batches, w = self._what_is_left(step, batches, nobody)
        own = state.map(lambda t: t[0])
        _, alone, _ = take_step(executor, optimizer, own, step, batches, w)
        if not is_close(g[0], alone, OTHER_ORDER):
            raise RuntimeError("inside vmap it takes a different step than alone")
        return size(alone, OTHER_ORDER) > 0


def _as_weights(present: np.ndarray, batch: AnyBatch | Batch) -> Tensor:
    return torch.as_tensor(present, device=batch.c.device).to(batch.c)


def _check_finite(state: State) -> State:
    if not bool(torch.isfinite(state.theta).all()):  # nan persists, so the end is enough
        raise Diverged(
            "A counterfactual run diverged: its parameters are not finite at the end. Lower the "
            "rate of the run."
        )
    return state


# --- how many fit ---------------------------------------------------------------------------------


def _count_fitting(recording: Recording, state: State, first: int) -> int:
    """How many models fit side by side.

    Each needs its state a few times over and the activations of one forward pass.
    """
    batch = _first_batch(recording, first)
    if batch is None:
        return MAX_MODELS_AT_ONCE
    saved = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    watch = torch.autograd.graph.saved_tensors_hooks(count, lambda t: t)
    with recording.executor.training(), watch:
        recording.executor.plain_gradient(batch.load(), state.theta, state.buffers, None)
    # a careful guess, not a measurement: activations and their gradients under vmap; the state, its
    # gradient, update and copies; who is present. Where it is too low, try_to_fit halves.
    each = 3 * saved + 6 * state.nbytes + len(recording.instances)
    available = available_memory(recording.device) // 3
    if (allowed := recording.memory_limit) is not None:
        available = min(available, allowed - each)  # the replica beside them
    return int(max(1, min(MAX_MODELS_AT_ONCE, available // local_workers() // each)))


def _first_batch(recording: Recording, first: int) -> LazyBatch | None:
    """The first batch of the segment that holds step `first`, or of one after it."""
    later = recording.find_segments(first, recording.tape.steps)
    if not later:
        return None
    segment = recording.segment(later[0])
    all_batches = recording.batches(segment.first, segment.steps)
    return next((batch for batches in all_batches for batch in batches), None)


def _even_size(count: int, most: int) -> int:
    """The size of about equal chunks of at most `most`: a GPU captures one graph per size."""
    chunks = math.ceil(count / max(1, most))
    return math.ceil(count / chunks) if count else 1

"""Take the steps of a recorded run again while some instances are absent, K runs side by side.

Together with them goes a replica from which nothing is removed: a change is measured against that
replica, so that rounding, which differs between one model and many, does not pass for an effect.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from ..autodiff.batchnorm import statistics_of
from ..data.batch import Batch
from ..data.lazy_batch import AnyBatch, LazyBatch
from ..errors import DrossError, DrossWarning, NotFinite, NotSupported, first_line
from ..execution.memory import try_to_fit
from ..parallel.job_pool import local_workers
from ..replay.recording import Recording
from ..replay.replay_check import check_same
from ..replay.take_steps import sum_over_batches, take_step
from ..step.state import State
from ..step.step import Step, advance
from ..support.closeness import ONE_PERCENT, OTHER_ORDER, is_close, size
from ..support.progress import progress_bar

MAX_MODELS_AT_ONCE = 256
_MODELS_ONE_BY_ONE = 16  # in a chunk, where they do not go side by side

Advance = Callable[[int], None]
Buffers = dict[str, Tensor]


def replay_without(
    recording: Recording,
    groups: Sequence[np.ndarray],
    *,
    window: tuple[int, int],
    absent: str,
    progress: bool,
) -> Iterator[State]:
    """States with a leading axis, in chunks: the replica first, then the groups in their order."""
    first, stop = window
    start = recording.state_at(first)
    recording.check_unchanged()
    runs = CounterfactualRuns(recording, start, first, stop, absent)
    together = absent == "weight" or runs.batches_may_be_cut(groups)
    count = _even_size(len(groups), _count_fitting(recording, start, first)) if together else 1
    total, at = (stop - first) * (len(groups) + 1), 0
    nothing = np.zeros(0, dtype=np.int64)
    with progress_bar("counterfactual runs", total, show=progress, unit="model steps") as show:
        while at < len(groups):
            chunk = [nothing, *groups[at : at + count]]
            if not together:
                yield State.stack([runs.replay_alone(group, show) for group in chunk])
                at += len(chunk) - 1
                continue
            try:
                states = try_to_fit(
                    partial(runs.replay_together, chunk, show),
                    count,
                    what="models at once",
                    free=recording.executor.free_memory,
                )
            except (DrossError, torch.OutOfMemoryError):
                raise
            except (RuntimeError, ValueError, NotImplementedError) as error:
                together, count = False, _MODELS_ONE_BY_ONE
                _warn_of_one_by_one(error, len(groups))
                continue
            if states is None:
                count = _even_size(len(groups) - at, count // 2)
                continue
            yield states
            at += len(chunk) - 1


def _warn_of_one_by_one(error: Exception, count: int) -> None:
    warnings.warn(
        f"This model cannot be run many at once ({first_line(error)}): {count} counterfactual runs "
        "will be done one after the other, which takes longer and gives the same numbers.",
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

    def replay_together(self, groups: Sequence[np.ndarray], show: Advance) -> State:
        """The states without each group, side by side: a leading axis [K]."""
        executor, optimizer = self.recording.executor, self.recording.optimizer
        count, device, cut = len(groups), self.recording.device, self.absent == "batch"
        present = torch.from_numpy(self._present(groups)).to(device)
        state = self.start.map(lambda t: t.expand(count, *t.shape).contiguous())
        checked = False  # the replica's steps are compared with steps taken alone
        with executor.training():
            for _, step, batches in self.recording.recorded_steps(self.first, self.stop):
                if not checked and cut:
                    self._check_cuts(step, batches)

                def gradients(batch: LazyBatch, buffers: Buffers) -> tuple[Tensor, Buffers]:
                    w = present[:, batch.ids.to(device)].to(batch.c)  # [K, B]
                    return executor.gradients(state.theta, buffers, batch, w, cut)  # noqa: B023

                g, buffers = sum_over_batches(batches, state.buffers, gradients, state.theta)
                checked = checked or self._check_row(0, groups[0], state, g, step, batches)
                state = advance(optimizer, state, step, g, buffers)
                show(count)
        return _check_finite(state)

    def replay_alone(self, group: np.ndarray, show: Advance) -> State:
        """The state without one group, through the very function that trained the model.

        With nothing removed it must arrive where that did.
        """
        executor, optimizer, state = self.recording.executor, self.recording.optimizer, self.start
        with executor.training():
            for t, step, all_batches in self.recording.recorded_steps(self.first, self.stop):
                batches, w = self._what_is_left(step, all_batches, group)
                try:
                    state, _, _ = take_step(executor, optimizer, state, step, batches, w)
                except ValueError as error:
                    raise NotSupported(
                        f"Step {t} cannot be taken with what is left of its batch: {error}"
                    ) from error
                show(1)
        state = _check_finite(state)
        if not len(group):
            expected = self.recording.state_at(self.stop)
            check_same(state, expected, self.stop, self.recording.tape)
        return state

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

    # --- whether models may go side by side -----------------------------------------------------------

    def batches_may_be_cut(self, groups: Sequence[np.ndarray]) -> bool:
        """Whether BatchNorm can be told who is present, in every batch of every run.

        It has no statistics of one instance, and none of an empty batch.
        """
        objective = self.recording.objective
        if not set(objective.layout.moving) <= set(statistics_of(objective.model)):
            return False
        if not objective.layout.moving:
            return True
        for start in range(0, len(groups), MAX_MODELS_AT_ONCE):
            present = self._present(groups[start : start + MAX_MODELS_AT_ONCE])
            steps = self.recording.recorded_steps(self.first, self.stop)
            micros = (micro for _, step, _ in steps for micro in step.micros)
            if not all(present[:, micro.ids].sum(1).min() > 1 for micro in micros):
                return False
        return True

    def _check_cuts(self, step: Step, batches: Sequence[LazyBatch]) -> None:
        """Find a layer that mixes instances and does not know who is present.

        A batch that lacks every second instance shows it.
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

    def _check_row(
        self,
        k: int,
        group: np.ndarray,
        state: State,
        g: Tensor,
        step: Step,
        batches: Sequence[AnyBatch],
    ) -> bool:
        """Side by side, a model must take the step that it takes alone.

        Inside vmap some layers draw other random numbers, and a layer that mixes the instances of a
        batch may not know who is present. False: this step has nothing to compare.
        """
        executor, optimizer = self.recording.executor, self.recording.optimizer
        batches, w = self._what_is_left(step, batches, group)
        own = state.map(lambda t: t[k])
        _, alone, _ = take_step(executor, optimizer, own, step, batches, w)
        if not is_close(g[k], alone, OTHER_ORDER):
            raise RuntimeError("inside vmap it takes another step than alone")
        return size(alone, OTHER_ORDER) > 0


def _as_weights(present: np.ndarray, batch: AnyBatch | Batch) -> Tensor:
    return torch.as_tensor(present, device=batch.c.device).to(batch.c)


def _check_finite(state: State) -> State:
    if not bool(torch.isfinite(state.theta).all()):  # once nan, always nan: the end tells
        raise NotFinite(
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
    each = 3 * saved + 6 * state.nbytes + len(recording.instances)
    available = _available_memory(recording.device) // 3
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
    """The size of about equal chunks of at most so many: a GPU's graph is captured for a size."""
    return max(1, -(-count // -(-count // max(1, most)))) if count else 1


def _available_memory(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="utf-8") as lines:
            line = next(line for line in lines if line.startswith("MemAvailable"))
            return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        if not hasattr(os, "sysconf"):
            return 2 << 30
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2

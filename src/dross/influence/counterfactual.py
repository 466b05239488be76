"""The same run with some instances absent: the ground truth of every score.

Removing z_j sets its weight to 0 while |S_t| stays in the divisor, as in the paper's counterfactual
SGD. How the runs are computed: counterfactual_runs.py.

Take the steps of a recorded run again while some instances are absent, K runs side by side.

A replica from which nothing is removed runs beside them. Changes are measured against the replica,
because rounding differs between one model and many and would look like an effect.
"""

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from .._checks import check_folder
from .._progress import progress_bar
from ..data.batch import AnyBatch, Batch, LazyBatch
from ..distributed.jobs import ResultStore, local_workers, sweep, uses_workers
from ..engine.device import available_memory, try_to_fit
from ..engine.norms import statistics_of
from ..engine.state import Clock, State
from ..engine.step import Step, sum_over_batches, take_step
from ..engine.step import advance as advance_state
from ..engine.tolerance import ONE_PERCENT, OTHER_ORDER, is_close, size
from ..errors import Diverged, DrossError, DrossWarning, InvalidInput, NotSupported, first_line
from ..replay.recording import AVERAGE, MODEL, Average, Recording, check_of
from ..replay.segments import check_same
from .query import Query, as_query

#: the two ways to be absent
ABSENT = {
    "weight": "weight 0 in the loss, still part of the batch that BatchNorm sees: what a score is "
    "the derivative of",
    "batch": "gone from the batch and from its statistics: what training on the cleansed data does",
}
# each piece has a replica of its own, and many models at once are faster than few
_PIECES, _MIN_GROUPS_IN_A_PIECE = 16, 32


@dataclass(frozen=True)
class Counterfactual:
    """K models, each trained without its group of instances. Made by `Run.counterfactual`.

        without = run.counterfactual([[3], [5, 8]])
        without.changes(dross.mean_loss((X_val, y_val)))      # float64 [2]

    Changes are measured against a replica that kept every instance.
    """

    groups: tuple[np.ndarray, ...]  # the ids that each model lacks
    recording: Recording
    chunks: tuple[State, ...]  # in each, row 0 is the replica, the others are groups in order

    def evaluate(self, query: Query) -> np.ndarray:
        """The query at every counterfactual model.

        Arguments:
            query: as for `Run.influence`.

        Returns:
            float64 [K], or [Q, K] for a query of Q values.

        Raises:
            InvalidInput: where the query does not fit the model.
        """
        return np.concatenate([values[..., 1:] for values in self._values(query)], axis=-1)

    def changes(self, query: Query) -> np.ndarray:
        """query(without the group) - query(with it), for every group.

        Arguments, Returns, Raises: as for `evaluate`.
        """
        return np.concatenate([_compare(values) for values in self._values(query)], axis=-1)

    def parameters(self, k: int) -> dict[str, Tensor]:
        """The parameters of the model without group k.

        Arguments:
            k: the number of the group, from 0.

        Returns:
            A dict of name -> tensor.

        Raises:
            InvalidInput: where there is no group k.
        """
        if not 0 <= k < len(self.groups):
            raise InvalidInput(
                f"There are {len(self.groups)} counterfactual models, numbered from 0; {k} is not "
                "one of them."
            )
        for chunk in self.chunks:
            if k < len(chunk.theta) - 1:
                return self.recording.objective.layout.unflatten(chunk.theta[k + 1])
            k -= len(chunk.theta) - 1
        raise AssertionError("unreachable")

    def _values(self, query: Query) -> Iterator[np.ndarray]:
        for chunk in self.chunks:
            yield as_query(query).evaluate_many(self.recording.objective, chunk).cpu().numpy()

    def __repr__(self) -> str:
        return f"<Counterfactual: {len(self.groups)} runs, each without its group of instances>"


@dataclass(frozen=True)
class HowToRun:
    """How counterfactual runs are computed. The numbers do not depend on it."""

    progress: bool = False
    n_jobs: int | None = None  # workers, -1 for one per core
    folder: str | os.PathLike | None = None  # where results are kept, piece by piece

    def __post_init__(self):
        if self.folder is not None:
            check_folder(self.folder, "folder")

    @property
    def in_pieces(self) -> bool:
        """Whether the work is cut into pieces, for workers or for a folder."""
        return self.folder is not None or uses_workers(self.n_jobs)


def counterfactual(
    recording: Recording, groups: Iterable, window: tuple[int, int], absent: str, how: HowToRun
) -> Counterfactual:
    """The models without each group of instances.

    Arguments:
        recording: the run.
        groups: the ids of each group.
        window: from which step to which the groups are absent.
        absent: one of ABSENT.
        how: how to compute them.
    """
    checked = check_groups(recording, groups)
    models = _Models(recording, window, _check_absent(absent), how.progress)
    if not how.in_pieces:
        return Counterfactual(tuple(checked), recording, tuple(models.chunks(checked)))
    found = _sweep(models, models.about(), (), checked, how)
    clock = recording.state_at(window[1]).clock  # counts steps: the same for every model
    chunks = [chunk for part in found for chunk in _unpack(part, clock, recording.device)]
    return Counterfactual(tuple(checked), recording, tuple(chunks))


def leave_one_out(
    recording: Recording,
    query: Query,
    instances: np.ndarray,
    window: tuple[int, int],
    absent: str,
    how: HowToRun,
    of: str = MODEL,
) -> np.ndarray:
    """The true change of the query without each instance: [K], or [Q, K].

    Each model is dropped once it has been asked. Arguments: as for `counterfactual`; of: MODEL, or
    AVERAGE for the averaged weights.
    """
    average = recording.average() if check_of(of) else None
    # a query that does not fit fails now, not after the runs
    state = recording.state_at(window[1]) if average is None else average.state
    values = query.evaluate(recording.objective, state).cpu().numpy()
    groups = [np.array([j]) for j in instances]
    models = _Models(recording, window, _check_absent(absent), how.progress, average)
    changes = _Changes(models, query)
    if not how.in_pieces:
        return changes(groups)["changes"].numpy()
    about = models.about() | {"query": query.name, "values": values.size}
    found = _sweep(changes, about, (float(values.mean()), float(values.std())), groups, how)
    return np.concatenate([part["changes"].numpy() for part in found], axis=-1)


def check_groups(recording: Recording, groups: Iterable) -> list[np.ndarray]:
    """The ids of each group, without repetitions."""
    if not isinstance(groups, Iterable):
        raise InvalidInput(f"groups must be a list with one list of ids per run, not {groups!r}.")
    checked = [np.unique(recording.instances.check(group, "Ids to remove")) for group in groups]
    if not checked:
        raise InvalidInput("There is nothing to compute: pass at least one group of instance ids.")
    return checked


def _check_absent(absent: str) -> str:
    if absent not in ABSENT:
        ways = "; ".join(f"{name}: {meaning}" for name, meaning in ABSENT.items())
        raise InvalidInput(f"absent='{absent}' is not known. Choose one of these: {ways}.")
    return absent


# --- in pieces ------------------------------------------------------------------------------------


def _sweep(
    work: "_Models | _Changes",
    about: dict,
    numbers: tuple[float, ...],
    groups: Sequence[np.ndarray],
    how: HowToRun,
) -> list[dict[str, Tensor]]:
    """The results of all groups, in order.

    The pieces do not depend on the number of workers: any number gives the same bits, and can
    continue what another number left unfinished.
    """
    even = -(-len(groups) // _PIECES)
    size = min(MAX_MODELS_AT_ONCE, max(_MIN_GROUPS_IN_A_PIECE, even))
    pieces = [list(groups[at : at + size]) for at in range(0, len(groups), size)]
    about = about | {"groups": _digest(groups), "piece": size}
    store = None if how.folder is None else ResultStore(Path(how.folder).absolute(), about, numbers)
    what = "counterfactual runs"
    results = sweep(work, pieces, what=what, n_jobs=how.n_jobs, store=store, progress=how.progress)
    found = dict(results)
    return [found[number] for number in range(len(pieces))]


def _digest(groups: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for group in groups:
        digest.update(len(group).to_bytes(8, "little") + group.astype("<i8").tobytes())
    return digest.hexdigest()


@dataclass(frozen=True)
class _Models:
    """The models without some groups, wherever they are computed."""

    recording: Recording
    window: tuple[int, int]
    absent: str
    progress: bool
    average: Average | None = None  # of each run, instead of its end

    def about(self) -> dict:
        tape = self.recording.tape.manifest.id
        about = {"tape": tape, "window": list(self.window), "absent": self.absent}
        return about if self.average is None else about | {"of": AVERAGE}

    def chunks(self, groups: Sequence[np.ndarray]) -> Iterator[State]:
        options = {"window": self.window, "absent": self.absent, "progress": self.progress}
        return replay_without(self.recording, groups, **options, average=self.average)

    def __call__(self, groups: Sequence[np.ndarray]) -> dict[str, Tensor]:
        chunks = [chunk.map(lambda t: t.cpu()).tensors() for chunk in self.chunks(groups)]
        return {f"{k}/{name}": t for k, chunk in enumerate(chunks) for name, t in chunk.items()}


@dataclass(frozen=True)
class _Changes:
    """The changes of a query at those models, which are dropped."""

    models: _Models
    query: Query

    def __call__(self, groups: Sequence[np.ndarray]) -> dict[str, Tensor]:
        objective = self.models.recording.objective
        chunks = self.models.chunks(groups)
        parts = [_compare(self.query.evaluate_many(objective, chunk).cpu()) for chunk in chunks]
        return {"changes": torch.cat(parts, dim=-1)}


def _unpack(named: dict[str, Tensor], clock: Clock, device: torch.device) -> Iterator[State]:
    for k in sorted({int(name.split("/")[0]) for name in named}):
        prefix = f"{k}/"
        own = {n.removeprefix(prefix): t for n, t in named.items() if n.startswith(prefix)}
        yield State.from_tensors({n: t.to(device) for n, t in own.items()}, clock)


def _compare(values):
    """The changes against the replica, which comes first."""
    return values[..., 1:] - values[..., :1]


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

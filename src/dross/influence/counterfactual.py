"""The same run without some instances: the ground truth of every score.

Removing z_j sets its weight to 0 while |S_t| stays in the divisor, as in the paper's counterfactual
SGD. The steps of the recorded run are taken again, K runs side by side. A replica from which nothing
is removed runs beside them. Changes are measured against the replica, because rounding differs
between one model and many and would look like an effect.
"""

import hashlib
import math
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from operator import itemgetter
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import torch
from torch import Tensor

from .._checks import check_folder, check_name
from .._progress import progress_bar
from ..data.batch import AnyBatch, Batch, LazyBatch
from ..distributed.jobs import ResultStore, local_workers, sweep, uses_workers
from ..engine.device import available_memory, mean_seconds
from ..engine.memory import halve
from ..engine.norms import statistics_of
from ..engine.state import GroupCounters, State
from ..engine.step import Step, sum_over_batches, take_step
from ..engine.step import advance as advance_state
from ..engine.tolerance import ONE_PERCENT, OTHER_ORDER, is_close, size
from ..errors import Diverged, DrossError, DrossWarning, InvalidInput, NotSupported, first_line
from ..replay.average import MODEL, Average, FinalModel
from ..replay.recording import Recording
from ..replay.schedule import StepRange
from ..replay.segments import check_same
from .query import Query, as_query

#: loss: weight 0, still part of the batch that BatchNorm sees; what a score is the derivative of.
#: data: gone from the batch and from its statistics; what training on the cleansed data does.
Removal = Literal["loss", "data"]
Buffers = dict[str, Tensor]
Advance = Callable[[int], None]

MAX_MODELS_AT_ONCE = 256
_MEASURED_MODELS = 32  # side by side, to estimate how long runs take
_SINGLE_RUNS_IN_A_CHUNK = 16  # where they do not go side by side
# each piece of a sweep has a replica of its own, and many models at once are faster than few
_PIECES = 16
_MIN_GROUPS_IN_A_PIECE = 32
_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Counterfactual:
    """K models, each trained without its group of instances. Made by `Run.counterfactual`.

        without = run.counterfactual([[3], [5, 8]])
        without.changes(dross.mean_loss((X_val, y_val)))      # float64 [2]

    Changes are measured against a replica that kept every instance.
    """

    groups: tuple[np.ndarray, ...]  # the ids left out of each model's training
    recording: Recording
    chunks: tuple[State, ...]  # row 0 of each is the replica; the others are the groups in order

    def evaluate(self, query: Query) -> np.ndarray:
        """The query at every counterfactual model.

        Arguments:
            query: as for `Run.influence`.

        Returns:
            float64 [K], or [Q, K] for a query of Q values.

        Raises:
            InvalidInput: if the query does not fit the model.
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
            InvalidInput: if there is no group k.
        """
        if not 0 <= k < len(self.groups):
            raise InvalidInput(
                f"There are {len(self.groups)} counterfactual models, numbered from 0; there is no "
                f"model {k}."
            )
        rows = [row for chunk in self.chunks for row in chunk.theta[1:]]
        return self.recording.objective.layout.unflatten(rows[k])

    def _values(self, query: Query) -> Iterator[np.ndarray]:
        for chunk in self.chunks:
            yield as_query(query).evaluate_many(self.recording.objective, chunk).cpu().numpy()

    def __repr__(self) -> str:
        return f"<Counterfactual: {len(self.groups)} runs, each without its group of instances>"


@dataclass(frozen=True)
class SweepOptions:
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
    recording: Recording,
    groups: Iterable,
    steps: StepRange,
    removal: Removal,
    options: SweepOptions,
    weights: str = MODEL,
) -> Counterfactual:
    """The models without each group of instances.

    Arguments:
        recording: the run.
        groups: the ids of each group.
        steps: those from which the groups are removed.
        removal: how.
        options: how to compute them.
        weights: as for `Recording.model`.
    """
    groups = list(groups) if isinstance(groups, Iterable) else groups
    if not isinstance(groups, list) or any(np.ndim(group) == 0 for group in groups):
        raise InvalidInput(
            f"groups must be a list with one list of ids per run, not {groups!r:.60}. For one run "
            "without all of these instances, pass [ids]."
        )
    checked = [np.unique(recording.instances.check_ids(group, "Ids to remove")) for group in groups]
    if not checked:
        raise InvalidInput("There is nothing to compute: pass at least one group of instance ids.")
    runs = CounterfactualRuns(recording, steps, removal, options.progress, weights)
    if not options.in_pieces:
        return Counterfactual(tuple(checked), recording, tuple(runs.chunks(checked)))
    packed = _sweep(runs.pack, runs.settings, (), checked, options)
    counters = recording.state_at(steps.stop).counters  # counts steps: the same for every model
    chunks = [chunk for part in packed for chunk in _unpack(part, counters, recording.device)]
    return Counterfactual(tuple(checked), recording, tuple(chunks))


def leave_one_out(
    recording: Recording,
    query: Query,
    instances: np.ndarray,
    steps: StepRange,
    removal: Removal,
    options: SweepOptions,
    weights: str = MODEL,
) -> np.ndarray:
    """The true change in the query without each instance: [K], or [Q, K].

    It is nan if no step used the instance: there is no run without it. Arguments: as for
    `leave_out`.
    """
    used = recording.used_instances(steps.first, steps.stop)[instances]
    groups = [np.array([j]) for j in instances[used]]
    found = leave_out(recording, query, groups, steps, removal, options, weights)
    changes = np.full((*found.shape[:-1], len(instances)), np.nan)
    changes[..., used] = found
    return changes


def leave_out(
    recording: Recording,
    query: Query,
    groups: Sequence[np.ndarray],
    steps: StepRange,
    removal: Removal,
    options: SweepOptions,
    weights: str = MODEL,
) -> np.ndarray:
    """The true change in the query without each group of instances: [K], or [Q, K].

    Each model is dropped once it has been queried. Arguments: as for `counterfactual`; weights: as
    for `Recording.model`.
    """
    # a query that does not fit fails now, not after the runs
    state = recording.model(weights, steps.stop).state
    values = query.evaluate(recording.objective, state).cpu().numpy()
    if not groups:
        return np.zeros((*values.shape, 0))
    runs = CounterfactualRuns(recording, steps, removal, options.progress, weights)
    if not options.in_pieces:
        return runs.changes(query, groups)["changes"].numpy()
    settings = runs.settings | {"query": query.name, "values": values.size}
    numbers = (float(values.mean()), float(values.std()))
    results = _sweep(partial(runs.changes, query), settings, numbers, groups, options)
    return np.concatenate([part["changes"].numpy() for part in results], axis=-1)


@dataclass(frozen=True)
class SweepCost:
    """What counterfactual runs take in seconds, estimated from one step that was measured."""

    training: float  # of the recorded steps, taken once more
    each: float  # of one counterfactual run among others

    def seconds(self, count: int) -> float:
        """Of that many runs and the replica beside them."""
        return (count + 1) * self.each


# --- the runs -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CounterfactualRuns:
    """Some steps of a recorded run, taken again without groups of instances."""

    recording: Recording
    steps: StepRange
    removal: Removal
    progress: bool = False
    weights: str = MODEL

    def __post_init__(self):
        check_name("removal", self.removal, get_args(Removal))

    @property
    def settings(self) -> dict:
        """All that decides the results beside the groups."""
        return {
            "tape": self.recording.tape.manifest.id,
            "steps": [self.steps.first, self.steps.stop],
            "removal": self.removal,
            "weights": self.weights,
        }

    @cached_property
    def start(self) -> State:
        """The state before the first step."""
        return self.recording.state_at(self.steps.first)

    @cached_property
    def model(self) -> FinalModel | Average:
        """What of each run is wanted: its last state, or an average."""
        return self.recording.model(self.weights, self.steps.stop)

    def measure(self) -> SweepCost:
        """What runs will take: one step is taken alone, and by several models side by side."""
        recording = self.recording
        sizes: list[int] = []
        first: tuple[Step, list[LazyBatch]] | None = None
        for _, step, batches in recording.recorded_steps(self.steps.first, self.steps.stop):
            sizes.append(len(step.ids))
            first = (step, batches) if first is None and batches else first
        if first is None:
            return SweepCost(0.0, 0.0)
        step, batches = first
        work = sum(sizes) / len(step.ids)  # of all steps, in measured ones
        state = self.start
        count = 1 + min(_MEASURED_MODELS, self._count_fitting())
        present = torch.ones(count, len(recording.instances), dtype=torch.bool)
        present = present.to(recording.device)
        models = state.map(lambda t: t.expand(count, *t.shape).contiguous())

        def alone() -> None:
            take_step(recording.executor, recording.optimizer, state, step, batches)

        def together() -> Tensor:
            return self._step_of_many(models, present, step, batches)[1]

        with recording.executor.training():
            alone()  # what is run first is slower
            training = work * mean_seconds(alone, recording.device)
            try:
                self._check_replica(models, together(), step, batches)
                each = work * mean_seconds(together, recording.device) / count
            except (_NotSideBySide, torch.OutOfMemoryError):
                each = training
        return SweepCost(training, each)

    def changes(self, query: Query, groups: Sequence[np.ndarray]) -> dict[str, Tensor]:
        """The changes in a query without each group. The models are dropped."""
        objective = self.recording.objective
        chunks = self.chunks(groups)
        parts = [_compare(query.evaluate_many(objective, chunk).cpu()) for chunk in chunks]
        return {"changes": torch.cat(parts, dim=-1)}

    def pack(self, groups: Sequence[np.ndarray]) -> dict[str, Tensor]:
        """The chunks as one dict, for a file."""
        chunks = [chunk.map(lambda t: t.cpu()).tensors() for chunk in self.chunks(groups)]
        return {f"{k}/{name}": t for k, chunk in enumerate(chunks) for name, t in chunk.items()}

    def chunks(self, groups: Sequence[np.ndarray]) -> Iterator[State]:
        """The models with a leading axis, in chunks: the replica first, then groups in order."""
        self.recording.check_unchanged()
        total = (self.steps.stop - self.steps.first) * len(groups)
        bar = progress_bar("counterfactual runs", total, show=self.progress, unit="model steps")
        done = 0
        with bar as advance:
            if self.removal == "loss" or self._batchnorm_can_skip_removed(groups):
                try:
                    for states in self._chunks_side_by_side(groups, advance):
                        yield states
                        done += len(states.theta) - 1
                except _NotSideBySide as reason:
                    warnings.warn(
                        f"Many copies of this model cannot run at once ({reason}): {len(groups)} "
                        "counterfactual runs will be done one after the other, which takes longer "
                        "but gives the same results.",
                        DrossWarning,
                        stacklevel=2,
                    )
            for at in range(done, len(groups), _SINGLE_RUNS_IN_A_CHUNK):
                yield self._one_by_one(groups[at : at + _SINGLE_RUNS_IN_A_CHUNK], advance)

    def _chunks_side_by_side(
        self, groups: Sequence[np.ndarray], advance: Advance
    ) -> Iterator[State]:
        at = 0
        count = _even_size(len(groups), self._count_fitting())
        while at < len(groups):
            chunk = groups[at : at + count]
            try:
                states = self._side_by_side([_NOTHING, *chunk], advance)
            except torch.OutOfMemoryError as error:
                free = self.recording.executor.free_memory
                fewer = halve(error, count, what="models at a time", free=free)
                count = _even_size(len(groups) - at, fewer)
                continue
            yield states
            at += len(chunk)

    def _one_by_one(self, groups: Sequence[np.ndarray], advance: Advance) -> State:
        """The replica and the models without each group."""
        replica = self._run_alone(_NOTHING, lambda _: None)
        runs = [replica, *(self._run_alone(group, advance) for group in groups)]
        totals = [total for _, total in runs if total is not None]
        ends = State.stack([state for state, _ in runs])
        return self.model.of_runs(State.stack(totals) if totals else None, ends)

    def _run_alone(self, group: np.ndarray, advance: Advance) -> tuple[State, State | None]:
        """The state without one group, by the same function that trained the model; and the sum
        that makes its average.

        With nothing removed it must arrive where the training did.
        """
        recording = self.recording
        executor = recording.executor
        optimizer = recording.optimizer
        state = self.start
        total = self.model.add_state(None, state, self.steps.first)
        with executor.training():
            for t, step, batches in recording.recorded_steps(self.steps.first, self.steps.stop):
                left = self._what_is_left(step, batches, group)
                try:
                    state, _, _ = take_step(executor, optimizer, state, step, left)
                except ValueError as error:
                    raise NotSupported(
                        f"Step {t} cannot be computed without the removed instances: {error}"
                    ) from error
                total = self.model.add_state(total, state, t + 1)
                advance(1)
        _check_finite(state)
        if not len(group):
            expected = recording.state_at(self.steps.stop)
            check_same(state, expected, self.steps.stop, recording.tape)
        return state, total

    def _what_is_left(
        self, step: Step, batches: Sequence[AnyBatch], group: np.ndarray
    ) -> Sequence[AnyBatch]:
        """What a model sees of a step when a group is removed."""
        present = [~np.isin(micro.ids, group) for micro in step.micros]
        pairs = zip(batches, present)
        if self.removal == "data":
            return [batch.load().select(mask) for batch, mask in pairs if mask.any()]
        return [batch.weighted(_as_weights(mask, batch)) for batch, mask in pairs]

    def _side_by_side(self, groups: Sequence[np.ndarray], advance: Advance) -> State:
        """The models without each group, all in one pass per step. The first is the replica."""
        recording = self.recording
        executor = recording.executor
        cut = self.removal == "data"
        present = torch.from_numpy(self._present(groups)).to(recording.device)
        state = self.start.map(lambda t: t.expand(len(groups), *t.shape).contiguous())
        total = self.model.add_state(None, state, self.steps.first)
        checked = False  # whether a step of the replica was compared with that step taken alone
        with executor.training(), _taken_back_on_error(advance) as advance:
            for t, step, batches in recording.recorded_steps(self.steps.first, self.steps.stop):
                if cut and not checked:
                    self._check_cuts(step, batches)

                after, g = self._step_of_many(state, present, step, batches)
                checked = checked or self._check_replica(state, g, step, batches)
                state = after
                total = self.model.add_state(total, state, t + 1)
                advance(len(groups) - 1)
        _check_finite(state)
        return self.model.of_runs(total, state)

    def _step_of_many(
        self, state: State, present: Tensor, step: Step, batches: Sequence[LazyBatch]
    ) -> tuple[State, Tensor]:
        """The states of K models after a step, and their gradients [K, p].

        present: which instances each model has, bool [K, N].
        """
        executor = self.recording.executor
        cut = self.removal == "data"

        def gradients(batch: LazyBatch, buffers: Buffers) -> tuple[Tensor, Buffers]:
            w = present[:, batch.ids.to(present.device)].to(batch.c)  # [K, B]
            batch = batch.scaled(step.scale)
            with _reasons_of_vmap():
                return executor.gradients(state.theta, buffers, batch, w, cut)

        g, buffers = sum_over_batches(batches, state.buffers, gradients, state.theta)
        return advance_state(self.recording.optimizer, state, step, g, buffers), g

    def _present(self, groups: Sequence[np.ndarray]) -> np.ndarray:
        """bool [K, N]: which instances each run has."""
        present = np.ones((len(groups), len(self.recording.instances)), dtype=bool)
        for k, group in enumerate(groups):
            present[k, group] = False
        return present

    # --- whether models may go side by side -------------------------------------------------------

    def _batchnorm_can_skip_removed(self, groups: Sequence[np.ndarray]) -> bool:
        """Whether BatchNorm can leave removed instances out, in every batch of every run.

        It has no statistics of a single instance, and none of an empty batch.
        """
        objective = self.recording.objective
        if not objective.layout.moving_buffers:
            return True
        if not set(objective.layout.moving_buffers) <= set(statistics_of(objective.model)):
            return False
        for start in range(0, len(groups), MAX_MODELS_AT_ONCE):
            present = self._present(groups[start : start + MAX_MODELS_AT_ONCE])
            steps = self.recording.recorded_steps(self.steps.first, self.steps.stop)
            micros = (micro for _, step, _ in steps for micro in step.micros)
            if not all(present[:, micro.ids].sum(1).min() > 1 for micro in micros):
                return False
        return True

    def _check_cuts(self, step: Step, batches: Sequence[LazyBatch]) -> None:
        """Find a layer that mixes instances and does not leave removed ones out.

        Tried on a batch that lacks every second instance.
        """
        executor = self.recording.executor
        one = self.start.map(lambda t: t[None])
        for micro, batch in zip(step.micros, batches):
            mask = np.arange(len(micro.ids)) % 2 == 0
            if mask.sum() < 2:
                continue
            loaded = batch.load()
            w = _as_weights(mask, batch)[None]
            with _reasons_of_vmap():
                together, _ = executor.splitter.gradients(loaded, one.theta, one.buffers, w, True)
            rest = loaded.select(mask)
            alone, _, _ = executor.splitter.gradient(rest, self.start.theta, self.start.buffers)
            if not is_close(together[0], alone, ONE_PERCENT):
                raise _NotSideBySide("its layers use the removed instances of a batch")

    def _check_replica(
        self, state: State, g: Tensor, step: Step, batches: Sequence[AnyBatch]
    ) -> bool:
        """Check that the replica, which comes first, takes the same step side by side as alone.

        Inside vmap some layers draw other random numbers. False: the gradient is 0, so nothing was
        compared.
        """
        executor = self.recording.executor
        optimizer = self.recording.optimizer
        left = self._what_is_left(step, batches, _NOTHING)
        replica = state.map(lambda t: t[0])
        _, alone, _ = take_step(executor, optimizer, replica, step, left)
        if not is_close(g[0], alone, OTHER_ORDER):
            raise _NotSideBySide("inside vmap its step differs from that of the model alone")
        return size(alone, OTHER_ORDER) > 0

    # --- how many fit -----------------------------------------------------------------------------

    def _count_fitting(self) -> int:
        """How many models fit side by side.

        Each needs its state a few times over and the activations of one forward pass.
        """
        recording = self.recording
        state = self.start
        batches = (
            batch
            for _, _, batches in recording.recorded_steps(self.steps.first, recording.tape.steps)
            for batch in batches
        )
        if (batch := next(batches, None)) is None:
            return MAX_MODELS_AT_ONCE
        saved = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal saved
            saved += tensor.nbytes
            return tensor

        watch = torch.autograd.graph.saved_tensors_hooks(count, lambda t: t)
        with recording.executor.training(), watch:
            recording.executor.splitter.gradient(batch.load(), state.theta, state.buffers)
        # a careful guess, not a measurement: activations and their gradients under vmap; the state,
        # its gradient, update and copies; who is present. Where it is too low, `halve` helps.
        each = 3 * saved + 6 * state.nbytes + len(recording.instances)
        available = available_memory(recording.device) // 3
        if recording.memory_limit is not None:
            available = min(available, recording.memory_limit - each)  # the replica beside them
        return int(max(1, min(MAX_MODELS_AT_ONCE, available // local_workers() // each)))


class _NotSideBySide(Exception):
    """Why many copies of the model cannot run in one pass."""


@contextmanager
def _reasons_of_vmap() -> Iterator[None]:
    """Inside a pass of many models: what vmap cannot do with the model is `_NotSideBySide`.

    Around every step and not just the first, since a batch of another size may be another matter.
    """
    try:
        yield
    except (DrossError, torch.OutOfMemoryError):
        raise
    except (RuntimeError, ValueError) as error:
        raise _NotSideBySide(first_line(error)) from error


@contextmanager
def _taken_back_on_error(advance: Advance) -> Iterator[Advance]:
    """A progress bar's function; after an error the steps have to be taken once more."""
    done = 0

    def count(steps: int) -> None:
        nonlocal done
        done += steps
        advance(steps)

    try:
        yield count
    except BaseException:
        advance(-done)
        raise


def _as_weights(present: np.ndarray, batch: AnyBatch | Batch) -> Tensor:
    return torch.as_tensor(present, device=batch.c.device).to(batch.c)


def _check_finite(state: State) -> None:
    if not bool(torch.isfinite(state.theta).all()):  # nan persists, so the end is enough
        raise Diverged(
            "A counterfactual run diverged: its parameters are not finite at the end. Record "
            "the run again with a lower learning rate."
        )


def _even_size(count: int, most: int) -> int:
    """The size of about equal chunks of at most `most`: a GPU captures one graph per size."""
    chunks = math.ceil(count / max(1, most))
    return math.ceil(count / chunks) if count else 1


def _compare(values):
    """The changes against the replica, which comes first."""
    return values[..., 1:] - values[..., :1]


# --- in pieces ------------------------------------------------------------------------------------


def _sweep(
    work: Callable[[Sequence[np.ndarray]], dict[str, Tensor]],
    settings: dict,
    numbers: tuple[float, ...],
    groups: Sequence[np.ndarray],
    options: SweepOptions,
) -> list[dict[str, Tensor]]:
    """The results of all groups, in order.

    The pieces do not depend on the number of workers: any number gives the same bits, and can
    continue what another number left unfinished.
    """
    even = -(-len(groups) // _PIECES)
    size = min(MAX_MODELS_AT_ONCE, max(_MIN_GROUPS_IN_A_PIECE, even))
    pieces = [list(groups[at : at + size]) for at in range(0, len(groups), size)]
    store = None
    if options.folder is not None:
        settings = settings | {"groups": _digest(groups), "piece": size}
        store = ResultStore(Path(options.folder).absolute(), settings, numbers)
    results = sweep(
        work,
        pieces,
        what="counterfactual runs",
        n_jobs=options.n_jobs,
        store=store,
        progress=options.progress,
    )
    return [result for _, result in sorted(results, key=itemgetter(0))]


def _digest(groups: Sequence[np.ndarray]) -> str:
    digest = hashlib.sha256()
    for group in groups:
        digest.update(len(group).to_bytes(8, "little") + group.astype("<i8").tobytes())
    return digest.hexdigest()


def _unpack(
    named: dict[str, Tensor], counters: GroupCounters, device: torch.device
) -> Iterator[State]:
    """The chunks that `CounterfactualRuns.pack` packed."""
    for k in sorted({int(name.split("/")[0]) for name in named}):
        prefix = f"{k}/"
        tensors = {
            name.removeprefix(prefix): t.to(device)
            for name, t in named.items()
            if name.startswith(prefix)
        }
        yield State.from_tensors(tensors, counters)

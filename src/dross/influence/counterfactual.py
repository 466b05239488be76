"""The same run with some instances absent: the ground truth of every score.

Removing z_j sets its weight to 0 while |S_t| stays in the divisor, as in the paper's counterfactual SGD. K runs go side by
side through `vmap`, together with a replica from which nothing is removed: a change is measured against that replica, so
that rounding, which differs between one model and many, does not pass for an effect.
"""

import hashlib
import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from ..autodiff.batchnorm import statistics_of
from ..data.batch import AnyBatch, Batch, LazyBatch
from ..errors import BadInput, DrossError, DrossWarning, NotFinite, NotSupported, first_line
from ..parallel.job_pool import is_spread, neighbours, sweep
from ..parallel.result_store import Pieces
from ..replay.recording import Recording
from ..replay.replay_check import check_same
from ..replay.take_steps import take_step
from ..step.layout import State
from ..step.step import Step, advance
from ..support.progress import progress_bar
from .query import Query, as_query

#: the two ways to be absent
ABSENT = {
    "weight": "weight 0 in the loss, still part of the batch that BatchNorm sees: what a score is the derivative of",
    "batch": "gone from the batch and from its statistics: what training on the cleansed data does",
}
_MOST_AT_ONCE = 256


@dataclass(frozen=True)
class Counterfactual:
    """K models, each trained without its group. `changes` are measured against a replica that kept every instance."""

    groups: tuple[np.ndarray, ...]
    recording: Recording
    chunks: tuple[
        State, ...
    ]  # in each, row 0 is the replica and the others are the groups in their order

    def evaluate(self, query: Query) -> np.ndarray:
        """The query at every counterfactual model: [K], or [Q, K]."""
        return np.concatenate([values[..., 1:] for values in self._values(query)], axis=-1)

    def changes(self, query: Query) -> np.ndarray:
        """query(without the group) - query(with it): [K], or [Q, K]."""
        return np.concatenate([_against_replica(values) for values in self._values(query)], axis=-1)

    def parameters(self, k: int) -> dict[str, Tensor]:
        """The parameters of the model without group k."""
        if not 0 <= k < len(self.groups):
            raise BadInput(
                f"There are {len(self.groups)} counterfactual models, numbered from 0; {k} is not one of them."
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


def counterfactual(
    recording: Recording,
    groups: Iterable,
    *,
    window: tuple[int, int],
    absent: str = "weight",
    progress: bool = False,
    n_jobs: int | None = None,
    folder: str | os.PathLike | None = None,
) -> Counterfactual:
    checked = check_groups(recording, groups)
    models = _Models(recording, window, absent, progress)
    if folder is None and not is_spread(n_jobs):
        return Counterfactual(tuple(checked), recording, tuple(models.chunks(checked)))
    found = _swept(models, models.about(), (), checked, n_jobs, folder, progress)
    clock = recording.state_at(window[1]).clock  # counts steps, and so is the same for every model
    chunks = [chunk for part in found for chunk in _unpacked(part, clock, recording.device)]
    return Counterfactual(tuple(checked), recording, tuple(chunks))


def leave_one_out(
    recording: Recording,
    query: Query,
    instances: np.ndarray,
    *,
    window: tuple[int, int],
    absent: str,
    progress: bool,
    n_jobs: int | None = None,
    folder: str | os.PathLike | None = None,
) -> np.ndarray:
    """The true change of the query without each instance: [K], or [Q, K]. Models are dropped as soon as they are asked."""
    # a query that cannot be asked fails now, not after the runs
    values = query.evaluate(recording.objective, recording.state_at(window[1])).cpu().numpy()
    groups = [np.array([j]) for j in instances]
    changes = _Changes(_Models(recording, window, absent, progress), query)
    if folder is None and not is_spread(n_jobs):
        return changes(groups)["changes"].numpy()
    about = changes.models.about() | {"query": query.name, "values": values.size}
    found = _swept(
        changes,
        about,
        (float(values.mean()), float(values.std())),
        groups,
        n_jobs,
        folder,
        progress,
    )
    return np.concatenate([part["changes"].numpy() for part in found], axis=-1)


# --- in pieces -----------------------------------------------------------------------------------------------------------------------

_PIECES, _FEWEST_IN_A_PIECE = (
    16,
    32,
)  # a piece carries a replica of its own, and many models are quicker side by side than few


def _swept(
    work: "_Models | _Changes",
    about: dict,
    numbers: tuple[float, ...],
    groups: Sequence[np.ndarray],
    n_jobs: int | None,
    folder: str | os.PathLike | None,
    progress: bool,
) -> list[dict[str, Tensor]]:
    """The results of all groups, in order. How they are cut does not depend on who computes them: any number of workers gives the same
    bits, and can go on with what another number has left."""
    size = min(_MOST_AT_ONCE, max(_FEWEST_IN_A_PIECE, -(-len(groups) // _PIECES)))
    pieces = [list(groups[at : at + size]) for at in range(0, len(groups), size)]
    about = about | {"groups": _digest(groups), "piece": size}
    kept = None if folder is None else Pieces(Path(folder).absolute(), about, numbers)
    found = dict(
        sweep(work, pieces, what="counterfactual runs", n_jobs=n_jobs, kept=kept, progress=progress)
    )
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

    def about(self) -> dict:
        return {
            "tape": self.recording.tape.manifest["id"],
            "window": list(self.window),
            "absent": self.absent,
        }

    def chunks(self, groups: Sequence[np.ndarray]) -> Iterator[State]:
        return replayed(
            self.recording, groups, window=self.window, absent=self.absent, progress=self.progress
        )

    def __call__(self, groups: Sequence[np.ndarray]) -> dict[str, Tensor]:
        chunks = [chunk.map(lambda t: t.cpu()).tensors() for chunk in self.chunks(groups)]
        return {
            f"{k}/{name}": tensor
            for k, chunk in enumerate(chunks)
            for name, tensor in chunk.items()
        }


@dataclass(frozen=True)
class _Changes:
    """What is asked of those models, which are dropped."""

    models: _Models
    query: Query

    def __call__(self, groups: Sequence[np.ndarray]) -> dict[str, Tensor]:
        objective = self.models.recording.objective
        parts = [
            _against_replica(self.query.evaluate_many(objective, chunk).cpu())
            for chunk in self.models.chunks(groups)
        ]
        return {"changes": torch.cat(parts, dim=-1)}


def _unpacked(
    named: dict[str, Tensor], clock: tuple[dict[str, float], ...], device: torch.device
) -> Iterator[State]:
    for k in sorted({int(name.split("/")[0]) for name in named}):
        own = {
            name.partition("/")[2]: tensor.to(device)
            for name, tensor in named.items()
            if name.startswith(f"{k}/")
        }
        yield State.from_tensors(own, clock)


def check_groups(recording: Recording, groups: Iterable) -> list[np.ndarray]:
    if not isinstance(groups, Iterable):
        raise BadInput(f"groups is a list with one list of ids per run, not {groups!r}.")
    checked = [np.unique(recording.instances.check(group, "Ids to remove")) for group in groups]
    if not checked:
        raise BadInput("There is nothing to compute: pass at least one group of instance ids.")
    return checked


def replayed(
    recording: Recording,
    groups: Sequence[np.ndarray],
    *,
    window: tuple[int, int],
    absent: str,
    progress: bool,
) -> Iterator[State]:
    """States with a leading axis, in chunks: the replica first, then the groups."""
    if absent not in ABSENT:
        raise BadInput(
            f"absent='{absent}' is not a way to be absent. Choose: {'; '.join(f'{k}: {v}' for k, v in ABSENT.items())}."
        )
    first, stop = window
    start = recording.state_at(first)
    recording.check_unchanged()
    runs = _Runs(recording, start, first, stop, absent)
    side_by_side = absent == "weight" or (
        _statistics_are_batch_norms(recording) and runs.batches_keep_two(groups)
    )
    size = _even(len(groups), _fitting(recording, start, first)) if side_by_side else 1
    total = (stop - first) * (len(groups) + 1)
    at = 0
    with progress_bar("counterfactual runs", total, show=progress, unit="model steps") as told:
        while at < len(groups):
            chunk = [np.zeros(0, dtype=np.int64), *groups[at : at + size]]
            if not side_by_side:
                yield State.stacked([runs.alone(group, told) for group in chunk])
            else:
                try:
                    yield runs.together(chunk, told)
                except torch.OutOfMemoryError:
                    if size == 1:
                        raise
                    size = _even(len(groups) - at, size // 2)
                    recording.objective.graphs.give_back()
                    warnings.warn(
                        f"Out of memory: going on with {size} models at once.",
                        DrossWarning,
                        stacklevel=2,
                    )
                    continue
                except DrossError:
                    raise
                except (RuntimeError, ValueError, NotImplementedError) as error:
                    side_by_side, size = False, 16
                    warnings.warn(
                        f"This model cannot be run many at once ({first_line(error)}): {len(groups)} counterfactual runs will be "
                        "done one after the other, which takes longer and gives the same numbers.",
                        DrossWarning,
                        stacklevel=2,
                    )
                    continue
            at += len(chunk) - 1


@dataclass(frozen=True)
class _Runs:
    recording: Recording
    start: State
    first: int
    stop: int
    absent: str

    def steps(self) -> Iterator[tuple[int, Step, list[LazyBatch]]]:
        for segment in self.recording.segments(self.recording.holding(self.first, self.stop)):
            all_batches = self.recording.batches(segment.first, segment.steps)
            for t, step, batches in zip(
                range(segment.first, segment.end), segment.steps, all_batches
            ):
                if self.first <= t < self.stop:
                    yield t, step, batches

    def together(self, groups: Sequence[np.ndarray], told) -> State:
        """All groups side by side."""
        with self.recording.objective.training():
            return self._together(groups, told)

    def _together(self, groups: Sequence[np.ndarray], told) -> State:
        objective, optimizer = self.recording.objective, self.recording.optimizer
        count, device = len(groups), self.recording.device
        present = torch.ones(count, len(self.recording.instances), dtype=torch.bool)
        for k, group in enumerate(groups):
            present[k, torch.from_numpy(group)] = False
        present = present.to(device)
        state = self.start.map(lambda t: t.expand(count, *t.shape).contiguous())
        unchecked = {0}
        for _, step, batches in self.steps():
            if 0 in unchecked and self.absent == "batch":
                self._check_cuts(step, batches)
            g, buffers = None, state.buffers
            for batch in batches:
                w = present[:, batch.ids.to(device)].to(batch.c)  # [K, B]
                part, buffers = objective.gradients(
                    state.theta, buffers, batch, w, self.absent == "batch"
                )
                g = part if g is None else g + part
            g = torch.zeros_like(state.theta) if g is None else g
            unchecked -= {
                k for k in unchecked if self._row_is_right(k, groups[k], state, g, step, batches)
            }
            state = advance(optimizer, state, step, g, buffers)
            told(count)
        return _finite(state)

    def _check_cuts(self, step: Step, batches: Sequence[LazyBatch]) -> None:
        """A layer that mixes the instances of a batch, and does not know who is present, is found out by a batch that lacks every second one."""
        for micro, batch in zip(step.micros, batches):
            mask = np.arange(len(micro.ids)) % 2 == 0
            if mask.sum() < 2:
                continue
            start, objective = self.start, self.recording.objective
            one = start.map(lambda t: t[None])
            w = torch.as_tensor(mask, device=batch.c.device).to(batch.c)[None]
            together = objective._gradients(batch.realized(), one.theta, one.buffers, w, True)[0][0]
            alone = objective._gradient(_without(batch, mask), start.theta, start.buffers, None)[0]
            if float((alone - together).abs().max()) > 0.01 * float(alone.abs().max()):
                raise RuntimeError("its layers see the absent instances of a batch")

    def _row_is_right(
        self,
        k: int,
        group: np.ndarray,
        state: State,
        g: Tensor,
        step: Step,
        batches: Sequence[AnyBatch],
    ) -> bool:
        """Side by side, a model must take the step that it takes alone; inside `vmap` some layers draw other random numbers, and a layer
        that mixes the instances of a batch may not know who is present. False: this step has nothing to compare."""
        batches, w = self._left(step, batches, group)
        objective, optimizer = self.recording.objective, self.recording.optimizer
        _, alone, _ = take_step(objective, optimizer, state.map(lambda t: t[k]), step, batches, w)
        size, difference = float(alone.abs().max()), float((alone - g[k]).abs().max())
        if difference > 100 * torch.finfo(alone.dtype).eps ** 0.5 * size:
            raise RuntimeError("inside vmap it takes another step than alone")
        return size > 0

    def _left(
        self, step: Step, batches: Sequence[AnyBatch], group: np.ndarray
    ) -> tuple[Sequence[AnyBatch], list[Tensor] | None]:
        """What a model sees of a step when a group is absent, and with which weights."""
        present = [~np.isin(micro.ids, group) for micro in step.micros]
        if self.absent == "batch":
            return [
                _without(batch, mask) for batch, mask in zip(batches, present) if mask.any()
            ], None
        return batches, [
            torch.as_tensor(mask, device=batch.c.device).to(batch.c)
            for mask, batch in zip(present, batches)
        ]

    def batches_keep_two(self, groups: Sequence[np.ndarray]) -> bool:
        """BatchNorm has no statistics of one instance, and none of an empty batch; then each run is for itself."""
        if not self.recording.objective.layout.moving:
            return True
        for start in range(0, len(groups), _MOST_AT_ONCE):
            some = groups[start : start + _MOST_AT_ONCE]
            present = np.ones((len(some), len(self.recording.instances)), dtype=bool)
            for k, group in enumerate(some):
                present[k, group] = False
            if not all(
                present[:, m.ids].sum(1).min() > 1
                for _, step, _ in self.steps()
                for m in step.micros
            ):
                return False
        return True

    def alone(self, group: np.ndarray, told) -> State:
        """One group, through the very function that trained the model. With nothing removed it must arrive where that did."""
        with self.recording.objective.training():
            state = self._alone(group, told)
        if not len(group):
            check_same(state, self.recording.state_at(self.stop), self.stop, self.recording.tape)
        return state

    def _alone(self, group: np.ndarray, told) -> State:
        objective, optimizer, state = self.recording.objective, self.recording.optimizer, self.start
        for t, step, all_batches in self.steps():
            batches, w = self._left(step, all_batches, group)
            try:
                state, _, _ = take_step(objective, optimizer, state, step, batches, w)
            except ValueError as error:
                raise NotSupported(
                    f"Step {t} cannot be taken with what is left of its batch: {error}"
                ) from error
            told(1)
        return _finite(state)


def _statistics_are_batch_norms(recording: Recording) -> bool:
    """Whether what instances of a batch share is known: BatchNorm's statistics, or nothing."""
    return set(recording.objective.layout.moving) <= statistics_of(recording.objective.model)


def _finite(state: State) -> State:
    if not bool(torch.isfinite(state.theta).all()):  # once nan, always nan: the end tells
        raise NotFinite(
            "A counterfactual run diverged: its parameters are not finite at the end. Lower the rate of the run."
        )
    return state


def _without(batch: AnyBatch, present: np.ndarray) -> Batch:
    """The rows that are left. Their coefficients stay, so |S_t| stays in the divisor."""
    batch = batch.realized()
    rows = torch.as_tensor(present, device=batch.c.device)
    select = lambda t: t[rows.to(t.device)] if isinstance(t, Tensor) else t
    return Batch(tree_map(select, batch.x), tree_map(select, batch.y), batch.c[rows], batch.seed)


def _against_replica(values):
    return values[..., 1:] - values[..., :1]


def _fitting(recording: Recording, state: State, first: int) -> int:
    """How many models fit side by side: each needs its state a few times over and the activations of one forward pass."""
    tape = recording.tape
    index = next((i for i, e in enumerate(tape.entries) if e["first"] + e["steps"] > first), None)
    if index is None:
        return _MOST_AT_ONCE
    segment = recording.segment(index)
    batch = next(
        (batch for batches in recording.batches(segment.first, segment.steps) for batch in batches),
        None,
    )
    if batch is None:
        return _MOST_AT_ONCE
    saved = 0

    def count(tensor: Tensor) -> Tensor:
        nonlocal saved
        saved += tensor.numel() * tensor.element_size()
        return tensor

    with (
        recording.objective.training(),
        torch.autograd.graph.saved_tensors_hooks(count, lambda t: t),
    ):
        recording.objective._gradient(batch.realized(), state.theta, state.buffers, None)
    each = 3 * saved + 6 * state.nbytes + len(recording.instances)
    room = _memory_at_hand(recording.device) // 3
    if (allowed := tape.manifest.get("memory")) is not None:
        room = min(room, allowed - each)  # the replica beside them
    return int(max(1, min(_MOST_AT_ONCE, room // neighbours() // each)))


def _even(count: int, most: int) -> int:
    """The size of chunks of at most so many that are about equal: a GPU's graph is captured for a size."""
    return max(1, -(-count // -(-count // max(1, most)))) if count else 1


def _memory_at_hand(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo") as lines:
            return next(
                int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable")
            )
    except (OSError, StopIteration):
        return (
            os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
            if hasattr(os, "sysconf")
            else 2 << 30
        )

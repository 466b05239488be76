"""The same run with some instances absent: the ground truth of every score.

Removing z_j sets its weight to 0 while |S_t| stays in the divisor, as in the paper's counterfactual
SGD. How the runs are computed: counterfactual_runs.py.
"""

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..distributed.job_pool import sweep, uses_workers
from ..distributed.result_store import ResultStore
from ..engine.state import Clock, State
from ..errors import InvalidInput
from ..replay.average import AVERAGE, MODEL, Average, check_of
from ..replay.recording import Recording
from ..support.arguments import check_folder
from .counterfactual_runs import MAX_MODELS_AT_ONCE, replay_without
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
        tape = self.recording.tape.manifest["id"]
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

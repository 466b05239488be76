"""Clean the rows of X and y without leaving a project behind: what an estimator's `fit` needs."""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from inspect import signature
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from ..cleanse.edits import Edits, choose_edits, find_plan
from ..cleanse.inputs.source import MIN_INSTANCES, Source, split
from ..cleanse.judge import judge
from ..cleanse.pipeline.clean import clean
from ..cleanse.plans.candidates import KINDS
from ..cleanse.plans.known import KnownPlan
from ..cleanse.project import Project
from ..cleanse.verdict import Verdict
from ..errors import BadInput
from ..support.name_hints import check_name

FEWEST_HELD_OUT = MIN_INSTANCES // 5  # rows that dross.clean needs in the validation and test part
_TEST_SHARE = 0.2  # where the validation part has no share of its own
# what a caller says in another way, or what is meant for files
_NO_OPTIONS = "data label out validation test task seed device progress say trusted_validation"


@dataclass(frozen=True)
class HowToClean:
    """Everything but the data."""

    validation: Any = 0.2  # the share of the rows, or a pair (X, labels)
    plan: str | None = None  # the recommended one by default
    judge: bool = False
    judge_with: Any = None  # an estimator; by default dross' own model judges
    trusted_validation: bool = False
    remove_doubted: bool = False  # also what was held out and is likely wrong
    out: str | os.PathLike | None = None  # by default the project is thrown away
    seed: int = 0
    device: str | None = None
    progress: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # further arguments of dross.clean

    def __post_init__(self):
        share = self.validation
        is_pair = isinstance(share, tuple) and len(share) == 2
        if not is_pair and not (isinstance(share, (int, float)) and 0 < share < 0.5):
            raise BadInput(
                "validation must be the share of the rows to hold out, between 0 and 0.5, or a "
                f"pair (X, y), not {share!r}."
            )
        if self.plan is not None:
            kind = str(self.plan).rpartition("-")[0]
            check_name("plan", kind if kind in KINDS else self.plan, KINDS)
        known = set(signature(clean).parameters) - set(_NO_OPTIONS.split())
        for name in self.options:
            check_name("option of dross.clean", name, sorted(known))


@dataclass(frozen=True)
class CleanedRows:
    """What to do with each row of X."""

    plan: KnownPlan | None  # in rows of X
    scores: np.ndarray  # float64 [N]: nan where a row was held out
    removed: np.ndarray  # int64 [R]: rows
    relabelled: dict[int, str]  # row -> its new label
    doubted: np.ndarray  # int64: rows that were held out and whose label is likely wrong
    verdict: Verdict | None = None


@dataclass(frozen=True)
class HeldOut:
    """The rows to clean, and pairs (X, labels) that they are judged by."""

    rows: np.ndarray
    validation: tuple[Any, np.ndarray]
    validation_rows: np.ndarray  # where they are in X; empty if they are other data
    test: tuple[Any, np.ndarray]


def hold_out(x: Any, labels: np.ndarray, how: HowToClean) -> HeldOut | None:
    """Split the rows; None where there are too few to clean any.

    The test part is as large as the validation part if a verdict is asked for. Otherwise it is as
    small as dross.clean accepts, because nothing is measured on it.

    Arguments:
        x: N rows of any kind that scikit-learn can index.
        labels: [N]: text for classes, float64 for numbers.
        how: says how much to hold out.
    """
    given: Any = how.validation if isinstance(how.validation, tuple) else None
    share: Any = how.validation if given is None else _TEST_SHARE
    held = {"validation": share if given is None else 0.0, "test": share if how.judge else 0.0}
    shares = held | {"train": 1 - sum(held.values())}
    parts = split(Source("table", "label", None, labels, []), how.seed, shares)
    rows, test_rows = parts["validation"], parts["test"]
    if given is not None:
        x_given, labels_given = given
        order = np.arange(len(labels_given))
    else:
        x_given, labels_given, order = x, labels, rows
    test = (take(x, test_rows), labels[test_rows])
    if not how.judge:
        order = np.random.default_rng(how.seed).permutation(order)
        few, order = np.sort(order[:FEWEST_HELD_OUT]), np.sort(order[FEWEST_HELD_OUT:])
        test = (take(x_given, few), labels_given[few])
    if len(parts["train"]) < MIN_INSTANCES or min(len(order), len(test[1])) < FEWEST_HELD_OUT:
        return None
    validation = (take(x_given, order), labels_given[order])
    return HeldOut(parts["train"], validation, order if given is None else rows[:0], test)


def clean_rows(x: Any, labels: np.ndarray, held: HeldOut, how: HowToClean) -> CleanedRows:
    """Clean what is not held out.

    Raises:
        BadInput: the data, an option or the plan cannot be used.
        NotFinite: training diverges at every rate that was tried.
        StorageFailed: the folder cannot be written.
    """
    with _folder(how.out) as folder:
        project = clean(
            take(x, held.rows),
            labels[held.rows],
            validation=held.validation,
            test=held.test,
            task="classification" if labels.dtype.kind in "OUT" else "regression",
            out=folder,
            seed=how.seed,
            device=how.device,
            trusted_validation=how.trusted_validation,
            progress=how.progress,
            **how.options,
        )
        places = project.instances["source"].str.removeprefix("place ").astype(int).to_numpy()
        rows = held.rows[places]  # of each instance of the project
        scores = np.full(len(labels), np.nan)
        scores[rows] = project.instances["score"].to_numpy()
        plan = project.recommended if how.plan is None else find_plan(project, how.plan)
        edits = _choose_edits(project, plan, how.plan)
        doubted = project.doubted_validation.index.to_numpy(dtype=np.int64)
        verdict = _judge(project, edits, how)
    if plan is not None:
        named = {int(rows[id]): label for id, label in plan.relabelled.items()}
        plan = replace(plan, removed=np.sort(rows[plan.removed]), relabelled=named)
    relabelled = {int(rows[id]): label for id, label in sorted(edits.relabelled.items())}
    doubted = np.sort(held.validation_rows[doubted]) if len(held.validation_rows) else rows[:0]
    also = doubted if how.remove_doubted and len(edits) else rows[:0]
    removed = np.union1d(rows[edits.removed], also)
    return _keep_classes(CleanedRows(plan, scores, removed, relabelled, doubted, verdict), labels)


def take(x: Any, rows: np.ndarray) -> Any:
    """These rows of a frame, an array, a sparse matrix or a list."""
    from sklearn.utils import _safe_indexing

    return _safe_indexing(x, rows)


@contextmanager
def _folder(out: str | os.PathLike | None) -> Iterator[Path]:
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory(prefix="dross-") as place:
        yield Path(place) / "project"


def _choose_edits(project: Project, plan: KnownPlan | None, name: str | None) -> Edits:
    """What was decided on the page of a project that is kept, else what the plan does."""
    if plan is None and not project.current_decisions():
        return Edits("nothing", np.zeros(0, dtype=np.int64), {})
    return choose_edits(project, None, None, decisions=False, plan=name)


def _judge(project: Project, edits: Edits, how: HowToClean) -> Verdict | None:
    if not how.judge or not len(edits):
        return None
    return judge(
        project.folder,
        plan=how.plan,
        progress=how.progress,
        device=how.device,
        with_model=how.judge_with,
    )


def _keep_classes(cleaned: CleanedRows, labels: np.ndarray) -> CleanedRows:
    """The same, but a class of which nothing would be left stays as it is."""
    if labels.dtype.kind not in "OUT":
        return cleaned
    after = labels.copy()
    after[list(cleaned.relabelled)] = list(cleaned.relabelled.values())
    gone = set(labels) - set(np.delete(after, cleaned.removed))
    if not gone:
        return cleaned
    removed = [row for row in cleaned.removed if labels[row] not in gone]
    relabelled = {row: new for row, new in cleaned.relabelled.items() if labels[row] not in gone}
    return replace(cleaned, removed=np.array(removed, dtype=np.int64), relabelled=relabelled)

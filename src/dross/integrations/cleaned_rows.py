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

from .._checks import check_name
from ..cleaning.edits import Edits, choose_edits, find_plan
from ..cleaning.judge import judge
from ..cleaning.pipeline import clean
from ..cleaning.plans import RULES, KnownPlan
from ..cleaning.project import Project
from ..cleaning.verdict import Verdict
from ..errors import InvalidInput

# what a caller says in another way, or what is meant for files
_NO_OPTIONS = "data label out validation test task seed device progress say validation_is_clean"


@dataclass(frozen=True)
class HowToClean:
    """Everything but the data."""

    validation: Any = None  # a pair (X, labels) of other data
    plan: str | None = None  # the recommended one by default
    judge: bool = False
    judge_with: Any = None  # an estimator; by default dross' own model judges
    validation_is_clean: bool = False
    out: str | os.PathLike | None = None  # by default the project is thrown away
    seed: int = 0
    device: str | None = None
    progress: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)  # further arguments of dross.clean

    def __post_init__(self):
        is_pair = isinstance(self.validation, tuple) and len(self.validation) == 2
        if self.validation is not None and not is_pair:
            raise InvalidInput(
                f"validation must be a pair (X, y) or None, not {self.validation!r}."
            )
        if self.plan is not None:
            check_name("plan", self.plan, tuple(RULES))
        known = set(signature(clean).parameters) - set(_NO_OPTIONS.split())
        for name in self.options:
            check_name("option of dross.clean", name, sorted(known))


@dataclass(frozen=True)
class CleanedRows:
    """What to do with each row of X."""

    plan: KnownPlan | None  # in rows of X
    scores: np.ndarray  # float64 [N]
    wrong: np.ndarray  # float64 [N]: the probability that each label is wrong
    removed: np.ndarray  # int64 [R]: rows
    relabelled: dict[int, str]  # row -> its new label
    verdict: Verdict | None = None


def clean_rows(x: Any, labels: np.ndarray, how: HowToClean) -> CleanedRows:
    """Clean N rows of any kind that scikit-learn can index.

    Arguments:
        x: The rows.
        labels: [N]: text for classes, float64 for numbers.
        how: Everything else.

    Raises:
        InvalidInput: the data, an option or the plan cannot be used.
        Diverged: training diverges at every rate that was tried.
        DrossError: the folder cannot be written.
    """
    with _folder(how.out) as folder:
        project = clean(
            x,
            labels,
            validation=how.validation,
            task="classification" if labels.dtype.kind in "OUT" else "regression",
            out=folder,
            seed=how.seed,
            device=how.device,
            validation_is_clean=how.validation_is_clean,
            progress=how.progress,
            **how.options,
        )
        names = project.instances["source"]
        rows = names.str.removeprefix("place ").astype(int).to_numpy()  # of each instance
        scores, wrong = np.full(len(labels), np.nan), np.full(len(labels), np.nan)
        scores[rows] = project.instances["score"].to_numpy()
        wrong[rows] = project.instances["wrong"].to_numpy()
        plan = project.recommended if how.plan is None else _find(project, how.plan)
        edits = _choose_edits(project, plan)
        verdict = _judge(project, edits, how)
    if plan is not None:
        named = {int(rows[id]): label for id, label in plan.relabelled.items()}
        plan = replace(plan, removed=np.sort(rows[plan.removed]), relabelled=named)
    relabelled = {int(rows[id]): label for id, label in sorted(edits.relabelled.items())}
    removed = np.sort(rows[edits.removed])
    return _keep_classes(CleanedRows(plan, scores, wrong, removed, relabelled, verdict), labels)


def take(x: Any, rows: np.ndarray) -> Any:
    """These rows of a frame, an array, a sparse matrix or a list."""
    from sklearn.utils import _safe_indexing

    return _safe_indexing(x, rows)


def _find(project: Project, name: str) -> KnownPlan | None:
    """The plan of this name; None where the rule touches no row."""
    known = {plan.name for plan in project.plans}
    return find_plan(project, name) if name in known else None


@contextmanager
def _folder(out: str | os.PathLike | None) -> Iterator[Path]:
    if out is not None:
        yield Path(out)
        return
    with TemporaryDirectory(prefix="dross-") as place:
        yield Path(place) / "project"


def _choose_edits(project: Project, plan: KnownPlan | None) -> Edits:
    """What was decided on the page of a project that is kept, else what the plan does."""
    if project.current_decisions():
        return choose_edits(project, None, None, decisions=False)
    if plan is None:
        return Edits("nothing", np.zeros(0, dtype=np.int64), {})
    return choose_edits(project, None, None, decisions=False, plan=plan.name)


def _judge(project: Project, edits: Edits, how: HowToClean) -> Verdict | None:
    if not how.judge or not len(edits):
        return None
    return judge(
        project.folder,
        plan=how.plan,
        progress=how.progress,
        device=how.device,
        estimator=how.judge_with,
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

"""Labels that a person has checked on the page, and what they change.

Where there is a validation file, its labels are checked; otherwise any label of the file. The next
`dross clean` of the same project treats the checked labels as right: the noise model trusts them,
and plans are compared on them. A validation row whose label is wrong is left out, and one that is
really something else counts as that. The input stays as it is, and so do the recorded runs.

Ids stay the positions in the set as it was read, whatever is left out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from ..errors import InvalidInput
from .decisions import VALIDATION, Decision, Decisions, check_belongs
from .duplicates import Copies
from .explain import Reasons
from .label_noise import Rows
from .modality import MIN_INSTANCES, PreparedData
from .plans import describe_actions
from .project import Project
from .project_files import INFO, delete_written, read_intact, read_sealed, write_sealed
from .project_info import ProjectInfo
from .splits import join_groups

_FILE = "checked.json"  # the labels that the kept results were computed with
_FEWEST_LEFT = MIN_INSTANCES // 5  # as many as a validation set needs
# without project.json the rest is unfinished; the scores are about validation labels
_RESULTS = {
    "train": re.compile(r"project\.json"),
    "validation": re.compile(r"project\.json|runs/run-\d+-scores\.safetensors"),
}
_WORDS = {"keep": "right", "remove": "wrong", "relabel": "relabeled"}


@dataclass(frozen=True)
class UsedLabels:
    """The content of checked.json: the labels that the results of a folder were computed with."""

    labels: dict[int, Decision]
    earlier: str | None = None  # what was recommended before they were checked


@dataclass(frozen=True)
class CheckedLabels:
    """The decisions of people about the labels of a set."""

    part: str  # `PreparedData.checked_part`
    decided: Mapping[int, Decision]  # {position in the set: (action, label)}

    def __len__(self) -> int:
        return len(self.decided)

    @property
    def right(self) -> list[int]:
        """The positions whose label is now known: confirmed or corrected."""
        return [id for id, (action, _) in self.decided.items() if action != "remove"]

    @property
    def wrong(self) -> list[int]:
        """The positions whose label is known to be wrong, without the right one."""
        return [id for id, (action, _) in self.decided.items() if action == "remove"]

    @property
    def corrected(self) -> dict[int, str]:
        """The new labels, by position."""
        return {id: label for id, (_, label) in self.decided.items() if label is not None}

    @property
    def words(self) -> dict[int, str]:
        """The decision about each, as a word."""
        return {id: _WORDS[action] for id, (action, _) in self.decided.items()}

    def left(self, count: int) -> np.ndarray:
        """The positions of the validation set, of `count`, that are not left out."""
        wrong = self.wrong if self.part == "validation" else []
        return np.setdiff1d(np.arange(count), wrong)

    def read_corrected(self, data: PreparedData) -> np.ndarray:
        """The new labels, in the order of `corrected`: names of classes, or numbers."""
        source = data.source
        read = [source.task.read(label, source.classes) for label in self.corrected.values()]
        return np.array(read, dtype=object if source.classes else np.float64)

    def apply(self, data: PreparedData) -> PreparedData:
        """The data with the validation set to score; the training set is unchanged."""
        if not self.decided or self.part != VALIDATION:
            return data
        y = data.y[VALIDATION].clone()
        if self.corrected:
            y[list(self.corrected)] = data.targets(self.read_corrected(data))
        left = self.left(len(y))
        return replace(
            data,
            parts=data.parts | {VALIDATION: data.parts[VALIDATION][left]},
            x=data.x | {VALIDATION: data.x[VALIDATION][left]},
            y=data.y | {VALIDATION: y[left]},
        )

    def describe(self) -> str:
        """How many of each, in words."""
        actions = [action for action, _ in self.decided.values()]
        noun = "label" if len(actions) == 1 else "labels"
        return (
            f"Using {len(actions):,} checked {noun}: {actions.count('keep'):,} kept as correct, "
            f"{actions.count('relabel'):,} relabeled, {actions.count('remove'):,} marked as wrong."
        )

    def restore_ids(self, why: dict[int, Reasons], count: int) -> dict[int, Reasons]:
        """Reasons whose validation instances are named by their positions in the original set."""
        if self.part != VALIDATION:
            return why
        left = self.left(count).tolist()
        return {
            id: replace(reasons, hurts=[replace(hurt, id=left[hurt.id]) for hurt in reasons.hurts])
            for id, reasons in why.items()
        }


def read_checked(folder: Path, data: PreparedData) -> CheckedLabels:
    """The labels that were checked on the page of this folder.

    Raises:
        InvalidInput: too few labels are left, or one is corrected to an impossible value.
        InputChanged: the decisions belong to other data.
    """
    part = data.checked_part
    path, count = folder / "decisions.sqlite", len(data.y[part])
    if not path.exists():
        return CheckedLabels(part, {})
    log = Decisions(path)
    try:
        checked = CheckedLabels(part, log.current(VALIDATION))
    finally:
        log.close()
    check_belongs(checked.decided, path, VALIDATION, count, data.source.classes)
    left = len(checked.left(count))
    if left < min(_FEWEST_LEFT, count):
        raise InvalidInput(
            f"Only {left} of {count} validation labels are left, which is too few: the others are "
            f"marked as wrong. Correct them with dross review {folder}, or pass another validation "
            "file with `validation`."
        )
    return checked


def read_used(folder: Path, data: PreparedData) -> CheckedLabels:
    """The checked labels that the results in a folder were computed with.

    Raises:
        CorruptFile: the file is not as dross writes it.
        InvalidInput, InputChanged: it is about other data.
    """
    path, part = folder / _FILE, data.checked_part
    decided = read_sealed(path, UsedLabels).labels if path.exists() else {}
    check_belongs(decided, path, part, len(data.y[part]), data.source.classes)
    return CheckedLabels(part, decided)


def discard_outdated_results(folder: Path, checked: CheckedLabels) -> bool:
    """Delete results that were computed with other labels, and note the labels of the next ones.

    The recorded runs stay: no checked label changes what they were trained on.

    Returns:
        Whether something was outdated.
    """
    path = folder / _FILE
    used = read_intact(path, UsedLabels) if path.exists() else UsedLabels({})
    if used is not None and used.labels == checked.decided:
        return False
    earlier = _describe_recommendation(folder)
    if earlier is None and used is not None:
        earlier = used.earlier  # a run with other labels was stopped
    delete_written(folder, names=_RESULTS[checked.part])
    write_sealed(path, UsedLabels(dict(checked.decided), earlier))
    return True


def read_earlier(folder: Path) -> str | None:
    """What was recommended before the last labels were checked; None if nothing was."""
    used = read_intact(folder / _FILE, UsedLabels)
    return None if used is None else used.earlier


def _describe_recommendation(folder: Path) -> str | None:
    """What the finished project in a folder recommends; None if there is none."""
    info = read_intact(folder / INFO, ProjectInfo)
    if info is None:
        return None
    plan = info.recommendation.plan
    return describe_actions(0, 0) if plan is None else plan.what


def make_rows(
    data: PreparedData, checked: CheckedLabels, copies: Copies, *, trusted: bool = False
) -> Rows:
    """The training rows in their order, and after them those of a validation file.

    Validation rows whose label is wrong are left out, and corrected labels replace the given
    ones; of two classes, a wrong label is the other one. Copies of each other share a
    group, and so do rows that the user groups.
    Numbers are in the units of the label.

    Arguments:
        data: As it was read.
        checked: What a person has decided on labels.
        copies: Those in the data.
        trusted: Whether every validation label is counted as correct.
    """
    parts = ("train", "validation")
    ids = np.concatenate([data.parts[part] for part in parts])
    trained = len(data.parts["train"])
    x = torch.cat([data.x[part] for part in parts]).flatten(1).numpy()
    validation = np.arange(len(ids)) >= trained
    start = trained if checked.part == "validation" else 0
    given = data.source.labels[ids]
    labels = given.copy()
    if checked.corrected:
        places = start + np.array(list(checked.corrected), dtype=np.int64)
        labels[places] = checked.read_corrected(data)
    is_checked = np.zeros(len(ids), dtype=bool)
    is_checked[start + np.array(checked.right, dtype=np.int64)] = True
    if trusted:
        is_checked |= validation
    classes = data.source.classes
    if checked.part == "train" and len(classes) == 2:
        places = np.array(checked.wrong, dtype=np.int64)
        labels[places] = np.where(labels[places] == classes[0], classes[1], classes[0])
        is_checked[places] = True

    def encode(values: np.ndarray) -> np.ndarray:
        return data.targets(values).numpy() if classes else values.astype(np.float64)

    rows = Rows.of(
        x,
        encode(labels),
        len(classes),
        given=encode(given),
        groups=join_groups(
            group_copies(copies, {"train": 0, "validation": trained}, len(ids)),
            None if data.source.groups is None else data.source.groups[ids],
        ),
        validation=validation,
        checked=is_checked,
    )
    if checked.part != "validation" or not checked.wrong:
        return rows
    return rows.take(np.setdiff1d(np.arange(len(ids)), start + np.array(checked.wrong)))


def group_copies(copies: Copies, starts: dict[str, int], count: int) -> np.ndarray:
    """The group of each row, int64 [count]: copies of each other have the same number."""
    groups = np.arange(count)
    table = copies.table[copies.table["part"].isin(list(starts))]
    places = (table["part"].map(starts) + table["id"]).astype(np.int64)
    groups[places] = places.groupby(table["group"]).transform("first")
    return groups


def project_rows(project: Project, data: PreparedData) -> Rows:
    """The rows of a finished project, with the labels that were checked before it was made."""
    checked = read_used(project.folder, data)
    assert project.info.options is not None  # only chats have none
    trusted = project.info.options.validation_is_clean
    return make_rows(data, checked, project.copies, trusted=trusted)

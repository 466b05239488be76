"""The rows of a project as the noise model, the guard and the verdict see them."""

import numpy as np
import torch

from .checked_labels import CheckedLabels, read_used
from .duplicates import Copies
from .label_noise import Rows
from .modality import PreparedData
from .project import Project


def make_rows(
    data: PreparedData, checked: CheckedLabels, copies: Copies, *, trusted: bool = False
) -> Rows:
    """The training rows in their order, and after them those of a validation file.

    Validation rows whose label is wrong are left out, and corrected labels stand in for the given
    ones; of two classes, a wrong label is the other one. Copies of each other share a group.
    Numbers are in the units of the label.

    Arguments:
        data: As it was given.
        checked: What a person has said about labels.
        copies: Those in the data.
        trusted: Whether every validation label counts as right.
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
        groups=_group_copies(copies, {"train": 0, "validation": trained}, len(ids)),
        validation=validation,
        checked=is_checked,
    )
    if checked.part != "validation" or not checked.wrong:
        return rows
    return rows.take(np.setdiff1d(np.arange(len(ids)), start + np.array(checked.wrong)))


def _group_copies(copies: Copies, starts: dict[str, int], count: int) -> np.ndarray:
    """The group of each row, int64 [count]: copies of each other have the same number."""
    groups = np.arange(count)
    first: dict[int, int] = {}
    for group, part, id in zip(
        copies.table["group"], copies.table["part"], copies.table["id"], strict=True
    ):
        if part in starts:
            place = starts[part] + int(id)
            groups[place] = first.setdefault(group, place)
    return groups


def project_rows(project: Project, data: PreparedData) -> Rows:
    """The rows of a finished project, with the labels that were checked before it was made."""
    checked = read_used(project.folder, data)
    trusted = project.about.get("trusted_validation") is True
    return make_rows(data, checked, project.copies, trusted=trusted)

"""Validation labels that a person has checked on the page, and what they change for the scores.

The next `dross clean` of the same project scores with them: a label that is right is not doubted
any more, an instance whose label is wrong is left out, and one that is really something else
counts as that. The input stays as it is, and so do the recorded runs, which never saw these
labels; the search for rate and epochs keeps to the part as it was given.

Ids stay the places in the part as it was given, whatever is left out.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import BadInput
from ...support.messages.option_names import name_option
from ..decision_state import VALIDATION, Decision, check_belongs
from ..decisions import Decisions
from ..doubts.labels import Scored
from ..inputs.numbers import read_learnable
from ..inputs.prepared import PreparedData
from ..inputs.source import MIN_INSTANCES
from ..opinions.beliefs import Beliefs
from ..project_files import ABOUT, delete_named, delete_written, read_intact, write_sealed

_FILE = "checked.json"  # the labels that the kept scores were computed with
_FEWEST_LEFT = MIN_INSTANCES // 5  # as many as a validation part needs
_SCORED = re.compile(r"plans-\d+\.json|runs/round-1/run-\d+-scores\.safetensors")
_WORDS = {"keep": "right", "remove": "wrong", "relabel": "relabelled"}


@dataclass(frozen=True)
class CheckedLabels:
    """What a person decided about validation instances: {place: (action, label)}."""

    decided: Mapping[int, Decision]

    def __len__(self) -> int:
        return len(self.decided)

    @property
    def rows(self) -> list[list[Any]]:
        """The same as JSON holds it."""
        return [[id, *self.decided[id]] for id in sorted(self.decided)]

    def left(self, count: int) -> np.ndarray:
        """The places, of `count`, whose label is not wrong."""
        wrong = [id for id, (action, _) in self.decided.items() if action == "remove"]
        return np.setdiff1d(np.arange(count), wrong)

    def apply(self, data: PreparedData) -> PreparedData:
        """The data with the validation part as it is to be scored."""
        if not self.decided:
            return data
        y, classes = data.y[VALIDATION].clone(), data.source.classes
        relabelled = {id: label for id, (_, label) in self.decided.items() if label is not None}
        if relabelled:
            read = [label if classes else read_learnable(label) for label in relabelled.values()]
            values = np.array(read, dtype=object if classes else np.float64)
            y[list(relabelled)] = data.targets(values)
        left = self.left(len(y))
        return replace(
            data,
            parts=data.parts | {VALIDATION: data.parts[VALIDATION][left]},
            x=data.x | {VALIDATION: data.x[VALIDATION][left]},
            y=data.y | {VALIDATION: y[left]},
        )

    def describe(self) -> str:
        """How many of each, in words; "" if there is none."""
        if not self.decided:
            return ""
        actions = [action for action, _ in self.decided.values()]
        return (
            f"Scoring with {len(actions):,} validation labels as they were checked: "
            f"{actions.count('keep'):,} right, {actions.count('remove'):,} wrong and left out, "
            f"{actions.count('relabel'):,} corrected."
        )

    def scored(self, count: int, beliefs: Beliefs, change: np.ndarray) -> Scored:
        """The validation part, of `count`, as it was scored.

        beliefs, change: what models think of each label that is left, and what the plan changed.
        """
        words = {id: _WORDS[action] for id, (action, _) in self.decided.items()}
        return Scored(self.left(count), beliefs, words, change)

    def restore_ids(self, why: dict[str, dict[str, Any]], count: int) -> dict[str, dict[str, Any]]:
        """Reasons whose validation instances are named by their places in the part as given."""
        left = self.left(count).tolist()
        name = lambda hurts: [[left[id], *rest] for id, *rest in hurts]
        return {
            id: found | {"hurts": name(found["hurts"])} if "hurts" in found else found
            for id, found in why.items()
        }


def read_checked(folder: Path, data: PreparedData) -> CheckedLabels:
    """What was decided on the page of this folder; empty if nothing has been decided yet.

    Raises:
        BadInput: too few labels are left, or one is corrected to an impossible value.
        TapeMismatch: the decisions belong to other data.
    """
    path, count = folder / "decisions.sqlite", len(data.y[VALIDATION])
    if not path.exists():
        return CheckedLabels({})
    log = Decisions(path)
    try:
        checked = CheckedLabels(log.current(VALIDATION))
    finally:
        log.close()
    check_belongs(checked.decided, path, VALIDATION, count, data.source.classes)
    left = len(checked.left(count))
    if left < min(_FEWEST_LEFT, count):
        raise BadInput(
            f"Only {left} of {count} validation labels are left: the others are marked as wrong. "
            f"That is too few to score with. Say what they really are with dross review {folder}, "
            f"or give another validation part: {name_option('validation')}."
        )
    return checked


def settle_labels(folder: Path, checked: CheckedLabels) -> bool:
    """Whether what the folder keeps was scored with these labels; what was not is deleted.

    The recorded runs stay, except those of later rounds, which learnt what an earlier one left.
    """
    path = folder / _FILE
    kept = read_intact(path)
    before = kept.get(VALIDATION) if isinstance(kept, dict) else None if path.exists() else []
    if before == checked.rows:
        return True
    delete_named(folder, re.compile(re.escape(ABOUT)))  # without it the rest is unfinished
    delete_named(folder, _SCORED)
    for later in sorted(folder.glob("runs/round-*")):
        if later.name != "round-1":
            delete_written(folder, f"runs/{later.name}")
    write_sealed(path, {VALIDATION: checked.rows})
    return False

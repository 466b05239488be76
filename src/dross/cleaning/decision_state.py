"""What a log of decisions amounts to: its rows, what holds after them, and a digest of them."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputChanged, InvalidInput
from .task import read_learnable

ACTIONS = ("keep", "remove", "relabel", "undecided")
TRAIN, VALIDATION = "train", "validation"  # the parts whose instances are decided about
Decision = tuple[str, str | None]  # an action, and the new label of a relabel


@dataclass(frozen=True)
class Event:
    """One row of the log."""

    revision: int
    made: str  # UTC, ISO 8601
    who: str
    kind: str  # decide, undo, redo
    target: int  # the decision it is about; its own revision for a decision
    changes: dict[int, Decision]  # what that decision says
    why: str
    part: str = TRAIN  # whose ids these are


@dataclass
class LogState:
    """What the log amounts to, kept up to date row by row."""

    events: list[Event] = field(default_factory=list)
    decisions: dict[int, Event] = field(default_factory=dict)  # by revision
    # revisions of the decisions that hold, in the order in which they were said
    holding: list[int] = field(default_factory=list)
    # what can be redone, and who undid it
    undone: list[tuple[int, str]] = field(default_factory=list)
    # (part, id) -> (revision, decision) of everything that holds about it, latest last
    said: dict[tuple[str, int], list[tuple[int, Decision]]] = field(default_factory=dict)
    current: dict[str, dict[int, Decision]] = field(
        default_factory=lambda: {TRAIN: {}, VALIDATION: {}}
    )
    digest: str = ""  # of all rows so far
    has_digests: bool = False  # whether a row so far carries one

    @property
    def revision(self) -> int:
        """The revision of the latest row; 0 if there is none."""
        return self.events[-1].revision if self.events else 0

    def add(self, event: Event) -> None:
        """Take the next row of the log into account."""
        self.events.append(event)
        if event.kind == "decide":
            self.decisions[event.revision] = event
            self.undone = [entry for entry in self.undone if entry[1] != event.who]
            self._apply(event.target)
        elif event.kind == "undo":
            self._take_back(event.target)
            self.undone.append((event.target, event.who))
        else:
            self.undone = [entry for entry in self.undone if entry[0] != event.target]
            self._apply(event.target)

    def find(self, revision: int) -> Event:
        """The row of a revision that is there."""
        return next(event for event in reversed(self.events) if event.revision == revision)

    def to_undo(self, who: str) -> int | None:
        """The decision that an undo by this person takes back."""
        by = lambda target: self.decisions[target].who
        return next((target for target in reversed(self.holding) if who in ("", by(target))), None)

    def to_redo(self, who: str) -> int | None:
        """The decision that a redo by this person says again."""
        undone = reversed(self.undone)
        return next((target for target, undoer in undone if who in ("", undoer)), None)

    def _apply(self, target: int) -> None:
        self.holding.append(target)
        part = self.decisions[target].part
        for id, decision in self.decisions[target].changes.items():
            self.said.setdefault((part, id), []).append((target, decision))
            self._update_current(part, id)

    def _take_back(self, target: int) -> None:
        self.holding.remove(target)
        part = self.decisions[target].part
        for id in self.decisions[target].changes:
            self.said[part, id] = [entry for entry in self.said[part, id] if entry[0] != target]
            self._update_current(part, id)

    def _update_current(self, part: str, id: int) -> None:
        said, current = self.said[part, id], self.current[part]
        decision = said[-1][1] if said else ("undecided", None)
        if decision[0] == "undecided":
            current.pop(id, None)
        else:
            current[id] = decision


def check_decision(id: int, action: str, label: str | None) -> Decision:
    """What is decided about an instance, or InvalidInput."""
    if type(id) is not int or id < 0:
        raise InvalidInput(f"{id!r} is not the id of an instance.")
    if action not in ACTIONS:
        raise InvalidInput(f"{action!r} is not a decision. It is one of {', '.join(ACTIONS)}.")
    check_new_label(action, label, repr(label))
    return action, label


def check_new_label(action: str, label: Any, shown: str) -> None:
    """Refuse a relabel without a label, and a label of anything else (InvalidInput).

    Arguments:
        action: What is decided.
        label: The new one.
        shown: The label as the message shows it.
    """
    if not isinstance(label, str if action == "relabel" else type(None)):
        raise InvalidInput(
            "A relabel needs the new label as text, and no other decision takes a label; this is "
            f"{action}, {shown}."
        )


def check_decisions(changes: Mapping[int, Decision], part: str = TRAIN) -> dict[int, Decision]:
    """What is decided about some instances of a part, or InvalidInput."""
    checked = {int(id): check_decision(int(id), *said) for id, said in changes.items()}
    if not checked:
        raise InvalidInput("A decision needs at least one instance.")
    if part not in (TRAIN, VALIDATION):
        raise InvalidInput(
            f"There are no decisions about the part {part!r}: give train or validation."
        )
    return checked


def check_belongs(
    decided: Mapping[int, Decision], path: Path, part: str, count: int, classes: Sequence[str]
) -> None:
    """Refuse decisions of a log that belongs to another project, or that dross did not write.

    Arguments:
        decided: About instances of a part.
        path: Of the log.
        part: Which part it is.
        count: How many instances are in it.
        classes: The names of the classes; none where labels are numbers.

    Raises:
        InputChanged: an instance is not there.
        InvalidInput: a label is not one of these data.
    """
    for id, (_, label) in decided.items():
        if not 0 <= id < count:
            whose = "training" if part == TRAIN else part
            raise InputChanged(
                f"{path} decides about instance {id}, but there are only {count} {whose} "
                "instances. It belongs to other data: restore the right one, or move it away."
            )
        if label is None:
            continue
        if not (label in classes if classes else read_learnable(label) is not None):
            kind = "class" if classes else "number"
            raise InvalidInput(
                f"{path} relabels instance {id} as {label!r}, which is not a {kind} of these data. "
                f"Decide about it again with dross review {path.parent}."
            )


def group_by_decision(changes: Mapping[int, Decision]) -> list[list[Any]]:
    """[[action, label, [ids]], ...]: a bulk decision says its action once."""
    groups: dict[Decision, list[int]] = {}
    for id, decision in changes.items():
        groups.setdefault(decision, []).append(id)
    return [[action, label, sorted(ids)] for (action, label), ids in groups.items()]


def encode_changes(part: str, changes: Mapping[int, Decision]) -> str:
    """The column `changes` of a row: groups, or {part: groups} for a part other than training."""
    groups = group_by_decision(changes)
    return json.dumps(groups if part == TRAIN else {part: groups})


def decode_changes(text: str) -> tuple[str, dict[int, Decision]]:
    """Read what `encode_changes` wrote; raises ValueError, TypeError or InvalidInput."""
    groups, part = json.loads(text), TRAIN
    if isinstance(groups, dict):
        ((part, groups),) = groups.items()
        if part != VALIDATION:
            raise ValueError(part)
    said = {id: (action, label) for action, label, ids in groups for id in ids}
    return part, {id: check_decision(id, *decision) for id, decision in said.items()}


def chain_digest(before: str, row: tuple[Any, ...]) -> str:
    """The digest of a row and, through the digest of the row before it, of all earlier ones."""
    return hashlib.sha256(f"{before} {json.dumps(row)}".encode()).hexdigest()

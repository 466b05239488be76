"""What a log of decisions amounts to: its rows, what holds after them, and a digest of them."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import BadInput

ACTIONS = ("keep", "remove", "relabel", "undecided")
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


@dataclass
class LogState:
    """What the log amounts to, kept up to date row by row."""

    events: list[Event] = field(default_factory=list)
    decisions: dict[int, Event] = field(default_factory=dict)  # by revision
    # revisions of the decisions that hold, in the order in which they were said
    holding: list[int] = field(default_factory=list)
    # what can be redone, and who undid it
    undone: list[tuple[int, str]] = field(default_factory=list)
    # id -> (revision, decision) of everything that holds about it, latest last
    said: dict[int, list[tuple[int, Decision]]] = field(default_factory=dict)
    current: dict[int, Decision] = field(default_factory=dict)
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
        for id, decision in self.decisions[target].changes.items():
            self.said.setdefault(id, []).append((target, decision))
            self._update_current(id)

    def _take_back(self, target: int) -> None:
        self.holding.remove(target)
        for id in self.decisions[target].changes:
            self.said[id] = [entry for entry in self.said[id] if entry[0] != target]
            self._update_current(id)

    def _update_current(self, id: int) -> None:
        decision = self.said[id][-1][1] if self.said[id] else ("undecided", None)
        if decision[0] == "undecided":
            self.current.pop(id, None)
        else:
            self.current[id] = decision


def check_decision(id: int, action: str, label: str | None) -> Decision:
    """What is decided about an instance, or BadInput."""
    if type(id) is not int or id < 0:
        raise BadInput(f"{id!r} is not the id of an instance.")
    if action not in ACTIONS:
        raise BadInput(f"{action!r} is not a decision. It is one of {', '.join(ACTIONS)}.")
    if (action == "relabel") != isinstance(label, str):
        raise BadInput(
            f"A relabel needs its new label as text, and nothing else has one: {action}, {label!r}."
        )
    return action, label


def group_by_decision(changes: Mapping[int, Decision]) -> list[list[Any]]:
    """[[action, label, [ids]], ...]: a bulk decision says its action once."""
    groups: dict[Decision, list[int]] = {}
    for id, decision in changes.items():
        groups.setdefault(decision, []).append(id)
    return [[action, label, sorted(ids)] for (action, label), ids in groups.items()]


def chain_digest(before: str, row: tuple[Any, ...]) -> str:
    """The digest of a row and, through the digest of the row before it, of all earlier ones."""
    return hashlib.sha256(f"{before} {json.dumps(row)}".encode()).hexdigest()

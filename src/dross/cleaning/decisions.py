"""The decisions of people about instances, as a log that only grows.

Each decision is one appended row of an SQLite file, and so is each undo and redo. Rows are never
changed or deleted, so undo has no limit and works across reloads, restarts and people.

    decide   decides on one or many instances of a set; it is undone as one
    undo     takes back the latest decision that holds: with a name, the latest of that person;
             without, the latest of anyone
    redo     repeats what the latest undo took back (with a name: the latest undo of that person).
             It counts as new, so it wins over decisions made in between. A new decision discards
             what the same person could have redone

A row is on disk before its revision is returned. Threads and processes take turns.
"""

import json
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from .._io import WrongKind, open_in_place
from ..errors import CorruptFile, DrossError, InputChanged, InvalidInput
from .task import read_learnable

ACTIONS = ("keep", "remove", "relabel", "undecided")
TRAIN, VALIDATION = "train", "validation"  # the parts whose instances are decided on
Decision = tuple[str, str | None]  # an action, and the new label of a relabel
_Row = tuple[str, int | None, str, dict[int, Decision]]  # kind, target, part, changes

_APPLICATION = 0x64726F73  # "dros": marks the file as ours
_SECONDS_TO_WAIT_FOR_WRITER = 30.0
_TABLE = """
CREATE TABLE events (
    revision INTEGER PRIMARY KEY AUTOINCREMENT,
    made     TEXT NOT NULL,     -- UTC, ISO 8601
    who      TEXT NOT NULL,
    kind     TEXT NOT NULL CHECK (kind IN ('decide', 'undo', 'redo')),
    target   INTEGER,           -- the decision that an undo or redo is about
    part     TEXT NOT NULL CHECK (part IN ('train', 'validation')),
    changes  TEXT NOT NULL,     -- of a decision: [[action, label, [ids]], ...]
    why      TEXT NOT NULL,
    once     TEXT UNIQUE        -- a request with the same name is not carried out again
)"""
_COLUMNS = "revision, made, who, kind, target, part, changes, why"
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA}
_RESCUE = "It was not changed. Move it elsewhere to start over, or restore a backup."


@dataclass(frozen=True)
class Event:
    """One row of the log."""

    revision: int
    made: str  # UTC, ISO 8601
    who: str
    kind: str  # decide, undo, redo
    target: int  # the decision it is about; its own revision for a decision
    changes: dict[int, Decision]  # of that decision
    why: str
    part: str = TRAIN  # whose ids these are


@dataclass
class LogState:
    """The decisions that hold after the rows seen so far."""

    events: list[Event] = field(default_factory=list)
    decisions: dict[int, Event] = field(default_factory=dict)  # by revision
    # revisions of the decisions that hold, in the order in which they were made
    holding: list[int] = field(default_factory=list)
    # decisions that can be redone, and who undid them
    undone: list[tuple[int, str]] = field(default_factory=list)
    # (part, id) -> the decisions about it that hold, by revision, the latest last
    stacks: dict[tuple[str, int], dict[int, Decision]] = field(default_factory=dict)
    current: dict[str, dict[int, Decision]] = field(
        default_factory=lambda: {TRAIN: {}, VALIDATION: {}}
    )

    @property
    def revision(self) -> int:
        """The revision of the latest row; 0 if there is none."""
        return self.events[-1].revision if self.events else 0

    def add(self, event: Event) -> None:
        """Take the next row of the log into account."""
        if event.kind == "undo":
            self.holding.remove(event.target)
            self.undone.append((event.target, event.who))
        elif event.kind == "redo":
            self.holding.append(event.target)
            self.undone = [entry for entry in self.undone if entry[0] != event.target]
        else:
            self.holding.append(event.target)
            self.undone = [entry for entry in self.undone if entry[1] != event.who]
            self.decisions[event.revision] = event
        for id, decision in event.changes.items():
            stack = self.stacks.setdefault((event.part, id), {})
            stack.pop(event.target, None)
            if event.kind != "undo":
                stack[event.target] = decision
            latest = next(reversed(stack.values()), ("undecided", None))
            if latest[0] == "undecided":
                self.current[event.part].pop(id, None)
            else:
                self.current[event.part][id] = latest
        self.events.append(event)

    def find(self, revision: int) -> Event:
        """The row of a revision that is there."""
        return next(event for event in reversed(self.events) if event.revision == revision)

    def to_undo(self, who: str) -> int | None:
        """The decision that an undo by this person takes back."""
        for target in reversed(self.holding):
            if who in ("", self.decisions[target].who):
                return target
        return None

    def to_redo(self, who: str) -> int | None:
        """The decision that a redo by this person repeats."""
        for target, undoer in reversed(self.undone):
            if who in ("", undoer):
                return target
        return None


class Decisions:
    """The log of decisions, in an SQLite file created if it is missing. Threads may share it."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._lock = threading.RLock()
        self._state = LogState()
        try:
            open_in_place(self.path).close()
        except WrongKind as error:
            raise DrossError(f"{self.path} cannot be used: {error.strerror}. {_RESCUE}") from error
        except OSError:  # it may be read-only, or its folder missing: SQLite knows
            pass
        with self._translate_errors():
            self._connection = sqlite3.connect(
                self.path,
                timeout=_SECONDS_TO_WAIT_FOR_WRITER,
                isolation_level=None,
                check_same_thread=False,
            )
            weakref.finalize(self, self._connection.close)  # where no one calls close
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def record(
        self,
        changes: Mapping[int, Decision],
        who: str = "",
        why: str = "",
        once: str | None = None,
        part: str = TRAIN,
    ) -> int:
        """Decide on some instances of the training or validation set.

        Arguments:
            changes: {id: (action, label)}. The action is keep, remove, relabel or undecided; the
                label is the new class or value of a relabel, else None.
            who: the person who decides.
            why: a remark that is kept with the decision.
            once: a name for this request. A second request with the same name changes nothing.
            part: `train` or `validation`. For validation, keep means that the label is right,
                remove that it is wrong, and relabel that another label is right.

        Returns:
            The revision of the decision, once it is on disk; with a repeated `once`, the revision
            of the first request.

        Raises:
            InvalidInput: there is no instance, or something is not a decision.
            DrossError: the decision cannot be saved.
            CorruptFile: the file is damaged.
        """
        if part not in (TRAIN, VALIDATION):
            raise InvalidInput(
                f"Decisions apply to instances in the 'train' or 'validation' set, not {part!r}."
            )
        checked = _check_decisions(changes)
        event = self._append(lambda state: ("decide", None, part, checked), who, why, once)
        assert event is not None
        return event.revision

    def record_undecided(
        self, changes: Mapping[int, Decision], who: str = "", why: str = "", once: str | None = None
    ) -> Event | None:
        """Decide on those instances that no one has decided on; otherwise like `record`.

        Returns the decision, once it is on disk; None if everything was decided before.
        """
        checked = _check_decisions(changes)

        def choose(state: LogState) -> _Row:
            left = checked.keys() - state.current[TRAIN].keys()
            return "decide", None, TRAIN, {id: checked[id] for id in sorted(left)}

        return self._append(choose, who, why, once)

    def undo(self, who: str = "", once: str | None = None) -> Event | None:
        """Take back the latest decision of a person, or of anyone ("").

        Returns what was taken back; None if there is nothing to undo. once: see `record`.
        """
        return self._append(lambda state: ("undo", state.to_undo(who), TRAIN, {}), who, "", once)

    def redo(self, who: str = "", once: str | None = None) -> Event | None:
        """Repeat the decision that the latest undo of a person, or of anyone (""), took back.

        Returns what was decided again; None if there is nothing to redo. once: see `record`.
        """
        return self._append(lambda state: ("redo", state.to_redo(who), TRAIN, {}), who, "", once)

    def current(self, part: str = TRAIN) -> dict[int, Decision]:
        """{id: (action, label)} for every instance of a part that has a decision."""
        with self._lock:  # another thread may be adding to it
            return dict(self._up_to_date().current[part])

    @property
    def revision(self) -> int:
        """The revision of the latest row; 0 if there is none."""
        return self._up_to_date().revision

    def since(self, revision: int) -> list[Event]:
        """The events after a revision, oldest first."""
        with self._lock:
            events = list(self._up_to_date().events)
        start = len(events)
        # the new ones are few and at the end
        while start and events[start - 1].revision > revision:
            start -= 1
        return events[start:]

    def undoable(self, who: str = "") -> bool:
        """Whether there is a decision that `undo` can revert."""
        with self._lock:
            return self._up_to_date().to_undo(who) is not None

    def redoable(self, who: str = "") -> bool:
        """Whether there is a decision that `redo` can restore."""
        with self._lock:
            return self._up_to_date().to_redo(who) is not None

    def history(self) -> list[dict[str, Any]]:
        """The log, oldest first: one entry for each undo, redo and action of a decision."""
        entries = []
        for event in self.since(0):
            groups = [[event.kind, None, sorted(event.changes)]]
            if event.kind == "decide":
                groups = group_by_decision(event.changes)
            for action, label, ids in groups:
                entries.append(
                    {
                        "revision": event.revision,
                        "when": event.made,
                        "who": event.who,
                        "action": action,
                        "label": label,
                        "ids": ids,
                        "target": event.target,
                        "why": event.why,
                        "part": event.part,
                    }
                )
        return entries

    def close(self) -> None:
        """Close the file. Nothing else may be called afterwards."""
        self._connection.close()

    # --- the file ---------------------------------------------------------------------------------

    def _prepare(self) -> None:
        run = self._connection.execute
        # Not WAL: a project may lie on a network disk or be read-only, and is copied file by file.
        # EXTRA also syncs the folder after the journal is gone: a power cut loses nothing.
        run("PRAGMA synchronous=EXTRA")
        if not run("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            with self._transaction():
                if not run("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                    run(_TABLE)
                    run(f"PRAGMA application_id={_APPLICATION}")
                    run("COMMIT")
        if run("PRAGMA application_id").fetchone()[0] != _APPLICATION:
            raise CorruptFile(
                f"{self.path} is an SQLite file, but dross did not write it. "
                "It was not changed; move it elsewhere."
            )
        self._up_to_date()

    def _append(
        self, choose: Callable[[LogState], _Row], who: str, why: str, once: str | None
    ) -> Event | None:
        """Write the row that `choose` makes of the state; None if there is nothing to write."""
        with self._lock, self._translate_errors(), self._transaction() as run:
            state = self._up_to_date()
            if once:
                earlier = run("SELECT revision FROM events WHERE once = ?", (once,)).fetchone()
                if earlier is not None:
                    return state.find(earlier[0])
            kind, target, part, changes = choose(state)
            if target is None and not changes:
                return None
            revision = state.revision + 1
            made = datetime.now(UTC).isoformat(timespec="milliseconds")
            encoded = json.dumps(group_by_decision(changes))
            run(
                f"INSERT INTO events ({_COLUMNS}, once) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (revision, made, who, kind, target, part, encoded, why, once),
            )
            run("COMMIT")
            return self._up_to_date().find(revision)

    @contextmanager
    def _transaction(self) -> Iterator[Callable[..., sqlite3.Cursor]]:
        """Keep other writers out, so that nothing changes between choosing and writing.

        What is not committed inside is rolled back.
        """
        run = self._connection.execute
        run("BEGIN IMMEDIATE")
        try:
            yield run
        finally:
            if self._connection.in_transaction:
                run("ROLLBACK")

    def _up_to_date(self) -> LogState:
        """The state with the rows that others have added in the meantime."""
        with self._lock, self._translate_errors():
            rows = self._connection.execute(
                f"SELECT {_COLUMNS} FROM events WHERE revision > ? ORDER BY revision",
                (self._state.revision,),
            )
            for row in rows.fetchall():
                try:
                    self._state.add(self._decode(*row))
                except (ValueError, TypeError, KeyError, RecursionError):
                    raise CorruptFile(
                        f"Row {row[0]} of {self.path} has been changed since dross wrote it. "
                        f"{_RESCUE}"
                    ) from None
            return self._state

    def _decode(
        self,
        revision: int,
        made: str,
        who: str,
        kind: str,
        target: int | None,
        part: str,
        changes: str,
        why: str,
    ) -> Event:
        if target is not None:
            decision = self._state.decisions[target]
            return Event(revision, made, who, kind, target, decision.changes, why, decision.part)
        decided = {
            id: check_decision(id, action, label)
            for action, label, ids in json.loads(changes)
            for id in ids
        }
        return Event(revision, made, who, kind, revision, decided, why, part)

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Errors of SQLite as errors of dross."""
        try:
            yield
        except UnicodeDecodeError as error:  # in a message of SQLite, which quotes the file
            raise CorruptFile(f"{self.path} is damaged ({error}). {_RESCUE}") from error
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _DAMAGED:
                raise CorruptFile(
                    f"{self.path} is damaged or not an SQLite file ({error}). {_RESCUE}"
                ) from error
            if code == sqlite3.SQLITE_BUSY:
                waited = f"{_SECONDS_TO_WAIT_FOR_WRITER:.0f} s"
                raise DrossError(
                    f"{self.path} has been locked by another program for more than {waited}. "
                    "Try again."
                ) from error
            if code == sqlite3.SQLITE_FULL:
                raise DrossError(
                    f"{self.path}: the disk is full. The decision was not saved; free some disk "
                    "space and try again."
                ) from error
            raise DrossError(
                f"{self.path} cannot be used ({error}). Check that its folder exists and that you "
                "have permission to write to it."
            ) from error


def check_decision(id: int, action: str, label: str | None) -> Decision:
    """The decision on an instance, or InvalidInput."""
    if type(id) is not int or id < 0:
        raise InvalidInput(f"{id!r} is not the id of an instance.")
    if action not in ACTIONS:
        raise InvalidInput(f"{action!r} is not a decision. Use one of {', '.join(ACTIONS)}.")
    if not isinstance(label, str if action == "relabel" else type(None)):
        raise InvalidInput(
            "A relabel decision needs the new label as a string, and no other decision takes a "
            f"label; got {action} with label {label!r}."
        )
    return action, label


def _check_decisions(changes: Mapping[int, Decision]) -> dict[int, Decision]:
    checked = {int(id): check_decision(int(id), *decision) for id, decision in changes.items()}
    if not checked:
        raise InvalidInput("A decision needs at least one instance.")
    return checked


def check_belongs(
    decided: Mapping[int, Decision], path: Path, part: str, count: int, classes: Sequence[str]
) -> None:
    """Refuse decisions of a log that belongs to another project.

    Arguments:
        decided: About instances of a part.
        path: Of the log.
        part: Which part it is.
        count: How many instances are in it.
        classes: The names of the classes; none where labels are numbers.

    Raises:
        InputChanged: an instance is not there.
        InvalidInput: a label does not occur in this data.
    """
    for id, (_, label) in decided.items():
        if not 0 <= id < count:
            whose = "training" if part == TRAIN else part
            raise InputChanged(
                f"{path} contains a decision about instance {id}, but there are only {count} "
                f"{whose} instances. It belongs to different data: restore the right file, or move "
                "this one elsewhere."
            )
        if label is None:
            continue
        if not (label in classes if classes else read_learnable(label) is not None):
            kind = "class" if classes else "number"
            raise InvalidInput(
                f"{path} relabels instance {id} as {label!r}, which is not a {kind} in this data. "
                f"Review that instance again with dross review {path.parent}."
            )


def set_decisions_aside(folder: Path) -> None:
    """Rename the decisions to a name that contains the time and is not in use."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    number = 0
    while any(folder.glob(f"decisions-{stamp}-{number:02d}.*")):
        number += 1
    for path in sorted(folder.glob("decisions.sqlite*")):
        aside = f"decisions-{stamp}-{number:02d}{path.name.removeprefix('decisions')}"
        try:
            path.rename(folder / aside)
        except OSError as error:
            raise DrossError(f"{path} cannot be set aside: {error.strerror}.") from error


def group_by_decision(changes: Mapping[int, Decision]) -> list[list[Any]]:
    """[[action, label, [ids]], ...]: a bulk decision states its action once."""
    groups: dict[Decision, list[int]] = {}
    for id, decision in changes.items():
        groups.setdefault(decision, []).append(id)
    return [[action, label, sorted(ids)] for (action, label), ids in groups.items()]

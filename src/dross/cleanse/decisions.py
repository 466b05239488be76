"""What people decided, as a log that only grows.

Every decision is one appended row, and so is every undo and redo. Nothing is ever changed or
deleted, so undo has no limit and works across reloads, restarts and people. What holds now follows
from the whole log.

    decide   says something new about one or many instances; it is undone as one
    undo     takes back the latest decision that holds: with a name, the latest of that person;
             without, the latest of anybody
    redo     says again what the latest undo took back (with a name: the latest undo of that
             person). It counts as new, so it wins over what others decided in between. A new
             decision forgets what the same person could have redone

A row is on disk before its revision is returned (one SQLite file, synchronous=EXTRA). Threads and
processes take turns.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import BadInput, StorageFailed, TapeDamaged, TapeMismatch

ACTIONS = ("keep", "remove", "relabel", "undecided")
FORMAT = 1
_APPLICATION = 0x64726F73  # "dros": how a file says that it is ours
_NEW_FILE = (0, 0, 0)
_SECONDS_TO_WAIT_FOR_WRITER = 30.0
_TABLE = """
CREATE TABLE events (
    revision INTEGER PRIMARY KEY AUTOINCREMENT,
    made     TEXT NOT NULL,
    who      TEXT NOT NULL,
    kind     TEXT NOT NULL CHECK (kind IN ('decide', 'undo', 'redo')),
    target   INTEGER,           -- the decision that an undo or redo is about
    changes  TEXT NOT NULL,     -- of a decision: [[action, label, [ids]], ...]
    why      TEXT NOT NULL,
    once     TEXT UNIQUE        -- a request that is sent again because its answer \
was lost is not carried out again
)"""
_COLUMNS = "revision, made, who, kind, target, changes, why"
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA}
_RESCUE = "It is left as it is; move it away to start anew, or restore a copy."

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


_Choose = Callable[["_State"], tuple[str, int | None, dict[int, Decision]]]


@dataclass
class _State:
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

    @property
    def revision(self) -> int:
        return self.events[-1].revision if self.events else 0

    def add(self, event: Event) -> None:
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


class Decisions:
    """The log in one SQLite file, made when it is not there. Threads may share it."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._lock = threading.RLock()
        self._state = _State()
        with self._translate_errors():
            self._connection = sqlite3.connect(
                self.path,
                timeout=_SECONDS_TO_WAIT_FOR_WRITER,
                isolation_level=None,
                check_same_thread=False,
            )
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def record(
        self, changes: Mapping[int, Decision], who: str = "", why: str = "", once: str | None = None
    ) -> int:
        """Decide about some instances.

        Arguments:
            changes: {id: (action, label)}. The action is keep, remove, relabel or undecided; the
                label is the new class or value of a relabel, else None.
            who: the person who decides.
            why: a remark that is kept with the decision.
            once: a name of this request. A second request of the same name changes nothing.

        Returns:
            The revision of the decision, once it is on disk; with a repeated `once`, the revision
            of the first request.

        Raises:
            BadInput: there is no instance, or something is not a decision.
            StorageFailed: the decision cannot be saved.
            TapeDamaged: the file is damaged.
        """
        checked = {int(id): _check_decision(int(id), *said) for id, said in changes.items()}
        if not checked:
            raise BadInput("A decision needs at least one instance.")
        event = self._append(lambda state: ("decide", None, checked), who, why, once)
        assert event is not None
        return event.revision

    def undo(self, who: str = "", once: str | None = None) -> Event | None:
        """Take back the latest decision of a person, or of anybody ("").

        Returns what was taken back; None if there is nothing to undo. once: as of `record`.
        """
        return self._append(lambda state: ("undo", state.to_undo(who), {}), who, "", once)

    def redo(self, who: str = "", once: str | None = None) -> Event | None:
        """Decide again what the latest undo of a person, or of anybody (""), took back.

        Returns what was decided again; None if there is nothing to redo. once: as of `record`.
        """
        return self._append(lambda state: ("redo", state.to_redo(who), {}), who, "", once)

    def current(self) -> dict[int, Decision]:
        """{id: (action, label)} of everything that is decided."""
        with self._lock:  # another thread may be adding to it
            return dict(self._up_to_date().current)

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
        """Whether `undo` would find something to take back."""
        with self._lock:
            return self._up_to_date().to_undo(who) is not None

    def redoable(self, who: str = "") -> bool:
        """Whether `redo` would find something to say again."""
        with self._lock:
            return self._up_to_date().to_redo(who) is not None

    def history(self) -> list[dict[str, Any]]:
        """The whole log, oldest first: an entry per undo, redo, and action of a decision."""
        return [
            {
                "revision": event.revision,
                "when": event.made,
                "who": event.who,
                "action": action,
                "label": label,
                "ids": ids,
                "target": event.target,
                "why": event.why,
            }
            for event in self.since(0)
            for action, label, ids in (
                _group_by_decision(event.changes)
                if event.kind == "decide"
                else [[event.kind, None, sorted(event.changes)]]
            )
        ]

    def close(self) -> None:
        """Close the file. Nothing else may be called afterwards."""
        self._connection.close()

    # --- the file ---

    def _prepare(self) -> None:
        run = self._connection.execute
        # EXTRA also syncs the folder after the journal is gone: a power cut loses nothing
        run("PRAGMA synchronous=EXTRA")
        if self._identity() == _NEW_FILE:
            run("BEGIN IMMEDIATE")
            if self._identity() == _NEW_FILE:  # nobody else made it while we waited
                run(_TABLE)
                run(f"PRAGMA application_id={_APPLICATION}")
                run(f"PRAGMA user_version={FORMAT}")
            run("COMMIT")
        application, version, _ = self._identity()
        if application != _APPLICATION:
            raise TapeDamaged(
                f"{self.path} is an SQLite file, but not one of dross. "
                "It is left as it is; move it away."
            )
        if version != FORMAT:
            raise TapeMismatch(
                f"{self.path} has format {version}; this dross reads format {FORMAT}. "
                "Use the dross that wrote it."
            )
        found = run("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise TapeDamaged(f"{self.path} is damaged ({found}). {_RESCUE}")
        self._up_to_date()

    def _identity(self) -> tuple[int, int, int]:
        """The application that made the file, its format, and how many tables it has."""
        run = self._connection.execute
        return (
            run("PRAGMA application_id").fetchone()[0],
            run("PRAGMA user_version").fetchone()[0],
            run("SELECT count(*) FROM sqlite_master").fetchone()[0],
        )

    def _append(self, choose: _Choose, who: str, why: str, once: str | None) -> Event | None:
        """Write the row that `choose` makes of the state; None if there is nothing to write."""
        with self._lock, self._translate_errors(), self._transaction() as run:
            state = self._up_to_date()
            if once:
                query = "SELECT revision FROM events WHERE once = ?"
                if (earlier := run(query, (once,)).fetchone()) is not None:
                    return state.find(earlier[0])
            kind, target, changes = choose(state)
            if kind != "decide" and target is None:
                return None
            made = datetime.now(UTC).isoformat(timespec="milliseconds")
            groups = json.dumps(_group_by_decision(changes))
            cursor = run(
                "INSERT INTO events (made, who, kind, target, changes, why, once) "
                "VALUES (?, ?, ?, ?, ?, ?, ?)",
                (made, who, kind, target, groups, why, once),
            )
            revision = cursor.lastrowid
            assert revision is not None
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

    def _up_to_date(self) -> _State:
        """The state, after the rows that others have added since the last look."""
        with self._lock, self._translate_errors():
            rows = self._connection.execute(
                f"SELECT {_COLUMNS} FROM events WHERE revision > ? ORDER BY revision",
                (self._state.revision,),
            )
            for row in rows.fetchall():
                self._add_row(*row)
            return self._state

    def _add_row(
        self, revision: int, made: str, who: str, kind: str, target: Any, changes: str, why: str
    ) -> None:
        try:
            if kind == "decide":
                groups, about = json.loads(changes), revision
                said = {id: (action, label) for action, label, ids in groups for id in ids}
                for id, decision in said.items():
                    _check_decision(id, *decision)
            else:
                about = target or 0
                said = self._state.decisions[about].changes
            self._state.add(Event(revision, made, who, kind, about, said, why))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise TapeDamaged(
                f"Row {revision} of {self.path} is not one that dross wrote. {_RESCUE}"
            ) from None

    @contextmanager
    def _translate_errors(self) -> Iterator[None]:
        """Errors of SQLite as errors of dross."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _DAMAGED:
                raise TapeDamaged(
                    f"{self.path} is damaged or not an SQLite file ({error}). {_RESCUE}"
                ) from error
            raise StorageFailed(f"{self.path}{_explain_failure(code, error)}") from error


def _explain_failure(code: int, error: sqlite3.Error) -> str:
    """What is said after the name of the file."""
    if code == sqlite3.SQLITE_BUSY:
        waited = f"{_SECONDS_TO_WAIT_FOR_WRITER:.0f} s"
        return f" is held by another program for more than {waited}. Try again."
    if code == sqlite3.SQLITE_FULL:
        return ": the disk is full. The decision is not saved; make room and try again."
    return f" cannot be used ({error}). Is its folder there, and may you write to it?"


def _check_decision(id: int, action: str, label: str | None) -> Decision:
    if type(id) is not int or id < 0:
        raise BadInput(f"{id!r} is not the id of an instance.")
    if action not in ACTIONS:
        raise BadInput(f"{action!r} is not a decision. It is one of {', '.join(ACTIONS)}.")
    if (action == "relabel") != isinstance(label, str):
        raise BadInput(
            f"A relabel needs its new label as text, and nothing else has one: {action}, {label!r}."
        )
    return action, label


def _group_by_decision(changes: Mapping[int, Decision]) -> list[list[Any]]:
    """[[action, label, [ids]], ...]: a bulk decision says its action once."""
    groups: dict[Decision, list[int]] = {}
    for id, decision in changes.items():
        groups.setdefault(decision, []).append(id)
    return [[action, label, sorted(ids)] for (action, label), ids in groups.items()]

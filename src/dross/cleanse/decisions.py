"""What people decided, as a log that only grows.

Every decision is one appended row, and so is every undo and redo: nothing is ever changed or deleted, so undo has no limit and
works across reloads, restarts and people. What holds now is a fold over the log.

    decide   says something new about one or many instances; it is undone as one
    undo     takes back the latest decision that holds. With a name: the latest of that person. Without: the latest of anybody
    redo     says again what the latest undo took back (with a name: the latest undo of that person). It counts as new, so it
             wins over what others decided in between. A new decision forgets what the same person could have redone

A row is on disk before its revision is returned (one SQLite file, synchronous=EXTRA). Threads and processes take turns.
"""

import json
import os
import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import BadInput, StorageFailed, TapeDamaged, TapeMismatch

ACTIONS = ("keep", "remove", "relabel", "undecided")
FORMAT = 1
_APPLICATION = 0x64726F73  # "dros": how a file says that it is ours
_PATIENCE = 30.0  # seconds to wait for another writer
_TABLE = """
CREATE TABLE events (
    revision INTEGER PRIMARY KEY AUTOINCREMENT,
    made     TEXT NOT NULL,
    who      TEXT NOT NULL,
    kind     TEXT NOT NULL CHECK (kind IN ('decide', 'undo', 'redo')),
    target   INTEGER,           -- the decision that an undo or redo is about
    changes  TEXT NOT NULL,     -- of a decision: [[action, label, [ids]], ...]
    why      TEXT NOT NULL,
    once     TEXT UNIQUE        -- a request that is sent again because its answer was lost is not carried out again
)"""
_COLUMNS = "revision, made, who, kind, target, changes, why"
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA}

Decision = tuple[str, str | None]  # an action, and the new label of a relabel


@dataclass(frozen=True)
class Event:
    revision: int
    made: str  # UTC, ISO 8601
    who: str
    kind: str  # decide, undo, redo
    target: int  # the decision it is about; its own revision for a decision
    changes: dict[int, Decision]  # what that decision says
    why: str


@dataclass
class _Fold:
    """What a log amounts to, kept up to date row by row."""

    events: list[Event] = field(default_factory=list)
    decisions: dict[int, Event] = field(default_factory=dict)  # by revision
    holding: list[int] = field(
        default_factory=list
    )  # revisions of decisions that hold, in the order in which they were said
    undone: list[tuple[int, str]] = field(
        default_factory=list
    )  # what can be redone, and who undid it
    said: dict[int, list[tuple[int, Decision]]] = field(
        default_factory=dict
    )  # id -> what holds about it, latest last
    current: dict[int, Decision] = field(default_factory=dict)

    @property
    def revision(self) -> int:
        return self.events[-1].revision if self.events else 0

    def add(self, event: Event) -> None:
        self.events.append(event)
        if event.kind == "decide":
            self.decisions[event.revision] = event
            self.undone = [
                (target, undoer) for target, undoer in self.undone if undoer != event.who
            ]
            self._say(event.target)
        elif event.kind == "undo":
            self.holding.remove(event.target)
            self.undone.append((event.target, event.who))
            for id in event.changes:
                self.said[id] = [
                    (revision, decision)
                    for revision, decision in self.said[id]
                    if revision != event.target
                ]
                self._settle(id)
        else:
            self.undone = [
                (target, undoer) for target, undoer in self.undone if target != event.target
            ]
            self._say(event.target)

    def to_undo(self, who: str) -> int | None:
        return next(
            (
                target
                for target in reversed(self.holding)
                if who in ("", self.decisions[target].who)
            ),
            None,
        )

    def to_redo(self, who: str) -> int | None:
        return next(
            (target for target, undoer in reversed(self.undone) if who in ("", undoer)), None
        )

    def _say(self, target: int) -> None:
        self.holding.append(target)
        for id, decision in self.decisions[target].changes.items():
            self.said.setdefault(id, []).append((target, decision))
            self._settle(id)

    def _settle(self, id: int) -> None:
        decision = self.said[id][-1][1] if self.said[id] else ("undecided", None)
        if decision[0] == "undecided":
            self.current.pop(id, None)
        else:
            self.current[id] = decision


class Decisions:
    """The log in one SQLite file, made when it is not there. Safe to share between threads."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._lock = threading.RLock()
        self._fold = _Fold()
        with self._speaking_plainly():
            self._connection = sqlite3.connect(
                self.path, timeout=_PATIENCE, isolation_level=None, check_same_thread=False
            )
            try:
                self._prepare()
            except BaseException:
                self._connection.close()
                raise

    def record(
        self, changes: Mapping[int, Decision], who: str = "", why: str = "", once: str | None = None
    ) -> int:
        """Decide about some instances; returns the revision when it is on disk.

        changes: {id: (action, label)}; the label of a relabel is the new class or value, of everything else None.
        once: a name of this request; a second one of the same name changes nothing and returns the revision of the first.
        """
        checked = {int(id): _checked(id, *decision) for id, decision in changes.items()}
        if not checked:
            raise BadInput("A decision needs at least one instance.")
        event = self._append(lambda fold: ("decide", None, checked), who, why, once)
        assert event is not None
        return event.revision

    def undo(self, who: str = "", once: str | None = None) -> Event | None:
        """Take back the latest decision of that person, or of anybody. None: there is nothing to undo."""
        return self._append(lambda fold: ("undo", fold.to_undo(who), {}), who, "", once)

    def redo(self, who: str = "", once: str | None = None) -> Event | None:
        """Decide again what the latest undo took back. None: there is nothing to redo."""
        return self._append(lambda fold: ("redo", fold.to_redo(who), {}), who, "", once)

    def current(self) -> dict[int, Decision]:
        """{id: (action, label)} of everything that is decided."""
        with self._lock:  # another thread may be adding to it
            return dict(self._up_to_date().current)

    @property
    def revision(self) -> int:
        return self._up_to_date().revision

    def since(self, revision: int) -> list[Event]:
        with self._lock:
            events = list(self._up_to_date().events)
        start = len(events)
        while (
            start and events[start - 1].revision > revision
        ):  # the new ones are few and at the end
            start -= 1
        return events[start:]

    def undoable(self, who: str = "") -> bool:
        with self._lock:
            return self._up_to_date().to_undo(who) is not None

    def redoable(self, who: str = "") -> bool:
        with self._lock:
            return self._up_to_date().to_redo(who) is not None

    def history(self) -> list[dict[str, Any]]:
        """The whole log, oldest first, one entry per action and label of a decision and one per undo and redo."""
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
                _grouped(event.changes)
                if event.kind == "decide"
                else [[event.kind, None, sorted(event.changes)]]
            )
        ]

    def close(self) -> None:
        self._connection.close()

    # The file

    def _prepare(self) -> None:
        run = self._connection.execute
        run(
            "PRAGMA synchronous=EXTRA"
        )  # also the folder, after the journal is gone: a power cut loses nothing acknowledged
        if self._about() == (0, 0, 0):
            run("BEGIN IMMEDIATE")
            if self._about() == (0, 0, 0):  # nobody else made it while we waited
                run(_TABLE)
                run(f"PRAGMA application_id={_APPLICATION}")
                run(f"PRAGMA user_version={FORMAT}")
            run("COMMIT")
        application, version, _ = self._about()
        if application != _APPLICATION:
            raise TapeDamaged(
                f"{self.path} is an SQLite file, but not one of dross. It is left as it is; move it away."
            )
        if version != FORMAT:
            raise TapeMismatch(
                f"{self.path} has format {version}; this dross reads format {FORMAT}. Use the dross that wrote it."
            )
        found = run("PRAGMA quick_check(1)").fetchone()[0]
        if found != "ok":
            raise TapeDamaged(f"{self.path} is damaged ({found}). {_RESCUE}")
        self._up_to_date()

    def _about(self) -> tuple[int, int, int]:
        """Whose file it is, its format, and how many tables it has: all 0 for a new file."""
        queries = (
            "PRAGMA application_id",
            "PRAGMA user_version",
            "SELECT count(*) FROM sqlite_master",
        )
        application, version, tables = (
            self._connection.execute(query).fetchone()[0] for query in queries
        )
        return application, version, tables

    def _append(self, choose: Any, who: str, why: str, once: str | None) -> Event | None:
        with self._lock, self._speaking_plainly():
            run = self._connection.execute
            run(
                "BEGIN IMMEDIATE"
            )  # from here on nobody else writes: what we choose by is what we write after
            try:
                fold = self._up_to_date()
                before = (
                    run("SELECT revision FROM events WHERE once = ?", (once,)).fetchone()
                    if once
                    else None
                )
                if before is not None:
                    run("ROLLBACK")
                    return next(
                        event for event in reversed(fold.events) if event.revision == before[0]
                    )
                kind, target, changes = choose(fold)
                if kind != "decide" and target is None:
                    run("ROLLBACK")
                    return None
                made = datetime.now(UTC).isoformat(timespec="milliseconds")
                values = (made, who, kind, target, json.dumps(_grouped(changes)), why, once)
                cursor = run(
                    "INSERT INTO events (made, who, kind, target, changes, why, once) VALUES (?, ?, ?, ?, ?, ?, ?)",
                    values,
                )
                revision = cursor.lastrowid
                run("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    run("ROLLBACK")
                raise
            return next(
                event for event in reversed(self._up_to_date().events) if event.revision == revision
            )

    def _up_to_date(self) -> _Fold:
        with self._lock, self._speaking_plainly():
            rows = self._connection.execute(
                f"SELECT {_COLUMNS} FROM events WHERE revision > ? ORDER BY revision",
                (self._fold.revision,),
            )
            for row in rows.fetchall():
                self._fold.add(self._event(*row))
            return self._fold

    def _event(
        self,
        revision: int,
        made: str,
        who: str,
        kind: str,
        target: int | None,
        changes: str,
        why: str,
    ) -> Event:
        try:
            if kind != "decide":
                return Event(
                    revision,
                    made,
                    who,
                    kind,
                    target or 0,
                    self._fold.decisions[target or 0].changes,
                    why,
                )
            said = {id: (action, label) for action, label, ids in json.loads(changes) for id in ids}
            return Event(revision, made, who, kind, revision, said, why)
        except (ValueError, TypeError, KeyError):
            raise TapeDamaged(
                f"Row {revision} of {self.path} is not one that dross wrote. {_RESCUE}"
            ) from None

    @contextmanager
    def _speaking_plainly(self) -> Iterator[None]:
        """Errors of SQLite as errors of dross."""
        try:
            yield
        except sqlite3.Error as error:
            code = getattr(error, "sqlite_errorcode", 0) & 0xFF
            if code in _DAMAGED:
                raise TapeDamaged(
                    f"{self.path} is damaged or not an SQLite file ({error}). {_RESCUE}"
                ) from error
            if code == sqlite3.SQLITE_BUSY:
                raise StorageFailed(
                    f"{self.path} is held by another program for more than {_PATIENCE:.0f} s. Try again."
                ) from error
            if code == sqlite3.SQLITE_FULL:
                raise StorageFailed(
                    f"{self.path}: the disk is full. The decision is not saved; make room and try again."
                ) from error
            raise StorageFailed(
                f"{self.path} cannot be used ({error}). Is its folder there, and may you write to it?"
            ) from error


_RESCUE = "It is left as it is; move it away to start anew, or restore a copy."


def _checked(id: int, action: str, label: str | None) -> Decision:
    if id < 0:
        raise BadInput(f"{id} is not the id of an instance.")
    if action not in ACTIONS:
        raise BadInput(f"{action!r} is not a decision. It is one of {', '.join(ACTIONS)}.")
    if (action == "relabel") != isinstance(label, str):
        raise BadInput(
            f"A relabel needs its new label as text, and nothing else has one: {action}, {label!r}."
        )
    return action, label


def _grouped(changes: Mapping[int, Decision]) -> list[list[Any]]:
    """[[action, label, [ids]], ...]: a bulk decision says its action once."""
    groups: dict[Decision, list[int]] = {}
    for id, decision in changes.items():
        groups.setdefault(decision, []).append(id)
    return [[action, label, sorted(ids)] for (action, label), ids in groups.items()]

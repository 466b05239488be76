"""What people decided, as a log that only grows.

Every decision is one appended row, and so is every undo and redo. Nothing is ever changed or
deleted, so undo has no limit and works across reloads, restarts and people. What holds now follows
from the whole log.

    decide   says something new about one or many instances of a part; it is undone as one
    undo     takes back the latest decision that holds: with a name, the latest of that person;
             without, the latest of anybody
    redo     says again what the latest undo took back (with a name: the latest undo of that
             person). It counts as new, so it wins over what others decided in between. A new
             decision discards what the same person could have redone

A row is on disk before its revision is returned (one SQLite file, synchronous=EXTRA). Threads and
processes take turns. Every row carries a digest of itself and of all rows before it: SQLite notices
damage to its own pages, not to what is written in them.
"""

import errno
import os
import sqlite3
import threading
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..errors import CorruptFile, DrossError, InputChanged
from ..support.atomic_files import staged_file, sync_folder
from .decision_state import (
    TRAIN,
    Decision,
    Event,
    LogState,
    chain_digest,
    check_decisions,
    decode_changes,
    encode_changes,
    group_by_decision,
)

FORMAT = 2
_WITH_PARTS = (
    3  # from the first decision about a validation instance on; earlier versions refuse it
)
_WITHOUT_DIGESTS = 1  # the format of earlier versions; the next decision adds them
_APPLICATION = 0x64726F73  # "dros": how a file says that it is ours
_SECONDS_TO_WAIT_FOR_WRITER = 30.0
_TABLE = """
CREATE TABLE events (
    revision INTEGER PRIMARY KEY AUTOINCREMENT,
    made     TEXT NOT NULL,
    who      TEXT NOT NULL,
    kind     TEXT NOT NULL CHECK (kind IN ('decide', 'undo', 'redo')),
    target   INTEGER,           -- the decision that an undo or redo is about
    changes  TEXT NOT NULL,     -- of a decision: [[action, label, [ids]], ...]; about \
validation instances: {"validation": [[action, label, [ids]], ...]}
    why      TEXT NOT NULL,
    once     TEXT UNIQUE,       -- a request that is sent again because its answer \
was lost is not carried out again
    digest   TEXT               -- of the other columns, and of the rows before
)"""
_COLUMNS = "revision, made, who, kind, target, changes, why, once"
_NO_LINKS = {errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS}  # on some disks
_DAMAGED = {sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_SCHEMA}
_LAST_REVISIONS = """
SELECT (SELECT max(revision) FROM events), (SELECT seq FROM sqlite_sequence WHERE name = 'events')
"""
_RESCUE = "It was not changed. Move it away to start over, or restore a backup."


_Choose = Callable[["LogState"], tuple[str, int | None, dict[int, Decision]]]


class Decisions:
    """The log in one SQLite file, created if there is none. Threads may share it."""

    def __init__(self, path: str | os.PathLike):
        self.path = Path(path)
        self._lock = threading.RLock()
        self._state = LogState()
        if not self.path.exists():
            _make_file(self.path)
        with self._translate_errors():
            self._connection = sqlite3.connect(
                self.path,
                timeout=_SECONDS_TO_WAIT_FOR_WRITER,
                isolation_level=None,
                check_same_thread=False,
            )
            weakref.finalize(self, self._connection.close)  # where nobody calls close
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
        """Decide about some instances of a part.

        Arguments:
            changes: {id: (action, label)}. The action is keep, remove, relabel or undecided; the
                label is the new class or value of a relabel, else None.
            who: the person who decides.
            why: a remark that is kept with the decision.
            once: a name of this request. A second request of the same name changes nothing.
            part: `train`, or `validation`: there keep means that the label is right, remove that it
                is wrong, and relabel that it is really another.

        Returns:
            The revision of the decision, once it is on disk; with a repeated `once`, the revision
            of the first request.

        Raises:
            InvalidInput: there is no instance, or something is not a decision.
            DrossError: the decision cannot be saved.
            CorruptFile: the file is damaged.
        """
        checked = check_decisions(changes, part)
        event = self._append(lambda state: ("decide", None, checked), who, why, once, part)
        assert event is not None
        return event.revision

    def record_undecided(
        self, changes: Mapping[int, Decision], who: str = "", why: str = "", once: str | None = None
    ) -> Event | None:
        """Decide about those instances that nobody has decided about; otherwise like `record`.

        Returns the decision, once it is on disk; None if everything was decided before.
        """
        checked = check_decisions(changes)

        def choose(state: LogState) -> tuple[str, None, dict[int, Decision]]:
            left = checked.keys() - state.current[TRAIN].keys()
            return "decide", None, {id: checked[id] for id in sorted(left)}

        return self._append(choose, who, why, once)

    def undo(self, who: str = "", once: str | None = None) -> Event | None:
        """Take back the latest decision of a person, or of anybody ("").

        Returns what was taken back; None if there is nothing to undo. once: see `record`.
        """
        return self._append(lambda state: ("undo", state.to_undo(who), {}), who, "", once)

    def redo(self, who: str = "", once: str | None = None) -> Event | None:
        """Decide again what the latest undo of a person, or of anybody (""), took back.

        Returns what was decided again; None if there is nothing to redo. once: see `record`.
        """
        return self._append(lambda state: ("redo", state.to_redo(who), {}), who, "", once)

    def current(self, part: str = TRAIN) -> dict[int, Decision]:
        """{id: (action, label)} of everything that is decided about a part."""
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
                "part": event.part,
            }
            for event in self.since(0)
            for action, label, ids in (
                group_by_decision(event.changes)
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
        if os.path.getsize(self.path) == 0:  # one that dross makes is whole from the beginning
            raise CorruptFile(f"{self.path} is empty: its content is lost. {_RESCUE}")
        application = run("PRAGMA application_id").fetchone()[0]
        if application != _APPLICATION:
            raise CorruptFile(
                f"{self.path} is an SQLite file, but dross did not write it. "
                "It was not changed; move it away."
            )
        version = self._read_version()
        if version not in (FORMAT, _WITHOUT_DIGESTS, _WITH_PARTS):
            raise InputChanged(
                f"{self.path} has format {version}; this dross reads formats {_WITHOUT_DIGESTS}, "
                f"{FORMAT} and {_WITH_PARTS}. Use the version of dross that wrote it."
            )
        found = run("PRAGMA integrity_check(1)").fetchone()[0]
        if found != "ok":
            raise CorruptFile(f"{self.path} is damaged ({found}). {_RESCUE}")
        last, ever = run(_LAST_REVISIONS).fetchone()
        if last != ever:
            raise CorruptFile(f"The last rows of {self.path} are missing. {_RESCUE}")
        self._up_to_date()

    def _read_version(self) -> int:
        return self._connection.execute("PRAGMA user_version").fetchone()[0]

    def _add_digests(self) -> None:
        """Convert a file of an earlier version to this one, inside a transaction.

        The digest of the next row also covers all rows before it.
        """
        self._connection.execute("ALTER TABLE events ADD COLUMN digest TEXT")
        self._connection.execute(f"PRAGMA user_version={FORMAT}")

    def _append(
        self, choose: _Choose, who: str, why: str, once: str | None, part: str = TRAIN
    ) -> Event | None:
        """Write the row that `choose` makes of the state; None if there is nothing to write."""
        with self._lock, self._translate_errors(), self._transaction() as run:
            state = self._up_to_date()
            if once:
                query = "SELECT revision FROM events WHERE once = ?"
                if (earlier := run(query, (once,)).fetchone()) is not None:
                    return state.find(earlier[0])
            kind, target, changes = choose(state)
            if target is None and not changes:
                return None
            made = datetime.now(UTC).isoformat(timespec="milliseconds")
            revision, said = state.revision + 1, encode_changes(part, changes)
            row = (revision, made, who, kind, target, said, why, once)
            if self._read_version() == _WITHOUT_DIGESTS:
                self._add_digests()
            if part != TRAIN:
                run(f"PRAGMA user_version={_WITH_PARTS}")
            run(
                f"INSERT INTO events ({_COLUMNS}, digest) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, chain_digest(state.digest, row)),
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
        """The state, after the rows that others have added since the last look."""
        with self._lock, self._translate_errors():
            digest = "NULL" if self._read_version() == _WITHOUT_DIGESTS else "digest"
            rows = self._connection.execute(
                f"SELECT {digest}, {_COLUMNS} FROM events WHERE revision > ? ORDER BY revision",
                (self._state.revision,),
            )
            for digest, *row in rows.fetchall():
                self._check_digest(digest, tuple(row))
                self._add_row(*row[:-1])
            return self._state

    def _check_digest(self, digest: str | None, row: tuple[Any, ...]) -> None:
        state = self._state
        state.digest = chain_digest(state.digest, row)
        if digest is not None or state.has_digests:  # only the first rows may have none
            if digest != state.digest:
                raise self._explain_damage(row[0])
            state.has_digests = True

    def _add_row(
        self, revision: int, made: str, who: str, kind: str, target: Any, changes: str, why: str
    ) -> None:
        try:
            if kind == "decide":
                about, (part, said) = revision, decode_changes(changes)
            else:
                about = target or 0
                part, said = self._state.decisions[about].part, self._state.decisions[about].changes
            self._state.add(Event(revision, made, who, kind, about, said, why, part))
        except (ValueError, TypeError, KeyError, RecursionError):
            raise self._explain_damage(revision) from None

    def _explain_damage(self, revision: int) -> CorruptFile:
        return CorruptFile(
            f"Row {revision} of {self.path}, or one before it, is not as dross wrote it. {_RESCUE}"
        )

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
            raise DrossError(f"{self.path}{_explain_failure(code, error)}") from error


def _make_file(path: Path) -> None:
    """Create an empty log, whole or not at all; raises DrossError or CorruptFile."""
    journal = path.with_name(f"{path.name}-journal")
    if journal.exists() and not path.exists():  # else another process has just created the file
        raise CorruptFile(
            f"{path} is missing, and {journal.name} belongs to it. Put the file back, or move "
            f"{journal.name} away as well to start over."
        )
    with sqlite3.connect(":memory:", isolation_level=None) as log:
        log.execute(_TABLE)
        log.execute(f"PRAGMA application_id={_APPLICATION}")
        log.execute(f"PRAGMA user_version={FORMAT}")
        raw = log.serialize()
    log.close()
    try:
        with staged_file(path, raw) as temporary, suppress(FileExistsError):
            _name_file(temporary, path, raw)
        sync_folder(path.parent)
    except OSError as error:
        raise DrossError(
            f"{path} cannot be created ({error.strerror or error}). Does its folder exist, is "
            "there room on the disk, and may you write to it?"
        ) from error


def _name_file(temporary: Path, path: Path, raw: bytes) -> None:
    """Unlike a rename, this never replaces what another process has made meanwhile."""
    try:
        os.link(temporary, path)
    except OSError as error:
        if error.errno not in _NO_LINKS:
            raise
        with open(path, "xb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())


def _explain_failure(code: int, error: sqlite3.Error) -> str:
    """What is said after the name of the file."""
    if code == sqlite3.SQLITE_BUSY:
        waited = f"{_SECONDS_TO_WAIT_FOR_WRITER:.0f} s"
        return f" has been locked by another program for more than {waited}. Try again."
    if code == sqlite3.SQLITE_FULL:
        return ": the disk is full. The decision is not saved; make room and try again."
    return f" cannot be used ({error}). Does its folder exist, and may you write to it?"

"""The tape: what a run leaves on disk (Algorithm 1's A).

    tape/manifest.json                    what was run, and every file with its digest
    tape/segment-000012.safetensors       a starting state (or every state) and the steps from it
    tape/state-000000000412.safetensors   the state after the last recorded step
    tape/average-000000000412.safetensors averaged weights, and how they came about
    tape/shard-000000000412-1-of-4.safetensors, tape/state-000000000412-1-of-4.safetensors
                                          the same states' part of another rank, where ranks wrote
                                          a shard each (distributed/tape.py)

Only the files that the manifest names belong to the tape. Every file is written under a temporary
name and renamed, and it is on the disk before the manifest names it. So a crash at any moment loses
at most the steps since the last commit, about two seconds before. There is no pickle: a foreign or
damaged file is refused, never run.
"""

import hashlib
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from .._text import say_bytes, say_count
from ..distributed.shards import join_shards
from ..engine.state import State
from ..engine.step import Step
from ..errors import CorruptFile, DrossError
from .format import (
    MANIFEST,
    AverageNotes,
    AverageRecord,
    FileEntry,
    Manifest,
    Segment,
    SegmentEntry,
    SegmentNotes,
    StateEntry,
    StateNotes,
    decode_manifest,
    decode_notes,
    decode_segment,
)
from .storage import Bucket, Storage, open_storage

Notes = TypeVar("Notes")


class Tape:
    """A recorded run, read from its folder or from a bucket."""

    def __init__(self, where: str | os.PathLike | Storage):
        self.storage = open_storage(where)
        self.manifest = read_manifest(self.storage)
        self._intact: set[str] = set()  # files whose digest has been checked
        # The next segment is read while the end of this one is compared: one file at a time.
        self._reading = threading.Lock()

    @property
    def entries(self) -> tuple[SegmentEntry, ...]:
        """The segments in order."""
        return self.manifest.segments

    @property
    def end(self) -> StateEntry:
        """The file of the state after the last recorded step."""
        assert self.manifest.end is not None  # every manifest that is read has one
        return self.manifest.end

    @property
    def first(self) -> int:
        """The first step that is kept: 0, unless only the last epochs are."""
        return self.entries[0].first if self.entries else self.steps

    @property
    def steps(self) -> int:
        """How far the run got."""
        return self.manifest.steps

    @property
    def length(self) -> str:
        """How many steps it contains, in words."""
        planned = self.manifest.planned
        kept = (
            "" if self.first == 0 else f", of which the tape keeps those from step {self.first} on"
        )
        if planned in (None, self.steps):
            return f"{say_count(self.steps, 'step')}{kept}"
        return f"{self.steps:,} of {planned:,} planned steps{kept}"

    @property
    def complete(self) -> bool:
        """Whether the run reached its planned end."""
        return self.manifest.complete

    @property
    def nbytes(self) -> int:
        """The size of all files but the manifest."""
        average = self.manifest.average
        files = [file for entry in (*self.entries, self.end) for file in entry.files]
        return sum(file.bytes for file in files) + (average.bytes if average else 0)

    def read(self, index: int) -> Segment:
        """The segment at this place among the entries; raises CorruptFile or DrossError."""
        entry = self.entries[index]
        with self._refusing_other_content(entry):
            tensors, notes = self._load(entry, SegmentNotes)
            return decode_segment(tensors, notes, entry.first)

    def step(self, t: int) -> Step:
        """What was recorded of step t; raises CorruptFile or DrossError."""
        index = next(k for k, entry in enumerate(self.entries) if t < entry.stop)
        segment = self.read(index)
        return segment.steps[t - segment.first]

    def end_state(self) -> State:
        """The state after the last recorded step; raises CorruptFile or DrossError."""
        with self._refusing_other_content(self.end):
            tensors, notes = self._load(self.end, StateNotes)
            return State.from_tensors(tensors, notes.counters)

    def check_files(self) -> None:
        """Read every file and compare its digest; raises CorruptFile or DrossError."""
        for index in range(len(self.entries)):
            self.read(index)
        self.end_state()
        self.average()

    def average(self) -> AverageRecord | None:
        """What is known of averaged weights, if anything; raises CorruptFile or DrossError."""
        entry = self.manifest.average
        if entry is None:
            return None
        with self._refusing_other_content(entry):
            return AverageRecord.decode(*self._load_file(entry, AverageNotes))

    @contextmanager
    def _refusing_other_content(self, entry: FileEntry) -> Iterator[None]:
        """Inside, an error about the content of a file names the file."""
        try:
            yield
        except (ValueError, LookupError, TypeError, RuntimeError, SafetensorError) as error:
            raise CorruptFile(
                f"{self.storage.path(entry.file)} does not match the manifest "
                f"({type(error).__name__}: {error}). Restore it from a copy, or record the run "
                "again."
            ) from error

    def _load(self, entry: StateEntry, kind: type[Notes]) -> tuple[dict[str, Tensor], Notes]:
        tensors, notes = self._load_file(entry, kind)
        if entry.shards:
            others = [load(self._read_checked(other)) for other in entry.shards]
            tensors = join_shards([tensors, *others], self.manifest)
        return tensors, notes

    def _load_file(self, entry: FileEntry, kind: type[Notes]) -> tuple[dict[str, Tensor], Notes]:
        raw = self._read_checked(entry)
        return load(raw), decode_notes(read_metadata(raw), kind)

    def _read_checked(self, entry: FileEntry) -> bytes:
        path = self.storage.path(entry.file)
        with self._reading:
            try:
                raw = self.storage.read(entry.file)
            except FileNotFoundError:
                raise explain_missing(path) from None
            except OSError as error:
                raise DrossError(f"{path} cannot be read: {error.strerror or error}.") from error
            # A bucket may have fetched the file again since it was last checked.
            if entry.file not in self._intact or isinstance(self.storage, Bucket):
                if hashlib.sha256(raw).hexdigest() != entry.sha256:
                    raise explain_damage(path)
                self._intact.add(entry.file)
                self.storage.cache(entry.file, raw)
        return raw


def explain_missing(path: Path | str) -> CorruptFile:
    """The error for a file that the manifest names and that is not there."""
    return CorruptFile(
        f"{path} is missing. The run cannot be retraced without it; restore it from a copy, or "
        "record the run again."
    )


def explain_damage(path: Path | str) -> CorruptFile:
    """The error for a file that is not as it was written."""
    return CorruptFile(
        f"{path} is damaged: its digest does not match. Restore the file from a copy, or record "
        "the run again."
    )


def read_metadata(raw: bytes) -> dict[str, str]:
    """The metadata of a safetensors file, which `safetensors.torch.load` leaves out."""
    length = int.from_bytes(raw[:8], "little")
    return msgspec.json.decode(raw[8 : 8 + length])["__metadata__"]


def read_manifest(where: Path | Storage) -> Manifest:
    """The manifest of the tape that lies there.

    Raises:
        DrossError: there is no tape, or the manifest cannot be read.
        CorruptFile: the manifest is incomplete, altered or not one of dross.
        InputChanged: another version of dross wrote the tape in another format.
    """
    storage = open_storage(where)
    path = storage.path(MANIFEST)
    try:
        raw = storage.read(MANIFEST)
    except FileNotFoundError:
        raise DrossError(
            f"There is no recorded run at {storage.address}: {MANIFEST} is missing."
        ) from None
    except NotADirectoryError:
        raise DrossError(
            f"{storage.address} is a file, not the folder of a recorded run."
        ) from None
    except OSError as error:
        raise DrossError(f"{path} cannot be read: {error.strerror or error}.") from error
    return decode_manifest(raw, path)


def summarize_tape(tape: Tape) -> dict[str, Any]:
    """What was trained, how far it got, and what is kept, as values that JSON can hold."""
    manifest = tape.manifest
    return {
        "model": manifest.model.name,
        "parameters": sum(manifest.layout.sizes),
        "optimizer": manifest.optimizer.name,
        "loss": manifest.loss,
        "penalty": manifest.penalty,
        "instances": manifest.instances,
        "steps": tape.steps,
        "planned_steps": manifest.planned,
        "complete": tape.complete,
        "first_step": tape.first,
        "segments": len(tape.entries),
        "bytes": tape.nbytes,
        "device": manifest.device,
        "torch": manifest.torch,
        "dross": manifest.dross,
    }


def describe_tape(tape: Tape) -> dict[str, str]:
    """The same in words: a name and a text for each row of a table."""
    manifest = tape.manifest
    planned = manifest.planned
    of_planned = "" if planned in (None, tape.steps) else f" of {planned:,} planned"
    state = "complete" if tape.complete else "interrupted: continue with resume=True"
    segments = say_count(len(tape.entries), "segment")
    return {
        "model": f"{manifest.model.name}, {sum(manifest.layout.sizes):,} trainable parameters",
        "optimizer": manifest.optimizer.name,
        "loss": manifest.loss + (" with a penalty" if manifest.penalty else ""),
        "instances": "not recorded" if manifest.instances is None else f"{manifest.instances:,}",
        "steps": f"{tape.steps:,}{of_planned} ({state})",
        "kept": f"steps {tape.first:,} to {tape.steps:,} in {segments}, {say_bytes(tape.nbytes)}",
        "recorded on": f"{manifest.device}, torch {manifest.torch}, dross {manifest.dross}",
    }

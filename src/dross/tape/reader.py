"""The tape: what a run leaves on disk (Algorithm 1's A).

    tape/manifest.json                    what was run, and every file with its digest
    tape/segment-000012.safetensors       a starting state (or every state) and the steps from it
    tape/state-000000000412.safetensors   the state after the last recorded step
    tape/average-000000000412.safetensors averaged weights, and how they came about
    tape/shard-000000000400-1-of-4.safetensors, tape/state-000000000412-1-of-4.safetensors
                                          the same states' part of another rank, where ranks wrote
                                          a shard each (shards.py)

Only the files that the manifest names belong to the tape. Every file is written under a temporary
name and renamed, and it is on the disk before the manifest names it. So a crash at any moment loses
at most the open segment and the steps since the last commit. There is no pickle: a foreign or
damaged file is refused, never run.
"""

import hashlib
import json
import math
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from .._text import say_count
from ..distributed.shards import files_of, join_shards
from ..engine.state import State
from ..errors import CorruptFile, DrossError, InputChanged
from .format import (
    FORMAT,
    MANIFEST,
    SHARDED_FORMAT,
    AverageRecord,
    Segment,
    check_manifest,
    decode_segment,
)
from .storage import Bucket, Storage, open_storage


class Tape:
    """A recorded run, read from its folder or from a bucket."""

    def __init__(self, where: str | os.PathLike | Storage):
        self.storage = open_storage(where)
        self.manifest = read_manifest(self.storage)
        self._intact: set[str] = set()  # files whose digest has been checked
        # The next segment is read while the end of this one is compared: one file at a time.
        self._reading = threading.Lock()

    @property
    def entries(self) -> list[dict]:
        """The segments in order: file, size, digest, first step, number of steps, epochs."""
        return self.manifest["segments"]

    @property
    def first(self) -> int:
        """The first step that is kept: 0, unless only the last epochs are."""
        return self.entries[0]["first"] if self.entries else self.steps

    @property
    def steps(self) -> int:
        """How far the run got."""
        return self.manifest["steps"]

    @property
    def length(self) -> str:
        """How many steps it holds, in words."""
        planned = self.manifest["planned"]
        kept = "" if self.first == 0 else f", of which the tape keeps those from {self.first} on"
        if planned in (None, self.steps):
            return f"{say_count(self.steps, 'step')}{kept}"
        return f"{self.steps:,} of {planned:,} planned steps{kept}"

    @property
    def complete(self) -> bool:
        """Whether the run reached its planned end."""
        return self.manifest["complete"]

    @property
    def nbytes(self) -> int:
        """The size of all files but the manifest."""
        files = [*self.entries, self.manifest["end"]]
        files += [self.manifest["average"]] if "average" in self.manifest else []
        return sum(each["bytes"] for entry in files for each in files_of(entry))

    def read(self, index: int) -> Segment:
        """The segment at this place among the entries; raises CorruptFile or DrossError."""
        entry = self.entries[index]
        with self._refusing_other_content(entry):
            tensors, about = self._load(entry)
            segment = decode_segment(tensors, about, entry["first"])
            epochs = [step.epoch for step in segment.steps]
            if (len(epochs), [min(epochs), max(epochs)]) != (entry["steps"], entry["epochs"]):
                raise ValueError(
                    f"it has {len(epochs)} steps of epochs {min(epochs)} to {max(epochs)}"
                )
        return segment

    def end_state(self) -> State:
        """The state after the last recorded step; raises CorruptFile or DrossError."""
        with self._refusing_other_content(self.manifest["end"]):
            tensors, about = self._load(self.manifest["end"])
            return State.from_tensors(tensors, tuple(about["clock"]))

    def check_files(self) -> None:
        """Read every file and compare its digest; raises CorruptFile or DrossError."""
        for index in range(len(self.entries)):
            self.read(index)
        self.end_state()
        self.average()

    def average(self) -> AverageRecord | None:
        """What is known of averaged weights, if anything; raises CorruptFile or DrossError."""
        if (entry := self.manifest.get("average")) is None:
            return None
        with self._refusing_other_content(entry):
            return AverageRecord.decode(*self._load(entry))

    @contextmanager
    def _refusing_other_content(self, entry: dict) -> Iterator[None]:
        """Inside, an error about the content of a file names the file."""
        try:
            yield
        except (ValueError, LookupError, TypeError, AttributeError, RuntimeError) as error:
            path = self.storage.path(entry["file"])
            raise CorruptFile(
                f"{path} does not hold what the manifest says ({type(error).__name__}: {error}). "
                "Restore the tape from a copy, or record the run again."
            ) from error

    def _load(self, entry: dict) -> tuple[dict[str, Tensor], dict]:
        tensors, about = self._load_file(entry)
        if others := entry.get("shards"):
            shards = [tensors, *(self._load_file(other)[0] for other in others)]
            tensors = join_shards(shards, self.manifest)
        return tensors, about

    def _load_file(self, entry: dict) -> tuple[dict[str, Tensor], dict]:
        with self._reading:
            raw = self._read_checked(entry)
        return parse(raw, self.storage.path(entry["file"]))

    def _read_checked(self, entry: dict) -> bytes:
        name = entry["file"]
        path = self.storage.path(name)
        try:
            raw = self.storage.read(name)
        except FileNotFoundError:
            raise CorruptFile(
                f"{path} is missing. The tape cannot be retraced without it; put it back from a "
                "copy, or record the run again."
            ) from None
        except OSError as error:
            raise DrossError(f"{path} cannot be read: {error.strerror or error}.") from error
        # A bucket may have fetched the file again since it was last checked.
        if name not in self._intact or isinstance(self.storage, Bucket):
            if len(raw) != entry["bytes"] or hashlib.sha256(raw).hexdigest() != entry["sha256"]:
                raise CorruptFile(
                    f"{path} is damaged: it has {len(raw):,} bytes where {entry['bytes']:,} were "
                    "written, or its digest differs. Restore the file from a copy, or record the "
                    "run again."
                )
            self._intact.add(name)
            self.storage.cache(name, raw)
        return raw


def parse(raw: bytes, path: Path | str) -> tuple[dict[str, Tensor], dict]:
    """The tensors of a tape's file and what it says about them; raises CorruptFile."""
    try:
        tensors = load(raw)
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        return tensors, parse_about(header["__metadata__"], path)
    except (SafetensorError, KeyError, ValueError, TypeError, UnicodeDecodeError) as error:
        raise CorruptFile(f"{path} is not a file of a dross tape ({error}).") from None


def parse_about(metadata: dict, path: Path | str) -> dict:
    """What a tape's file says about its tensors; raises CorruptFile."""
    try:
        return json.loads(metadata["dross"])
    except (KeyError, ValueError, TypeError) as error:
        raise CorruptFile(f"{path} is not a file of a dross tape ({error}).") from None


def read_manifest(where: Path | Storage) -> dict:
    """The manifest of the tape that lies there.

    Raises:
        DrossError: there is no tape.
        DrossError: the manifest cannot be read.
        CorruptFile: the manifest is incomplete, unreadable, altered or not one of dross.
        InputChanged: another version of dross wrote the tape in another format.
    """
    storage = open_storage(where)
    folder, path = storage.address, storage.path(MANIFEST)
    try:
        manifest = json.loads(storage.read(MANIFEST))
    except FileNotFoundError:
        raise DrossError(f"There is no tape at {folder}: {MANIFEST} is missing.") from None
    except NotADirectoryError:
        raise DrossError(f"{folder} is a file; a tape is a folder.") from None
    except OSError as error:
        raise DrossError(f"{path} cannot be read: {error.strerror or error}.") from error
    except (ValueError, RecursionError) as error:
        raise CorruptFile(
            f"{path} is not readable JSON ({error}). Restore it from a copy, or record the run "
            "again."
        ) from None
    if not isinstance(manifest, dict) or manifest.get("made_by") != "dross":
        raise CorruptFile(f"{path} was not written by dross.")
    if manifest.get("format") not in (FORMAT, SHARDED_FORMAT):
        raise InputChanged(
            f"The tape at {folder} has format {manifest.get('format')}; this dross reads formats "
            f"{FORMAT} and {SHARDED_FORMAT}. Use the version of dross that recorded it, or record "
            "the run again."
        )
    check_manifest(manifest, path)
    return manifest


def summarize_tape(tape: Tape) -> dict[str, Any]:
    """What was trained, how far it got, and what is kept, as values that JSON can hold."""
    manifest = tape.manifest
    shapes = {name: shape for name, (shape, _) in manifest["model"]["parameters"].items()}
    trained = [shape for name, shape in shapes.items() if name in manifest["layout"]["names"]]
    return {
        "model": manifest["model"]["class"],
        "parameters": sum(math.prod(shape) for shape in trained),
        "optimizer": manifest["optimizer"]["name"],
        "loss": manifest["loss"],
        "penalty": bool(manifest["penalty"]),
        "instances": manifest["instances"],
        "steps": tape.steps,
        "planned_steps": manifest["planned"],
        "complete": tape.complete,
        "first_step": tape.first,
        "segments": len(tape.entries),
        "bytes": tape.nbytes,
        "device": manifest["device"],
        "torch": manifest["torch"],
        "dross": manifest["dross"],
    }


def describe_tape(tape: Tape) -> dict[str, str]:
    """The same in words: a name and a text for each row of a table."""
    about = summarize_tape(tape)
    planned, instances = about["planned_steps"], about["instances"]
    of_planned = "" if planned in (None, tape.steps) else f" of {planned:,} planned"
    state = "complete" if tape.complete else "not complete: continue with resume=True"
    return {
        "model": f"{about['model']}, {about['parameters']:,} parameters in training",
        "optimizer": about["optimizer"],
        "loss": about["loss"] + (" with a penalty" if about["penalty"] else ""),
        "instances": "not recorded" if instances is None else f"{instances:,}",
        "steps": f"{tape.steps:,}{of_planned} ({state})",
        "kept": f"steps {tape.first:,} to {tape.steps:,} in "
        f"{say_count(len(tape.entries), 'segment')}, {tape.nbytes / 1e6:,.1f} MB",
        "recorded on": f"{about['device']}, torch {about['torch']}, dross {about['dross']}",
    }

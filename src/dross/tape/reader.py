"""The tape: what a run leaves on disk (Algorithm 1's A).

    tape/manifest.json                    what was run, and the list of segments with their digests; the only truth
    tape/segment-000012.safetensors       a starting state (or every state) and the steps taken from it
    tape/state-000000000412.safetensors   the state after the last recorded step

Every file is written under a temporary name and renamed, and it is on the disk before the manifest names it; a file that the manifest does not
name does not exist. So a crash at any moment loses at most the open segment and the last half second. No pickle: a foreign or damaged file is refused,
never run.
"""

import hashlib
import json
import os
import threading
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load
from torch import Tensor

from ..errors import StorageFailed, TapeDamaged, TapeError, TapeMismatch
from ..step.layout import State
from .segment import Segment, decode_segment
from .storage import Bucket, Place, place

FORMAT = 1
MANIFEST = "manifest.json"


class Tape:
    """A recorded run, read from its folder or from a bucket."""

    def __init__(self, where: str | os.PathLike):
        self.place = place(where)
        self.manifest = read_manifest(self.place)
        self._intact: set[str] = set()  # files whose digest has been checked
        self._reading = (
            threading.Lock()
        )  # one file at a time: the next segment is read while the end of this one is compared

    @property
    def entries(self) -> list[dict]:
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
    def complete(self) -> bool:
        return self.manifest["complete"]

    @property
    def nbytes(self) -> int:
        return sum(entry["bytes"] for entry in self.entries) + self.manifest["end"]["bytes"]

    def read(self, index: int) -> Segment:
        entry = self.entries[index]
        tensors, about = self._load(entry)
        return decode_segment(tensors, about, entry["first"])

    def end_state(self) -> State:
        tensors, about = self._load(self.manifest["end"])
        return State.from_tensors(tensors, tuple(about["clock"]))

    def _load(self, entry: dict) -> tuple[dict[str, Tensor], dict]:
        with self._reading:
            raw = self._raw(entry)
        return parse(raw, self.place.path(entry["file"]))

    def _raw(self, entry: dict) -> bytes:
        path = self.place.path(entry["file"])
        try:
            raw = self.place.read(entry["file"])
        except FileNotFoundError:
            raise TapeDamaged(
                f"{path} is missing. The tape cannot be retraced without it; put it back from a copy, or record the run again."
            ) from None
        except OSError as error:
            raise StorageFailed(f"{path} cannot be read: {error.strerror or error}.") from error
        if entry["file"] not in self._intact or isinstance(
            self.place, Bucket
        ):  # it may have been fetched anew
            if len(raw) != entry["bytes"] or hashlib.sha256(raw).hexdigest() != entry["sha256"]:
                raise TapeDamaged(
                    f"{path} is damaged: it has {len(raw):,} bytes where {entry['bytes']:,} were written, or its digest "
                    "differs. Restore the file from a copy, or record the run again."
                )
            self._intact.add(entry["file"])
            self.place.hold(entry["file"], raw)
        return raw


def parse(raw: bytes, path: Path | str) -> tuple[dict[str, Tensor], dict]:
    try:
        tensors = load(raw)
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        return tensors, json.loads(header["__metadata__"]["dross"])
    except (SafetensorError, KeyError, ValueError, TypeError, UnicodeDecodeError) as error:
        raise TapeDamaged(f"{path} is not a file of a dross tape ({error}).") from None


def read_manifest(where: Path | Place) -> dict:
    found = place(where)
    folder, path = found.address, found.path(MANIFEST)
    try:
        manifest = json.loads(found.read(MANIFEST))
    except FileNotFoundError:
        raise TapeError(f"There is no tape at {folder}: {MANIFEST} is missing.") from None
    except NotADirectoryError:
        raise TapeError(f"{folder} is a file; a tape is a folder.") from None
    except OSError as error:
        raise StorageFailed(f"{path} cannot be read: {error.strerror or error}.") from error
    except ValueError as error:
        raise TapeDamaged(
            f"{path} is not readable JSON ({error}). Restore it from a copy, or record the run again."
        ) from None
    if not isinstance(manifest, dict) or manifest.get("made_by") != "dross":
        raise TapeDamaged(f"{path} was not written by dross.")
    if manifest.get("format") != FORMAT:
        raise TapeMismatch(
            f"The tape at {folder} has format {manifest.get('format')}; this dross reads format {FORMAT}. "
            "Use the dross that recorded it, or record the run again."
        )
    if missing := {
        "segments",
        "end",
        "steps",
        "complete",
        "model",
        "layout",
        "optimizer",
        "loss",
        "id",
        "foreign",
    } - set(manifest):
        raise TapeDamaged(
            f"{path} lacks {sorted(missing)}. Restore it from a copy, or record the run again."
        )
    for entry in [*manifest["segments"], manifest["end"]]:
        if not isinstance(entry, dict) or Path(str(entry.get("file", "/"))).name != entry.get(
            "file"
        ):
            raise TapeDamaged(f"{path} names a file outside the tape.")
    return manifest

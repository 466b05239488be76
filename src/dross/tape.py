"""The tape: what a run leaves on disk (Algorithm 1's A).

    tape/manifest.json                    what was run, and the list of segments with their digests; the only truth
    tape/segment-000012.safetensors       a starting state (or every state) and the steps taken from it
    tape/state-000000000412.safetensors   the state after the last recorded step

Every file is written under a temporary name and renamed, and it is on the disk before the manifest names it; a file that the manifest does not
name does not exist. So a crash at any moment loses at most the open segment and the last half second. No pickle: a foreign or damaged file is refused,
never run.
"""

import errno
import hashlib
import json
import math
import os
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from . import clip as clips
from .errors import BadInput, StorageFailed, TapeDamaged, TapeError, TapeExists, TapeMismatch
from .keep import Keep
from .layout import State
from .step import Micro, Step
from .storage import Bucket, Place, is_url, place

FORMAT = 1
MANIFEST = "manifest.json"
_BETWEEN_COMMITS = 0.5  # seconds


@dataclass(frozen=True)
class Segment:
    first: int
    steps: list[Step]
    states: list[State]  # one, or one per step
    checksum: int  # of the first batch as the model saw it

    @property
    def end(self) -> int:
        return self.first + len(self.steps)


class Tape:
    """A recorded run, read from its folder or from a bucket."""

    def __init__(self, where: str | os.PathLike):
        self.place = place(where)
        self.manifest = read_manifest(self.place)
        self._intact: set[str] = set()  # files whose digest has been checked

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
        return State.from_tensors(tensors, _clock(about))

    def _load(self, entry: dict) -> tuple[dict[str, Tensor], dict]:
        path = self.place.path(entry["file"])
        try:
            raw = self.place.read(entry["file"])
        except FileNotFoundError:
            raise TapeDamaged(
                f"{path} is missing. The tape cannot be retraced without it; put it back from a copy, or record the run again."
            ) from None
        except OSError as error:
            raise StorageFailed(f"{path} cannot be read: {error.strerror or error}.") from error
        if entry["file"] not in self._intact or isinstance(self.place, Bucket):  # it may have been fetched anew
            if len(raw) != entry["bytes"] or hashlib.sha256(raw).hexdigest() != entry["sha256"]:
                raise TapeDamaged(
                    f"{path} is damaged: it has {len(raw):,} bytes where {entry['bytes']:,} were written, or its digest "
                    "differs. Restore the file from a copy, or record the run again."
                )
            self._intact.add(entry["file"])
            self.place.hold(entry["file"], raw)
        return parse(raw, path)


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
        raise TapeDamaged(f"{path} is not readable JSON ({error}). Restore it from a copy, or record the run again.") from None
    if not isinstance(manifest, dict) or manifest.get("made_by") != "dross":
        raise TapeDamaged(f"{path} was not written by dross.")
    if manifest.get("format") != FORMAT:
        raise TapeMismatch(
            f"The tape at {folder} has format {manifest.get('format')}; this dross reads format {FORMAT}. "
            "Use the dross that recorded it, or record the run again."
        )
    if missing := {"segments", "end", "steps", "complete", "model", "layout", "optimizer", "loss", "id", "foreign"} - set(manifest):
        raise TapeDamaged(f"{path} lacks {sorted(missing)}. Restore it from a copy, or record the run again.")
    for entry in [*manifest["segments"], manifest["end"]]:
        if not isinstance(entry, dict) or Path(str(entry.get("file", "/"))).name != entry.get("file"):
            raise TapeDamaged(f"{path} names a file outside the tape.")
    return manifest


# --- segments as tensors -------------------------------------------------------------------------------------------------


def encode_segment(segment: Segment) -> tuple[dict[str, Tensor], dict]:
    steps, micros = segment.steps, [micro for step in segment.steps for micro in step.micros]
    states = [state.tensors() for state in segment.states]
    tensors = {f"state.{n}": torch.stack([s[n] for s in states]).cpu() for n in states[0]}
    tensors["ids"] = torch.from_numpy(np.concatenate([m.ids for m in micros] or [np.zeros(0)]).astype(np.int32))
    tensors["micro.sizes"] = _int32([len(m.ids) for m in micros])
    if any(len(step.micros) != 1 for step in steps):
        tensors["step.micros"] = _int32([len(step.micros) for step in steps])
    if any(m.coefficients is not None for m in micros):
        tensors["coefficients"] = torch.from_numpy(np.concatenate([m.weights for m in micros]))
    numbers = np.stack([step.numbers for step in steps])
    constant = bool((numbers == numbers[:1]).all())
    tensors["numbers"] = torch.from_numpy(numbers[:1].copy() if constant else numbers)
    tensors["epochs"] = _int32([step.epoch for step in steps])
    if any(step.clip for step in steps):
        tensors["clips"] = torch.tensor([clips.to_numbers(step.clip) for step in steps], dtype=torch.float64)
    about = {"steps": len(steps), "clocks": [state.clock for state in segment.states], "checksum": segment.checksum}
    return tensors, about


def decode_segment(tensors: dict[str, Tensor], about: dict, first: int) -> Segment:
    count = about["steps"]
    state_names = [name for name in tensors if name.startswith("state.")]
    states = [
        State.from_tensors({name[6:]: tensors[name][k] for name in state_names}, tuple(clock))
        for k, clock in enumerate(about["clocks"])
    ]
    ends = np.cumsum(tensors["micro.sizes"].numpy())[:-1]
    ids = np.split(tensors["ids"].numpy().astype(np.int64), ends)
    coefficients: list[Any] = [None] * len(ids)
    if "coefficients" in tensors:
        coefficients = np.split(tensors["coefficients"].numpy(), ends)
    micros = [Micro(i, c) for i, c in zip(ids, coefficients)]
    per_step = tensors["step.micros"].tolist() if "step.micros" in tensors else [1] * count
    numbers = np.broadcast_to(tensors["numbers"].numpy(), (count, *tensors["numbers"].shape[1:]))
    clip_rows = tensors["clips"].tolist() if "clips" in tensors else [(-1.0, 0.0)] * count
    steps, at = [], 0
    for t, (size, epoch) in enumerate(zip(per_step, tensors["epochs"].tolist())):
        steps.append(Step(tuple(micros[at : at + size]), numbers[t], epoch, clips.from_numbers(*clip_rows[t])))
        at += size
    return Segment(first, steps, states, about["checksum"])


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _clock(about: dict) -> tuple[dict[str, float], ...]:
    return tuple(about["clock"])


# --- writing ---------------------------------------------------------------------------------------------------------------


class TapeWriter:
    """Appends steps to a tape.

    Ctrl-C may strike between any two instructions, so nothing here is counted twice: a step that the manifest already has is
    not written again, and each end of a step is filed under the number of steps that led to it.
    """

    def __init__(
        self, folder: str | os.PathLike, manifest: dict, keep: Keep, state_bytes: int, planned: int | None, step_bytes: int = 0
    ):
        self.folder, self.manifest, self.planned, self.state_bytes = Path(folder), manifest, planned, state_bytes
        self.keep = keep.settled(planned, state_bytes, step_bytes)
        self.spacing = 0  # a thinned-out tape goes on with longer segments
        self.first = manifest["steps"]  # the first step of `open`
        self.open: list[tuple[Step, State | None, int]] = []  # (step, the state before it if it is kept, checksum)
        self._written: list[dict] = []  # segments that have been written and that the manifest does not name yet
        self._committed = -math.inf  # when
        self.ends: dict[int, State] = {}  # the states before and after the last step, by the number of steps taken

    @property
    def next(self) -> int:
        return self.first + len(self.open)

    def wants_state(self) -> bool:
        return not self.open or self.keep.every_state

    def opens_segment(self) -> bool:
        return not self.open

    def is_full(self, epoch: int) -> bool:
        """Whether the open segment has to be flushed before a step of this epoch is added."""
        if not self.open:
            return False
        length = max(self.spacing, self.keep.length(self.first, self.planned, self.state_bytes))
        return len(self.open) >= length or (self.keep.last_epochs is not None and epoch != self.open[-1][0].epoch)

    def add(self, step: Step, before: State | None, after: State | None, checksum: int = 0) -> None:
        """One step more. `after` may be left out by who knows the end when it is flushed."""
        if before is not None and after is not None:
            self.ends = {self.next: before, self.next + 1: after}
        kept = before.map(lambda t: t.detach()) if before is not None and self.wants_state() else None
        self.open.append((step, kept, checksum))

    def flush(self, after: State | None = None) -> None:
        """Write the open segment; `after` is the state that its last step led to, if `add` was not told."""
        self._written = [entry for entry in self._written if entry["first"] >= self.manifest["steps"]]
        saved = self._steps_written() - self.first
        if saved:  # an interrupt came between the writing and this
            self.open, self.first = self.open[saved:], self.first + saved
        after = self.ends[self.next] if after is None else after
        if self.open:
            steps, states = [step for step, _, _ in self.open], [state for _, state, _ in self.open if state is not None]
            segment = Segment(self.first, steps, states, self.open[0][2])
            self._written = [*self._written, self._write_segment(self._new_number(self._written), segment)]
            self.open, self.first = [], segment.end
        if not self._may_wait():
            self._publish(after)

    def _may_wait(self) -> bool:
        """A commit waits for the disk several times. A quick run commits twice a second instead of after every segment."""
        bounded = self.keep.limit is not None or self.keep.last_epochs is not None  # files go as the manifest lets go of them
        return not bounded and time.monotonic() - self._committed < _BETWEEN_COMMITS

    def _steps_written(self) -> int:
        last = self._written[-1] if self._written else None
        return self.manifest["steps"] if last is None else last["first"] + last["steps"]

    def _publish(self, after: State) -> None:
        """Let the manifest name what has been written. `after`: the state that the last written step led to."""
        old_end, steps = self.manifest.get("end"), self._steps_written()
        for entry in self._written:
            self._settle(entry["file"])
        named = {name: t.detach().cpu() for name, t in after.tensors().items()}
        end = self._write(f"state-{steps:012d}.safetensors", named, {"clock": after.clock})
        self._settle(end["file"])
        entries, dropped = self._forgotten([*self.manifest.get("segments", []), *self._written])
        entries, merged = self._thinned(entries, end["bytes"])
        self._commit({**self.manifest, "segments": entries, "end": end, "steps": steps})
        self._written, self._committed = [], time.monotonic()
        gone = [*dropped, *merged] + ([old_end["file"]] if old_end and old_end["file"] != end["file"] else [])
        for name in gone:
            (self.folder / name).unlink(missing_ok=True)

    def finish(self, after: State | None = None, complete: bool = True) -> None:
        after = self.ends[self.next] if after is None else after
        self.flush(after)
        if self._written:
            self._publish(after)
        self._commit({**self.manifest, "complete": complete})

    def _forgotten(self, entries: list[dict]) -> tuple[list[dict], list[str]]:
        if self.keep.last_epochs is None:
            return entries, []
        oldest = entries[-1]["epochs"][1] - self.keep.last_epochs + 1 if entries else 0
        kept = [entry for entry in entries if entry["epochs"][1] >= oldest]
        return kept, [entry["file"] for entry in entries if entry not in kept]

    def _thinned(self, entries: list[dict], end_bytes: int) -> tuple[list[dict], list[str]]:
        """Keep within a budget when the length of the run is not known: merge neighbours, so half of the states go."""
        gone: list[str] = []
        while self.keep.limit is not None and sum(e["bytes"] for e in entries) + end_bytes > self.keep.limit:
            if len(entries) == 1:
                raise TapeError(
                    f"The budget of {self.keep.limit:,} bytes is spent after {self.next} steps: one state and the list of "
                    "instances take more. Give a larger budget, or keep=LastEpochs(1)."
                )
            merged = []
            for k in range(0, len(entries), 2):
                pair = entries[k : k + 2]
                if len(pair) < 2:
                    merged += pair
                    continue
                left, right = (decode_segment(*self._reload(e), e["first"]) for e in pair)
                both = Segment(left.first, left.steps + right.steps, left.states[:1], left.checksum)
                merged.append(self._write_segment(self._new_number(entries + merged), both))
                self._settle(merged[-1]["file"])
                gone += [e["file"] for e in pair]
            self.spacing = 2 * max(e["steps"] for e in entries)
            entries = merged
        return entries, gone

    def _reload(self, entry: dict) -> tuple[dict[str, Tensor], dict]:
        path = self.folder / entry["file"]
        return parse(path.read_bytes(), path)

    def _new_number(self, entries: list[dict]) -> int:
        return max((int(e["file"][8:14]) for e in [*entries, *self.manifest.get("segments", [])]), default=-1) + 1

    def _write_segment(self, number: int, segment: Segment) -> dict:
        epochs = [step.epoch for step in segment.steps]
        entry = {"first": segment.first, "steps": len(segment.steps), "epochs": [min(epochs), max(epochs)]}
        return entry | self._write(f"segment-{number:06d}.safetensors", *encode_segment(segment))

    def _write(self, name: str, tensors: dict[str, Tensor], about: dict) -> dict:
        raw = save({n: t.contiguous() for n, t in tensors.items()}, {"dross": json.dumps(about)})
        self._replace(name, raw)
        return {"file": name, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}

    def _commit(self, manifest: dict) -> None:
        present = self.folder / MANIFEST
        if present.exists() and read_manifest(self.folder).get("id") != manifest["id"]:
            raise TapeExists(f"Another run has been recorded in {self.folder} in the meantime; this one is not written over it.")
        self._replace(MANIFEST, json.dumps(manifest, indent=1).encode(), settled=True)
        self.manifest = manifest

    def _settle(self, name: str) -> None:
        """Wait until a file is on the disk."""
        path = self.folder / name
        try:
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise _storage_failed(path, error, self.manifest["steps"]) from error

    def _replace(self, name: str, raw: bytes, settled: bool = False) -> None:
        path, temporary = self.folder / name, self.folder / (name + ".tmp")
        try:
            with open(temporary, "wb") as file:
                file.write(raw)
                if settled:
                    file.flush()
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except OSError as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise _storage_failed(path, error, self.manifest["steps"]) from error


def prepare_folder(folder: str | os.PathLike, *, overwrite: bool, resume: bool) -> dict | None:
    """Make room for a tape. Returns the manifest to go on from, if there is one and `resume` asks for it."""
    if is_url(folder):
        raise BadInput(
            f"A run is recorded into a folder; from {folder} it can only be read. Record it here, and copy the folder there."
        )
    folder = Path(folder)
    if overwrite and resume:
        raise BadInput("overwrite and resume exclude each other.")
    if (folder / MANIFEST).exists():
        if resume:
            return read_manifest(folder)
        if not overwrite:
            raise TapeExists(
                f"There is a tape at {folder} already. Open it with dross.Run.open, continue it with resume=True, "
                "replace it with overwrite=True, or choose another folder."
            )
        read_manifest(folder)  # never clear a folder that is not a tape
        (folder / MANIFEST).unlink()
        for file in (file for kind in ("segment", "state", "retrace") for file in folder.glob(f"{kind}-*.safetensors*")):
            file.unlink()
    elif folder.exists() and (not folder.is_dir() or any(f.suffix not in (".tmp", ".safetensors") for f in folder.iterdir())):
        raise TapeExists(f"{folder} exists and is not a tape. Choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _storage_failed(folder, error, 0) from error
    return None


def _storage_failed(path: Path, error: OSError, steps: int) -> StorageFailed:
    causes = {
        errno.ENOSPC: "the disk is full. Free some space, or keep less: keep=Checkpoints() or keep=Budget(bytes)",
        errno.EDQUOT: "your disk quota is used up",
        errno.EACCES: "the folder may not be written to",
        errno.EROFS: "the disk is read-only",
    }
    cause = causes.get(error.errno or 0, error.strerror or str(error))
    return StorageFailed(f"{path} cannot be written: {cause}. The tape is whole up to step {steps}.")

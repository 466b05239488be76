"""Writing a tape in an order in which no crash, Ctrl-C or full disk leaves it unreadable."""

import errno
import hashlib
import json
import math
import os
import re
import time
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor

from ..data.instance_hashes import HashNotes
from ..errors import BadInput, StorageFailed, TapeError, TapeExists
from ..step.state import State
from ..step.step import Step
from ..support.atomic_files import replace_file
from .average_record import AverageRecord
from .manifest_check import seal
from .reader import MANIFEST, parse, read_manifest
from .retention import Keep, seconds_between_commits
from .segment import Segment, decode_segment, encode_segment
from .shards import files_of
from .storage import is_url


class TapeWriter:
    """Appends steps to a tape.

    Ctrl-C may strike between any two instructions, so nothing here is counted twice: a step that
    the manifest already has is not written again, and each end of a step is filed under the number
    of steps that led to it.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        manifest: dict,
        keep: Keep,
        state_bytes: int,
        planned: int | None,
        step_bytes: int = 0,
        notes: HashNotes | None = None,
    ):
        self.folder, self.manifest = Path(folder), manifest
        self.state_bytes, self.planned = state_bytes, planned
        self.notes = notes  # of what the instances look like
        self.keep = keep.resolve(planned, state_bytes, step_bytes)
        self.spacing = 0  # a thinned-out tape goes on with longer segments
        self.first = manifest["steps"]  # the first step of `open`
        #: (step, the state before it if it is kept, checksum)
        self.open: list[tuple[Step, State | None, int]] = []
        #: the states before and after the last step, by the number of steps taken
        self.ends: dict[int, State] = {}
        self._unnamed: list[dict] = []  # written segments that the manifest does not name yet
        self._next_commit = -math.inf  # when it is due, in seconds of the monotonic clock

    @property
    def next(self) -> int:
        """The number of the step to be added next."""
        return self.first + len(self.open)

    def wants_state(self) -> bool:
        """Whether the state before the next step is kept."""
        return not self.open or self.keep.every_state

    def opens_segment(self) -> bool:
        """Whether the next step is the first of a segment."""
        return not self.open

    def is_full(self, epoch: int) -> bool:
        """Whether the open segment has to be flushed before a step of this epoch is added."""
        if not self.open:
            return False
        length = max(self.spacing, self.keep.length(self.first, self.planned, self.state_bytes))
        new_epoch = self.keep.last_epochs is not None and epoch != self.open[-1][0].epoch
        return new_epoch or len(self.open) >= length

    def add(self, step: Step, before: State | None, after: State | None, checksum: int = 0) -> None:
        """Append a step. `after` may be left out where `flush` is given the end."""
        if before is not None and after is not None:
            self.ends = {self.next: before, self.next + 1: after}
        kept = None
        if before is not None and self.wants_state():
            kept = before.map(lambda t: t.detach())
        if self.notes is not None:
            self.notes.record(step.ids)  # first: no step is written without its notes
        self.open.append((step, kept, checksum))

    def flush(self, after: State | None = None) -> None:
        """Write the open segment. `after` is the state after its last step, if `add` has none."""
        named = self.manifest["steps"]
        self._unnamed = [entry for entry in self._unnamed if entry["first"] >= named]
        saved = self._steps_written() - self.first
        if saved:  # an interrupt came between the writing and this
            self.open, self.first = self.open[saved:], self.first + saved
        after = self.ends[self.next] if after is None else after
        if self.open:
            steps = [step for step, _, _ in self.open]
            states = [state for _, state, _ in self.open if state is not None]
            segment = Segment(self.first, steps, states, self.open[0][2])
            entry = self._write_segment(self._new_number(self._unnamed), segment)
            self._unnamed = [*self._unnamed, entry]
            self.open, self.first = [], segment.end
        if not self._may_defer_commit():
            self._publish(after)

    def save(self, after: State) -> None:
        """Write what is open, and let the manifest name it at once."""
        self.flush(after)
        if self._unnamed:
            self._publish(after)

    def finish(
        self,
        after: State | None = None,
        complete: bool = True,
        average: AverageRecord | None = None,
    ) -> None:
        """Write what is open and mark the tape as complete, or as interrupted."""
        after = self.ends[self.next] if after is None else after
        self.flush(after)
        if self._unnamed:
            self._publish(after)
        noted, gone = self._write_hashes(whole=complete)
        if average is not None:
            old = self.manifest.get("average", {}).get("file")
            entry = self._write(f"average-{self.next:012d}.safetensors", *average.encode())
            self._sync(entry["file"])
            noted["average"] = entry
            gone = [*gone, old] if old not in (None, entry["file"]) else gone
        self._commit({**self.manifest, **noted, "complete": complete})
        self._remove(gone)

    def _may_defer_commit(self) -> bool:
        """A commit waits for the disk several times: a quick run makes at most two a second."""
        # Files go as the manifest lets go of them: a bounded tape has to commit at once.
        bounded = self.keep.limit is not None or self.keep.last_epochs is not None
        return not bounded and time.monotonic() < self._next_commit

    def _steps_written(self) -> int:
        last = self._unnamed[-1] if self._unnamed else None
        return self.manifest["steps"] if last is None else last["first"] + last["steps"]

    def _publish(self, after: State) -> None:
        """Let the manifest name what has been written. `after`: the state after the last step."""
        started = time.monotonic()
        old_end, steps = self.manifest.get("end"), self._steps_written()
        for entry in self._unnamed:
            self._sync(entry["file"])
        end = self._write_end(steps, after)
        entries = [*self.manifest.get("segments", []), *self._unnamed]
        entries, dropped = self._drop_old_epochs(entries)
        noted, replaced = self._write_hashes()
        others = [end, *noted.get("hashes", [])]
        entries, merged = self._merge_to_fit(entries, sum(other["bytes"] for other in others))
        named = {"segments": entries, "end": end, "steps": steps}
        self._commit({**self.manifest, **noted, **named})
        now = time.monotonic()
        self._unnamed, self._next_commit = [], now + seconds_between_commits(now - started)
        gone = [*dropped, *merged, *replaced]
        if old_end and old_end["file"] != end["file"]:
            gone += [file["file"] for file in files_of(old_end)]
        self._remove(gone)

    def _write_end(self, steps: int, after: State) -> dict:
        named = {name: t.detach().cpu() for name, t in after.tensors().items()}
        end = self._write(f"state-{steps:012d}.safetensors", named, {"clock": after.clock})
        self._sync(end["file"])
        return end

    def _remove(self, names: list[str]) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def _write_hashes(self, *, whole: bool = False) -> tuple[dict, list[str]]:
        """Write what has been noted of instances since the last time.

        A new file takes in those before it that are no larger, so that there are few, and nothing
        is written more often than there are files. A complete tape has one.

        Returns the manifest's entry, and the files that it no longer names.
        """
        entries = self.manifest.get("hashes", [])
        if self.notes is None:
            return {}, []
        kept, start = [*entries], sum(entry["instances"] for entry in entries)
        if whole and (len(entries) > 1 or start < len(self.notes)):
            self.notes.sort()
            kept, start = [], 0
        count = len(self.notes)
        if start == count:
            return {"hashes": kept}, []
        while kept and kept[-1]["instances"] <= count - start:
            start -= kept.pop()["instances"]
        ids, hashes = (torch.from_numpy(each) for each in self.notes.since(start))
        number = max((int(entry["file"][7:13]) for entry in entries), default=-1) + 1
        tensors = {"ids": ids.to(torch.int32), "hashes": hashes}
        new = self._write(f"hashes-{number:06d}.safetensors", tensors, {})
        self._sync(new["file"])
        gone = [entry["file"] for entry in entries[len(kept) :]]
        return {"hashes": [*kept, {"instances": count - start, **new}]}, gone

    def _drop_old_epochs(self, entries: list[dict]) -> tuple[list[dict], list[str]]:
        """The entries to keep, and the files of the others."""
        if self.keep.last_epochs is None:
            return entries, []
        oldest = entries[-1]["epochs"][1] - self.keep.last_epochs + 1 if entries else 0
        kept = [entry for entry in entries if entry["epochs"][1] >= oldest]
        gone = [file for entry in entries if entry not in kept for file in files_of(entry)]
        return kept, [file["file"] for file in gone]

    def _merge_to_fit(self, entries: list[dict], other_bytes: int) -> tuple[list[dict], list[str]]:
        """Merge neighbours until the tape fits its limit; each round drops half of the states.

        Returns the new entries, and the files that they replace.
        """
        limit, gone = self.keep.limit, []
        while limit is not None and sum(e["bytes"] for e in entries) + other_bytes > limit:
            if len(entries) == 1:
                raise TapeError(
                    f"The budget of {limit:,} bytes is spent after {self.next} steps: one state "
                    "and the list of instances take more. Give a larger budget, or "
                    "keep=LastEpochs(1)."
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
                self._sync(merged[-1]["file"])
                gone += [e["file"] for e in pair]
            self.spacing = 2 * max(e["steps"] for e in entries)
            entries = merged
        return entries, gone

    def _reload(self, entry: dict) -> tuple[dict[str, Tensor], dict]:
        path = self.folder / entry["file"]
        return parse(path.read_bytes(), path)

    def _new_number(self, entries: list[dict]) -> int:
        taken = [*entries, *self.manifest.get("segments", [])]
        return max((int(entry["file"][8:14]) for entry in taken), default=-1) + 1

    def _write_segment(self, number: int, segment: Segment) -> dict:
        written = self._write(self._name(number), *encode_segment(segment))
        return self._describe_segment(segment) | written

    def _name(self, number: int) -> str:
        return f"segment-{number:06d}.safetensors"

    def _describe_segment(self, segment: Segment) -> dict:
        epochs = [step.epoch for step in segment.steps]
        numbers = {"first": segment.first, "steps": len(segment.steps)}
        return numbers | {"epochs": [min(epochs), max(epochs)]}

    def _write(self, name: str, tensors: dict[str, Tensor], about: dict) -> dict:
        raw = save({n: t.contiguous() for n, t in tensors.items()}, {"dross": json.dumps(about)})
        self._replace(name, raw, sync=False)
        return {"file": name, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}

    def _commit(self, manifest: dict) -> None:
        present = self.folder / MANIFEST
        if present.exists() and read_manifest(self.folder).get("id") != manifest["id"]:
            raise TapeExists(
                f"Another run has been recorded in {self.folder} in the meantime; this one is not "
                "written over it."
            )
        self._replace(MANIFEST, json.dumps(seal(manifest), indent=1).encode(), sync=True)
        self.manifest = manifest

    def _sync(self, name: str) -> None:
        """Wait until a file is on the disk."""
        path = self.folder / name
        try:
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise _storage_failed(path, error, self.manifest["steps"]) from error

    def _replace(self, name: str, raw: bytes, *, sync: bool) -> None:
        path = self.folder / name
        try:
            replace_file(path, raw, sync=sync)
        except OSError as error:
            raise _storage_failed(path, error, self.manifest["steps"]) from error


def prepare_folder(folder: str | os.PathLike, *, overwrite: bool, resume: bool) -> dict | None:
    """Make a folder ready for a tape.

    Returns the manifest to continue from, if there is one and `resume` asks for it.

    Raises:
        BadInput: the folder is a URL, or both options are given.
        TapeExists: the folder holds a tape that may not be replaced, or other files.
        StorageFailed: the folder cannot be made.
    """
    if is_url(folder):
        raise BadInput(
            f"A run is recorded into a folder; from {folder} it can only be read. Record it here, "
            "and copy the folder there."
        )
    folder = Path(folder)
    if overwrite and resume:
        raise BadInput("overwrite and resume exclude each other.")
    if (folder / MANIFEST).exists():
        if resume:
            manifest = read_manifest(folder)
            _remove_temporary_files(folder)
            return manifest
        if not overwrite:
            raise TapeExists(
                f"There is a tape at {folder} already. Open it with dross.Run.open, continue it "
                "with resume=True, replace it with overwrite=True, or choose another folder."
            )
        read_manifest(folder)  # never clear a folder that is not a tape
        (folder / MANIFEST).unlink()
        for kind in ("segment", "shard", "state", "hashes", "average", "retrace"):
            for file in folder.glob(f"{kind}-*.safetensors*"):
                file.unlink()
    elif folder.exists() and not _holds_only_remains(folder):
        raise TapeExists(f"{folder} exists and is not a tape. Choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _storage_failed(folder, error, 0) from error
    _remove_temporary_files(folder)
    return None


# `segment-000012.safetensors.tmp`, `.manifest.json.4711.tmp`: the writer's, never a user's file.
_TEMPORARY = re.compile(
    r"\.?((segment|shard|state|hashes|average)-\d+(-\d+-of-\d+)?\.safetensors|manifest\.json)"
    r"\.(\d+|tmp|\d+\.tmp)"
)


def _holds_only_remains(folder: Path) -> bool:
    """Whether all there is was left by a run that was killed before its first commit."""
    return folder.is_dir() and all(
        file.suffix in (".tmp", ".safetensors") or _TEMPORARY.fullmatch(file.name)
        for file in folder.iterdir()
    )


def _remove_temporary_files(folder: Path) -> None:
    """Remove what a killed writer has left half written."""
    for file in folder.iterdir():
        if _TEMPORARY.fullmatch(file.name):
            file.unlink(missing_ok=True)


def _storage_failed(path: Path, error: OSError, steps: int) -> StorageFailed:
    causes = {
        errno.ENOSPC: "the disk is full. Free some space; or, in a program of your own, keep less "
        "with keep=Checkpoints() or keep=Budget(bytes)",
        errno.EDQUOT: "your disk quota is used up",
        errno.EACCES: "the folder may not be written to",
        errno.EROFS: "the disk is read-only",
    }
    cause = causes.get(error.errno or 0, error.strerror or str(error))
    return StorageFailed(
        f"{path} cannot be written: {cause}. The tape is whole up to step {steps}."
    )

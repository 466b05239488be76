"""Writing a tape in an order in which no crash, Ctrl-C or full disk leaves it unreadable."""

import errno
import json
import math
import os
import re
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from torch import Tensor

from .._checks import check_folder
from .._io import Raw, replace_file
from ..distributed.background import run_in_background
from ..distributed.shards import explain_other_ranks, files_of
from ..engine.state import State
from ..engine.step import Step
from ..errors import DrossError, InputChanged, InvalidInput
from .format import (
    AverageRecord,
    Digested,
    Segment,
    decode_segment,
    encode_segment,
    encode_tensors,
    on_host,
    seal,
)
from .reader import MANIFEST, Tape, parse, read_manifest
from .retention import EveryStep, Keep, seconds_between_commits
from .storage import is_url


@dataclass(frozen=True)
class _Written:
    """Files that are there and that the manifest does not name yet."""

    segments: list[dict]
    end: dict | None  # the state after them, on the disk like they are. None: no commit is due
    seconds: float  # that the end took


class TapeWriter:
    """Appends steps to a tape.

    A full segment is closed and goes to a thread that writes it while the training goes on. The
    manifest is only ever written by the caller's thread, at the next step after the files are
    there. A segment is held until then, so that a failed write can be tried again.

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
    ):
        self.folder, self.manifest = Path(folder), manifest
        self.state_bytes, self.planned = state_bytes, planned
        self.keep = keep.resolve(planned, state_bytes, step_bytes)
        self.spacing = 0  # a thinned-out tape goes on with longer segments
        self.first = manifest["steps"]  # the first step of `open`
        #: (step, the state before it if it is kept, checksum)
        self.open: list[tuple[Step, State | None, int]] = []
        #: the states before and after the last step, by the number of steps taken
        self.ends: dict[int, State] = {}
        self._closed: list[Segment] = []  # segments that are not known to be written
        self._writing: Future[_Written] | None = None  # what a thread does with them
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
        self.open.append((step, kept, checksum))

    def make_room(self, epoch: int, after: Callable[[], State] | None = None) -> None:
        """Before a step of this epoch is added: flush the open segment if it is full.

        after: gives the state after the last step, where `add` has none.
        """
        self._settle()
        if self.is_full(epoch):
            self.flush(None if after is None else after())

    def flush(self, after: State | None = None) -> None:
        """Close the open segment and have it written.

        after: the state after its last step, if `add` has none.

        Raises:
            DrossError: this segment, or the one before it, could not be written.
        """
        self._settle(wait_for_it=True)
        self._write_closed(after, in_background=self._may_write_in_background())

    def save(self, after: State) -> None:
        """Write what is open, and let the manifest name it at once."""
        self._settle(wait_for_it=True)
        self._write_closed(after, commit=True)

    def finish(
        self,
        after: State | None = None,
        complete: bool = True,
        average: AverageRecord | None = None,
    ) -> None:
        """Write what is open and mark the tape as complete, or as interrupted."""
        with suppress(DrossError):  # it is tried again: there may be room by now
            self._settle(wait_for_it=True)
        self._write_closed(after, commit=True)
        changed: dict = {}
        gone: list[str] = []
        if average is not None:
            old = self.manifest.get("average", {}).get("file")
            entry = self._write(f"average-{self.next:012d}.safetensors", *average.encode())
            self._sync(entry["file"])
            changed["average"] = entry
            gone = [old] if old not in (None, entry["file"]) else []
        self._commit({**self.manifest, **changed, "complete": complete})
        self._remove(gone)

    # --- in a thread of its own -------------------------------------------------------------------

    def _write_closed(
        self, after: State | None, *, commit: bool = False, in_background: bool = False
    ) -> None:
        """Close the open segment and write all that is closed."""
        after = self.ends[self.next] if after is None else after
        self._close_segment()
        due = not self._may_defer_commit() or (commit and bool(self._closed or self._unnamed))
        host = lambda t: t.detach().cpu()  # a thread of its own does not know the GPU's streams
        end = after.map(host) if due else None
        write = partial(self._write_files, self._closed, end)
        if in_background:
            self._writing = run_in_background(write, "dross: write the tape")
        else:
            self._take_over(write())

    def _close_segment(self) -> None:
        known = self._closed[-1].end if self._closed else self._steps_written()
        if known > self.first:  # an interrupt came between the closing and this
            self.open, self.first = self.open[known - self.first :], known
        if not self.open:
            return
        steps = [step for step, _, _ in self.open]
        states = on_host([state for _, state, _ in self.open if state is not None])
        segment = Segment(self.first, steps, states, self.open[0][2])
        self._closed = [*self._closed, segment]
        self.open, self.first = [], segment.end

    def _write_files(self, segments: list[Segment], end: State | None) -> _Written:
        """Write segments, and the state after them where a commit is due. It changes nothing."""
        number = self._new_number(self._unnamed)
        entries = [self._write_segment(number + k, each) for k, each in enumerate(segments)]
        if end is None:
            return _Written(entries, None, 0.0)
        started = time.monotonic()
        for entry in (*self._unnamed, *entries):
            self._sync(entry["file"])
        steps = segments[-1].end if segments else self._steps_written()
        written = self._write_end(steps, end)
        return _Written(entries, written, time.monotonic() - started)

    def _settle(self, *, wait_for_it: bool = False) -> None:
        """Take over what the thread has written, if it is done.

        Raises:
            DrossError: it could not be written. What is closed stays so.
        """
        writing = self._writing
        if writing is None or not (wait_for_it or writing.done()):
            return
        wait([writing])
        if (error := writing.exception()) is not None:
            self._writing = None
            raise error
        self._take_over(writing.result())
        self._writing = None

    def _take_over(self, written: _Written) -> None:
        """Note what has been written, and let the manifest name it if that is due."""
        named = self.manifest["steps"]  # an interrupt may have come after the last commit
        self._unnamed = [entry for entry in self._unnamed if entry["first"] >= named]
        known = self._steps_written()
        new = [entry for entry in written.segments if entry["first"] >= known]
        self._unnamed = [*self._unnamed, *new]
        known = self._steps_written()
        self._closed = [segment for segment in self._closed if segment.first >= known]
        if written.end is not None:
            self._publish(written.end, written.seconds)

    def _may_write_in_background(self) -> bool:
        # Files go as the manifest lets go of them: a bounded tape has to commit at once.
        return self.keep.limit is None and self.keep.last_epochs is None

    # --- commits ----------------------------------------------------------------------------------

    def _may_defer_commit(self) -> bool:
        """A commit waits for the disk several times: a quick run makes at most two a second."""
        return self._may_write_in_background() and time.monotonic() < self._next_commit

    def _steps_written(self) -> int:
        last = self._unnamed[-1] if self._unnamed else None
        return self.manifest["steps"] if last is None else last["first"] + last["steps"]

    def _publish(self, end: dict, seconds: float) -> None:
        """Let the manifest name what has been written.

        Arguments:
            end: the file of the state after the last step.
            seconds: that writing took so far.
        """
        started = time.monotonic()
        old_end, steps = self.manifest.get("end"), self._steps_written()
        entries = [*self.manifest.get("segments", []), *self._unnamed]
        entries, dropped = self._drop_old_epochs(entries)
        entries, merged = self._merge_to_fit(entries, end["bytes"])
        manifest = {**self.manifest, "segments": entries, "end": end, "steps": steps}
        replaced = []
        if steps > self.manifest["steps"] and (average := manifest.pop("average", None)):
            replaced = [average["file"]]  # it does not know the new steps
        self._commit(manifest)
        now = time.monotonic()
        self._unnamed = []
        self._next_commit = now + seconds_between_commits(now - started + seconds)
        gone = [*dropped, *merged, *replaced]
        if old_end and old_end["file"] != end["file"]:
            gone += [file["file"] for file in files_of(old_end)]
        self._remove(gone)

    def _write_end(self, steps: int, after: State) -> dict:
        end = self._write(
            f"state-{steps:012d}.safetensors", after.tensors(), {"clock": after.clock}
        )
        self._sync(end["file"])
        return end

    def _remove(self, names: list[str]) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

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
                raise DrossError(
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
        parts = Digested(encode_tensors(tensors, about))
        self._replace(name, parts, sync=False)
        return {"file": name, "bytes": parts.size, "sha256": parts.digest}

    def _commit(self, manifest: dict) -> None:
        present = self.folder / MANIFEST
        if present.exists() and read_manifest(self.folder).get("id") != manifest["id"]:
            raise InvalidInput(
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
            raise storage_failed(path, error, self.manifest["steps"]) from error

    def _replace(self, name: str, raw: Raw, *, sync: bool) -> None:
        path = self.folder / name
        try:
            replace_file(path, raw, sync=sync)
        except OSError as error:
            raise storage_failed(path, error, self.manifest["steps"]) from error


def prepare_folder(folder: str | os.PathLike, *, overwrite: bool, resume: bool) -> dict | None:
    """Prepare a folder for a tape.

    Returns the manifest to continue from, if there is one and `resume` asks for it.

    Raises:
        InvalidInput: the folder is a URL, or both options are given.
        InvalidInput: the folder holds a tape that may not be replaced, or other files.
        DrossError: the folder cannot be made.
    """
    if is_url(folder):
        raise InvalidInput(
            f"A run is recorded into a folder; from {folder} it can only be read. Record it here, "
            "and copy the folder there."
        )
    folder = Path(folder)
    if overwrite and resume:
        raise InvalidInput("overwrite and resume exclude each other: pass only one of them.")
    if (folder / MANIFEST).exists():
        if resume:
            manifest = read_manifest(folder)
            _remove_temporary_files(folder)
            return manifest
        if not overwrite:
            raise InvalidInput(
                f"There is a tape at {folder} already. Open it with dross.load, continue it "
                "with resume=True, replace it with overwrite=True, or choose another folder."
            )
        read_manifest(folder)  # never clear a folder that is not a tape
        (folder / MANIFEST).unlink()
        for kind in ("segment", "shard", "state", "average", "retrace"):
            for file in folder.glob(f"{kind}-*.safetensors*"):
                file.unlink()
    elif folder.exists() and not _holds_only_remains(folder):
        raise InvalidInput(f"{folder} exists and is not a tape. Choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_failed(folder, error, 0) from error
    _remove_temporary_files(folder)
    return None


# `segment-000012.safetensors.tmp`, `.manifest.json.4711.tmp`: the writer's, never a user's file.
_TEMPORARY = re.compile(
    r"\.?((segment|shard|state|average)-\d+(-\d+-of-\d+)?\.safetensors|manifest\.json)"
    r"\.(\d+|tmp|\d+\.tmp)"
)


def _holds_only_remains(folder: Path) -> bool:
    """Whether everything in it was left by a run that was killed before its first commit."""
    return folder.is_dir() and all(
        file.suffix in (".tmp", ".safetensors") or _TEMPORARY.fullmatch(file.name)
        for file in folder.iterdir()
    )


def _remove_temporary_files(folder: Path) -> None:
    """Remove what a killed writer has left half written."""
    for file in folder.iterdir():
        if _TEMPORARY.fullmatch(file.name):
            file.unlink(missing_ok=True)


def storage_failed(path: Path, error: OSError, steps: int) -> DrossError:
    """What a failed write means, and how far the tape is whole."""
    causes = {
        errno.ENOSPC: "the disk is full. Free some space; or, in a program of your own, keep less "
        "with keep=Checkpoints() or keep=Budget(bytes)",
        errno.EDQUOT: "your disk quota is used up",
        errno.EACCES: "you have no permission to write to the folder",
        errno.EROFS: "the disk is read-only",
    }
    cause = causes.get(error.errno or 0, error.strerror or str(error))
    return DrossError(f"{path} cannot be written: {cause}. The tape is whole up to step {steps}.")


def check_resume(resume: bool | str | os.PathLike, folder: str | os.PathLike) -> bool:
    """Whether to continue the tape in `folder`.

    Arguments:
        resume: True, or that folder itself, which means the same.
        folder: where the run is recorded.

    Raises:
        InvalidInput: for another folder, which would be another run.
    """
    if isinstance(resume, bool):
        return resume
    check_folder(resume, "resume")
    if Path(resume).resolve() != Path(folder).resolve():
        raise InvalidInput(
            f"resume={str(resume)!r} is not the folder of the tape, {str(folder)!r}. A run can "
            "only be continued where it was recorded: pass resume=True."
        )
    return True


def rewind(folder: str | os.PathLike, steps: int) -> None:
    """Forget the steps after the first `steps`, because a trainer continues from there.

    They are removed from the manifest first, and then their files are deleted. So is an average:
    it may have taken in what comes after, and it is not known what it was before.

    Arguments:
        folder: of the tape.
        steps: how many steps the trainer had taken at its checkpoint, where `Recorder.save` was
            called.

    Raises:
        InputChanged: where the tape does not know the state after that many steps, or several ranks
            wrote it, which one process cannot continue.
        DrossError: where there is no tape, or it is damaged.
    """
    manifest = read_manifest(Path(folder))
    if manifest["steps"] == steps:
        return
    if (shards := manifest.get("shards", 1)) > 1:
        raise explain_other_ranks(folder, shards, 1)
    later = [entry for entry in manifest["segments"] if entry["first"] >= steps]
    if not later or later[0]["first"] != steps:
        saved = sorted({entry["first"] for entry in manifest["segments"]} | {manifest["steps"]})
        raise InputChanged(
            f"The checkpoint was made after {steps} steps, but the tape at {folder} can continue "
            f"after {', '.join(map(str, saved))}. Resume from a checkpoint of one of these, or "
            "record the run again in another folder."
        )
    tape = Tape(folder)
    state = tape.read(len(manifest["segments"]) - len(later)).states[0]
    kept = [entry for entry in manifest["segments"] if entry["first"] < steps]
    average = manifest.pop("average", None)
    gone = later if average is None else [*later, average]
    shorter = {**manifest, "segments": kept, "steps": steps, "complete": False}
    TapeWriter(folder, shorter, EveryStep(), 0, None).finish(state, complete=False)
    for entry in gone:
        (Path(folder) / entry["file"]).unlink(missing_ok=True)

"""Writing a tape in an order in which no crash, Ctrl-C or full disk leaves it unreadable."""

import errno
import hashlib
import itertools
import math
import os
import re
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import asdict, replace
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor

from .._checks import check_folder
from .._io import delete_stale, intended_name, read_file, staged_path, sync_folder
from ..distributed.shards import explain_other_ranks
from ..engine.state import State
from ..engine.step import Step
from ..errors import DrossError, InputChanged, InvalidInput
from .format import (
    FILE_NAMES,
    MANIFEST,
    AverageRecord,
    FileEntry,
    Manifest,
    Segment,
    SegmentEntry,
    StateEntry,
    StateNotes,
    decode_id,
    encode_manifest,
    encode_notes,
    encode_segment,
    on_host,
)
from .reader import Tape, read_manifest
from .retention import EveryStep, Keep
from .storage import is_url

T = TypeVar("T")

_SECONDS_BETWEEN_COPIES = 2.0  # of an open segment, at the least: what a killed run loses


@dataclass(frozen=True)
class _NewFiles:
    """What a write has added: files that the manifest does not name yet."""

    segments: list[SegmentEntry]
    #: the state after them, on the disk like they are. None: no commit is due
    end: StateEntry | None
    seconds: float  # that the commit took so far


class TapeWriter:
    """Appends steps to a tape.

    The steps of a segment go through four stages:

        open        open_steps           they come in one by one
        closed      _closed              a thread writes them while the training continues
        written     _written             their file is there, and the manifest does not name it yet
        committed   manifest.segments    the manifest is on the disk and names it

    The manifest is only ever written by the caller's thread, at the next step after the files are
    there. A segment stays closed until then, so that a failed write can be tried again.

    A process may be killed while a long segment is open. So every few seconds a copy of it is
    written and committed as if it ended there, and the next copy or the whole segment takes the
    copy's place. So the files of a run that ends do not depend on time.

    Ctrl-C may strike between any two instructions, so nothing here is counted twice: a step that
    the manifest already has is not written again, and each end of a step is filed under the number
    of steps that led to it.
    """

    def __init__(
        self,
        folder: str | os.PathLike,
        manifest: Manifest,
        keep: Keep,
        state_bytes: int,
        planned: int | None,
        step_bytes: int = 0,
    ):
        self.folder = Path(folder)
        self.manifest = manifest
        self.state_bytes = state_bytes
        self.planned = planned
        self.keep = keep.resolve(planned, state_bytes, step_bytes)
        self.segment_start = manifest.steps  # the number of the first of the open steps
        #: (step, the state before it if it is kept, checksum)
        self.open_steps: list[tuple[Step, State | None, int]] = []
        #: the states before and after the last step, by the number of steps taken
        self.end_states: dict[int, State] = {}
        self._closed: list[Segment] = []
        self._writing: Future[_NewFiles] | None = None  # what a thread does with them
        self._written: list[SegmentEntry] = []
        self._copies: set[str] = set()  # files that hold the first steps of a segment
        self._names: set[str] = set()  # of all files that were written here
        # when they are due, in seconds of the monotonic clock
        self._next_commit = -math.inf
        self._next_copy = -math.inf

    @property
    def next_step(self) -> int:
        """The number of the step to be added next."""
        return self.segment_start + len(self.open_steps)

    def wants_state(self) -> bool:
        """Whether the state before the next step is kept."""
        return not self.open_steps or self.keep.every_state

    def opens_segment(self) -> bool:
        """Whether the next step is the first of a segment."""
        return not self.open_steps

    def add(self, step: Step, before: State | None, after: State | None, checksum: int = 0) -> None:
        """Append a step. `after` may be left out where `flush` is given the end."""
        if before is not None and after is not None:
            self.end_states = {self.next_step: before, self.next_step + 1: after}
        kept = None
        if before is not None and self.wants_state():
            kept = before.map(lambda t: t.detach())
        self.open_steps.append((step, kept, checksum))

    def make_room(self, epoch: int, after: Callable[[], State] | None = None) -> None:
        """Before a step of this epoch is added: flush the open segment if it is full.

        If it is not, have a copy of it written where that is due.

        after: gives the state after the last step, where `add` has none.
        """
        self._poll()
        if not self.open_steps:
            return
        length = self.keep.length(self.segment_start, self.planned, self.state_bytes)
        new_epoch = self.keep.last_epochs is not None and epoch != self.open_steps[-1][0].epoch
        if new_epoch or len(self.open_steps) >= length:
            self.flush(None if after is None else after())
        elif self._is_copy_due():
            self._write_copy(None if after is None else after())

    def flush(self, after: State | None = None) -> None:
        """Close the open segment and have it written.

        after: the state after its last step, if `add` has none.

        Raises:
            DrossError: this segment, or the one before it, could not be written.
        """
        self._poll(wait_for_it=True)
        self._write_closed(after, in_background=self._may_write_in_background())

    def save(self, after: State) -> None:
        """Write what is open, and let the manifest name it at once."""
        self._poll(wait_for_it=True)
        self._write_closed(after, commit=True)

    def finish(
        self,
        after: State | None = None,
        complete: bool = True,
        average: AverageRecord | None = None,
    ) -> None:
        """Write what is open and mark the tape as complete, or as interrupted."""
        with suppress(DrossError):  # it is tried again: there may be room by now
            self._poll(wait_for_it=True)
        self._write_closed(after, commit=True)
        before = self.manifest.average
        after_run = before
        if average is not None:
            name = f"average-{self.next_step:012d}.safetensors"
            after_run = self._write(name, average.encode(), average.notes)
            self._sync(after_run.file)
        self._commit(replace(self.manifest, average=after_run, complete=complete))
        if before is not None and after_run is not None and before.file != after_run.file:
            self._remove([before.file])

    def finish_before_open(self, start: State | None) -> None:
        """Write all segments but the open one, whose last step has no known end.

        start: the state before the open segment, if it has no step yet.
        """
        with suppress(DrossError):
            self._poll(wait_for_it=True)
        if self.open_steps:
            start = self.open_steps[0][1]
        if start is None or self.manifest.steps >= self.segment_start:  # a copy may be longer
            return
        self.open_steps = []
        self._write_closed(start, commit=True)

    def discard(self) -> None:
        """Delete everything that was written here: a tape without steps is only in the way."""
        with suppress(DrossError):
            self._poll(wait_for_it=True)
        path = self.folder / MANIFEST
        with suppress(OSError, DrossError):
            if path.exists() and decode_id(read_file(path), str(path)) != self.manifest.id:
                return  # another run is recorded here now
            path.unlink(missing_ok=True)
            for name in self._names - {MANIFEST}:
                (self.folder / name).unlink(missing_ok=True)

    # --- writing, where possible in a thread ------------------------------------------------------

    def _write_closed(
        self, after: State | None, *, commit: bool = False, in_background: bool = False
    ) -> None:
        """Close the open segment and write all that is closed."""
        after = self.end_states[self.next_step] if after is None else after
        self._close_segment()
        new = bool(self._closed or self._written)
        commits = (commit and new) or not self._may_defer_commit()
        end = after.map(_to_host) if commits else None
        self._start(partial(self._write_files, self._closed, end), in_background=in_background)

    def _write_copy(self, after: State | None) -> None:
        """Write what is closed and a copy of the open segment, and let the manifest name them."""
        if self._writing is not None:
            return
        started = time.monotonic()
        after = self.end_states[self.next_step] if after is None else after
        segments = [*self._closed, self._open_segment()]
        write = partial(self._write_files, segments, after.map(_to_host), copy_since=started)
        # what a thread writes is committed a step later, which may be long after a long step
        steps_are_short = started < self._next_copy + _SECONDS_BETWEEN_COPIES
        self._start(write, in_background=steps_are_short and self._may_write_in_background())

    def _start(self, write: Callable[[], _NewFiles], *, in_background: bool) -> None:
        if in_background:
            thread = ThreadPoolExecutor(1, "dross: write the tape")
            self._writing = thread.submit(write)
            thread.shutdown(wait=False)  # it ends after this; the process waits for it
        else:
            self._adopt(write())

    def _open_segment(self) -> Segment:
        """The open steps as a segment."""
        steps = [step for step, _, _ in self.open_steps]
        states = on_host([state for _, state, _ in self.open_steps if state is not None])
        return Segment(self.segment_start, steps, states, self.open_steps[0][2])

    def _close_segment(self) -> None:
        closed = self._closed[-1].end if self._closed else self._steps_written(whole=True)
        if closed > self.segment_start:  # an interrupt came between the closing and this
            self.open_steps = self.open_steps[closed - self.segment_start :]
            self.segment_start = closed
        if not self.open_steps:
            return
        segment = self._open_segment()
        self._closed = [*self._closed, segment]
        self.open_steps = []
        self.segment_start = segment.end

    def _write_files(
        self, segments: list[Segment], end: State | None, *, copy_since: float | None = None
    ) -> _NewFiles:
        """Write segments, and the state after them where a commit is due. It commits nothing.

        Arguments:
            segments: they follow those that are written and whole.
            end: the state after them.
            copy_since: when work on a copy of the open segment began, if the last one is such a copy.
        """
        names = self._free_names(len(segments))
        if copy_since is not None:
            self._copies.add(names[-1])
        entries = [self._write_segment(name, each) for name, each in zip(names, segments)]
        if end is None:
            return _NewFiles(entries, None, 0.0)
        started = time.monotonic() if copy_since is None else copy_since
        for entry in (*self._written, *entries):
            self._sync(entry.file)
        steps = segments[-1].end if segments else self._steps_written()
        end_file = self._write_end(steps, end)
        return _NewFiles(entries, end_file, time.monotonic() - started)

    def _poll(self, *, wait_for_it: bool = False) -> None:
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
        self._adopt(writing.result())
        self._writing = None

    def _adopt(self, files: _NewFiles) -> None:
        """Note what has been written, and let the manifest name it if that is due."""
        # an interrupt may have come after the last commit
        committed = _count_steps(self.manifest.segments, self._copies, self.manifest.steps)
        written = [entry for entry in self._written if entry.first >= committed]
        self._written = [entry for entry in written if entry.file not in self._copies]
        before = self._steps_written(whole=True)
        new = [entry for entry in files.segments if entry.first >= before]
        self._written = [*self._written, *new]
        after = self._steps_written(whole=True)
        self._closed = [segment for segment in self._closed if segment.first >= after]
        if files.end is not None:
            self._commit_files(files.end, files.seconds)

    def _may_write_in_background(self) -> bool:
        # Files go as the manifest lets go of them: a tape of the last epochs has to commit at once.
        return self.keep.last_epochs is None

    # --- commits ----------------------------------------------------------------------------------

    def _may_defer_commit(self) -> bool:
        """A commit waits for the disk several times: a quick run makes at most two a second."""
        return self._may_write_in_background() and time.monotonic() < self._next_commit

    def _is_copy_due(self) -> bool:
        return time.monotonic() >= self._next_copy

    def _steps_written(self, *, whole: bool = False) -> int:
        """How many steps are in files; `whole`: in segments that will not grow."""
        entries = self._written or self.manifest.segments
        return _count_steps(entries, self._copies if whole else set(), self.manifest.steps)

    def _commit_files(self, end: StateEntry, seconds: float) -> None:
        """Let the manifest name what has been written.

        Arguments:
            end: the file of the state after the last step.
            seconds: that writing took so far.
        """
        started = time.monotonic()
        before = self.manifest
        steps = self._steps_written()
        first = self._written[0].first if self._written else steps  # copies from there on are old
        kept = [entry for entry in before.segments if entry.first < first]
        entries, gone = self._drop_old_epochs([*kept, *self._written])
        average = before.average
        if average is not None and steps > before.steps:
            gone.append(average.file)  # it does not know the new steps
            average = None
        self._commit(
            replace(before, segments=tuple(entries), end=end, steps=steps, average=average)
        )
        now = time.monotonic()
        self._written = []
        took = now - started + seconds
        self._next_commit = now + seconds_between_commits(took)
        self._next_copy = now + seconds_between_copies(took)
        if before.end is not None and before.end.file != end.file:
            gone += [file.file for file in before.end.files]
        named = {file.file for entry in entries for file in entry.files}
        replaced = [entry for entry in before.segments if entry.first >= first]
        gone += [file.file for entry in replaced for file in entry.files]
        gone += self._copies
        self._copies &= named
        self._remove([name for name in gone if name not in named])

    def _write_end(self, steps: int, after: State) -> StateEntry:
        name = f"state-{steps:012d}.safetensors"
        end = self._write(name, after.tensors(), StateNotes(after.counters))
        self._sync(end.file)
        return StateEntry(**asdict(end))

    def _remove(self, names: list[str]) -> None:
        for name in names:
            (self.folder / name).unlink(missing_ok=True)

    def _drop_old_epochs(self, entries: list[SegmentEntry]) -> tuple[list[SegmentEntry], list[str]]:
        """The entries to keep, and the files of the others."""
        if self.keep.last_epochs is None:
            return entries, []
        oldest = entries[-1].epochs[1] - self.keep.last_epochs + 1 if entries else 0
        kept = [entry for entry in entries if entry.epochs[1] >= oldest]
        gone = [file for entry in entries if entry not in kept for file in entry.files]
        return kept, [file.file for file in gone]

    def _free_names(self, count: int) -> list[str]:
        """Names for new segments. Those of old copies are used again once the files are gone."""
        entries = [*self.manifest.segments, *self._written]
        taken = {entry.file for entry in entries}
        whole = (int(file[8:14]) for file in taken - self._copies)
        numbers = itertools.count(max(whole, default=-1) + 1)
        names = (f"segment-{number:06d}.safetensors" for number in numbers)
        return list(itertools.islice((name for name in names if name not in taken), count))

    def _write_segment(self, name: str, segment: Segment) -> SegmentEntry:
        tensors, notes = encode_segment(segment)
        return self._describe_segment(segment, self._write(name, tensors, notes))

    def _describe_segment(
        self, segment: Segment, written: FileEntry, shards: tuple[FileEntry, ...] = ()
    ) -> SegmentEntry:
        epochs = [step.epoch for step in segment.steps]
        return SegmentEntry(
            **asdict(written),
            shards=shards,
            first=segment.first,
            steps=len(segment.steps),
            epochs=(min(epochs), max(epochs)),
        )

    def _write(self, name: str, tensors: dict[str, Tensor], notes: Struct | None) -> FileEntry:
        def save(path: Path) -> str:
            whole = {key: t.contiguous() for key, t in tensors.items()}
            save_file(whole, path, encode_notes(notes))
            with open(path, "rb") as file:
                return hashlib.file_digest(file, "sha256").hexdigest()

        digest = self._replace(name, save)
        return FileEntry(file=name, bytes=(self.folder / name).stat().st_size, sha256=digest)

    def _commit(self, manifest: Manifest) -> None:
        path = self.folder / MANIFEST
        if path.exists() and decode_id(read_file(path), str(path)) != manifest.id:
            raise InvalidInput(
                f"Another run has been recorded in {self.folder} in the meantime; this one does "
                "not overwrite it."
            )

        def save(path: Path) -> None:
            with open(path, "wb") as file:
                file.write(encode_manifest(manifest))
                file.flush()
                os.fsync(file.fileno())

        self._replace(MANIFEST, save)
        sync_folder(self.folder)
        self.manifest = manifest

    def _sync(self, name: str) -> None:
        """Wait until a file is on the disk."""
        path = self.folder / name
        try:
            with open(path, "rb+") as file:
                os.fsync(file.fileno())
        except OSError as error:
            raise storage_failed(path, error, self.manifest.steps) from error

    def _replace(self, name: str, save: Callable[[Path], T]) -> T:
        """Have a file written beside its place and put there: a reader never sees a part of it."""
        path = self.folder / name
        self._names.add(name)
        try:
            with staged_path(path) as temporary:
                result = save(temporary)
                os.replace(temporary, path)
        except (OSError, SafetensorError) as error:
            raise storage_failed(path, error, self.manifest.steps) from error
        return result


def seconds_between_commits(took: float) -> float:
    """How long a quick run waits before its next commit, in seconds.

    Half a second, or long enough that commits take at most a fiftieth of the run's time.

    Arguments:
        took: seconds that the last commit took.
    """
    return max(0.5, 50 * took)


def seconds_between_copies(took: float) -> float:
    """The same for copies of an open segment, which a later one replaces: about two seconds."""
    return max(_SECONDS_BETWEEN_COPIES, 50 * took)


def _count_steps(entries: Sequence[SegmentEntry], copies: set[str], otherwise: int) -> int:
    """How many steps lie before the end of these segments, without those that only copies hold."""
    if not entries:
        return otherwise
    return entries[-1].first if entries[-1].file in copies else entries[-1].stop


def _to_host(t: Tensor) -> Tensor:
    return t.detach().cpu()  # a thread of its own does not know the GPU's streams


def prepare_folder(folder: str | os.PathLike, *, overwrite: bool, resume: bool) -> Manifest | None:
    """Prepare a folder for a tape.

    Returns the manifest to continue from, if there is one and `resume` asks for it.

    Raises:
        InvalidInput: the folder is a URL, or both options are given.
        InvalidInput: the folder contains a tape that may not be replaced, or other files.
        DrossError: the folder cannot be made.
    """
    if is_url(folder):
        raise InvalidInput(
            f"A run can only be recorded into a local folder; {folder} is read-only. Record it "
            "into a folder, and copy that to the URL afterwards."
        )
    folder = Path(folder)
    if overwrite and resume:
        raise InvalidInput("overwrite and resume are mutually exclusive: pass only one of them.")
    if (folder / MANIFEST).exists():
        if resume:
            manifest = read_manifest(folder)
            _delete_temporary_files(folder)
            return manifest
        if not overwrite:
            raise InvalidInput(
                f"There is already a tape at {folder}. Open it with dross.load, continue it with "
                "resume=True, replace it with overwrite=True, or choose another folder."
            )
        read_manifest(folder)  # never clear a folder that is not a tape
        try:
            (folder / MANIFEST).unlink()
            for file in folder.iterdir():
                if _OF_A_TAPE.fullmatch(file.name):
                    file.unlink()
        except OSError as error:
            raise DrossError(f"{folder} cannot be emptied: {error.strerror}.") from error
    elif folder.exists() and not _holds_only_remains(folder):
        raise InvalidInput(f"{folder} exists and is not a tape. Choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_failed(folder, error, 0) from error
    _delete_temporary_files(folder)
    return None


_OF_A_TAPE = re.compile(FILE_NAMES)  # all other files are somebody else's, and stay


def _holds_only_remains(folder: Path) -> bool:
    """Whether everything in it was left by a run that was killed before its first commit."""
    return folder.is_dir() and all(
        _OF_A_TAPE.fullmatch(intended_name(file.name) or file.name) for file in folder.iterdir()
    )


def _delete_temporary_files(folder: Path) -> None:
    """Delete what a killed writer has left half written. A tape has one writer at a time."""

    def is_written_here(name: str) -> bool:
        # a retrace that keeps its progress in this folder may be running
        return bool(_OF_A_TAPE.fullmatch(name)) and not name.startswith("retrace-")

    delete_stale(folder, is_written_here, older_than=-math.inf)


def storage_failed(path: Path, error: OSError | SafetensorError, steps: int) -> DrossError:
    """The error for a failed write; it names the last step up to which the tape is complete."""
    cause = str(error)
    if isinstance(error, OSError):
        number = error.errno
        cause = error.strerror or cause
    else:  # its text ends in "(os error 28)"
        match = re.search(r"\(os error (\d+)\)", cause)
        number = int(match[1]) if match else None
    if number == errno.ENOSPC:
        cause = (
            "the disk is full. Free some space, or, in your own program, keep less with "
            "keep=Checkpoints() or keep=Budget(bytes)"
        )
    return DrossError(
        f"{path} cannot be written: {cause}. The recorded run is complete up to step {steps}."
    )


def check_resume(resume: bool | str | os.PathLike, folder: str | os.PathLike) -> bool:
    """Whether to continue the tape in `folder`.

    Arguments:
        resume: True, or equivalently that folder.
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
            "only be continued in the folder it was recorded in: pass resume=True."
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
        InputChanged: if the tape does not contain the state after that many steps, or several ranks
            wrote it, which one process cannot continue.
        DrossError: if there is no tape, or it is damaged.
    """
    manifest = read_manifest(Path(folder))
    if manifest.steps == steps:
        return
    if manifest.shards > 1:
        raise explain_other_ranks(folder, manifest.shards, 1)
    later = [entry for entry in manifest.segments if entry.first >= steps]
    if not later or later[0].first != steps:
        saved = [*(entry.first for entry in manifest.segments), manifest.steps]
        raise InputChanged(
            f"The checkpoint was made after {steps} steps, but the tape at {folder} can continue "
            f"after {', '.join(map(str, saved))}. Resume from a checkpoint saved after one of "
            "these numbers of steps, or record the run again in another folder."
        )
    tape = Tape(folder)
    kept = manifest.segments[: -len(later)]
    state = tape.read(len(kept)).states[0]
    gone = [entry.file for entry in later]
    if manifest.average is not None:
        gone.append(manifest.average.file)
    shorter = replace(manifest, segments=kept, steps=steps, average=None, complete=False)
    TapeWriter(folder, shorter, EveryStep(), 0, None).finish(state, complete=False)
    for name in gone:
        (Path(folder) / name).unlink(missing_ok=True)

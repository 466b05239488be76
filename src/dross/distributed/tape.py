"""Tapes of ranks that each hold a shard of every state.

A `ShardTape` reads the numbers of a rank's own shard from any tape. A `ShardWriter` writes them,
each rank its own files, and the first rank the manifest as well. The ranks write at the same time.
Each waits until its file is on the disk and then tells the first rank its digest; the manifest names
a segment, or the end of the tape, once it has all of them.
"""

import os
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from safetensors import safe_open
from safetensors.torch import load
from torch import Tensor

from .._io import digest_file
from .._progress import progress_bar
from ..engine.state import State
from ..errors import DrossError
from ..tape.format import (
    AverageRecord,
    FileEntry,
    Manifest,
    Segment,
    SegmentEntry,
    StateEntry,
    decode_notes,
    encode_segment,
)
from ..tape.reader import Notes, Tape, explain_damage, explain_missing, read_metadata
from ..tape.retention import Keep
from ..tape.storage import Folder
from ..tape.writer import TapeWriter
from .ranks import RankReducer
from .shards import ShardReducer, is_cut, written_layout


class ShardTape(Tape):
    """A tape as one rank of several sees it: states are its shards of them."""

    def __init__(self, tape: Tape, ranks: ShardReducer):
        """tape: as it was opened. ranks: who reads it."""
        super().__init__(tape.storage)
        self.manifest = tape.manifest
        self.ranks = ranks
        self._parts = list(ranks.layout.parts_of(written_layout(tape.manifest), ranks.rank))

    def read(self, index: int) -> Segment:
        """The segment at this place, with this rank's shards; raises CorruptFile."""
        segment = super().read(index)
        steps = [replace(step, clip=self.ranks.clip(step.clip)) for step in segment.steps]
        return replace(segment, steps=steps)

    def check_steps(self, first: int, stop: int, *, show: bool) -> None:
        """Compare the files of steps first..stop-1 with their digests; each rank takes some.

        Arguments:
            first, stop: the steps that will be read.
            show: whether to show a bar.

        Raises:
            CorruptFile: on every rank, where one has found a damaged file.
        """
        entries = [e for e in self.entries if e.first < stop and e.stop > first]
        files = [file for entry in (*entries, self.end) for file in entry.files]
        own_files = files[self.ranks.rank :: self.ranks.size]
        fault: DrossError | None = None
        with progress_bar("checking files", len(own_files), show=show) as advance:
            for entry in own_files:
                try:
                    self._check_file(entry)
                except DrossError as error:
                    fault = error
                    break
                advance(1)
        for found in self.ranks.gather(fault):
            if found is not None:
                raise found

    def _check_file(self, entry: FileEntry) -> None:
        if not isinstance(self.storage, Folder):
            self._read_checked(entry)
            return
        path = Path(self.storage.address, entry.file)
        if not path.exists():
            raise explain_missing(path)
        if digest_file(path) != entry.sha256:
            raise explain_damage(path)

    def _load(self, entry: StateEntry, kind: type[Notes]) -> tuple[dict[str, Tensor], Notes]:
        with ExitStack() as stack:
            files = [self._open(file, stack) for file in entry.files]
            names, take, metadata = files[0]
            tensors = {name: take(name, None) for name in names if not is_cut(name)}
            for name in filter(is_cut, names):
                tensors[name] = self._take_own(name, [take for _, take, _ in files])
        return tensors, decode_notes(metadata, kind)

    def _take_own(self, name: str, files: list[Callable[[str, Any], Tensor]]) -> Tensor:
        """This rank's shard of a tensor, from the places where its numbers lie."""
        nothing = files[0](name, slice(0, 0))
        own = nothing.new_empty(*nothing.shape[:-1], self.ranks.layout.length(self.ranks.rank))
        at = 0
        for other, part in self._parts:  # one at a time is in memory beside the shard
            own[..., at : at + part.stop - part.start] = files[other](name, part)
            at += part.stop - part.start
        return own

    def _open(self, entry: FileEntry, stack: ExitStack) -> tuple[list[str], Callable, dict]:
        """The names of a file's tensors, a function that reads them, and its metadata."""
        if not isinstance(self.storage, Folder):
            raw = self._read_checked(entry)
            tensors = load(raw)
            whole = lambda name, part: tensors[name] if part is None else tensors[name][..., part]
            return list(tensors), whole, read_metadata(raw)
        path = Path(self.storage.address, entry.file)
        try:
            file = stack.enter_context(safe_open(path, "pt"))
        except FileNotFoundError:
            raise explain_missing(path) from None

        def take(name: str, part: slice | None) -> Tensor:
            if part is None:
                return file.get_tensor(name)
            stored = file.get_slice(name)
            rows = (slice(None),) * (len(stored.get_shape()) - 1)
            return stored[(*rows, part)]

        return list(file.keys()), take, file.metadata()


class ShardWriter(TapeWriter):
    """Appends steps to a tape of shards. All ranks make the same calls."""

    def __init__(
        self,
        folder: str | os.PathLike,
        manifest: Manifest,
        keep: Keep,
        state_bytes: int,
        planned: int | None,
        *,
        ranks: RankReducer,
    ):
        """As for TapeWriter. `state_bytes` is the size of all shards of a state, `ranks` who writes."""
        super().__init__(folder, manifest, keep, state_bytes, planned)
        self.ranks = ranks
        run = ranks.from_first(self.manifest.id)
        self.manifest = msgspec.structs.replace(self.manifest, id=run, shards=ranks.size)

    def _write_segment(self, name: str, segment: Segment) -> SegmentEntry:
        tensors, notes = encode_segment(segment)
        if self.ranks.rank == 0:
            own = self._write(name, tensors, notes)
        else:  # a copy of the segment ends elsewhere than all of it
            own = self._write_own(f"shard-{segment.end:012d}", tensors)
        first, *others = self._gather(own)
        return self._describe_segment(segment, first, tuple(others))

    def _write_end(self, steps: int, after: State) -> StateEntry:
        if self.ranks.rank == 0:
            own = super()._write_end(steps, after)
        else:
            own = self._write_own(f"state-{steps:012d}", after.tensors())
        first, *others = self._gather(own)
        return StateEntry(
            file=first.file, bytes=first.bytes, sha256=first.sha256, shards=tuple(others)
        )

    def _write_own(self, name: str, tensors: dict) -> FileEntry:
        cut = {n: t.detach().cpu() for n, t in tensors.items() if is_cut(n)}
        return self._write(f"{name}-{self.ranks.rank}-of-{self.ranks.size}.safetensors", cut, None)

    def _gather(self, own: FileEntry) -> list[FileEntry]:
        """The entries of all ranks, once every rank's file is on the disk."""
        self._sync(own.file)
        return self.ranks.gather(own)

    def _may_write_in_background(self) -> bool:
        return False  # the ranks tell each other what they wrote

    def _may_defer_commit(self) -> bool:
        return False  # clocks differ, and ranks meet at every commit

    def _is_copy_due(self) -> bool:
        return self.ranks.from_first(super()._is_copy_due())  # by the clock of the first rank

    def _commit(self, manifest: Manifest) -> None:
        if self.ranks.rank == 0:
            super()._commit(manifest)
        self.manifest = manifest

    def _remove(self, names: list[str]) -> None:
        if self.ranks.rank == 0:
            super()._remove(names)

    def finish(
        self,
        after: State | None = None,
        complete: bool = True,
        average: AverageRecord | None = None,
    ) -> None:
        """Write what is open, where every rank came to the end.

        After an error the others may be gone: the tape stays as it was last committed.
        """
        if complete:
            super().finish(after, complete, average)

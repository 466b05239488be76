"""Writing a tape of shards: each rank its own files, and the first one the manifest as well.

The ranks write at the same time. Each waits until its file is on the disk and then tells the first
rank its digest; the manifest names a segment, or the end of the tape, once it has all of them.
"""

from typing import Any

from ..engine.state import Layout, State
from ..engine.step import Step
from ..errors import NotSupported
from ..tape.average_record import AverageRecord
from ..tape.reader import SHARDED_FORMAT
from ..tape.segment import Segment, encode_segment
from ..tape.writer import TapeWriter
from .ranks import RankReducer
from .shard_layout import ShardLayout
from .tape_shards import is_cut


class ShardWriter(TapeWriter):
    """Appends steps to a tape of shards. All ranks make the same calls."""

    def __init__(self, *given: Any, ranks: RankReducer, **options: Any):
        """As for TapeWriter.

        Arguments:
            ranks: who writes.
            given, options: of TapeWriter. The size of a state is that of all shards.

        Raises:
            NotSupported: for a budget on the disk.
        """
        super().__init__(*given, **options)
        self.ranks = ranks
        if self.keep.limit is not None:
            raise NotSupported(
                "A tape of shards is not thinned out to fit a budget yet. Use keep=Checkpoints()."
            )
        made = {"id": ranks.from_first(self.manifest["id"]), "shards": ranks.size}
        self.manifest = {**self.manifest, **made, "format": SHARDED_FORMAT}

    def _write_segment(self, number: int, segment: Segment) -> dict:
        entry = self._describe_segment(segment)
        tensors, about = encode_segment(segment)
        if self.ranks.rank == 0:
            return entry | self._with_shards(self._write(self._name(number), tensors, about))
        name = f"shard-{segment.first:012d}"
        return entry | self._with_shards(self._write_own(name, tensors))

    def _write_end(self, steps: int, after: State) -> dict:
        if self.ranks.rank == 0:
            return self._with_shards(super()._write_end(steps, after))
        return self._with_shards(self._write_own(f"state-{steps:012d}", after.tensors()))

    def _write_own(self, name: str, tensors: dict) -> dict:
        cut = {n: t.detach().cpu() for n, t in tensors.items() if is_cut(n)}
        return self._write(f"{name}-{self.ranks.rank}-of-{self.ranks.size}.safetensors", cut, {})

    def _with_shards(self, own: dict) -> dict:
        """The entry with those of other ranks, once every rank's file is on the disk."""
        self._sync(own["file"])
        first, *others = self.ranks.gather(own)
        return first | {"shards": others}

    def _may_write_in_background(self) -> bool:
        return False  # the ranks tell each other what they wrote

    def _may_defer_commit(self) -> bool:
        return False  # clocks differ, and ranks meet at every commit

    def _commit(self, manifest: dict) -> None:
        if self.ranks.rank == 0:
            super()._commit(manifest)
        self.manifest = manifest

    def _remove(self, names: list[str]) -> None:
        if self.ranks.rank == 0:
            super()._remove(names)

    def _write_hashes(
        self, noted: int | None = None, *, whole: bool = False
    ) -> tuple[dict, list[str]]:
        return super()._write_hashes(noted, whole=whole) if self.ranks.rank == 0 else ({}, [])

    def finish(
        self,
        after: State | None = None,
        complete: bool = True,
        average: AverageRecord | None = None,
    ) -> None:
        """Write what is open, where every rank came to the end; the first one writes the average.

        After an error the others may be gone: the tape stays as it was last committed.
        """
        if complete:
            super().finish(after, complete, average if self.ranks.rank == 0 else None)


class ReplicaWriter(ShardWriter):
    """Appends steps of ranks that each have whole states, as under DistributedDataParallel.

    A rank keeps and writes its own shard of them.
    """

    def __init__(self, *given: Any, ranks: RankReducer, layout: Layout, **options: Any):
        """As for ShardWriter.

        Arguments:
            ranks: who writes.
            layout: of theta.
            given, options: of TapeWriter.
        """
        super().__init__(*given, ranks=ranks, **options)
        self.layout = ShardLayout(layout, ranks.size, by_rows=True)

    def add(self, step: Step, before: State | None, after: State | None, checksum: int = 0) -> None:
        """Append a step. `flush` is given the end of its segment."""
        kept = before if self.wants_state() else None
        super().add(step, None if kept is None else self._cut(kept), None, checksum)

    def _write_closed(
        self, after: State | None, *, commit: bool = False, in_background: bool = False
    ) -> None:
        assert after is not None  # a loop gives it at every flush
        super()._write_closed(self._cut(after), commit=commit, in_background=in_background)

    def _cut(self, whole: State) -> State:
        """This rank's shard of a state."""
        parts = whole.tensors()
        cut = {n: self.layout.cut(t, self.ranks.rank) if is_cut(n) else t for n, t in parts.items()}
        return State.from_tensors(cut, whole.clock)

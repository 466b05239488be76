"""A rank's part of a tape: it reads the numbers of its own shard, and no others."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from ..errors import CorruptFile, DrossError
from ..support.file_digests import digest_file
from ..support.progress import progress_bar
from ..tape.reader import Tape, parse, parse_about
from ..tape.segment import Segment
from ..tape.storage import Folder
from .shard_clipping import shard_clip
from .shard_ranks import ShardReducer
from .tape_shards import files_of, is_cut, written_layout


class ShardTape(Tape):
    """A tape as one rank of several sees it: states are its shards of them."""

    def __init__(self, tape: Tape, ranks: ShardReducer):
        """tape: as it was opened. ranks: who reads it."""
        super().__init__(tape.storage)
        self.manifest, self.ranks = tape.manifest, ranks
        self._spans = list(ranks.layout.overlaps(ranks.rank, written_layout(tape.manifest)))

    def read(self, index: int) -> Segment:
        """The segment at this place, with this rank's shards; raises CorruptFile."""
        segment = super().read(index)
        clip = lambda step: replace(step, clip=shard_clip(step.clip, self.ranks))
        return replace(segment, steps=[clip(step) for step in segment.steps])

    def check_steps(self, first: int, stop: int, *, show: bool) -> None:
        """Compare the files of steps first..stop-1 with their digests; each rank takes some.

        Arguments:
            first, stop: the steps that will be read.
            show: whether to show a bar.

        Raises:
            CorruptFile: on every rank, where one has found a damaged file.
        """
        inside = lambda e: e["first"] < stop and e["first"] + e["steps"] > first
        entries = [*filter(inside, self.entries), self.manifest["end"]]
        files = [file for entry in entries for file in files_of(entry)]
        own, said = files[self.ranks.rank :: self.ranks.size], None
        with progress_bar("checking files", len(own), show=show) as advance:
            for entry in own:
                try:
                    self._check_file(entry)
                except DrossError as error:
                    said = error
                    break
                advance(1)
        if found := [error for error in self.ranks.gather(said) if error is not None]:
            raise found[0]

    def _check_file(self, entry: dict) -> None:
        if not isinstance(self.storage, Folder):
            self._read_checked(entry)
            return
        path = Path(self.storage.address, entry["file"])
        if not path.exists():
            raise _missing(path)
        if path.stat().st_size != entry["bytes"] or digest_file(path) != entry["sha256"]:
            raise CorruptFile(
                f"{path} is damaged: its size or its digest differs. Restore the file from a copy, "
                "or record the run again."
            )

    def _load(self, entry: dict) -> tuple[dict[str, Tensor], dict]:
        if not any(entry is own for own in [*self.entries, self.manifest["end"]]):
            return super()._load(entry)
        with ExitStack() as stack, self._reading:
            files = [self._open(file, stack) for file in files_of(entry)]
            names, take, about = files[0]
            if len(files) != max(1, self.manifest.get("shards", 1)):
                raise ValueError(f"it has {len(files)} shards")
            found = {name: take(name, None) for name in names if not is_cut(name)}
            for name in filter(is_cut, names):
                found[name] = self._take_own(name, [take for _, take, _ in files])
        return found, about

    def _take_own(self, name: str, files: list[Callable[[str, Any], Tensor]]) -> Tensor:
        """This rank's shard of a tensor, from the places where its numbers lie."""
        own: Tensor | None = None
        length = self.ranks.layout.length(self.ranks.rank)
        for other, span in self._spans:
            part = files[other](name, slice(span.whole, span.whole + span.length))
            if own is None:
                own = part.new_empty(*part.shape[:-1], length)
            own[..., span.own : span.own + span.length] = part
        return files[0](name, slice(0, 0)) if own is None else own

    def _open(self, entry: dict, stack: ExitStack) -> tuple[list[str], Callable, dict]:
        """The names of a file's tensors, a function that reads them, and what it says of them."""
        if not isinstance(self.storage, Folder):
            tensors, about = self._load_bytes(entry)
            whole = lambda name, part: tensors[name] if part is None else tensors[name][..., part]
            return list(tensors), whole, about
        path = Path(self.storage.address, entry["file"])
        try:
            file = stack.enter_context(safe_open(path, "pt"))
        except FileNotFoundError:
            raise _missing(path) from None
        except (SafetensorError, OSError) as error:
            raise CorruptFile(f"{path} is not a file of a dross tape ({error}).") from None

        def take(name: str, part: slice | None) -> Tensor:
            if part is None:
                return file.get_tensor(name)
            found = file.get_slice(name)
            rows = (slice(None),) * (len(found.get_shape()) - 1)
            return found[(*rows, part)]

        return list(file.keys()), take, parse_about(file.metadata(), path)

    def _load_bytes(self, entry: dict) -> tuple[dict[str, Tensor], dict]:
        return parse(self._read_checked(entry), self.storage.path(entry["file"]))


def _missing(path: Path) -> CorruptFile:
    return CorruptFile(
        f"{path} is missing. The tape cannot be retraced without it; put it back from a copy, or "
        "record the run again."
    )

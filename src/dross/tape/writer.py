"""Writing a tape: in an order in which no crash, no Ctrl-C and no full disk leaves anything that cannot be read."""

import errno
import hashlib
import json
import math
import os
import time
from contextlib import suppress
from pathlib import Path

from safetensors.torch import save
from torch import Tensor

from ..errors import BadInput, StorageFailed, TapeError, TapeExists
from ..step.layout import State
from ..step.step import Step
from .reader import MANIFEST, parse, read_manifest
from .retention import Keep
from .segment import Segment, decode_segment, encode_segment
from .storage import is_url

_BETWEEN_COMMITS = 0.5  # seconds


class TapeWriter:
    """Appends steps to a tape.

    Ctrl-C may strike between any two instructions, so nothing here is counted twice: a step that the manifest already has is
    not written again, and each end of a step is filed under the number of steps that led to it.
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
        self.folder, self.manifest, self.planned, self.state_bytes = (
            Path(folder),
            manifest,
            planned,
            state_bytes,
        )
        self.keep = keep.settled(planned, state_bytes, step_bytes)
        self.spacing = 0  # a thinned-out tape goes on with longer segments
        self.first = manifest["steps"]  # the first step of `open`
        self.open: list[
            tuple[Step, State | None, int]
        ] = []  # (step, the state before it if it is kept, checksum)
        self._written: list[
            dict
        ] = []  # segments that have been written and that the manifest does not name yet
        self._committed = -math.inf  # when
        self.ends: dict[
            int, State
        ] = {}  # the states before and after the last step, by the number of steps taken

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
        return len(self.open) >= length or (
            self.keep.last_epochs is not None and epoch != self.open[-1][0].epoch
        )

    def add(self, step: Step, before: State | None, after: State | None, checksum: int = 0) -> None:
        """One step more. `after` may be left out by who knows the end when it is flushed."""
        if before is not None and after is not None:
            self.ends = {self.next: before, self.next + 1: after}
        kept = (
            before.map(lambda t: t.detach()) if before is not None and self.wants_state() else None
        )
        self.open.append((step, kept, checksum))

    def flush(self, after: State | None = None) -> None:
        """Write the open segment; `after` is the state that its last step led to, if `add` was not told."""
        self._written = [
            entry for entry in self._written if entry["first"] >= self.manifest["steps"]
        ]
        saved = self._steps_written() - self.first
        if saved:  # an interrupt came between the writing and this
            self.open, self.first = self.open[saved:], self.first + saved
        after = self.ends[self.next] if after is None else after
        if self.open:
            steps, states = (
                [step for step, _, _ in self.open],
                [state for _, state, _ in self.open if state is not None],
            )
            segment = Segment(self.first, steps, states, self.open[0][2])
            self._written = [
                *self._written,
                self._write_segment(self._new_number(self._written), segment),
            ]
            self.open, self.first = [], segment.end
        if not self._may_wait():
            self._publish(after)

    def _may_wait(self) -> bool:
        """A commit waits for the disk several times. A quick run commits twice a second instead of after every segment."""
        bounded = (
            self.keep.limit is not None or self.keep.last_epochs is not None
        )  # files go as the manifest lets go of them
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
        gone = [*dropped, *merged] + (
            [old_end["file"]] if old_end and old_end["file"] != end["file"] else []
        )
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
        while (
            self.keep.limit is not None
            and sum(e["bytes"] for e in entries) + end_bytes > self.keep.limit
        ):
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
        return (
            max(
                (int(e["file"][8:14]) for e in [*entries, *self.manifest.get("segments", [])]),
                default=-1,
            )
            + 1
        )

    def _write_segment(self, number: int, segment: Segment) -> dict:
        epochs = [step.epoch for step in segment.steps]
        entry = {
            "first": segment.first,
            "steps": len(segment.steps),
            "epochs": [min(epochs), max(epochs)],
        }
        return entry | self._write(f"segment-{number:06d}.safetensors", *encode_segment(segment))

    def _write(self, name: str, tensors: dict[str, Tensor], about: dict) -> dict:
        raw = save({n: t.contiguous() for n, t in tensors.items()}, {"dross": json.dumps(about)})
        self._replace(name, raw)
        return {"file": name, "bytes": len(raw), "sha256": hashlib.sha256(raw).hexdigest()}

    def _commit(self, manifest: dict) -> None:
        present = self.folder / MANIFEST
        if present.exists() and read_manifest(self.folder).get("id") != manifest["id"]:
            raise TapeExists(
                f"Another run has been recorded in {self.folder} in the meantime; this one is not written over it."
            )
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
        for file in (
            file
            for kind in ("segment", "state", "retrace")
            for file in folder.glob(f"{kind}-*.safetensors*")
        ):
            file.unlink()
    elif folder.exists() and (
        not folder.is_dir()
        or any(f.suffix not in (".tmp", ".safetensors") for f in folder.iterdir())
    ):
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
    return StorageFailed(
        f"{path} cannot be written: {cause}. The tape is whole up to step {steps}."
    )

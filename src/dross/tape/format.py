"""The contents of a tape: its manifest, its segments, and the record of averaged weights."""

import hashlib
import math
import uuid
from dataclasses import dataclass
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
import torch
from msgspec import Meta, Struct
from torch import Tensor

from .._version import __version__
from ..data.batch import Augment, MicroBatch
from ..data.dataset import Instances
from ..data.strides import Orders
from ..engine.objective import Objective
from ..engine.optim import Optimizer, OptimizerDescription
from ..engine.precision import Precision
from ..engine.state import Layout, Signature, State
from ..engine.step import Clip, ClipNorm, ClipValue, Step
from ..errors import CorruptFile, InputChanged
from .retention import Keep

MANIFEST = "manifest.json"
FILE_NAMES = (  # a pattern for the names of all files that dross writes into a tape's folder
    r"manifest\.json|(segment-\d{6}|(state|average)-\d{12}|(shard|state)-\d{12}-\d+-of-\d+"
    r"|retrace-[0-9a-f]{16})\.safetensors"
)
FORMAT = 1

NOTES = "dross"  # the key of a file's notes in the metadata of safetensors

T = TypeVar("T")
Count = Annotated[int, Meta(ge=0, le=2**63 - 1)]
#: a bare name, so that no manifest leads to a file outside of its folder
FileName = Annotated[str, Meta(pattern=r"^(segment|shard|state|average)-[0-9a-z-]+\.safetensors$")]
Digest = Annotated[str, Meta(pattern="^[0-9a-f]{64}$")]


class FileEntry(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of the tape."""

    file: FileName
    bytes: Count
    sha256: Digest


class StateEntry(FileEntry, frozen=True, kw_only=True):
    """A file with states. Ranks that record together write a shard each."""

    shards: tuple[FileEntry, ...] = ()  # of the ranks after the first

    @property
    def files(self) -> tuple[FileEntry, ...]:
        """Its own file and those of other ranks."""
        return (self, *self.shards)


class SegmentEntry(StateEntry, frozen=True, kw_only=True):
    """A file with consecutive steps and the states that they start from."""

    first: Count
    steps: Annotated[int, Meta(ge=1, le=2**63 - 1)]
    epochs: tuple[Count, Count]  # of the first and of the last step

    @property
    def stop(self) -> int:
        """The number of the step after the last one."""
        return self.first + self.steps


class Manifest(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was run, how far it got, and every file with its digest."""

    made_by: Literal["dross"] = "dross"
    format: Literal[1] = FORMAT
    dross: str = __version__
    torch: str = str(torch.__version__)
    id: str
    foreign: bool  # recorded from the user's own training loop
    device: str
    model: Signature
    layout: Layout
    stochastic: bool
    evaluated: tuple[str, ...]
    unused: tuple[str, ...]
    optimizer: OptimizerDescription
    loss: str
    penalty: bool
    augment: bool
    #: in memory, of the tensors of a batch as the model saw them
    orders: Orders = ()
    instances: Count | None
    data: str | None  # the fingerprint of the training set
    data_digest: Literal["everything", "sample"] | None  # what the fingerprint is made of
    seed: int
    keep: str
    memory: Count | None
    precision: Precision
    attention_gap: float | None = None
    threads: Annotated[int, Meta(ge=1)] | None = None  # of the user's own loop on a CPU
    planned: Count | None
    schedule: (
        str | None
    )  # a digest of the optimizer's hyperparameters, where they are known beforehand
    shards: Annotated[int, Meta(ge=1)] = 1  # ranks that wrote the states together
    steps: Count = 0
    segments: tuple[SegmentEntry, ...] = ()
    end: StateEntry | None = None  # the state after the last step; None until the first commit
    average: FileEntry | None = None
    complete: bool = False
    digest: str = ""  # of all the rest

    def __post_init__(self) -> None:
        """Refuse segments with a gap, in a file as well as when the writer adds one."""
        expected = self.segments[0].first if self.segments else 0
        for entry in self.segments:
            if entry.first != expected:
                raise ValueError(f"{entry.file} begins at step {entry.first}, not at {expected}")
            expected = entry.stop
        if self.steps != expected:
            raise ValueError(
                f"it lists {self.steps} steps, but its segments end at step {expected}"
            )
        layout = self.layout
        sizes = [math.prod(shape) for shape in layout.shapes]
        if max(sizes, default=0) > np.iinfo(np.int64).max:
            raise ValueError("a parameter is larger than any tensor can be")
        if len(sizes) != len(layout.names) or sum(sizes) != sum(layout.group_sizes):
            raise ValueError("the shapes of the parameters do not match their names and groups")
        if layout.listed and sorted(layout.listed) != sorted(layout.names):
            raise ValueError("the parameters are listed under different names")
        for order in (*self.orders, *layout.orders):
            if sorted(order) != list(range(len(order))):
                raise ValueError(f"{order} is not a permutation of dimensions")
        for order, shape in zip(layout.orders, layout.shapes):
            if order and len(order) != len(shape):
                raise ValueError(f"{order} is not a permutation of the dimensions {tuple(shape)}")


def describe(
    objective: Objective,
    optimizer: Optimizer,
    *,
    augment: Augment | None,
    keep: Keep,
    seed: int,
    device: torch.device,
    instances: Instances | None,
    orders: Orders = (),
    planned: int | None = None,
    schedule: str | None = None,
    foreign: bool = False,
    threads: int | None = None,
    earlier: Manifest | None = None,
) -> Manifest:
    """The manifest of a tape on which no step has been recorded yet, or that of one to be continued.

    Arguments:
        objective, optimizer, augment, keep, seed, device: what is recorded.
        instances: the training set, if it is known.
        orders: of the first batch's tensors in memory.
        planned: the number of steps, if it is known beforehand.
        schedule: a digest of the optimizer's hyperparameters at every step, where they are known.
        foreign: whether the training loop is the user's own.
        threads: CPU threads that it computes on.
        earlier: the manifest of the tape to be continued, if there is one. The data is digested as
            they were for it.

    Raises:
        InputChanged: a setting differs from the one in `earlier`.
    """
    fingerprint = kind = None
    if instances is not None:
        kind = instances.digest_kind if earlier is None else earlier.data_digest
        fingerprint = None if kind is None else instances.fingerprint(kind)
    manifest = Manifest(
        id=uuid.uuid4().hex,
        foreign=foreign,
        device=str(device),
        model=objective.layout.signature(objective.model),
        layout=objective.layout,
        stochastic=objective.stochastic,
        evaluated=objective.evaluated,
        unused=objective.unused,
        optimizer=optimizer.description,
        loss=objective.loss_name,
        penalty=objective.penalty is not None,
        augment=augment is not None,
        orders=orders,
        instances=None if instances is None else len(instances),
        data=fingerprint,
        data_digest=kind,
        seed=seed,
        keep=repr(keep),
        memory=keep.memory,
        precision=objective.precision,
        threads=threads,
        planned=planned,
        schedule=schedule,
    )
    if earlier is None:
        return manifest
    check_same_run(earlier, manifest)
    return earlier


_MAY_DIFFER = {"id", "dross", "torch", "digest"}
_MAY_DIFFER |= {"steps", "segments", "end", "average", "shards", "complete", "attention_gap"}
_MAY_DIFFER |= {"threads"}


def check_same_run(earlier: Manifest, now: Manifest) -> None:
    """Refuse to continue a tape with other settings than those it was started with.

    Raises:
        InputChanged: a setting of `now` differs from the one in `earlier`.
    """
    for key in sorted(set(Manifest.__struct_fields__) - _MAY_DIFFER):
        before = getattr(earlier, key)
        after = getattr(now, key)
        if key == "device" and earlier.complete:  # no step is left to be taken
            continue
        if before != after:
            raise InputChanged(
                f"Cannot resume: {key} changed from {_show(before)} to {_show(after)}. Use the "
                "settings the run was started with, or overwrite=True to start again."
            )


def _show(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=_to_json).decode()[:200]


# --- the file -------------------------------------------------------------------------------------


class _Header(Struct):
    made_by: str = ""
    format: int = 0
    id: str = ""


def encode_manifest(manifest: Manifest) -> bytes:
    """The bytes of the file, with a digest of all the rest of it."""
    sealed = msgspec.structs.replace(manifest, digest=_digest(manifest))
    return msgspec.json.format(msgspec.json.encode(sealed, enc_hook=_to_json), indent=1)


def decode_manifest(raw: bytes, path: str) -> Manifest:
    """The manifest that `encode_manifest` wrote.

    Arguments:
        raw: the bytes of the file.
        path: its name for a message.

    Raises:
        InputChanged: another version of dross wrote it in another format.
        CorruptFile: it is incomplete, altered or not one of dross.
    """
    header = _decode(raw, _Header, path)
    if header.made_by != "dross":
        raise CorruptFile(f"{path} was not written by dross.")
    if header.format != FORMAT:
        raise InputChanged(
            f"{path} has format {header.format}, but this version of dross reads format {FORMAT}. "
            "Use the version of dross that recorded it, or record the run again."
        )
    manifest = _decode(raw, Manifest, path)
    if manifest.digest != _digest(manifest) or manifest.end is None:
        raise _damaged(
            path, "its digest does not match, so it has been changed since it was written"
        )
    return manifest


def decode_id(raw: bytes, path: str) -> str:
    """Which run a manifest is of. Nothing else of it is looked at."""
    return _decode(raw, _Header, path).id


def _decode(raw: bytes, kind: type, path: str) -> Any:
    try:
        return msgspec.json.decode(raw, type=kind, dec_hook=_from_json)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _damaged(path, str(error)) from None


def _damaged(path: str, what: str) -> CorruptFile:
    return CorruptFile(
        f"{path} is damaged: {what}. Restore it from a copy, or record the run again."
    )


def _digest(manifest: Manifest) -> str:
    rest = msgspec.structs.replace(manifest, digest="")
    return hashlib.sha256(msgspec.json.encode(rest, enc_hook=_to_json, order="sorted")).hexdigest()


def _to_json(value: Any) -> Any:
    if isinstance(value, torch.dtype):
        return str(value).removeprefix("torch.")
    raise TypeError(f"{type(value).__name__} in a manifest")


def _from_json(kind: type, value: Any) -> Any:
    if kind is torch.dtype:
        dtype = getattr(torch, value, None) if isinstance(value, str) else None
        if not isinstance(dtype, torch.dtype):
            raise ValueError(f"{value!r} is not a tensor dtype")
        return dtype
    return kind(value)  # torch.Size


def decode_notes(metadata: dict[str, str], kind: type[T]) -> T:
    """The notes in the metadata of a tape's file; raises LookupError or ValueError."""
    return msgspec.json.decode(metadata[NOTES], type=kind)


def encode_notes(notes: Struct | None) -> dict[str, str]:
    """The metadata for a tape's file."""
    return {} if notes is None else {NOTES: msgspec.json.encode(notes).decode()}


# --- segments -------------------------------------------------------------------------------------

_STATE_PREFIX = "state."

SavedCounters = tuple[dict[str, int | float], ...]


class SegmentNotes(Struct, frozen=True):
    """What a segment's file holds besides its tensors."""

    steps: int
    counters: tuple[SavedCounters, ...]  # of each state
    checksum: int


class StateNotes(Struct, frozen=True):
    """What the file of a run's last state holds besides its tensors."""

    counters: SavedCounters


class AverageNotes(Struct, frozen=True):
    """What the file of an average holds besides its tensors."""

    #: how the average got its moving buffers: averaged as the parameters are, copied from the model
    #: at the last update, or set by something else
    buffers: Literal["averaged", "copied", "fixed"]
    count: int  # updates that the averaged model itself has counted


@dataclass(frozen=True)
class Segment:
    """Consecutive steps of a run, with the state before the first or before each of them."""

    first: int
    steps: list[Step]
    states: list[State]  # one, or one per step
    checksum: int  # of the first batch as the model saw it

    @property
    def end(self) -> int:
        """The number of the step after the last one."""
        return self.first + len(self.steps)


def on_host(states: list[State]) -> list[State]:
    """The states in the memory of the host, copied there at once."""
    if not states or states[0].theta.device.type == "cpu":
        return states
    stacked = State.stack(states).map(lambda t: t.cpu()).tensors()
    rows = ({name: t[k] for name, t in stacked.items()} for k in range(len(states)))
    return [State.from_tensors(row, state.counters) for row, state in zip(rows, states)]


def encode_segment(segment: Segment) -> tuple[dict[str, Tensor], SegmentNotes]:
    """The segment as named tensors, and what is needed beside them to read it again."""
    steps = segment.steps
    micros = [micro for step in steps for micro in step.micros]
    first, *others = segment.states
    states = (State.stack(segment.states) if others else first.map(lambda t: t[None])).tensors()
    tensors = {_STATE_PREFIX + name: t.cpu() for name, t in states.items()}
    ids = np.concatenate([m.ids for m in micros] or [np.zeros(0)])
    tensors["ids"] = torch.from_numpy(ids.astype(np.int32))
    tensors["micro.sizes"] = _int32([len(m.ids) for m in micros])
    if any(len(step.micros) != 1 for step in steps):
        tensors["step.micros"] = _int32([len(step.micros) for step in steps])
    if any(m.coefficients is not None for m in micros):
        tensors["coefficients"] = torch.from_numpy(np.concatenate([m.weights for m in micros]))
    hyperparams = np.stack([step.hyperparams for step in steps])
    constant = bool((hyperparams == hyperparams[:1]).all())
    kept = hyperparams[:1].copy() if constant else hyperparams
    tensors["hyperparams"] = torch.from_numpy(kept)
    tensors["epochs"] = _int32([step.epoch for step in steps])
    if any(step.clip for step in steps):
        clip_rows = [clip_to_numbers(step.clip) for step in steps]
        tensors["clips"] = torch.tensor(clip_rows, dtype=torch.float64)
    if any(step.scale != 1 for step in steps):
        tensors["scales"] = torch.tensor([step.scale for step in steps], dtype=torch.float64)
    counters = tuple(state.counters for state in segment.states)
    return tensors, SegmentNotes(len(steps), counters, segment.checksum)


def decode_segment(tensors: dict[str, Tensor], notes: SegmentNotes, first: int) -> Segment:
    """The segment that `encode_segment` wrote; `first` is the number of its first step."""
    count = notes.steps
    stacked = {
        name.removeprefix(_STATE_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(_STATE_PREFIX)
    }
    states = [
        State.from_tensors({name: tensor[k] for name, tensor in stacked.items()}, counters)
        for k, counters in enumerate(notes.counters)
    ]
    ends = np.cumsum(tensors["micro.sizes"].numpy())[:-1]
    ids = np.split(tensors["ids"].numpy().astype(np.int64), ends)
    coefficients: list[Any] = [None] * len(ids)
    if "coefficients" in tensors:
        coefficients = np.split(tensors["coefficients"].numpy(), ends)
    micros = [MicroBatch(i, c) for i, c in zip(ids, coefficients)]
    per_step = tensors["step.micros"].tolist() if "step.micros" in tensors else [1] * count
    kept = tensors["hyperparams"].numpy()
    hyperparams = np.broadcast_to(kept, (count, *kept.shape[1:]))
    clip_rows = tensors["clips"].tolist() if "clips" in tensors else [(-1.0, 0.0)] * count
    scales = tensors["scales"].tolist() if "scales" in tensors else [1.0] * count
    steps = []
    at = 0
    for t, (size, epoch) in enumerate(zip(per_step, tensors["epochs"].tolist())):
        clip = clip_from_numbers(*clip_rows[t])
        steps.append(Step(tuple(micros[at : at + size]), hyperparams[t], epoch, clip, scales[t]))
        at += size
    return Segment(first, steps, states, notes.checksum)


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def clip_to_numbers(clip: Clip | None) -> tuple[float, float]:
    """A clip's kind (-1: none, 0: norm, 1: value) and its limit."""
    if clip is None:
        return (-1.0, 0.0)
    return (0.0, clip.max_norm) if isinstance(clip, ClipNorm) else (1.0, clip.limit)


def clip_from_numbers(kind: float, limit: float) -> Clip | None:
    """The clip that `clip_to_numbers` wrote down."""
    return None if kind < 0 else (ClipNorm, ClipValue)[int(kind)](limit)


@dataclass(frozen=True)
class AverageRecord:
    """The updates of an average in their order, and its tensors by the names of the model's."""

    steps: Tensor  # int64 [n]: how many steps had been taken
    rates: Tensor  # float64 [n]: how much the parameters counted beside the average so far
    tensors: dict[str, Tensor]  # of the parameters in training and of the moving buffers
    notes: AverageNotes

    def encode(self) -> dict[str, Tensor]:
        """The tensors of its file."""
        named = {f"model.{name}": t for name, t in self.tensors.items()}
        return {"steps": self.steps, "rates": self.rates, **named}

    @staticmethod
    def decode(tensors: dict[str, Tensor], notes: AverageNotes) -> "AverageRecord":
        """The record that `encode` wrote."""
        prefix = "model."
        named = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        return AverageRecord(tensors["steps"], tensors["rates"], named, notes)

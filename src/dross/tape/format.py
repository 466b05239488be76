"""What a tape says about itself: whether a model, a data set and a loss are the recorded ones."""

import hashlib
import json
import re
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._version import __version__
from ..data.batch import Augment, MicroBatch
from ..data.dataset import EVERYTHING, SAMPLE, Instances
from ..engine.objective import Objective
from ..engine.optim import Optimizer
from ..engine.precision import NARROW_NAMES, are_kernels, is_saved_autocast
from ..engine.state import State
from ..engine.step import Step, clip_from_numbers, clip_to_numbers
from ..errors import CorruptFile, InputChanged
from .retention import Keep

FORMAT = 1
SHARDED_FORMAT = 2  # of a tape of shards, which an earlier version would misread
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class RunSettings:
    """What a run is recorded with."""

    objective: Objective
    optimizer: Optimizer
    loss_name: str
    augment: Augment | None
    keep: Keep
    seed: int
    planned: int | None  # steps, where their number is known beforehand
    device: torch.device
    instances: Instances | None
    foreign: bool  # recorded from the user's own training loop
    #: a digest of the numbers that the optimizer will use, where they are known beforehand
    schedule: str | None = None


def describe(run: RunSettings, earlier: dict | None = None) -> dict:
    """The manifest of a tape on which no step has been recorded yet.

    Arguments:
        run: what it is recorded with.
        earlier: the manifest of a tape to be continued; the data are digested as they were for it.
    """
    objective, instances = run.objective, run.instances
    kind = None if instances is None else instances.digest_kind
    kind = kind if earlier is None else earlier.get("data_digest")
    layout = objective.layout
    return {
        "made_by": "dross",
        "format": FORMAT,
        "id": uuid.uuid4().hex,
        "foreign": run.foreign,
        "dross": __version__,
        "torch": torch.__version__,
        "device": str(run.device),
        "model": layout.signature(objective.model),
        "layout": layout.to_json(),
        "stochastic": objective.stochastic,
        "evaluated": list(objective.evaluated),
        "unused": list(objective.unused),
        "optimizer": run.optimizer.to_json(),
        "loss": run.loss_name,
        "penalty": objective.penalty is not None,
        "augment": run.augment is not None,
        "instances": None if instances is None else len(instances),
        "data": None if instances is None else instances.fingerprint(kind),
        "data_digest": kind,
        "seed": run.seed,
        "keep": repr(run.keep),
        "memory": run.keep.memory,
        **objective.precision.to_json(),
        "planned": run.planned,
        "schedule": run.schedule,
        "steps": 0,
        "segments": [],
        "complete": False,
    }


_MAY_DIFFER = {"id", "format", "dross", "torch", "segments", "end", "steps", "complete"}
_MISSING_IN_OLD_TAPES = {"schedule", "arithmetic", "memory", "data_digest"}
_MISSING_IN_OLD_TAPES |= {"autocast", "inner_cast", "kernels"}


def check_same_run(earlier: dict, now: dict) -> None:
    """Refuse to continue a tape with other settings than those it was started with.

    Raises:
        InputChanged: a setting of `now` differs from the one in the manifest `earlier`.
    """
    known = set(now) - (_MISSING_IN_OLD_TAPES - set(earlier))
    elsewhere = {"device"} if earlier.get("complete") else set()  # no step is left to be taken
    for key in sorted(known - _MAY_DIFFER - elsewhere):
        if earlier.get(key) != now[key]:
            was, is_now = (json.dumps(value)[:200] for value in (earlier.get(key), now[key]))
            raise InputChanged(
                f"The tape cannot be continued with other settings: {key} was {was} and is "
                f"{is_now}. Use the settings it was started with, or overwrite=True to start again."
            )


DIGEST = "digest"
_LARGEST = 2**63 - 1


def seal(manifest: dict) -> dict:
    """The manifest with a digest of all the rest of it."""
    return {**manifest, DIGEST: _digest(json.loads(json.dumps(manifest)))}


def check_manifest(manifest: dict, path: str) -> None:
    """Refuse a manifest that is incomplete or altered, or whose parts contradict each other.

    Arguments:
        manifest: as it was read.
        path: its name for a message.

    Raises:
        CorruptFile: it says which entry is wrong.
    """
    found = _find_fault(manifest)
    if found is None and DIGEST in manifest and manifest[DIGEST] != _digest(manifest):
        found = "its digest differs, so it has been changed since it was written"
    if found is not None:
        raise CorruptFile(
            f"{path} is damaged: {found}. Restore it from a copy, or record the run again."
        )


def _digest(manifest: dict) -> str:
    rest = {key: value for key, value in manifest.items() if key != DIGEST}
    return hashlib.sha256(json.dumps(rest, sort_keys=True).encode()).hexdigest()


# --- what each entry may be -----------------------------------------------------------------------


def _is_count(value: Any) -> bool:
    return type(value) is int and 0 <= value <= _LARGEST


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_yes_or_no(value: Any) -> bool:
    return isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return type(value) is int


def _is_list_of(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(check(each) for each in value)


def _may_be_none(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: value is None or check(value)


def _is_bare_name(name: Any) -> bool:
    # also as Windows sees it: a tape is copied between machines
    bare = isinstance(name, str) and name not in ("", ".", "..") and "\0" not in name
    return bare and Path(name).name == name and not re.search(r"[\\/:]", name)


def _is_sha256(value: Any) -> bool:
    return isinstance(value, str) and re.fullmatch("[0-9a-f]{64}", value) is not None


def _are_shapes(value: Any) -> bool:
    """{name: [shape, type]}."""
    return isinstance(value, dict) and all(
        isinstance(each, list)
        and len(each) == 2
        and _is_list_of(_is_count)(each[0])
        and _is_text(each[1])
        for each in value.values()
    )


def _is_range_of_epochs(value: Any) -> bool:
    return _is_list_of(_is_count)(value) and len(value) == 2 and value[0] <= value[1]


def _has(**checks: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: (
        isinstance(value, dict)
        and all(key in value and check(value[key]) for key, check in checks.items())
    )


_TEXTS = _is_list_of(_is_text)
_FILE = {"bytes": _is_count, "sha256": _is_sha256}
_SEGMENT = {"first": _is_count, "steps": _is_count, "epochs": _is_range_of_epochs, **_FILE}
_REQUIRED: dict[str, Callable[[Any], bool]] = {
    "id": _is_text,
    "foreign": _is_yes_or_no,
    "dross": _is_text,
    "torch": _is_text,
    "device": _is_text,
    "model": _has(
        **{"class": _is_text}, constants=_is_text, parameters=_are_shapes, buffers=_are_shapes
    ),
    "layout": _has(names=_TEXTS, group_sizes=_is_list_of(_is_count), moving=_TEXTS),
    "stochastic": _is_yes_or_no,
    "evaluated": _TEXTS,
    "unused": _TEXTS,
    "optimizer": _has(
        name=_is_text,
        flags=lambda value: isinstance(value, dict),
        columns=_TEXTS,
        any_momentum=_is_yes_or_no,
    ),
    "loss": _is_text,
    "penalty": _is_yes_or_no,
    "augment": _is_yes_or_no,
    "instances": _may_be_none(_is_count),
    "data": _may_be_none(_is_text),
    "seed": _is_whole,
    "planned": _may_be_none(_is_count),
    "steps": _is_count,
    "segments": lambda value: isinstance(value, list),
    "end": lambda value: isinstance(value, dict),
    "complete": _is_yes_or_no,
}
_OPTIONAL: dict[str, Callable[[Any], bool]] = {  # missing in tapes of earlier versions
    "keep": _is_text,
    "memory": _may_be_none(_is_count),
    "arithmetic": _is_text,
    "autocast": _may_be_none(is_saved_autocast),
    "inner_cast": _may_be_none(lambda value: value in list(NARROW_NAMES)),
    "kernels": are_kernels,
    "attention_gap": _may_be_none(lambda value: isinstance(value, (int, float))),
    "schedule": _may_be_none(_is_text),
    "data_digest": lambda value: value in (None, EVERYTHING, SAMPLE),
    "average": lambda value: isinstance(value, dict),
    "shards": _is_count,
}


# --- faults, as the end of a sentence -------------------------------------------------------------


def _find_fault(manifest: dict) -> str | None:
    if missing := sorted(set(_REQUIRED) - set(manifest)):
        return f"it lacks {', '.join(missing)}"
    for key, check in {**_REQUIRED, **_OPTIONAL}.items():
        if key in manifest and not check(manifest[key]):
            return f"its entry '{key}' is {_show(manifest[key])}, which is not valid"
    files = [(f"segment {k}", _SEGMENT, each) for k, each in enumerate(manifest["segments"])]
    files += [("average", _FILE, manifest["average"])] if "average" in manifest else []
    for what, checks, entry in [*files, ("end", _FILE, manifest["end"])]:
        if fault := _find_fault_of_file(what, checks, entry):
            return fault
        if fault := _find_fault_of_shards(what, entry, manifest):
            return fault
    return (
        _find_fault_of_order(manifest)
        or _find_fault_of_end(manifest)
        or _find_fault_of_layout(manifest)
    )


def _find_fault_of_file(what: str, checks: dict, entry: Any) -> str | None:
    if not isinstance(entry, dict) or not _is_bare_name(entry.get("file")):
        named = entry.get("file") if isinstance(entry, dict) else entry
        return f"{what} names {_show(named)}, a file outside the tape or none at all"
    for key, check in checks.items():
        if key not in entry:
            return f"{what} ({entry['file']}) lacks '{key}'"
        if not check(entry[key]):
            return f"'{key}' of {what} ({entry['file']}) is {_show(entry[key])}, which is not valid"
    return None


def _find_fault_of_shards(what: str, entry: dict, manifest: dict) -> str | None:
    """Each segment and the end have a file of every rank, where ranks wrote the tape together."""
    others = entry.get("shards", [])
    if not isinstance(others, list):
        return f"'shards' of {what} is {_show(others)}, which is not valid"
    holds_states = what == "end" or what.startswith("segment")
    if holds_states and len(others) != max(1, manifest.get("shards", 1)) - 1:
        return f"{what} has {len(others)} shards besides its own, of {manifest.get('shards', 1)}"
    faults = (_find_fault_of_file(f"a shard of {what}", _FILE, other) for other in others)
    return next((fault for fault in faults if fault), None)


def _find_fault_of_order(manifest: dict) -> str | None:
    """The segments follow each other without a gap, from the first one to the last step."""
    entries, names, before = manifest["segments"], {manifest["end"]["file"]}, None
    expected = entries[0]["first"] if entries else 0
    if expected and "LastEpochs" not in manifest.get("keep", "LastEpochs"):
        return f"its first segment begins at step {expected}, but this run keeps all steps"
    for k, entry in enumerate(entries):
        if entry["first"] != expected or not entry["steps"]:
            return (
                f"segment {k} ({entry['file']}) has {entry['steps']} steps from step "
                f"{entry['first']} on; step {expected} is next"
            )
        if entry["file"] in names:
            return f"segment {k} names {entry['file']}, which another entry names, too"
        # the user's own loop may have restarted its count of epochs when it was continued
        if before is not None and not manifest["foreign"] and entry["epochs"][0] < before:
            return f"the epochs of segment {k} ({entry['file']}) come before the previous ones"
        names.add(entry["file"])
        expected, before = expected + entry["steps"], entry["epochs"][1]
    if manifest["steps"] != expected:
        return f"it says {manifest['steps']} steps, but its segments end at step {expected}"
    return None


def _find_fault_of_end(manifest: dict) -> str | None:
    steps, planned, end = manifest["steps"], manifest["planned"], manifest["end"]["file"]
    if (named := re.fullmatch(r"state-(\d{1,20})\.safetensors", end)) and int(named[1]) != steps:
        return f"its end is {end}, but it says {steps} steps"
    if planned is not None and (steps > planned or (manifest["complete"] and steps != planned)):
        done = "complete" if manifest["complete"] else "not complete"
        return f"it is {done} with {steps} steps of {planned} planned ones"
    return None


def _find_fault_of_layout(manifest: dict) -> str | None:
    shapes, layout = manifest["model"]["parameters"], manifest["layout"]
    strangers = [name for name in layout["names"] if name not in shapes]
    strangers += [name for name in layout["moving"] if name not in manifest["model"]["buffers"]]
    if strangers:
        return f"its layout names '{strangers[0]}', which its model does not have"
    sizes = (_count_numbers(shapes[name][0]) for name in layout["names"])
    if sum(sizes) != sum(layout["group_sizes"]):
        return "the sizes in its layout are not those of its model"
    return None


def _count_numbers(shape: list[int]) -> int:
    count = 1
    for size in shape:
        count *= size
    return count


def _show(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


_STATE_PREFIX = "state."


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
    return [State.from_tensors(row, state.clock) for row, state in zip(rows, states)]


def encode_segment(segment: Segment) -> tuple[dict[str, Tensor], dict]:
    """The segment as named tensors, and what is needed beside them to read it again."""
    steps, micros = segment.steps, [micro for step in segment.steps for micro in step.micros]
    first, *others = segment.states
    states = (State.stack(segment.states) if others else first.map(lambda t: t[None])).tensors()
    tensors = {f"{_STATE_PREFIX}{name}": t.cpu() for name, t in states.items()}
    ids = np.concatenate([m.ids for m in micros] or [np.zeros(0)])
    tensors["ids"] = torch.from_numpy(ids.astype(np.int32))
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
        clip_rows = [clip_to_numbers(step.clip) for step in steps]
        tensors["clips"] = torch.tensor(clip_rows, dtype=torch.float64)
    if any(step.scale != 1 for step in steps):
        tensors["scales"] = torch.tensor([step.scale for step in steps], dtype=torch.float64)
    about = {
        "steps": len(steps),
        "clocks": [state.clock for state in segment.states],
        "checksum": segment.checksum,
    }
    return tensors, about


def decode_segment(tensors: dict[str, Tensor], about: dict, first: int) -> Segment:
    """The segment that `encode_segment` wrote; `first` is the number of its first step."""
    count = about["steps"]
    stacked = {
        name.removeprefix(_STATE_PREFIX): tensor
        for name, tensor in tensors.items()
        if name.startswith(_STATE_PREFIX)
    }
    states = [
        State.from_tensors({name: tensor[k] for name, tensor in stacked.items()}, tuple(clock))
        for k, clock in enumerate(about["clocks"])
    ]
    ends = np.cumsum(tensors["micro.sizes"].numpy())[:-1]
    ids = np.split(tensors["ids"].numpy().astype(np.int64), ends)
    coefficients: list[Any] = [None] * len(ids)
    if "coefficients" in tensors:
        coefficients = np.split(tensors["coefficients"].numpy(), ends)
    micros = [MicroBatch(i, c) for i, c in zip(ids, coefficients)]
    per_step = tensors["step.micros"].tolist() if "step.micros" in tensors else [1] * count
    numbers = np.broadcast_to(tensors["numbers"].numpy(), (count, *tensors["numbers"].shape[1:]))
    clip_rows = tensors["clips"].tolist() if "clips" in tensors else [(-1.0, 0.0)] * count
    scales = tensors["scales"].tolist() if "scales" in tensors else [1.0] * count
    steps, at = [], 0
    for t, (size, epoch) in enumerate(zip(per_step, tensors["epochs"].tolist())):
        clip = clip_from_numbers(*clip_rows[t])
        steps.append(Step(tuple(micros[at : at + size]), numbers[t], epoch, clip, scales[t]))
        at += size
    return Segment(first, steps, states, about["checksum"])


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


#: how the average got its moving buffers: averaged as the parameters are, copied from the model at
#: the last update, or set by something else
HOW = ("averaged", "copied", "fixed")


@dataclass(frozen=True)
class AverageRecord:
    """The updates of an average in their order, and its tensors by the names of the model's."""

    steps: Tensor  # int64 [n]: how many steps had been taken
    rates: Tensor  # float64 [n]: how much the parameters counted beside the average so far
    tensors: dict[str, Tensor]  # of the parameters in training and of the moving buffers
    buffers: str  # one of HOW
    count: int  # updates that the averaged model itself has counted

    def encode(self) -> tuple[dict[str, Tensor], dict]:
        """The tensors of its file, and what the file says about them."""
        named = {f"model.{name}": t for name, t in self.tensors.items()}
        about = {"buffers": self.buffers, "count": self.count}
        return {"steps": self.steps, "rates": self.rates, **named}, about

    @staticmethod
    def decode(tensors: dict[str, Tensor], about: dict) -> "AverageRecord":
        """The record that `encode` wrote; raises ValueError or LookupError."""
        steps, rates = tensors["steps"], tensors["rates"]
        kinds = (steps.dtype, rates.dtype, steps.dim(), steps.shape == rates.shape)
        if kinds != (torch.int64, torch.float64, 1, True) or about["buffers"] not in HOW:
            raise ValueError("it is not the record of an average")
        prefix = "model."
        named = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        return AverageRecord(steps, rates, named, about["buffers"], int(about["count"]))


#: as safetensors orders them: the widest come first, so that each is aligned
_TYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_PIECE = 1 << 23  # bytes that are handed out at a time


def encode_tensors(tensors: Mapping[str, Tensor], about: dict) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, part by part.

    Arguments:
        tensors: by name, in the memory of the host.
        about: what is kept with them, as the metadata "dross".

    Returns:
        The header, and then the tensors in parts of a few MB. Together they are what
        `safetensors.torch.save` makes.
    """
    order = list(_TYPES)
    names = sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name))
    header: dict = {"__metadata__": {"dross": json.dumps(about)}}
    end = 0
    for name in names:
        t, start = tensors[name], end
        end = start + t.numel() * t.element_size()
        shape = {"dtype": _TYPES[t.dtype], "shape": list(t.shape)}
        header[name] = shape | {"data_offsets": [start, end]}
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    yield len(raw).to_bytes(8, "little") + raw
    for name in (name for name in names if tensors[name].numel()):
        whole = tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data
        yield from (whole[k : k + _PIECE] for k in range(0, len(whole), _PIECE))


class Digested:
    """Parts of a file that are counted and hashed as they are read, once."""

    def __init__(self, parts: Iterable[bytes | memoryview]):
        self.parts, self.size, self._hash = parts, 0, hashlib.sha256()

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for part in self.parts:
            self._hash.update(part)
            self.size += len(part)
            yield part

    @property
    def digest(self) -> str:
        """The SHA-256 of what was taken so far."""
        return self._hash.hexdigest()

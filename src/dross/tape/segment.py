"""A segment of a tape, and what it looks like as named tensors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.batch import MicroBatch
from ..engine.state import State
from ..engine.step import Step, clip_from_numbers, clip_to_numbers

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

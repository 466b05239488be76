"""A segment of a tape, and what it looks like as named tensors."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..step import clipping as clips
from ..step.layout import State
from ..step.step import Micro, Step


@dataclass(frozen=True)
class Segment:
    first: int
    steps: list[Step]
    states: list[State]  # one, or one per step
    checksum: int  # of the first batch as the model saw it

    @property
    def end(self) -> int:
        return self.first + len(self.steps)


def encode_segment(segment: Segment) -> tuple[dict[str, Tensor], dict]:
    steps, micros = segment.steps, [micro for step in segment.steps for micro in step.micros]
    tensors = {
        f"state.{name}": t.cpu() for name, t in State.stacked(segment.states).tensors().items()
    }
    tensors["ids"] = torch.from_numpy(
        np.concatenate([m.ids for m in micros] or [np.zeros(0)]).astype(np.int32)
    )
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
        tensors["clips"] = torch.tensor(
            [clips.to_numbers(step.clip) for step in steps], dtype=torch.float64
        )
    about = {
        "steps": len(steps),
        "clocks": [state.clock for state in segment.states],
        "checksum": segment.checksum,
    }
    return tensors, about


def decode_segment(tensors: dict[str, Tensor], about: dict, first: int) -> Segment:
    count = about["steps"]
    state_names = [name for name in tensors if name.startswith("state.")]
    states = [
        State.from_tensors({name[6:]: tensors[name][k] for name in state_names}, tuple(clock))
        for k, clock in enumerate(about["clocks"])
    ]
    ends = np.cumsum(tensors["micro.sizes"].numpy())[:-1]
    ids = np.split(tensors["ids"].numpy().astype(np.int64), ends)
    coefficients: list[Any] = [None] * len(ids)
    if "coefficients" in tensors:
        coefficients = np.split(tensors["coefficients"].numpy(), ends)
    micros = [Micro(i, c) for i, c in zip(ids, coefficients)]
    per_step = tensors["step.micros"].tolist() if "step.micros" in tensors else [1] * count
    numbers = np.broadcast_to(tensors["numbers"].numpy(), (count, *tensors["numbers"].shape[1:]))
    clip_rows = tensors["clips"].tolist() if "clips" in tensors else [(-1.0, 0.0)] * count
    steps, at = [], 0
    for t, (size, epoch) in enumerate(zip(per_step, tensors["epochs"].tolist())):
        steps.append(
            Step(
                tuple(micros[at : at + size]), numbers[t], epoch, clips.from_numbers(*clip_rows[t])
            )
        )
        at += size
    return Segment(first, steps, states, about["checksum"])


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)

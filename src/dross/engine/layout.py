"""Where each tensor of a model lives in the state of a run.

All parameters that training moves are one flat vector `theta`, ordered by parameter group. So an
optimizer's update, a tape's state and an adjoint are each a handful of operations on one tensor,
however many layers the model has. Buffers that the forward pass moves (BatchNorm's statistics) keep
their names. Everything else is constant.
"""

import hashlib
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import InputChanged
from .state import State


@dataclass(frozen=True)
class Layout:
    """The order of a model's parameters in theta, and the buffers that move. p = len(theta)."""

    names: tuple[str, ...]  # the parameters that move, in the order of theta
    shapes: tuple[torch.Size, ...]
    group_sizes: tuple[int, ...]  # how many numbers of theta belong to each parameter group
    moving_buffers: tuple[str, ...]  # those that the forward pass changes
    listed: tuple[str, ...] = field(default=(), kw_only=True)  # the names in the model's own order

    @property
    def sizes(self) -> list[int]:
        """How many numbers of theta belong to each name."""
        return [shape.numel() for shape in self.shapes]

    @cached_property
    def group_of(self) -> list[int]:
        """The parameter group of each name."""
        group_ends, ends = np.cumsum(self.group_sizes), np.cumsum(self.sizes)
        return [int(np.searchsorted(group_ends, end)) for end in ends]

    @cached_property
    def slices(self) -> tuple[slice, ...]:
        """Where each parameter lies in theta, in the model's own order."""
        ends = np.cumsum(self.sizes).tolist()
        places = {n: slice(end - s, end) for n, s, end in zip(self.names, self.sizes, ends)}
        return tuple(places[name] for name in self.listed or self.names)

    @property
    def shapes_by_group(self) -> tuple[tuple[torch.Size, ...], ...]:
        """The shapes of the parameters of each group."""
        pairs = list(zip(self.group_of, self.shapes))
        groups = range(len(self.group_sizes))
        return tuple(tuple(shape for group, shape in pairs if group == k) for k in groups)

    # --- theta and the parameters by name -----------------------------------------------------

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """[..., p] -> {name: [..., *shape]}."""
        parts = zip(self.names, self.shapes, theta.split(self.sizes, dim=-1))
        return {
            name: part.unflatten(-1, shape) if shape else part.squeeze(-1)
            for name, shape, part in parts
        }

    def flatten(self, named: dict[str, Tensor]) -> Tensor:
        """{name: [..., *shape]} -> [..., p]."""
        parts = [
            named[name].flatten(-len(shape)) if shape else named[name].unsqueeze(-1)
            for name, shape in zip(self.names, self.shapes)
        ]
        return torch.cat(parts, dim=-1)

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """A vector over theta by the names of its parameters, for what is not a parameter."""
        return self.unflatten(vector)

    def local(self, t: Tensor) -> Tensor:
        """The part of a parameter's tensor that is in theta: all of it, unless theta is a shard."""
        return t

    def wrap(self, part: Tensor, parameter: Tensor) -> Tensor:
        """A copy of a slot's part as torch's optimizer keeps it: the inverse of `local`."""
        return part.clone()

    def read(self, model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
        """A copy of the model's theta and moving buffers."""
        parameters = dict(model.named_parameters())
        theta = self.flatten({name: parameters[name].detach() for name in self.names})
        return theta, self.read_buffers(model)

    def read_buffers(self, model: nn.Module) -> dict[str, Tensor]:
        """A copy of the model's moving buffers by name."""
        buffers = dict(model.named_buffers()) if self.moving_buffers else {}
        return {name: buffers[name].detach().clone() for name in self.moving_buffers}

    def write(self, state: State, model: nn.Module) -> None:
        """Copy theta and the moving buffers of a state into the model."""
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        with torch.no_grad():
            for name, value in self.unflatten(state.theta).items():
                parameters[name].copy_(value)
            for name, value in state.buffers.items():
                buffers[name].copy_(value)

    # --- what a tape keeps of a model -------------------------------------------------------------

    def constants(self, model: nn.Module) -> dict[str, Tensor]:
        """Frozen parameters and buffers that training leaves alone."""
        moving = {*self.names, *self.moving_buffers}
        everything = [*model.named_parameters(), *model.named_buffers()]
        return {name: tensor.detach() for name, tensor in everything if name not in moving}

    def signature(self, model: nn.Module) -> dict:
        """What a tape must find again in a model before the run is retraced with it."""
        constants = self.digest_of_constants(model)
        return {"class": type(model).__name__, "constants": constants, **_shapes(model)}

    def digest_of_constants(self, model: nn.Module) -> str:
        """Tells whether the tensors that training leaves alone are still the same."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.constants(model).items()):
            raw = tensor.cpu().contiguous().view(-1).view(torch.uint8)  # numpy has no bfloat16
            digest.update(name.encode() + raw.numpy().tobytes())
        return digest.hexdigest()

    def to_json(self) -> dict:
        """What a tape keeps of it. The shapes are in the model's signature."""
        return {
            "names": list(self.names),
            "group_sizes": list(self.group_sizes),
            "moving": list(self.moving_buffers),
        }

    @staticmethod
    def from_json(saved: dict, signature: dict) -> "Layout":
        """The layout that `to_json` described, of the model with this signature."""
        names, sizes, moving = (tuple(saved[key]) for key in ("names", "group_sizes", "moving"))
        shapes = tuple(torch.Size(signature["parameters"][name][0]) for name in names)
        listed = tuple(name for name in signature["parameters"] if name in set(names))
        return Layout(names, shapes, sizes, moving, listed=listed)


def check_signature(saved: dict, model: nn.Module, layout: Layout) -> None:
    """Refuse a model that is not the recorded one, and say how it differs."""
    for kind, own in _shapes(model).items():
        for name in {**saved[kind], **own}:
            recorded, here = saved[kind].get(name), own.get(name)
            if recorded != here:
                raise InputChanged(
                    f"The tape belongs to another model: {kind[:-1]} '{name}' is "
                    f"{_describe(recorded)} on the tape and {_describe(here)} here. Build the "
                    "model as it was when the run was recorded."
                )
    check_constants(saved, model, layout)


def check_constants(saved: dict, model: nn.Module, layout: Layout) -> None:
    """Refuse a model whose frozen tensors have other values than the recorded one's."""
    if layout.digest_of_constants(model) != saved["constants"]:
        frozen = ", ".join(list(layout.constants(model))[:3])
        raise InputChanged(
            "The tape was recorded with other values in the parameters or buffers that training "
            f"leaves alone ({frozen}). Load the same frozen weights before opening it, and leave "
            "them alone afterwards."
        )


def _shapes(model: nn.Module) -> dict[str, dict[str, list]]:
    shapes = lambda named: {name: [list(t.shape), str(t.dtype)] for name, t in named}
    return {
        "parameters": shapes(model.named_parameters()),
        "buffers": shapes(model.named_buffers()),
    }


def _describe(entry: list | None) -> str:
    return "absent" if entry is None else f"{tuple(entry[0])} {entry[1].removeprefix('torch.')}"

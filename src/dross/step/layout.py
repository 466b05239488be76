"""Where each tensor of a model lives in the state of a run.

All parameters that training moves are one flat vector `theta`, ordered by parameter group, so that an optimizer's update, a
tape's state and an adjoint are each a handful of operations on one tensor, however many layers the model has. Buffers that
the forward pass moves (BatchNorm's statistics) keep their names. Everything else is constant.
"""

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import TapeMismatch
from .state import State


@dataclass(frozen=True)
class Layout:
    names: tuple[str, ...]  # the parameters that move, in the order of theta
    shapes: tuple[torch.Size, ...]
    group_sizes: tuple[int, ...]  # how many numbers of theta belong to each parameter group
    moving: tuple[str, ...]  # buffers that the forward pass changes

    @property
    def sizes(self) -> list[int]:
        return [shape.numel() for shape in self.shapes]

    @property
    def group_of(self) -> list[int]:
        """The parameter group of each name."""
        group_ends, groups, end = np.cumsum(self.group_sizes), [], 0
        for size in self.sizes:
            end += size
            groups.append(int(np.searchsorted(group_ends, end)))
        return groups

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """[..., p] -> {name: [..., *shape]}"""
        parts = theta.split(self.sizes, dim=-1)
        return {
            n: part.unflatten(-1, s) if s else part.squeeze(-1)
            for n, s, part in zip(self.names, self.shapes, parts)
        }

    def flatten(self, named: dict[str, Tensor]) -> Tensor:
        """{name: [..., *shape]} -> [..., p]"""
        parts = (
            named[n].flatten(-len(s)) if s else named[n].unsqueeze(-1)
            for n, s in zip(self.names, self.shapes)
        )
        return torch.cat(list(parts), dim=-1)

    def read(self, model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
        """A copy of the model's theta and moving buffers."""
        parameters = dict(model.named_parameters())
        theta = self.flatten({name: parameters[name].detach() for name in self.names})
        return theta, self.read_buffers(model)

    def read_buffers(self, model: nn.Module) -> dict[str, Tensor]:
        buffers = dict(model.named_buffers()) if self.moving else {}
        return {name: buffers[name].detach().clone() for name in self.moving}

    def write(self, state: State, model: nn.Module) -> None:
        parameters, buffers = dict(model.named_parameters()), dict(model.named_buffers())
        with torch.no_grad():
            for name, value in self.unflatten(state.theta).items():
                parameters[name].copy_(value)
            for name, value in state.buffers.items():
                buffers[name].copy_(value)

    def constants(self, model: nn.Module) -> dict[str, Tensor]:
        """Frozen parameters and buffers that training leaves alone."""
        moving = {*self.names, *self.moving}
        everything = [*model.named_parameters(), *model.named_buffers()]
        return {name: tensor.detach() for name, tensor in everything if name not in moving}

    def signature(self, model: nn.Module) -> dict:
        """What a tape must find again in a model before it lets itself be retraced with it."""
        return {
            "class": type(model).__name__,
            "constants": self.digest_of_constants(model),
            **_shapes(model),
        }

    def digest_of_constants(self, model: nn.Module) -> str:
        digest = hashlib.sha256()
        for name, tensor in sorted(self.constants(model).items()):
            digest.update(
                name.encode()
                + tensor.cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes()
            )
        return digest.hexdigest()

    def to_json(self) -> dict:
        return {
            "names": list(self.names),
            "group_sizes": list(self.group_sizes),
            "moving": list(self.moving),
        }

    @staticmethod
    def from_json(saved: dict, signature: dict) -> "Layout":
        shapes = tuple(torch.Size(signature["parameters"][name][0]) for name in saved["names"])
        return Layout(
            tuple(saved["names"]), shapes, tuple(saved["group_sizes"]), tuple(saved["moving"])
        )


def check_signature(saved: dict, model: nn.Module, layout: Layout) -> None:
    """Refuse a model that is not the recorded one, and say in what it differs."""
    for kind, own in _shapes(model).items():
        for name in {**saved[kind], **own}:
            if saved[kind].get(name) != own.get(name):
                raise TapeMismatch(
                    f"The tape belongs to another model: {kind[:-1]} '{name}' is {_described(saved[kind].get(name))} on the tape "
                    f"and {_described(own.get(name))} here. Build the model as it was when the run was recorded."
                )
    check_constants(saved, model, layout)


def check_constants(saved: dict, model: nn.Module, layout: Layout) -> None:
    if layout.digest_of_constants(model) != saved["constants"]:
        frozen = ", ".join(list(layout.constants(model))[:3])
        raise TapeMismatch(
            f"The tape was recorded with other values in the parameters or buffers that training leaves alone ({frozen}). "
            "Load the same frozen weights before opening it, and leave them alone afterwards."
        )


def _shapes(model: nn.Module) -> dict[str, dict[str, list]]:
    described = lambda named: {name: [list(t.shape), str(t.dtype)] for name, t in named}
    return {
        "parameters": described(model.named_parameters()),
        "buffers": described(model.named_buffers()),
    }


def _described(entry) -> str:
    return "absent" if entry is None else f"{tuple(entry[0])} {entry[1].removeprefix('torch.')}"

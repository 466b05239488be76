"""The state s_t that a training step turns into the next, and derivatives of the same shape."""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from ..data.strides import Orders, orders_of, put_in_order
from ..errors import InputChanged

Named = dict[str, Tensor]
Buffers = dict[str, Tensor]  # what the forward pass updates, by name
Counters = dict[str, float]  # of one parameter group: how many steps it has taken, and the like
GroupCounters = tuple[Counters, ...]  # of all parameter groups
Shapes = dict[str, tuple[torch.Size, torch.dtype]]  # of a model's parameters or buffers, by name
Place = slice | np.ndarray  # of a parameter in theta: from where to where, or each number's place
_SLOT, _BUFFER = "slot.", "buffer."


def name_parts(theta: Tensor, slots: Named, buffers: Named) -> Named:
    """The tensors of a state or of a derivative under the names that files know them by."""
    named = {"theta": theta}
    named |= {_SLOT + name: slot for name, slot in slots.items()}
    return named | {_BUFFER + name: buffer for name, buffer in buffers.items()}


def split_parts(named: Named) -> tuple[Tensor, Named, Named]:
    """theta, slots and buffers by the names from `name_parts`."""
    slots, buffers = (
        {name.removeprefix(kind): t for name, t in named.items() if name.startswith(kind)}
        for kind in (_SLOT, _BUFFER)
    )
    return named["theta"], slots, buffers


@dataclass(frozen=True)
class State:
    """s_t. Every tensor may carry a leading axis of K models."""

    theta: Tensor  # [p]
    slots: Named = field(default_factory=dict)  # the optimizer's memory, each [p]
    buffers: Named = field(default_factory=dict)  # what the forward pass updates, by name
    counters: GroupCounters = ()  # the optimizer's counters, one dict per parameter group

    def tensors(self) -> Named:
        """Its tensors under the names that files know them by."""
        return name_parts(self.theta, self.slots, self.buffers)

    @staticmethod
    def from_tensors(named: Named, counters: GroupCounters) -> "State":
        """The state whose `tensors` these are."""
        return State(*split_parts(named), counters)

    @staticmethod
    def stack(states: "Sequence[State]") -> "State":
        """With a leading axis, of models or of steps, and the first one's counters."""
        named = [state.tensors() for state in states]
        stacked = {name: torch.stack([one[name] for one in named]) for name in named[0]}
        return State.from_tensors(stacked, states[0].counters)

    def map(self, change: Callable[[Tensor], Tensor]) -> "State":
        """The state with every tensor changed."""
        changed = {name: change(t) for name, t in self.tensors().items()}
        return State.from_tensors(changed, self.counters)

    @property
    def nbytes(self) -> int:
        """Bytes of all its tensors."""
        return sum(t.numel() * t.element_size() for t in self.tensors().values())


@dataclass(frozen=True)
class Derivative:
    """An adjoint (d query / d s) or a tangent (d s / d weight): a state with a leading axis [Q]."""

    theta: Tensor  # [Q, p]
    slots: Named = field(default_factory=dict)  # each [Q, p]
    buffers: Named = field(default_factory=dict)  # each [Q, ...]; only floating point ones

    def tensors(self) -> Named:
        """Its tensors under the names that files know them by."""
        return name_parts(self.theta, self.slots, self.buffers)

    @staticmethod
    def from_tensors(named: Named) -> "Derivative":
        """The derivative whose `tensors` these are."""
        return Derivative(*split_parts(named))

    @staticmethod
    def zeros(state: State, count: int, held: Sequence[str] = ()) -> "Derivative":
        """A derivative of a state that is 0, for `count` queries or directions.

        held: buffers that are taken as constants.
        """
        zeros = lambda t: t.new_zeros(count, *t.shape)
        buffers = ((name, b) for name, b in state.buffers.items() if name not in held)
        floating = {name: b for name, b in buffers if b.is_floating_point()}
        parts = ({name: zeros(t) for name, t in named.items()} for named in (state.slots, floating))
        return Derivative(zeros(state.theta), *parts)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Derivative":
        """The derivative with every tensor changed."""
        return Derivative.from_tensors({name: change(t) for name, t in self.tensors().items()})


# --- layout ---------------------------------------------------------------------------------------

# Where each tensor of a model lives in the state of a run.
#
# All parameters that training updates are one flat vector `theta`, ordered by parameter group. So
# an optimizer's update, a tape's state and an adjoint are each a handful of operations on one
# tensor, however many layers the model has. Buffers that the forward pass updates (BatchNorm's
# statistics) keep their names. Everything else is constant.


@dataclass(frozen=True)
class Layout:
    """The order of a model's parameters in theta, and the updated buffers. p = len(theta)."""

    names: tuple[str, ...]  # the parameters that are updated, in the order of theta
    shapes: tuple[torch.Size, ...]
    group_sizes: tuple[int, ...]  # how many numbers of theta belong to each parameter group
    moving_buffers: tuple[str, ...]  # those that the forward pass changes
    listed: tuple[str, ...] = field(default=(), kw_only=True)  # the names in the model's own order
    # of the parameters in memory, such as channels last; theta has the usual one
    orders: Orders = field(default=(), kw_only=True)

    @staticmethod
    def of_groups(
        parameters: Mapping[str, Tensor],
        groups: Sequence[Sequence[str]],
        moving_buffers: tuple[str, ...] = (),
    ) -> "Layout":
        """The layout of a model.

        Arguments:
            parameters: of the model, in its own order.
            groups: the names of those that train, by the optimizer's parameter groups.
            moving_buffers: those that the forward pass changes.
        """
        names = tuple(name for group in groups for name in group)
        return Layout(
            names,
            shapes=tuple(parameters[name].shape for name in names),
            group_sizes=tuple(sum(parameters[name].numel() for name in g) for g in groups),
            moving_buffers=moving_buffers,
            listed=tuple(name for name in parameters if name in set(names)),
            orders=orders_of([parameters[name] for name in names]),
        )

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
    def slices(self) -> tuple[Place, ...]:
        """Where each parameter lies in theta, in the model's own order."""
        ends = np.cumsum(self.sizes).tolist()
        places: dict[str, Place] = {
            name: slice(end - size, end) for name, size, end in zip(self.names, self.sizes, ends)
        }
        for name, shape, end, order in zip(self.names, self.shapes, ends, self.orders):
            if order:
                numbers = np.arange(end - shape.numel(), end).reshape(shape)
                places[name] = numbers.transpose(order).reshape(-1)
        return tuple(places[name] for name in self.listed or self.names)

    @property
    def shapes_by_group(self) -> tuple[tuple[torch.Size, ...], ...]:
        """The shapes of the parameters of each group."""
        pairs = list(zip(self.group_of, self.shapes))
        groups = range(len(self.group_sizes))
        return tuple(tuple(shape for group, shape in pairs if group == k) for k in groups)

    # --- theta and the parameters by name -----------------------------------------------------

    def views(self, theta: Tensor) -> dict[str, Tensor]:
        """[..., p] -> {name: [..., *shape]}, in the memory of theta."""
        parts = zip(self.names, self.shapes, theta.split(self.sizes, dim=-1))
        return {
            name: part.unflatten(-1, shape) if shape else part.squeeze(-1)
            for name, shape, part in parts
        }

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """[..., p] -> {name: [..., *shape]}, in the order in memory that the model has."""
        named = self.views(theta)
        for name, order in zip(self.names, self.orders):
            if order:
                named[name] = put_in_order(named[name], order)
        return named

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

    def signature(self, model: nn.Module) -> "Signature":
        """What a tape must find again in a model before the run is retraced with it."""
        return Signature(
            name=type(model).__name__,
            constants=self.digest_of_constants(model),
            parameters=_shapes(model.named_parameters()),
            buffers=_shapes(model.named_buffers()),
        )

    def digest_of_constants(self, model: nn.Module) -> str:
        """Tells whether the tensors that training leaves alone are still the same."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.constants(model).items()):
            raw = tensor.cpu().contiguous().view(-1).view(torch.uint8)  # numpy has no bfloat16
            digest.update(name.encode() + raw.numpy().tobytes())
        return digest.hexdigest()


@dataclass(frozen=True)
class Signature:
    """A model's class, the shapes of its tensors, and the values of those that do not train."""

    name: str  # of the class
    constants: str  # a digest
    parameters: Shapes
    buffers: Shapes


def check_signature(recorded: Signature, model: nn.Module, layout: Layout) -> None:
    """Refuse a model that is not the recorded one, and say how it differs."""
    kinds = (
        ("parameter", recorded.parameters, _shapes(model.named_parameters())),
        ("buffer", recorded.buffers, _shapes(model.named_buffers())),
    )
    for kind, before, now in kinds:
        for name in {**before, **now}:
            if before.get(name) != now.get(name):
                raise InputChanged(
                    f"The tape belongs to a different model: {kind} '{name}' is "
                    f"{_describe(before.get(name))} on the tape and {_describe(now.get(name))} "
                    "here. Build the model exactly as it was when the run was recorded."
                )
    check_constants(recorded, model, layout)


def check_constants(recorded: Signature, model: nn.Module, layout: Layout) -> None:
    """Refuse a model whose frozen tensors have other values than the recorded one's."""
    if layout.digest_of_constants(model) != recorded.constants:
        frozen = ", ".join(list(layout.constants(model))[:3])
        raise InputChanged(
            "The tape was recorded with different values of the frozen parameters or buffers "
            f"({frozen}). Load the same frozen weights before opening the tape, and do not change "
            "them afterwards."
        )


def _shapes(named: Iterable[tuple[str, Tensor]]) -> Shapes:
    return {name: (t.shape, t.dtype) for name, t in named}


def _describe(entry: tuple[torch.Size, torch.dtype] | None) -> str:
    if entry is None:
        return "absent"
    shape, dtype = entry
    return f"{tuple(shape)} {str(dtype).removeprefix('torch.')}"

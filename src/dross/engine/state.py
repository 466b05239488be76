"""The state s_t that a training step turns into the next, and derivatives of the same shape."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

Named = dict[str, Tensor]
Counters = dict[str, float]  # of one parameter group: how many steps it has taken, and the like
Clock = tuple[Counters, ...]  # of all parameter groups
_SLOT, _BUFFER = "slot.", "buffer."


def name_parts(theta: Tensor, slots: Named, buffers: Named) -> Named:
    """The tensors of a state or of a derivative under the names that files know them by."""
    named = {"theta": theta}
    named |= {_SLOT + name: slot for name, slot in slots.items()}
    return named | {_BUFFER + name: buffer for name, buffer in buffers.items()}


def split_parts(named: Named) -> tuple[Tensor, Named, Named]:
    """theta, slots and buffers from the names that `name_parts` gave them."""
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
    buffers: Named = field(default_factory=dict)  # what the forward pass moves, by name
    clock: Clock = ()  # the optimizer's counters, one dict per parameter group

    def tensors(self) -> Named:
        """Its tensors under the names that files know them by."""
        return name_parts(self.theta, self.slots, self.buffers)

    @staticmethod
    def from_tensors(named: Named, clock: Clock) -> "State":
        """The state whose `tensors` these are."""
        return State(*split_parts(named), clock)

    @staticmethod
    def stack(states: "Sequence[State]") -> "State":
        """With a leading axis, of models or of steps, and the first one's clock."""
        named = [state.tensors() for state in states]
        stacked = {name: torch.stack([one[name] for one in named]) for name in named[0]}
        return State.from_tensors(stacked, states[0].clock)

    def map(self, change: Callable[[Tensor], Tensor]) -> "State":
        """The state with every tensor changed."""
        changed = {name: change(t) for name, t in self.tensors().items()}
        return State.from_tensors(changed, self.clock)

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
        wide = lambda t: torch.promote_types(t.dtype, torch.float32)  # whatever the state is in
        zeros = lambda t: torch.zeros(count, *t.shape, dtype=wide(t), device=t.device)
        buffers = ((name, b) for name, b in state.buffers.items() if name not in held)
        floating = {name: b for name, b in buffers if b.is_floating_point()}
        parts = ({name: zeros(t) for name, t in named.items()} for named in (state.slots, floating))
        return Derivative(zeros(state.theta), *parts)

    def map(self, change: Callable[[Tensor], Tensor]) -> "Derivative":
        """The derivative with every tensor changed."""
        return Derivative.from_tensors({name: change(t) for name, t in self.tensors().items()})

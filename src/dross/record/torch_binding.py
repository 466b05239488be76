"""A model and its torch optimizer, read as a pure state and written back."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from ..engine.inspect import trained_groups
from ..engine.optim import Optimizer, current_numbers, read_slots, write_slots
from ..engine.state import Layout, State


@dataclass(frozen=True)
class LiveModel:
    """What the user trains, beside its pure form."""

    model: nn.Module
    torch_optimizer: torch.optim.Optimizer
    layout: Layout
    optimizer: Optimizer

    @property
    def groups(self) -> list[dict]:
        """The optimizer's parameter groups that have a part of theta."""
        return trained_groups(self.layout, self.parameters, self.torch_optimizer)

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The model's parameters by name, looked up once: an optimizer has no others later."""
        return dict(self.model.named_parameters())

    def numbers(self) -> np.ndarray:
        """The optimizer's numbers (lr, momentum, ...) as they are now: [G, H]."""
        return current_numbers(self.optimizer, self.groups)

    def read(self, numbers: np.ndarray | None = None, theta: Tensor | None = None) -> State:
        """A copy of the state.

        Arguments:
            numbers: the optimizer's, of the next step; by default the present ones.
            theta: a copy of it, where the caller has one already.
        """
        numbers = self.numbers() if numbers is None else numbers
        buffers = self.layout.read_buffers(self.model)
        theta = self.read_theta() if theta is None else theta
        given = (self.optimizer, self.torch_optimizer, self.layout, self.parameters)
        slots, clock = read_slots(*given, theta, numbers)
        return State(theta, slots, buffers, clock)

    def read_theta(self) -> Tensor:
        """A copy of theta."""
        return self.layout.read(self.model)[0]

    def holds(self, theta: Tensor) -> bool:
        """Whether these are the model's parameters, to the bit."""
        local = lambda name: self.layout.local(self.parameters[name].detach()).reshape(-1)
        parts = self.layout.split(theta).items()
        return all(torch.equal(local(name), part.reshape(-1)) for name, part in parts)

    def write(self, state: State, *, slots: bool = True) -> None:
        """Leave model and optimizer as if they had taken the steps to this state themselves."""
        self.layout.write(state, self.model)
        if slots:
            given = (self.optimizer, self.torch_optimizer, self.layout, self.parameters)
            write_slots(*given, state.slots, state.clock, self.numbers())

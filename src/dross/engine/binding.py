"""What the user trains, a torch model and its optimizer, as the state of a run, and back."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor, nn

from ..errors import NotSupported
from .optim import Optimizer
from .state import Counters, GroupCounters, Layout, State
from .update_rules import Slots, counter_dtype, flatten_options


@dataclass(frozen=True)
class TorchBinding:
    """What the user trains, beside its pure form."""

    model: nn.Module
    torch_optimizer: torch.optim.Optimizer
    layout: Layout
    optimizer: Optimizer

    @property
    def groups(self) -> list[dict]:
        """The optimizer's parameter groups that have a part of theta."""
        moving = {self.parameters[name] for name in self.layout.names}
        return [
            group
            for group in self.torch_optimizer.param_groups
            if any(p in moving for p in group["params"])
        ]

    @cached_property
    def parameters(self) -> dict[str, nn.Parameter]:
        """The model's parameters by name, looked up once: an optimizer has no others later."""
        return dict(self.model.named_parameters())

    def hyperparams(self) -> np.ndarray:
        """The optimizer's hyperparameters (lr, momentum, ...) as they are now: [G, H]."""
        return current_hyperparams(self.optimizer, self.groups)

    def read(self, hyperparams: np.ndarray | None = None, theta: Tensor | None = None) -> State:
        """A copy of the state.

        Arguments:
            hyperparams: the optimizer's, of the next step; by default the present ones.
            theta: a copy of it, where the caller has one already.
        """
        hyperparams = self.hyperparams() if hyperparams is None else hyperparams
        buffers = self.layout.read_buffers(self.model)
        theta = self.read_theta() if theta is None else theta
        slots, counters = self._read_slots(theta, hyperparams)
        return State(theta, slots, buffers, counters)

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
            self._write_slots(state.slots, state.counters)

    def _read_slots(self, theta: Tensor, hyperparams: np.ndarray) -> tuple[Slots, GroupCounters]:
        """The slots, each [p], and the counters that the torch optimizer holds now.

        Where it has not stepped a parameter yet, they are those of a new optimizer.
        """
        layout = self.layout
        held = {
            name: self.torch_optimizer.state.get(self.parameters[name], {}) for name in layout.names
        }
        fresh, counters = self.optimizer.initial(theta, hyperparams)
        if not any(_has_stepped(state) for state in held.values()):
            return fresh, counters
        slots = {}
        for slot, value in fresh.items():
            parts = self.optimizer.split_slot(layout, slot, value, hyperparams)
            for name in parts:
                if held[name].get(slot) is not None:
                    parts[name] = layout.local(held[name][slot].detach()).to(theta.device)
            slots[slot] = torch.cat([part.reshape(-1) for part in parts.values()])
        read = []
        for group, initial in enumerate(counters):
            members = [name for name, g in zip(layout.names, layout.group_of) if g == group]
            counts = [_read_counters(held[name], initial) for name in members]
            if any(count != counts[0] for count in counts):
                raise NotSupported(
                    f"The parameters of group {group} have taken different numbers of steps "
                    f"({members[0]}: {counts[0]}). dross requires all parameters of a group to be "
                    "stepped together; start with a fresh optimizer."
                )
            read.append(counts[0])
        return slots, tuple(read)

    def _write_slots(self, slots: Slots, counters: GroupCounters) -> None:
        hyperparams = self.hyperparams()
        named = {
            slot: self.optimizer.split_slot(self.layout, slot, value, hyperparams)
            for slot, value in slots.items()
        }
        is_sgd = self.optimizer.name == "SGD" and self.optimizer.formula is None
        options = {p: group for group in self.torch_optimizer.param_groups for p in group["params"]}
        for name, group in zip(self.layout.names, self.layout.group_of):
            parameter = self.parameters[name]
            state = {
                slot: self.layout.wrap(values[name], parameter)
                for slot, values in named.items()
                if name in values
            }
            # such steps need their counter on the parameter's device
            on_device = options[parameter].get("fused") or options[parameter].get("capturable")
            device = parameter.device if on_device else torch.device("cpu")
            if not is_sgd:  # it keeps no counter
                for counter, value in counters[group].items():
                    state[counter] = torch.tensor(value, dtype=counter_dtype(), device=device)
            self.torch_optimizer.state[parameter] = state


def current_hyperparams(optimizer: Optimizer, groups: list[dict]) -> np.ndarray:
    """The options of a torch optimizer's groups as they are now: float64 [G, H]."""
    keys = dict.fromkeys(column.partition(".")[0] for column in optimizer.columns)
    flat = [flatten_options(group, keys) for group in groups]
    return np.array([[h[column] for column in optimizer.columns] for h in flat])


def _has_stepped(state: dict) -> bool:
    return "step" in state or any(isinstance(value, Tensor) for value in state.values())


def _read_counters(state: dict, initial: Counters) -> Counters:
    counters = dict(initial)
    if state.get("momentum_buffer") is not None and "step" in counters:
        counters["step"] = 1.0  # SGD keeps no counter; its buffer tells that it has stepped
    return counters | {name: float(state[name]) for name in counters if name in state}

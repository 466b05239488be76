"""The other optimizers of torch.optim, through one step of their own code.

For every step a new optimizer is built, given its memory, and stepped once. Its table comes from
autograd, through the same step with `differentiable=True`.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .hyperparams import Flags, group_options
from .state import Counters
from .update_rules import Numbers, Slots, Table, Updated

#: The optimizers that are stepped this way, and those of their slots that begin with zeros
TORCH_STEPPED = {
    "RMSprop": ("square_avg",),
    "Adagrad": (),
    "Adadelta": ("square_avg", "acc_delta"),
    "NAdam": ("exp_avg", "exp_avg_sq"),
    "RAdam": ("exp_avg", "exp_avg_sq"),
    "Adamax": ("exp_avg", "exp_inf"),
    "ASGD": ("ax",),
    "Rprop": ("prev",),
}
_SECOND_MOMENTS = ("exp_avg_sq", "square_avg", "sum")
_NUDGE = 1e-30  # far below any squared gradient that matters, far above the smallest float32


@dataclass(frozen=True)
class TorchStep:
    """Any elementwise optimizer of torch.optim, by its name and the flags it is built with."""

    name: str
    flags: Flags
    needs_gradient: bool = True

    def initial(self, theta: Tensor, h: Numbers) -> tuple[Slots, Counters]:
        """The state that torch gives a parameter when it is stepped for the first time."""
        slots = {name: torch.zeros_like(theta) for name in TORCH_STEPPED[self.name]}
        counters = {"step": 0.0}
        if self.name == "RMSprop":
            slots |= {"momentum_buffer": torch.zeros_like(theta)} if h["momentum"] > 0 else {}
            slots |= {"grad_avg": torch.zeros_like(theta)} if self.flags["centered"] else {}
        elif self.name == "Adagrad":
            slots["sum"] = torch.full_like(theta, h["initial_accumulator_value"])
        elif self.name == "Rprop":
            slots["step_size"] = torch.full_like(theta, h["lr"])
        elif self.name == "NAdam":
            counters["mu_product"] = 1.0
        elif self.name == "ASGD":
            counters |= {"eta": h["lr"], "mu": 1.0}
        return slots, counters

    def update(self, theta, slots, counters, g, h) -> Updated:
        """One step, on copies: torch works in place."""
        copies = {name: slot.clone() for name, slot in slots.items()}
        theta, slots, counters = self._step(theta.detach().clone(), copies, counters, g, h, False)
        return theta.detach(), {name: slot.detach() for name, slot in slots.items()}, counters

    def table(self, theta, slots, counters, g, h) -> Table:
        """By autograd, through the same step."""
        slots = {name: self._nudge(name, slot, g) for name, slot in slots.items()}
        step = lambda theta, slots, g: self._step(theta, slots, counters, g, h, True)[:2]
        return differentiate_table(step, theta, slots, g)

    def _nudge(self, name: str, slot: Tensor, g: Tensor) -> Tensor:
        """Move second moments away from 0, where sqrt has no derivative.

        Where a second moment is 0 and so is the gradient, the first moment is 0 as well, and the
        product of the two derivatives is 0. With the nudge autograd finds that 0, and not nan.
        """
        if name not in _SECOND_MOMENTS:
            return slot
        return torch.where((slot == 0) & (g == 0), _NUDGE, slot)

    def _step(self, theta, slots, counters, g, h, differentiable: bool) -> Updated:
        # The counters of a run are as exact as torch's own; a derivative may be more exact.
        exact = torch.float64 if differentiable else counter_dtype()
        with warnings.catch_warnings():
            # torch warns about .grad on tensors that are not leaves; here that is the point
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
            options = {**group_options(h), **self.flags}
            build: Any = getattr(torch.optim, self.name)
            optimizer = build([theta], **options, foreach=False, differentiable=differentiable)
            counted = {name: torch.tensor(value, dtype=exact) for name, value in counters.items()}
            optimizer.state[theta] = {**slots, **counted}
            theta.grad = g.expand_as(theta)
            optimizer.step()
            state = optimizer.state[theta]
        slots = {name: state[name] for name in slots}
        return theta, slots, {name: float(state[name]) for name in counters}


def counter_dtype() -> torch.dtype:
    """The type in which torch.optim keeps its counters."""
    return torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32


def differentiate_table(
    step: Callable[[Tensor, Slots, Tensor], tuple[Tensor, Slots]],
    theta: Tensor,
    slots: Slots,
    g: Tensor,
) -> Table:
    """The Jacobian of an elementwise step (theta, slots, g) -> (theta', slots').

    Row `out` of the table is the gradient of out'.sum(), since the step is elementwise.
    """
    inputs = {"theta": theta, "g": g, **slots}
    inputs = {name: t.detach().clone().requires_grad_() for name, t in inputs.items()}
    with torch.enable_grad():
        copies = {name: t.clone() for name, t in inputs.items()}  # a leaf cannot be stepped
        held = {name: copies[name] for name in slots}
        after, slots_after = step(copies["theta"], held, copies["g"])
    table: Table = {}
    sources = list(inputs.values())
    for out, value in {"theta": after, **slots_after}.items():
        if value.grad_fn is None:
            continue
        row = torch.autograd.grad(value.sum(), sources, retain_graph=True, allow_unused=True)
        table |= {(out, name): entry for name, entry in zip(inputs, row) if entry is not None}
    return table

"""An optimizer as a formula: a pure function of one parameter, differentiated by autograd.

    theta', slots' = update(theta, g, slots, numbers)

An elementwise formula treats every number alike. So it takes all of a parameter group at once, and
its Jacobian is a table as in update_rules.py. Any other formula is taken parameter by parameter, in
the parameter's own shape (blocks.py).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from .hyperparams import Numbers, group_options
from .state import Counters
from .torch_step import differentiate_table
from .update_rules import Slots, Table, Updated

#: the options of a parameter group by their names, and "step", which counts from 1
Options = Mapping[str, Any]
Update = Callable[[Tensor, Tensor, Slots, Options], tuple[Tensor, Slots]]
Shapes = Callable[[torch.Size, Options], dict[str, torch.Size]]


@dataclass(frozen=True)
class Formula:
    """What is known of an optimizer beyond its class."""

    name: str  # as a tape knows it
    update: Update
    shapes: Shapes  # of the slots of a parameter of some shape
    elementwise: bool
    smooth: Update | None = None  # what is differentiated, where `update` rounds on purpose
    first: Mapping[str, float] | None = None  # what slots begin with, where that is not 0
    counts: bool = True  # whether the optimizer keeps a counter "step" of its steps
    trials: tuple[tuple[int, ...], ...] = ((3, 4), (4, 3), (5,))  # shapes to try it on

    def derived(
        self, theta: Tensor, g: Tensor, slots: Slots, options: Options
    ) -> tuple[Tensor, Slots]:
        """The function that is differentiated. The slots keep their order."""
        theta, after = (self.smooth or self.update)(theta, g, dict(slots), options)
        return theta, {name: after[name] for name in slots}

    def start(self, theta: Tensor, options: Options) -> Slots:
        """The slots of a parameter that has not been stepped yet."""
        first = self.first or {}
        return {
            name: theta.new_full(shape, first.get(name, 0.0))
            for name, shape in self.shapes(theta.shape, options).items()
        }

    def counters(self) -> Counters:
        """The counters of an optimizer that has not stepped yet."""
        return {"step": 0.0} if self.counts else {}


def options_at(h: Numbers, flags: Mapping[str, Any], counters: Counters) -> dict[str, Any]:
    """What a formula is told: the numbers and flags of its group, and which step it is."""
    options = {**group_options(h), **flags}
    return options | ({"step": counters["step"] + 1} if "step" in counters else {})


def after_step(counters: Counters) -> Counters:
    """The counters after one more step."""
    return {name: value + 1 for name, value in counters.items()}


@dataclass(frozen=True)
class FormulaRule:
    """An elementwise formula as the `Rule` of a parameter group."""

    formula: Formula
    flags: Mapping[str, Any]
    needs_gradient: bool = True

    def initial(self, theta: Tensor, h: Numbers) -> tuple[Slots, Counters]:
        """What the slots begin with."""
        counters = self.formula.counters()
        return self.formula.start(theta, options_at(h, self.flags, counters)), counters

    def update(self, theta, slots, counters, g, h) -> Updated:
        """The formula."""
        options = options_at(h, self.flags, counters)
        with torch.no_grad():
            theta, slots = self.formula.update(theta, g, dict(slots), options)
        return theta, slots, after_step(counters)

    def table(self, theta, slots, counters, g, h) -> Table:
        """By autograd."""
        options = options_at(h, self.flags, counters)
        step = lambda theta, slots, g: self.formula.derived(theta, g, slots, options)
        return differentiate_table(step, theta, slots, g)

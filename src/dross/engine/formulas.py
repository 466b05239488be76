"""An optimizer as a formula: a pure function of one parameter, differentiated by autograd.

    theta', slots' = update(theta, g, slots, options)

An elementwise formula treats every number alike. So it takes all of a parameter group at once, and
its Jacobian is a table as in update_rules.py (`FormulaRule`). Any other formula is taken parameter
by parameter, in the parameter's own shape (`Parameterwise`).
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap

from .autodiff import jvp
from .state import Counters, Derivative, GroupCounters, Layout, State
from .update_rules import (
    Elementwise,
    Hyperparams,
    Slots,
    Table,
    Updated,
    differentiate_table,
    group_options,
)

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
    initial: Mapping[str, float] | None = None  # what slots begin with, where that is not 0
    has_counter: bool = True  # whether the optimizer keeps a counter "step" of its steps
    trial_shapes: tuple[tuple[int, ...], ...] = ((3, 4), (4, 3), (5,))  # of parameters

    def differentiable(
        self, theta: Tensor, g: Tensor, slots: Slots, options: Options
    ) -> tuple[Tensor, Slots]:
        """The function that is differentiated. The slots keep their order."""
        theta, after = (self.smooth or self.update)(theta, g, dict(slots), options)
        return theta, {name: after[name] for name in slots}

    def initial_slots(self, theta: Tensor, options: Options) -> Slots:
        """The slots of a parameter that has not been stepped yet."""
        initial = self.initial or {}
        return {
            name: theta.new_full(shape, initial.get(name, 0.0))
            for name, shape in self.shapes(theta.shape, options).items()
        }

    def counters(self) -> Counters:
        """The counters of an optimizer that has not stepped yet."""
        return {"step": 0.0} if self.has_counter else {}


def options_at(h: Hyperparams, flags: Mapping[str, Any], counters: Counters) -> dict[str, Any]:
    """The arguments of a formula: hyperparameters and flags of its group, and the number of the step."""
    options = {**group_options(h), **flags}
    return options | ({"step": counters["step"] + 1} if "step" in counters else {})


def count_step(counters: Counters) -> Counters:
    """The counters after one more step."""
    return {name: value + 1 for name, value in counters.items()}


@dataclass(frozen=True)
class FormulaRule:
    """An elementwise formula as the `Rule` of a parameter group."""

    formula: Formula
    flags: Mapping[str, Any]
    needs_gradient: bool = True

    def initial(self, theta: Tensor, h: Hyperparams) -> tuple[Slots, Counters]:
        """What the slots begin with."""
        counters = self.formula.counters()
        return self.formula.initial_slots(theta, options_at(h, self.flags, counters)), counters

    def update(self, theta, slots, counters, g, h) -> Updated:
        """The formula."""
        options = options_at(h, self.flags, counters)
        with torch.no_grad():
            theta, slots = self.formula.update(theta, g, dict(slots), options)
        return theta, slots, count_step(counters)

    def table(self, theta, slots, counters, g, h) -> Table:
        """By autograd."""
        options = options_at(h, self.flags, counters)
        step = lambda theta, slots, g: self.formula.differentiable(theta, g, slots, options)
        return differentiate_table(step, theta, slots, g)


# --- parameters as a whole ------------------------------------------------------------------------

# A matrix is orthogonalized, or has row means. The Jacobian of such an update has one block per
# parameter, and no table. Its products come from autograd through the formula, one parameter at a
# time. Slots need not have the parameter's shape: in a state, the slots of one name lie one after
# the other, parameter by parameter.


@dataclass(frozen=True)
class Parameterwise:
    """A formula over the parameters of all groups. Shapes: p numbers, Q adjoints or tangents."""

    formula: Formula
    flags: Mapping[str, Any]
    shapes: tuple[tuple[torch.Size, ...], ...]  # of the parameters of each group

    def initial(self, theta: Tensor, hyperparams: list[Hyperparams]) -> tuple[Slots, GroupCounters]:
        """The slots and the counters of an optimizer that has not stepped yet."""
        counters = self._initial_counters
        parameters = self._parameters(counters, hyperparams)
        parts = theta.split([each.shape.numel() for each in parameters], -1)
        fresh = [
            self.formula.initial_slots(part.view(each.shape), each.options)
            for part, each in zip(parts, parameters)
        ]
        return _join_slots(fresh, theta.shape[:-1]), counters

    def update(self, state: State, g: Tensor, hyperparams: list[Hyperparams]) -> State:
        """The state after a step with the gradient g."""
        parameters = self._parameters(state.counters, hyperparams)

        def take(theta: Tensor, slots: Slots, g: Tensor) -> tuple[Tensor, Slots]:
            after = [
                self.formula.update(*part, each.options)
                for each, part in zip(parameters, _split(parameters, theta, g, slots))
            ]
            flat = torch.cat([part.reshape(-1) for part, _ in after])
            return flat, _join_slots([part for _, part in after], theta.shape[:-1])

        with torch.no_grad():
            several = state.theta.dim() > 1
            theta, slots = (vmap(take) if several else take)(state.theta, state.slots, g)
        counters = tuple(count_step(own) for own in state.counters)
        return replace(state, theta=theta, slots=slots, counters=counters)

    def vjp(
        self, state: State, g: Tensor, hyperparams: list[Hyperparams], after: Derivative
    ) -> tuple[Tensor, Derivative]:
        """d query / d g [Q, p], and d query / d the state before the step."""
        parameters = self._parameters(state.counters, hyperparams)
        at = _split(parameters, state.theta, g, state.slots)
        adjoints = _split(parameters, after.theta, after.theta, after.slots)
        before: list[tuple[Tensor, Tensor, Slots]] = []
        for each, part, (a_theta, _, a_slots) in zip(parameters, at, adjoints):
            back: Any = vjp(partial(self.formula.differentiable, options=each.options), *part)[1]
            before.append(vmap(back)((a_theta, a_slots)))
        lead = after.theta.shape[:-1]
        a_theta = _flatten([part for part, _, _ in before], lead)
        a_g = _flatten([part for _, part, _ in before], lead)
        a_slots = _join_slots([part for _, _, part in before], lead)
        return a_g, replace(after, theta=a_theta, slots={n: a_slots[n] for n in state.slots})

    def jvp(
        self,
        state: State,
        g: Tensor,
        hyperparams: list[Hyperparams],
        before: Derivative,
        g_dot: Tensor,
    ) -> Derivative:
        """How the state after the step changes, from how g and the state before it change."""
        parameters = self._parameters(state.counters, hyperparams)
        at = _split(parameters, state.theta, g, state.slots)
        tangents = _split(parameters, before.theta, g_dot, before.slots)
        after: list[tuple[Tensor, Slots]] = []
        for each, part, tangent in zip(parameters, at, tangents):
            along = partial(
                _jvp_along, partial(self.formula.differentiable, options=each.options), part
            )
            after.append(vmap(along)(*tangent))
        lead = before.theta.shape[:-1]
        theta_dot = _flatten([part for part, _ in after], lead)
        slots_dot = _join_slots([part for _, part in after], lead)
        return replace(before, theta=theta_dot, slots={n: slots_dot[n] for n in state.slots})

    def split_slot(
        self, layout: Layout, slot: str, value: Tensor, hyperparams: list[Hyperparams]
    ) -> dict[str, Tensor]:
        """A slot by the names of the parameters that have it, each in its own shape."""
        parameters = self._parameters(self._initial_counters, hyperparams)
        shapes = {
            name: each.slots[slot]
            for name, each in zip(layout.names, parameters)
            if slot in each.slots
        }
        parts = value.split([shape.numel() for shape in shapes.values()])
        return {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items())}

    @property
    def _initial_counters(self) -> GroupCounters:
        return tuple(self.formula.counters() for _ in self.shapes)

    def _parameters(
        self, counters: GroupCounters, hyperparams: list[Hyperparams]
    ) -> list["_Parameter"]:
        """All parameters, in the order of theta."""
        parameters = []
        for shapes, own, h in zip(self.shapes, counters, hyperparams):
            options = options_at(h, self.flags, own)
            for shape in shapes:
                slots = self.formula.shapes(shape, options)
                parameters.append(_Parameter(shape, slots, options))
        return parameters


@dataclass(frozen=True)
class _Parameter:
    shape: torch.Size
    slots: dict[str, torch.Size]  # their shapes
    options: Options


def _split(
    parameters: list[_Parameter], theta: Tensor, g: Tensor, slots: Slots
) -> list[tuple[Tensor, Tensor, Slots]]:
    """Each parameter with its gradient and its slots, in their own shapes."""
    sizes = [each.shape.numel() for each in parameters]
    slot_parts = {}
    for name, slot in slots.items():
        lengths = [each.slots[name].numel() for each in parameters if name in each.slots]
        slot_parts[name] = iter(slot.split(lengths, -1))
    return [
        (
            _reshape(theta_part, each.shape),
            _reshape(g_part, each.shape),
            {name: _reshape(next(slot_parts[name]), shape) for name, shape in each.slots.items()},
        )
        for each, theta_part, g_part in zip(parameters, theta.split(sizes, -1), g.split(sizes, -1))
    ]


def _reshape(t: Tensor, shape: torch.Size) -> Tensor:
    """[..., n] -> [..., *shape]."""
    return t.reshape(*t.shape[:-1], *shape)


def _flatten(parts: list[Tensor], lead: torch.Size) -> Tensor:
    """Each [*lead, ...], side by side: [*lead, n]."""
    return torch.cat([part.reshape(*lead, -1) for part in parts], -1)


def _join_slots(parts: list[Slots], lead: torch.Size) -> Slots:
    """The slots of all parameters one after the other: each [*lead, numbers]."""
    names = dict.fromkeys(name for part in parts for name in part)
    return {name: _flatten([part[name] for part in parts if name in part], lead) for name in names}


def _jvp_along(step: Callable, at: tuple, *tangents: Any) -> Any:
    return jvp(step, at, tangents)[1]


def update_by_formula(
    formula: Formula,
    flags: Mapping[str, Any],
    group_sizes: tuple[int, ...],
    shapes: tuple[tuple[torch.Size, ...], ...],
) -> Elementwise | Parameterwise:
    """The update of all parameter groups by a formula. An elementwise one needs no shapes."""
    if formula.elementwise:
        return Elementwise(FormulaRule(formula, flags), group_sizes)
    return Parameterwise(formula, flags, shapes)

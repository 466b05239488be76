"""From a torch optimizer to its pure form, one rule over all parameter groups, and back."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NoReturn

import numpy as np
import torch
from torch import Tensor

from ..errors import NotSupported
from .optim_custom import OF_TORCH, Blocks, FormulaRule, find_formula, formula_named
from .state import Clock, Counters, Layout
from .update_rules import (
    SGD,
    TORCH_STEPPED,
    Adam,
    Flags,
    Numbers,
    Rule,
    Slots,
    TorchStep,
    compute_in_pieces,
    counter_dtype,
    flatten_numbers,
    pull_by_table,
    push_by_table,
    read_flags,
)

SUPPORTED = ("SGD", "Adam", "AdamW", *TORCH_STEPPED, *OF_TORCH)
_AND_OTHERS = "Lion, transformers' Adafactor, and your own (see dross.optim.register)"


@dataclass(frozen=True)
class Optimizer:
    """An optimizer's rule, applied to each parameter group's part of theta.

    Shapes: G parameter groups, H numbers each, p parameters. `row` [G, H] holds the numbers of all
    groups at one step, as a tape keeps them.
    """

    name: str
    flags: Flags
    columns: tuple[str, ...]  # the names of the H numbers, in the order of the tape
    group_sizes: tuple[int, ...]
    any_momentum: bool = False
    formula: str | None = None  # its name, where the optimizer follows one of formulas/
    shapes: tuple[tuple[torch.Size, ...], ...] = ()  # of the parameters of each group
    slices: tuple[slice, ...] = ()  # where each parameter lies in theta, in the model's order
    fused: bool = False  # it steps with torch's fused kernel, where that rounds differently

    @cached_property
    def blocks(self) -> Blocks | None:
        """The update of an optimizer that takes each parameter as a whole."""
        formula = None if self.formula is None else formula_named(self.formula)
        if formula is None or formula.elementwise:
            return None
        return Blocks(formula, self.flags, self.shapes)

    @cached_property
    def needs_gradient(self) -> bool:
        """Whether `pull` and `push` depend on the gradient, so that a retrace has to compute it."""
        return self.blocks is not None or self.rule.needs_gradient

    @property
    def rule(self) -> Rule:
        """The update of one parameter group, where every number is treated alike."""
        if self.formula is not None:
            return FormulaRule(formula_named(self.formula), self.flags)
        flag = lambda key: bool(self.flags.get(key, False))
        if self.name == "SGD":
            return SGD(self.any_momentum, flag("nesterov"), flag("maximize"))
        if self.name in ("Adam", "AdamW"):
            decoupled = self.name == "AdamW" or flag("decoupled_weight_decay")
            return Adam(flag("amsgrad"), flag("maximize"), decoupled, fused=self.fused)
        return TorchStep(self.name, self.flags)

    def numbers(self, row: np.ndarray) -> list[Numbers]:
        """The numbers of each group by name."""
        return [dict(zip(self.columns, values)) for values in row.tolist()]

    def initial(self, theta: Tensor, row: np.ndarray) -> tuple[Slots, Clock]:
        """The slots, each [p], and the clock of an optimizer that has not stepped yet."""
        if self.blocks is not None:
            return self.blocks.initial(theta, self.numbers(row))
        thetas = theta.split(self.group_sizes, -1)
        parts = [self.rule.initial(part, h) for part, h in zip(thetas, self.numbers(row))]
        return _join_slots([slots for slots, _ in parts]), tuple(counters for _, counters in parts)

    def update(
        self, theta: Tensor, slots: Slots, clock: Clock, g: Tensor, row: np.ndarray
    ) -> tuple[Tensor, Slots, Clock]:
        """theta [p], slots and clock after a step with the gradient g [p]."""
        if self.blocks is not None:
            return self.blocks.update(theta, slots, clock, g, self.numbers(row))
        rule, numbers, clock_after = self.rule, self.numbers(row), list(clock)

        def step(group: int, at: Slots, slots: Slots) -> Slots:
            given = (at["theta"], slots, clock[group], at["g"], numbers[group])
            moved, slots, clock_after[group] = rule.update(*given)
            return {"theta": moved, **slots}

        after = compute_in_pieces(step, self.group_sizes, {"theta": theta, "g": g}, slots)
        return after.pop("theta"), after, tuple(clock_after)

    def pull(
        self,
        theta: Tensor,
        slots: Slots,
        clock: Clock,
        g: Tensor,
        row: np.ndarray,
        after: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """The adjoint of `update`: of "theta", "g" and each slot, from those after it, [Q, ...]."""
        numbers = self.numbers(row)
        if self.blocks is not None:
            return self.blocks.pull(theta, slots, clock, g, numbers, after)
        rule, sources = self.rule, ("g", *slots, "theta")

        def back(group: int, at: Slots, slots: Slots, after: Slots) -> Slots:
            table = rule.table(at["theta"], slots, clock[group], at["g"], numbers[group])
            return pull_by_table(table, after, sources)

        return compute_in_pieces(back, self.group_sizes, {"theta": theta, "g": g}, slots, after)

    def push(
        self,
        theta: Tensor,
        slots: Slots,
        clock: Clock,
        g: Tensor,
        row: np.ndarray,
        before: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """The tangent of `update`: of "theta" and each slot, from those before it and "g"."""
        numbers = self.numbers(row)
        if self.blocks is not None:
            return self.blocks.push(theta, slots, clock, g, numbers, before)
        rule, outputs = self.rule, (*slots, "theta")

        def move(group: int, at: Slots, slots: Slots, before: Slots) -> Slots:
            table = rule.table(at["theta"], slots, clock[group], at["g"], numbers[group])
            return push_by_table(table, before, outputs)

        return compute_in_pieces(move, self.group_sizes, {"theta": theta, "g": g}, slots, before)

    @property
    def description(self) -> "OptimizerDescription":
        """What a tape keeps of it. Sizes and shapes are in the layout."""
        return OptimizerDescription(
            name=self.name,
            flags=self.flags,
            columns=self.columns,
            any_momentum=self.any_momentum,
            formula=self.formula,
            fused=self.fused,
        )


@dataclass(frozen=True)
class OptimizerDescription:
    """An optimizer without the sizes of what it trains. Its fields are those of `Optimizer`."""

    name: str
    flags: Flags
    columns: tuple[str, ...]
    any_momentum: bool
    formula: str | None
    fused: bool

    def for_layout(self, layout: Layout) -> Optimizer:
        """The optimizer of a model with this layout.

        Raises:
            NotSupported: where it follows a formula that is not registered here.
        """
        if self.formula is not None:
            formula_named(self.formula)
        return Optimizer(
            name=self.name,
            flags=self.flags,
            columns=self.columns,
            group_sizes=layout.group_sizes,
            any_momentum=self.any_momentum,
            formula=self.formula,
            shapes=layout.shapes_by_group,
            slices=layout.slices,
            fused=self.fused,
        )


def _join_slots(parts: Sequence[Slots]) -> Slots:
    return {name: torch.cat([part[name] for part in parts], -1) for name in parts[0]}


# --- from a torch optimizer -----------------------------------------------------------------------


def read_optimizer(
    optimizer: torch.optim.Optimizer,
    group_sizes: Sequence[int],
    groups: list[dict],
    shapes: Sequence[Sequence[torch.Size]] = (),
    slices: tuple[slice, ...] = (),
) -> Optimizer:
    """The pure form of a torch optimizer.

    Arguments:
        optimizer: the user's.
        group_sizes: how many numbers of theta belong to each of the groups.
        groups: those of its parameter groups that have moving parameters.
        shapes: of the moving parameters of each of these groups, where steps are to be taken.
        slices: where each of them lies in theta, in the model's order.

    Raises:
        NotSupported: the optimizer or its options have no pure form.
    """
    name = type(optimizer).__name__
    formula = find_formula(optimizer)
    if formula is None and type(optimizer) is not getattr(torch.optim, name, None):
        _refuse(optimizer)
    if formula is None and name not in SUPPORTED:
        _refuse(optimizer)
    own = optimizer.defaults  # a group may carry other keys, of a scheduler or of its owner
    flags = [read_flags(g, own) for g in groups]
    columns = [tuple(flatten_numbers(g, own)) for g in groups]
    momenta = {g["momentum"] != 0 for g in groups} if "momentum" in own else {False}
    differ = any(f != flags[0] for f in flags) or any(set(c) != set(columns[0]) for c in columns)
    if name == "RMSprop":  # it keeps a buffer only where there is momentum
        differ = differ or len(momenta) > 1
    if differ:
        raise NotSupported(
            f"The parameter groups of {name} differ in more than their numbers ({flags}). Give all "
            "groups the same options; rates, momenta and decays may differ."
        )
    given = (name, flags[0], columns[0], tuple(group_sizes), any(momenta))
    by_name = None if formula is None else formula.name
    fused = name in ("Adam", "AdamW") and all(bool(g.get("fused")) for g in groups)
    return Optimizer(*given, by_name, tuple(map(tuple, shapes)), slices, fused)


#: a part of the class name of optimizers that cannot be followed, and why not
_REFUSED = {
    "schedulefree": "it trains at a point between two sequences of weights, and its train() and "
    "eval() exchange the parameters outside of any step. Use AdamW, and "
    "torch.optim.swa_utils.AveragedModel for an average (recorder.average).",
    "sam": "each of its steps takes two gradients, the second at weights that it has moved, and "
    "dross follows one gradient per step. Use the optimizer that it wraps.",
    "lbfgs": "its step calls a closure several times, and dross follows one gradient per step. Use "
    "SGD or Adam.",
    "sparseadam": "it leaves out the rows without a gradient. Use Adam, with sparse=False in the "
    "embedding.",
    "8bit": "it keeps its memory in 8 bits, and rounding has no derivative. Use the 32-bit one.",
}
_NAMES_OF_SAM = {"sam", "asam", "gsam", "esam", "looksam", "wsam", "fsam", "bsam"}


def _refuse(optimizer: torch.optim.Optimizer) -> NoReturn:
    name = type(optimizer).__name__
    plain = name.lower().replace("_", "")
    for key, reason in _REFUSED.items():
        if plain in _NAMES_OF_SAM if key == "sam" else key in plain:
            raise NotSupported(f"The optimizer {name} cannot be retraced: {reason}")
    raise NotSupported(
        f"The optimizer {name} is not supported yet. dross can retrace: {', '.join(SUPPORTED)} "
        f"(torch.optim's own classes), {_AND_OTHERS}."
    )


def current_numbers(optimizer: Optimizer, groups: list[dict]) -> np.ndarray:
    """The options of a torch optimizer's groups as they are now: float64 [G, H]."""
    keys = dict.fromkeys(column.partition(".")[0] for column in optimizer.columns)
    flat = [flatten_numbers(group, keys) for group in groups]
    return np.array([[numbers[column] for column in optimizer.columns] for numbers in flat])


def check_same_structure(began: Optimizer, now: Optimizer) -> None:
    """Refuse a change of the kind of update. Rates and momenta may change from step to step."""
    if now.flags != began.flags or (now.any_momentum and not began.any_momentum):
        raise NotSupported(
            f"The options of {began.name} changed during the run, from {began.flags} to "
            f"{now.flags}, or momentum came in late. dross follows schedules of numbers only: "
            "start with a momentum above 0."
        )


# --- its memory -----------------------------------------------------------------------------------


def read_slots(
    optimizer: Optimizer,
    torch_optimizer: torch.optim.Optimizer,
    layout: Layout,
    parameters: Mapping[str, Tensor],
    theta: Tensor,
    row: np.ndarray,
) -> tuple[Slots, Clock]:
    """The slots, each [p], and the clock that a torch optimizer holds now.

    Where it has not stepped a parameter yet, they are those of a new optimizer.
    """
    held = {name: torch_optimizer.state.get(parameters[name], {}) for name in layout.names}
    if not any(_has_stepped(state) for state in held.values()):
        return optimizer.initial(theta, row)
    fresh, clock = _fresh_slots(optimizer, layout, theta, row)
    slots = {}
    for slot, values in fresh.items():
        for name in values:
            if held[name].get(slot) is not None:
                values[name] = layout.local(held[name][slot].detach()).to(theta.device)
        slots[slot] = torch.cat([value.reshape(-1) for value in values.values()])
    counters = []
    for group, initial in enumerate(clock):
        members = [name for name, g in zip(layout.names, layout.group_of) if g == group]
        seen = [_read_counters(held[name], initial) for name in members]
        if any(one != seen[0] for one in seen):
            raise NotSupported(
                f"The parameters of group {group} have taken different numbers of steps "
                f"({members[0]}: {seen[0]}). dross needs parameters that are stepped together; "
                "start with a fresh optimizer."
            )
        counters.append(seen[0])
    return slots, tuple(counters)


def _fresh_slots(
    optimizer: Optimizer, layout: Layout, theta: Tensor, row: np.ndarray
) -> tuple[dict[str, dict[str, Tensor]], Clock]:
    """The slots of a new optimizer by the names of the parameters, and its clock."""
    if optimizer.blocks is not None:
        slots, clock = optimizer.initial(theta, row)
        by_name = {s: _split_slot(optimizer, layout, s, value, row) for s, value in slots.items()}
        return by_name, clock
    # every number of a group begins alike: computing one is enough
    ones = [optimizer.rule.initial(theta.new_zeros(1), h) for h in optimizer.numbers(row)]
    parts = zip(layout.split(theta).items(), layout.group_of)
    shapes = [(name, part.shape, group) for (name, part), group in parts]
    by_name = {
        slot: {name: ones[group][0][slot].expand(shape) for name, shape, group in shapes}
        for slot in ones[0][0]
    }
    return by_name, tuple(counters for _, counters in ones)


def _split_slot(
    optimizer: Optimizer, layout: Layout, slot: str, value: Tensor, row: np.ndarray
) -> dict[str, Tensor]:
    """A slot by the names of the parameters that have it, each in its own shape."""
    if optimizer.blocks is None:
        return layout.split(value)
    _, clock = optimizer.blocks.initial(torch.zeros(sum(layout.sizes)), optimizer.numbers(row))
    every = optimizer.blocks.slot_shapes(clock, optimizer.numbers(row))
    shapes = {name: own[slot] for name, own in zip(layout.names, every) if slot in own}
    parts = value.split([shape.numel() for shape in shapes.values()])
    return {name: part.view(shape) for part, (name, shape) in zip(parts, shapes.items())}


def _has_stepped(state: dict) -> bool:
    return "step" in state or any(isinstance(value, Tensor) for value in state.values())


def _read_counters(state: dict, initial: Counters) -> Counters:
    counters = dict(initial)
    if state.get("momentum_buffer") is not None and "step" in counters:
        counters["step"] = 1.0  # SGD keeps no counter; its buffer tells that it has stepped
    return counters | {name: float(state[name]) for name in counters if name in state}


def write_slots(
    optimizer: Optimizer,
    torch_optimizer: torch.optim.Optimizer,
    layout: Layout,
    parameters: Mapping[str, Tensor],
    slots: Slots,
    clock: Clock,
    row: np.ndarray,
) -> None:
    """Leave a torch optimizer as if it had taken the steps itself, so that it can go on."""
    split = lambda slot, value: _split_slot(optimizer, layout, slot, value, row)
    is_sgd = optimizer.name == "SGD" and optimizer.formula is None  # it keeps no counter
    named = {slot: split(slot, value) for slot, value in slots.items()}
    options = {p: group for group in torch_optimizer.param_groups for p in group["params"]}
    for name, group in zip(layout.names, layout.group_of):
        parameter = parameters[name]
        own = options[parameter]
        # such steps need their counter on the parameter's device
        on_device = own.get("fused") or own.get("capturable")
        device = parameter.device if on_device else torch.device("cpu")
        parts = {slot: own[name] for slot, own in named.items() if name in own}
        state = {slot: layout.wrap(part, parameter) for slot, part in parts.items()}
        for counter, value in ({} if is_sgd else clock[group]).items():
            state[counter] = torch.tensor(value, dtype=counter_dtype(), device=device)
        torch_optimizer.state[parameter] = state

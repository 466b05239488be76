"""From a torch optimizer to its pure form, one rule over all parameter groups, and back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import NotReplayable, NotSupported
from .layout import Layout
from .state import Clock, Counters
from .torch_step import TORCH_STEPPED, TorchStep, counter_dtype
from .update_rules import SGD, Adam, Numbers, Rule, Slots, Table

SUPPORTED = ("SGD", "Adam", "AdamW", *TORCH_STEPPED)
_IGNORED = {"foreach", "fused", "capturable", "differentiable"}  # how torch computes, not what


@dataclass(frozen=True)
class Optimizer:
    """An optimizer's rule, applied to each parameter group's part of theta.

    Shapes: G parameter groups, H numbers each, p parameters. `row` [G, H] holds the numbers of all
    groups at one step, as a tape keeps them.
    """

    name: str
    flags: dict[str, bool]
    columns: tuple[str, ...]  # the names of the H numbers, in the order of the tape
    group_sizes: tuple[int, ...]
    any_momentum: bool = False

    @property
    def rule(self) -> Rule:
        """The update of one parameter group."""
        flag = lambda key: bool(self.flags.get(key, False))
        if self.name == "SGD":
            return SGD(self.any_momentum, flag("nesterov"), flag("maximize"))
        if self.name in ("Adam", "AdamW"):
            decoupled = self.name == "AdamW" or flag("decoupled_weight_decay")
            return Adam(flag("amsgrad"), flag("maximize"), decoupled)
        return TorchStep(self.name, self.flags)

    def numbers(self, row: np.ndarray) -> list[Numbers]:
        """The numbers of each group by name."""
        return [dict(zip(self.columns, values)) for values in row.tolist()]

    def initial(self, theta: Tensor, row: np.ndarray) -> tuple[Slots, Clock]:
        """The slots, each [p], and the clock of an optimizer that has not stepped yet."""
        thetas = theta.split(self.group_sizes, -1)
        parts = [self.rule.initial(part, h) for part, h in zip(thetas, self.numbers(row))]
        return _join_slots([slots for slots, _ in parts]), tuple(counters for _, counters in parts)

    def update(
        self, theta: Tensor, slots: Slots, clock: Clock, g: Tensor, row: np.ndarray
    ) -> tuple[Tensor, Slots, Clock]:
        """theta [p], slots and clock after a step with the gradient g [p]."""
        groups, rule = self._split(theta, slots, clock, g, row), self.rule
        thetas, new_slots, new_clock = zip(*(rule.update(*group) for group in groups))
        if len(groups) == 1:
            return thetas[0], new_slots[0], new_clock
        return torch.cat(thetas, -1), _join_slots(new_slots), new_clock

    def table(self, theta: Tensor, slots: Slots, clock: Clock, g: Tensor, row: np.ndarray) -> Table:
        """The Jacobian of `update`: numbers, or vectors [p], as the rule's table has them."""
        groups, rule = self._split(theta, slots, clock, g, row), self.rule
        tables = [rule.table(*group) for group in groups]
        if len(tables) == 1:
            return tables[0]

        def join(key: tuple[str, str]) -> Tensor:
            entries = [
                torch.as_tensor(table.get(key, 0.0), dtype=theta.dtype, device=theta.device)
                for table in tables
            ]
            return torch.cat([entry.expand(size) for entry, size in zip(entries, self.group_sizes)])

        return {key: join(key) for key in dict.fromkeys(key for table in tables for key in table)}

    def _split(self, theta, slots, clock, g, row) -> list[tuple]:
        """The arguments of the rule, group by group."""
        numbers = self.numbers(row)
        if len(self.group_sizes) == 1:
            return [(theta, slots, clock[0], g, numbers[0])]
        split = lambda t: t.split(self.group_sizes, -1)
        thetas, gs = split(theta), split(g)
        parts = {name: split(slot) for name, slot in slots.items()}
        own_slots = lambda k: {name: part[k] for name, part in parts.items()}
        return [(thetas[k], own_slots(k), clock[k], gs[k], h) for k, h in enumerate(numbers)]

    def to_json(self) -> dict:
        """What a tape keeps of it. The sizes of the groups are in the layout."""
        return {
            "name": self.name,
            "flags": self.flags,
            "columns": list(self.columns),
            "any_momentum": self.any_momentum,
        }

    @staticmethod
    def from_json(saved: dict, group_sizes: Sequence[int]) -> "Optimizer":
        """The optimizer that `to_json` described."""
        columns, sizes = tuple(saved["columns"]), tuple(group_sizes)
        return Optimizer(saved["name"], saved["flags"], columns, sizes, saved["any_momentum"])


def _join_slots(parts: Sequence[Slots]) -> Slots:
    return {name: torch.cat([part[name] for part in parts], -1) for name in parts[0]}


# --- from a torch optimizer -----------------------------------------------------------------------


def read_optimizer(
    optimizer: torch.optim.Optimizer, group_sizes: Sequence[int], groups: list[dict]
) -> Optimizer:
    """The pure form of a torch optimizer.

    Arguments:
        optimizer: the user's.
        group_sizes: how many numbers of theta belong to each of the groups.
        groups: those of its parameter groups that have moving parameters.

    Raises:
        NotSupported: the optimizer or its options have no pure form.
    """
    name = type(optimizer).__name__
    if name not in SUPPORTED or type(optimizer) is not getattr(torch.optim, name):
        raise NotSupported(
            f"The optimizer {name} is not supported yet. dross can retrace: "
            f"{', '.join(SUPPORTED)} (torch.optim's own classes)."
        )
    own = optimizer.defaults  # a group may carry other keys, of a scheduler or of its owner
    flags = [{k: g[k] for k in own if isinstance(g[k], bool) and k not in _IGNORED} for g in groups]
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
    return Optimizer(name, flags[0], columns[0], tuple(group_sizes), any(momenta))


def flatten_numbers(group: dict[str, Any], keys: Iterable[str]) -> Numbers:
    """The numbers among these options of a group; betas=(a, b) becomes betas.0 and betas.1."""
    numbers: Numbers = {}
    for key in keys:
        value = group[key]
        if key in _IGNORED or isinstance(value, bool) or value is None:
            continue
        if isinstance(value, (tuple, list)):
            numbers |= {f"{key}.{k}": float(part) for k, part in enumerate(value)}
        elif isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1):
            numbers[key] = float(value)
    return numbers


def current_numbers(optimizer: Optimizer, groups: list[dict]) -> np.ndarray:
    """The options of a torch optimizer's groups as they are now: float64 [G, H]."""
    keys = dict.fromkeys(column.partition(".")[0] for column in optimizer.columns)
    flat = [flatten_numbers(group, keys) for group in groups]
    return np.array([[numbers[column] for column in optimizer.columns] for numbers in flat])


def check_same_structure(began: Optimizer, now: Optimizer) -> None:
    """Refuse a change of the kind of update. Rates and momenta may change from step to step."""
    if now.flags != began.flags or (now.any_momentum and not began.any_momentum):
        raise NotReplayable(
            f"The options of {began.name} changed during the run, from {began.flags} to "
            f"{now.flags}, or momentum came in late. dross follows schedules of numbers only; "
            "start with a momentum that is not 0."
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
    slots, clock = optimizer.initial(theta, row)
    held = {name: torch_optimizer.state.get(parameters[name], {}) for name in layout.names}
    if not any(_has_stepped(state) for state in held.values()):
        return slots, clock
    for slot, initial in slots.items():
        values = layout.unflatten(initial)
        for name, state in held.items():
            if state.get(slot) is not None:
                values[name] = state[slot].detach().to(theta.device)
        slots[slot] = layout.flatten(values)
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


def _has_stepped(state: dict) -> bool:
    return "step" in state or state.get("momentum_buffer") is not None


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
) -> None:
    """Leave a torch optimizer as if it had taken the steps itself, so that it can go on."""
    named = {slot: layout.unflatten(value) for slot, value in slots.items()}
    options = {p: group for group in torch_optimizer.param_groups for p in group["params"]}
    for name, group in zip(layout.names, layout.group_of):
        parameter = parameters[name]
        own = options[parameter]
        # such steps want their counter beside the parameter
        on_device = own.get("fused") or own.get("capturable")
        device = parameter.device if on_device else torch.device("cpu")
        state = {slot: values[name].clone() for slot, values in named.items()}
        for counter, value in ({} if optimizer.name == "SGD" else clock[group]).items():
            state[counter] = torch.tensor(value, dtype=counter_dtype(), device=device)
        torch_optimizer.state[parameter] = state

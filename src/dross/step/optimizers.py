"""From a torch optimizer to pure rules, one per parameter group, and back."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import NotReplayable, NotSupported
from .update_rules import (
    INITIAL_STATES,
    SGD,
    Adam,
    Clock,
    Numbers,
    Rule,
    Slots,
    Table,
    TorchStep,
    counter_dtype,
)

_IGNORED = {"foreach", "fused", "capturable", "differentiable"}  # how torch computes, not what
SUPPORTED = ("SGD", "Adam", "AdamW", *INITIAL_STATES)


def flatten_numbers(group: dict[str, Any], known: Iterable[str]) -> Numbers:
    """The numbers among a parameter group's own options; betas=(a, b) becomes betas.0 and betas.1."""
    numbers: Numbers = {}
    for key in known:
        value = group[key]
        if key in _IGNORED or isinstance(value, bool) or value is None:
            continue
        if isinstance(value, (tuple, list)):
            numbers |= {f"{key}.{k}": float(part) for k, part in enumerate(value)}
        elif isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1):
            numbers[key] = float(value)
    return numbers


@dataclass(frozen=True)
class Optimizer:
    """A rule applied to every parameter group's part of theta."""

    name: str
    flags: dict[str, bool]
    columns: tuple[str, ...]  # the order in which a tape keeps the numbers
    group_sizes: tuple[int, ...]
    any_momentum: bool = False

    @property
    def rule(self) -> Rule:
        flag = lambda key: bool(self.flags.get(key, False))
        if self.name == "SGD":
            return SGD(self.any_momentum, flag("nesterov"), flag("maximize"))
        if self.name in ("Adam", "AdamW"):
            decoupled = self.name == "AdamW" or flag("decoupled_weight_decay")
            return Adam(flag("amsgrad"), flag("maximize"), decoupled)
        return TorchStep(self.name, self.flags)

    def numbers(self, row: np.ndarray) -> list[Numbers]:
        """row: [G, H], one line of the tape"""
        return [dict(zip(self.columns, values)) for values in row.tolist()]

    def initial(self, theta: Tensor, row: np.ndarray) -> tuple[Slots, tuple[Clock, ...]]:
        parts = [
            self.rule.initial(t, h)
            for t, h in zip(theta.split(self.group_sizes, -1), self.numbers(row))
        ]
        return _joined([slots for slots, _ in parts]), tuple(clock for _, clock in parts)

    def update(self, theta, slots, clock, g, row) -> tuple[Tensor, Slots, tuple[Clock, ...]]:
        rule = self.rule
        parts = [rule.update(*arguments) for arguments in self._groups(theta, slots, clock, g, row)]
        if len(parts) == 1:
            return parts[0][0], parts[0][1], (parts[0][2],)
        theta = torch.cat([part[0] for part in parts], -1)
        return theta, _joined([part[1] for part in parts]), tuple(part[2] for part in parts)

    def table(self, theta, slots, clock, g, row) -> Table:
        rule = self.rule
        tables = [rule.table(*arguments) for arguments in self._groups(theta, slots, clock, g, row)]
        if len(tables) == 1:
            return tables[0]
        keys = {key: None for table in tables for key in table}
        as_vector = lambda c, size: torch.as_tensor(
            c, dtype=theta.dtype, device=theta.device
        ).expand(size)
        return {
            key: torch.cat(
                [as_vector(t.get(key, 0.0), size) for t, size in zip(tables, self.group_sizes)]
            )
            for key in keys
        }

    def _groups(self, theta, slots, clock, g, row):
        numbers = self.numbers(row)
        if len(self.group_sizes) == 1:
            return [(theta, slots, clock[0], g, numbers[0])]
        split = lambda t: t.split(self.group_sizes, -1)
        parts = {name: split(slot) for name, slot in slots.items()}
        return [
            (t, {name: part[k] for name, part in parts.items()}, clock[k], g_k, numbers[k])
            for k, (t, g_k) in enumerate(zip(split(theta), split(g)))
        ]

    def to_json(self) -> dict:
        return {
            "name": self.name,
            "flags": self.flags,
            "columns": list(self.columns),
            "any_momentum": self.any_momentum,
        }

    @staticmethod
    def from_json(saved: dict, group_sizes: Sequence[int]) -> "Optimizer":
        return Optimizer(
            saved["name"],
            saved["flags"],
            tuple(saved["columns"]),
            tuple(group_sizes),
            saved["any_momentum"],
        )


def _joined(parts: list[Slots]) -> Slots:
    return {name: torch.cat([part[name] for part in parts], -1) for name in parts[0]}


def read_optimizer(
    optimizer: torch.optim.Optimizer, group_sizes: Sequence[int], groups: list[dict]
) -> Optimizer:
    """The pure form of a torch optimizer, or a refusal by name. `groups`: the parameter groups that have moving parameters."""
    name = type(optimizer).__name__
    if name not in SUPPORTED or type(optimizer) is not getattr(torch.optim, name):
        raise NotSupported(
            f"The optimizer {name} is not supported yet. dross can retrace: {', '.join(SUPPORTED)} (torch.optim's own classes)."
        )
    own = optimizer.defaults  # a group may carry other keys, of a scheduler or of its owner
    flags = [{k: g[k] for k in own if isinstance(g[k], bool) and k not in _IGNORED} for g in groups]
    columns = [tuple(flatten_numbers(g, own)) for g in groups]
    momenta = {g["momentum"] != 0 for g in groups} if "momentum" in own else {False}
    mixed = name == "RMSprop" and len(momenta) > 1  # it keeps a buffer only where there is momentum
    if (
        mixed
        or any(f != flags[0] for f in flags)
        or any(set(c) != set(columns[0]) for c in columns)
    ):
        raise NotSupported(
            f"The parameter groups of {name} differ in more than their numbers ({flags}). Give all groups the same options; "
            "rates, momenta and decays may differ."
        )
    return Optimizer(name, flags[0], columns[0], tuple(group_sizes), any(momenta))


def check_same_structure(began: Optimizer, now: Optimizer) -> None:
    """Rates and momenta may change from step to step; what kind of update it is may not."""
    if now.flags != began.flags or (now.any_momentum and not began.any_momentum):
        raise NotReplayable(
            f"The options of {began.name} changed during the run, from {began.flags} to {now.flags}, or momentum came in late. "
            "dross follows schedules of numbers only; start with a momentum that is not 0."
        )


def current_numbers(optimizer: Optimizer, groups: list[dict]) -> np.ndarray:
    """[G, H]: the options as they are now, in the order of the tape's columns."""
    known = dict.fromkeys(column.partition(".")[0] for column in optimizer.columns)
    flat = [flatten_numbers(group, known) for group in groups]
    return np.array([[numbers[column] for column in optimizer.columns] for numbers in flat])


def read_slots(
    optimizer: Optimizer,
    torch_optimizer,
    layout,
    parameters: Mapping[str, Tensor],
    theta: Tensor,
    row: np.ndarray,
):
    """The slots and the clock that a torch optimizer holds now; those of a fresh one where it has not stepped."""
    slots, clock = optimizer.initial(theta, row)
    held = {name: torch_optimizer.state.get(parameters[name], {}) for name in layout.names}
    if not any(
        "step" in state or state.get("momentum_buffer") is not None for state in held.values()
    ):
        return slots, clock
    for slot in slots:
        filled = layout.unflatten(slots[slot])
        filled = {
            n: filled[n] if held[n].get(slot) is None else held[n][slot].detach().to(theta.device)
            for n in layout.names
        }
        slots[slot] = layout.flatten(filled)
    counters = []
    for group, fresh in enumerate(clock):
        members = [name for name, g in zip(layout.names, layout.group_of) if g == group]
        seen = [_counters_of(held[name], fresh) for name in members]
        if any(one != seen[0] for one in seen):
            raise NotSupported(
                f"The parameters of group {group} have taken different numbers of steps ({members[0]}: {seen[0]}). "
                "dross needs parameters that are stepped together; start with a fresh optimizer."
            )
        counters.append(seen[0])
    return slots, tuple(counters)


def _counters_of(state: dict, fresh: Clock) -> Clock:
    started = (
        {"step": 1.0} if state.get("momentum_buffer") is not None else {}
    )  # SGD keeps no counter
    return {
        name: float(state[name]) if name in state else started.get(name, value)
        for name, value in fresh.items()
    }


def write_slots(
    optimizer: Optimizer,
    torch_optimizer,
    layout,
    parameters: Mapping[str, Tensor],
    slots: Slots,
    clock,
) -> None:
    """Leave a torch optimizer as if it had taken the steps itself, so that its owner can go on from here."""
    named = {slot: layout.unflatten(value) for slot, value in slots.items()}
    options = {p: group for group in torch_optimizer.param_groups for p in group["params"]}
    for name, group in zip(layout.names, layout.group_of):
        counters = {} if optimizer.name == "SGD" else clock[group]
        state = {slot: values[name].clone() for slot, values in named.items()}
        own = options[parameters[name]]
        on_device = own.get("fused") or own.get(
            "capturable"
        )  # such steps want their counter beside the parameter
        device = parameters[name].device if on_device else torch.device("cpu")
        state |= {
            counter: torch.tensor(value, dtype=counter_dtype(), device=device)
            for counter, value in counters.items()
        }
        torch_optimizer.state[parameters[name]] = state

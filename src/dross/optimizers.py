"""Optimizers as pure elementwise maps, each with its Jacobian.

An update turns (theta, slots, g) into (theta', slots') and treats every coordinate alike, so its Jacobian is a small *table*
of coefficient vectors: `table["theta", "g"]` is d theta' / d g, coordinate by coordinate. Retracing reads the table by
columns (the adjoint), parameter influence reads it by rows (the tangent); there is no second derivation to get wrong.
docs/derivations.md derives each entry.

SGD, Adam and AdamW are written out. The other optimizers of torch.optim are stepped once with `differentiable=True`, and
their table is what autograd says of that one step.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from .errors import NotReplayable, NotSupported

Slots = dict[str, Tensor]
Clock = dict[str, float]
Numbers = dict[str, float]  # one parameter group's lr, momentum, betas.0, ... at one step
Table = dict[tuple[str, str], Tensor | float]


class Rule(Protocol):
    """One parameter group's update. Tensors are [..., p]; a leading axis of K models is welcome."""

    @property
    def needs_gradient(self) -> bool:
        """Whether the table hangs on the gradient, so that a retrace has to know it."""
        ...

    def initial(self, theta: Tensor, h: Numbers) -> tuple[Slots, Clock]: ...

    def update(self, theta: Tensor, slots: Slots, clock: Clock, g: Tensor, h: Numbers) -> tuple[Tensor, Slots, Clock]: ...

    def table(self, theta: Tensor, slots: Slots, clock: Clock, g: Tensor, h: Numbers) -> Table: ...


@dataclass(frozen=True)
class SGD:
    """torch.optim.SGD with all its options. `clock["step"] == 0` marks the first step, where the buffer is the gradient."""

    momentum: bool
    nesterov: bool
    maximize: bool
    needs_gradient: bool = False

    def initial(self, theta, h):
        return ({"momentum_buffer": torch.zeros_like(theta)} if self.momentum else {}), {"step": 0.0}

    def update(self, theta, slots, clock, g, h):
        lr, mu, weight_decay = h["lr"], h["momentum"], h["weight_decay"]
        g = -g if self.maximize else g
        if weight_decay:
            g = g.add(theta, alpha=weight_decay)
        if self.momentum:
            first = clock["step"] == 0
            m = g if first else (slots["momentum_buffer"] * mu).add(g, alpha=1 - h["dampening"])
            slots = {"momentum_buffer": m}
            if mu:
                g = g.add(m, alpha=mu) if self.nesterov else m
        return theta.add(g, alpha=-lr), slots, {"step": clock["step"] + 1}

    def table(self, theta, slots, clock, g, h):
        lr, mu, weight_decay = h["lr"], h["momentum"], h["weight_decay"]
        sign = -1.0 if self.maximize else 1.0
        keep = 1.0 if clock["step"] == 0 else 1 - h["dampening"]  # d m' / d g', where g' = sign g + weight_decay theta
        carry = 0.0 if clock["step"] == 0 else mu  # d m' / d m
        if not self.momentum or not mu:
            by_g, by_m = 1.0, 0.0
        elif self.nesterov:
            by_g, by_m = 1.0 + mu * keep, mu * carry
        else:
            by_g, by_m = keep, carry
        table: Table = {("theta", "theta"): 1 - lr * by_g * weight_decay, ("theta", "g"): -lr * by_g * sign}
        if self.momentum:
            table |= {
                ("theta", "momentum_buffer"): -lr * by_m,
                ("momentum_buffer", "theta"): keep * weight_decay,
                ("momentum_buffer", "g"): keep * sign,
                ("momentum_buffer", "momentum_buffer"): carry,
            }
        return table


@dataclass(frozen=True)
class Adam:
    """torch.optim.Adam and AdamW (`decoupled`), amsgrad too."""

    amsgrad: bool
    maximize: bool
    decoupled: bool
    needs_gradient: bool = True

    def initial(self, theta, h):
        names = ("exp_avg", "exp_avg_sq") + (("max_exp_avg_sq",) if self.amsgrad else ())
        return {name: torch.zeros_like(theta) for name in names}, {"step": 0.0}

    def update(self, theta, slots, clock, g, h):
        beta1, beta2, lr = h["betas.0"], h["betas.1"], h["lr"]
        step = clock["step"] + 1
        g = self._decayed(theta, g, h)
        if self.decoupled and h["weight_decay"]:
            theta = theta * (1 - lr * h["weight_decay"])
        m = slots["exp_avg"].lerp(g, 1 - beta1)
        v = (slots["exp_avg_sq"] * beta2).addcmul(g, g, value=1 - beta2)
        new = {"exp_avg": m, "exp_avg_sq": v}
        if self.amsgrad:
            v = new["max_exp_avg_sq"] = torch.maximum(slots["max_exp_avg_sq"], v)
        denominator = (v.sqrt() / (1 - beta2**step) ** 0.5) + h["eps"]
        return theta.addcdiv(m, denominator, value=-lr / (1 - beta1**step)), new, {"step": step}

    def table(self, theta, slots, clock, g, h):
        beta1, beta2, lr = h["betas.0"], h["betas.1"], h["lr"]
        step = clock["step"] + 1
        _, new, _ = self.update(theta, slots, clock, g, h)
        g = self._decayed(theta, g, h)
        m, v = new["exp_avg"], new["exp_avg_sq"]
        v_used = new["max_exp_avg_sq"] if self.amsgrad else v
        root, correction = v_used.sqrt(), (1 - beta2**step) ** 0.5
        denominator = root / correction + h["eps"]
        scale = lr / (1 - beta1**step)
        by_m = -scale / denominator  # d theta' / d m'
        # d theta' / d v_used. Where v is 0 every gradient so far was 0, so m is 0 too and the derivative is 0, not 0/0.
        by_v = torch.where(root > 0, scale * m / (denominator**2 * 2 * correction * torch.where(root > 0, root, 1.0)), 0.0)

        sign = -1.0 if self.maximize else 1.0
        decay = 0.0 if self.decoupled else h["weight_decay"]
        m_g, v_g = 1 - beta1, 2 * (1 - beta2) * g  # by the decayed gradient g' = sign g + decay theta
        table: Table = {
            ("exp_avg", "exp_avg"): beta1,
            ("exp_avg", "g"): m_g * sign,
            ("exp_avg", "theta"): m_g * decay,
            ("exp_avg_sq", "exp_avg_sq"): beta2,
            ("exp_avg_sq", "g"): v_g * sign,
            ("exp_avg_sq", "theta"): v_g * decay,
        }
        if self.amsgrad:
            grown = (v > slots["max_exp_avg_sq"]).to(theta.dtype)  # where the maximum is the new v
            table |= {
                ("max_exp_avg_sq", "max_exp_avg_sq"): 1 - grown,
                ("max_exp_avg_sq", "exp_avg_sq"): grown * beta2,
                ("max_exp_avg_sq", "g"): grown * v_g * sign,
                ("max_exp_avg_sq", "theta"): grown * v_g * decay,
                ("theta", "max_exp_avg_sq"): by_v * (1 - grown),
            }
            by_v = by_v * grown
        by_g = by_m * m_g + by_v * v_g
        kept = 1 - lr * h["weight_decay"] if self.decoupled else 1.0
        return table | {
            ("theta", "theta"): kept + by_g * decay,
            ("theta", "g"): by_g * sign,
            ("theta", "exp_avg"): by_m * beta1,
            ("theta", "exp_avg_sq"): by_v * beta2,
        }

    def _decayed(self, theta: Tensor, g: Tensor, h: Numbers) -> Tensor:
        g = -g if self.maximize else g
        return g.add(theta, alpha=h["weight_decay"]) if h["weight_decay"] and not self.decoupled else g


def _zeros(*names: str):
    return lambda theta, h, flags: {name: torch.zeros_like(theta) for name in names}


def _rmsprop(theta, h, flags):
    names = ["square_avg"] + ["momentum_buffer"] * (h["momentum"] > 0) + ["grad_avg"] * bool(flags["centered"])
    return {name: torch.zeros_like(theta) for name in names}


#: the state that torch.optim gives a parameter it has not stepped yet: slots, and counters beside "step"
_FRESH = {
    "RMSprop": (_rmsprop, {}),
    "Adagrad": (lambda theta, h, _: {"sum": torch.full_like(theta, h["initial_accumulator_value"])}, {}),
    "Adadelta": (_zeros("square_avg", "acc_delta"), {}),
    "NAdam": (_zeros("exp_avg", "exp_avg_sq"), {"mu_product": lambda h: 1.0}),
    "RAdam": (_zeros("exp_avg", "exp_avg_sq"), {}),
    "Adamax": (_zeros("exp_avg", "exp_inf"), {}),
    "ASGD": (_zeros("ax"), {"eta": lambda h: h["lr"], "mu": lambda h: 1.0}),
    "Rprop": (lambda theta, h, _: {"prev": torch.zeros_like(theta), "step_size": torch.full_like(theta, h["lr"])}, {}),
}
_SECOND_MOMENTS = ("exp_avg_sq", "square_avg", "sum")
_NUDGE = 1e-30  # far below any squared gradient that matters, far above the smallest float32


@dataclass(frozen=True)
class TorchStep:
    """Any elementwise torch.optim optimizer, through one step of its own code."""

    name: str
    flags: dict[str, bool]
    needs_gradient: bool = True

    def initial(self, theta, h):
        fresh, counters = _FRESH[self.name]
        return fresh(theta, h, self.flags), {"step": 0.0} | {name: start(h) for name, start in counters.items()}

    def update(self, theta, slots, clock, g, h):
        new, slots, clock = self._step(theta.detach().clone(), {n: s.clone() for n, s in slots.items()}, clock, g, h, False)
        return new.detach(), {name: slot.detach() for name, slot in slots.items()}, clock

    def table(self, theta, slots, clock, g, h):
        slots = {name: self._nudged(name, slot, g) for name, slot in slots.items()}
        inputs = {"theta": theta, "g": g, **slots}
        inputs = {name: t.detach().clone().requires_grad_() for name, t in inputs.items()}
        with torch.enable_grad():
            copies = {name: t.clone() for name, t in inputs.items()}  # the step works in place, never on a leaf
            held = {name: copies[name] for name in slots}
            new, new_slots, _ = self._step(copies["theta"], held, clock, copies["g"], h, True)
        table: Table = {}
        for out, value in {"theta": new, **new_slots}.items():
            if value.grad_fn is None:
                continue
            rows = torch.autograd.grad(value.sum(), list(inputs.values()), retain_graph=True, allow_unused=True)
            table |= {(out, name): row for name, row in zip(inputs, rows) if row is not None}
        return table

    def _nudged(self, name: str, slot: Tensor, g: Tensor) -> Tensor:
        """sqrt has no derivative at 0. Where a second moment is 0 and so is the gradient, the first moment is 0 as well, and
        the product of the two derivatives is 0: an invisible nudge lets autograd say so instead of nan."""
        return torch.where((slot == 0) & (g == 0), _NUDGE, slot) if name in _SECOND_MOMENTS else slot

    def _step(self, theta, slots, clock, g, h, differentiable):
        with warnings.catch_warnings():  # torch warns about .grad on tensors that are not leaves; here that is the point
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
            options = {"foreach": False, "differentiable": differentiable}
            optimizer = getattr(torch.optim, self.name)([theta], **_unflatten_numbers(h), **self.flags, **options)
            # float32 counters are torch's choice and so the run's; its derivative may be taken more exactly
            exact = torch.float64 if differentiable else _counter_dtype()
            counters = {name: torch.tensor(value, dtype=exact) for name, value in clock.items()}
            optimizer.state[theta] = {**slots, **counters}
            theta.grad = g.expand_as(theta)
            optimizer.step()
            state = optimizer.state[theta]
        return theta, {name: state[name] for name in slots}, {name: float(state[name]) for name in clock}


def _counter_dtype() -> torch.dtype:
    return torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32


# --- from a torch optimizer to a rule and back -------------------------------------------------------------------------

_IGNORED = {"foreach", "fused", "capturable", "differentiable"}  # how torch computes, not what
SUPPORTED = ("SGD", "Adam", "AdamW", *_FRESH)


def flat_numbers(group: dict[str, Any], known: Iterable[str]) -> Numbers:
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


def _unflatten_numbers(h: Numbers) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, value in h.items():
        base, _, index = key.partition(".")
        options[base] = (*options.get(base, ()), value) if index else value
    return options


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
        parts = [self.rule.initial(t, h) for t, h in zip(theta.split(self.group_sizes, -1), self.numbers(row))]
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
        as_vector = lambda c, size: torch.as_tensor(c, dtype=theta.dtype, device=theta.device).expand(size)
        return {key: torch.cat([as_vector(t.get(key, 0.0), size) for t, size in zip(tables, self.group_sizes)]) for key in keys}

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
        return {"name": self.name, "flags": self.flags, "columns": list(self.columns), "any_momentum": self.any_momentum}

    @staticmethod
    def from_json(saved: dict, group_sizes: Sequence[int]) -> "Optimizer":
        return Optimizer(saved["name"], saved["flags"], tuple(saved["columns"]), tuple(group_sizes), saved["any_momentum"])


def _joined(parts: list[Slots]) -> Slots:
    return {name: torch.cat([part[name] for part in parts], -1) for name in parts[0]}


def understand(optimizer: torch.optim.Optimizer, group_sizes: Sequence[int], groups: list[dict]) -> Optimizer:
    """The pure form of a torch optimizer, or a refusal by name. `groups`: the parameter groups that have moving parameters."""
    name = type(optimizer).__name__
    if name not in SUPPORTED or type(optimizer) is not getattr(torch.optim, name):
        raise NotSupported(
            f"The optimizer {name} is not supported yet. dross can retrace: {', '.join(SUPPORTED)} (torch.optim's own classes)."
        )
    own = optimizer.defaults  # a group may carry other keys, of a scheduler or of its owner
    flags = [{k: g[k] for k in own if isinstance(g[k], bool) and k not in _IGNORED} for g in groups]
    columns = [tuple(flat_numbers(g, own)) for g in groups]
    momenta = {g["momentum"] != 0 for g in groups} if "momentum" in own else {False}
    mixed = name == "RMSprop" and len(momenta) > 1  # it keeps a buffer only where there is momentum
    if mixed or any(f != flags[0] for f in flags) or any(set(c) != set(columns[0]) for c in columns):
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
    flat = [flat_numbers(group, known) for group in groups]
    return np.array([[numbers[column] for column in optimizer.columns] for numbers in flat])


def read_slots(optimizer: Optimizer, torch_optimizer, layout, parameters: Mapping[str, Tensor], theta: Tensor, row: np.ndarray):
    """The slots and the clock that a torch optimizer holds now; those of a fresh one where it has not stepped."""
    slots, clock = optimizer.initial(theta, row)
    held = {name: torch_optimizer.state.get(parameters[name], {}) for name in layout.names}
    if not any("step" in state or state.get("momentum_buffer") is not None for state in held.values()):
        return slots, clock
    for slot in slots:
        filled = layout.unflatten(slots[slot])
        filled = {n: filled[n] if held[n].get(slot) is None else held[n][slot].detach().to(theta.device) for n in layout.names}
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
    started = {"step": 1.0} if state.get("momentum_buffer") is not None else {}  # SGD keeps no counter
    return {name: float(state[name]) if name in state else started.get(name, value) for name, value in fresh.items()}


def write_slots(optimizer: Optimizer, torch_optimizer, layout, parameters: Mapping[str, Tensor], slots: Slots, clock) -> None:
    """Leave a torch optimizer as if it had taken the steps itself, so that its owner can go on from here."""
    named = {slot: layout.unflatten(value) for slot, value in slots.items()}
    options = {p: group for group in torch_optimizer.param_groups for p in group["params"]}
    for name, group in zip(layout.names, layout.group_of):
        counters = {} if optimizer.name == "SGD" else clock[group]
        state = {slot: values[name].clone() for slot, values in named.items()}
        own = options[parameters[name]]
        on_device = own.get("fused") or own.get("capturable")  # such steps want their counter beside the parameter
        device = parameters[name].device if on_device else torch.device("cpu")
        state |= {counter: torch.tensor(value, dtype=_counter_dtype(), device=device) for counter, value in counters.items()}
        torch_optimizer.state[parameters[name]] = state

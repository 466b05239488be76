"""The optimizers of torch as pure elementwise maps, each with its Jacobian.

An update turns (theta, slots, g) into (theta', slots') and treats every coordinate alike. So its
Jacobian is a small table of vectors: `table["theta", "g"]` is d theta' / d g, one number per
coordinate. Retracing reads the table by columns (the adjoint), parameter influence reads it by rows
(the tangent), and there is no second derivation to get wrong. docs/derivations.md derives each
entry; entries that are 0 are left out.

Shapes: theta, g and every slot are [p]; in `update` they may be [K, p], for K models at once.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from .state import Counters, Derivative, GroupCounters, Layout, State

Slots = dict[str, Tensor]  # the memory of an optimizer by torch's names, such as "momentum_buffer"
Hyperparams = dict[str, float]  # one parameter group's lr, momentum, betas.0, ... at one step
Flags = dict[str, bool | str]  # options that select the formula: nesterov, amsgrad
Updated = tuple[Tensor, Slots, Counters]
Table = dict[tuple[str, str], Tensor | float]  # (output, input) -> d output / d input


class Rule(Protocol):
    """How an optimizer updates one parameter group. `h`: its hyperparameters at this step."""

    @property
    def needs_gradient(self) -> bool:
        """Whether the table depends on the gradient, so that a retrace has to compute it."""
        ...

    def initial(self, theta: Tensor, h: Hyperparams) -> tuple[Slots, Counters]:
        """The memory of an optimizer that has not stepped yet."""
        ...

    def update(
        self, theta: Tensor, slots: Slots, counters: Counters, g: Tensor, h: Hyperparams
    ) -> Updated:
        """theta, slots and counters after a step with the gradient g."""
        ...

    def table(
        self, theta: Tensor, slots: Slots, counters: Counters, g: Tensor, h: Hyperparams
    ) -> Table:
        """The Jacobian of `update` at the same arguments."""
        ...


@dataclass(frozen=True)
class SGD:
    """torch.optim.SGD with all its options.

        g'     = g + weight_decay theta               -g instead of g with maximize
        m'     = mu m + (1 - dampening) g'            g' in the first step
        theta' = theta - lr m'                        theta - lr (g' + mu m') with nesterov

    m is the slot "momentum_buffer". Without momentum there is none, and theta' = theta - lr g'.
    """

    momentum: bool
    nesterov: bool
    maximize: bool
    needs_gradient: bool = False

    def initial(self, theta: Tensor, h: Hyperparams) -> tuple[Slots, Counters]:
        """A momentum buffer of zeros, which the first step does not read."""
        slots = {"momentum_buffer": torch.zeros_like(theta)} if self.momentum else {}
        return slots, {"step": 0.0}

    def update(self, theta, slots, counters, g, h) -> Updated:
        """The formulas above."""
        lr, mu = h["lr"], h["momentum"]
        g = _adjust_gradient(theta, g, self.maximize, h["weight_decay"])
        if self.momentum:
            m = slots["momentum_buffer"]
            m = g if counters["step"] == 0 else self.next_momentum_buffer(m, g, mu, h["dampening"])
            slots = {"momentum_buffer": m}
            if mu:
                g = g.add(m, alpha=mu) if self.nesterov else m
        return theta.add(g, alpha=-lr), slots, {"step": counters["step"] + 1}

    @staticmethod
    def next_momentum_buffer(m: Tensor, g: Tensor, mu: float, dampening: float = 0.0) -> Tensor:
        """The momentum buffer m' after a step that is not the first."""
        return (m * mu).add(g, alpha=1 - dampening)

    def table(self, theta, slots, counters, g, h) -> Table:
        """d (theta', m') / d (theta, m, g). It depends on none of the three."""
        lr, mu, decay = h["lr"], h["momentum"], h["weight_decay"]
        sign = -1.0 if self.maximize else 1.0  # g' = sign g + decay theta
        first = counters["step"] == 0
        m_by_g = 1.0 if first else 1 - h["dampening"]  # d m' / d g'
        m_by_m = 0.0 if first else mu  # d m' / d m
        if not self.momentum or not mu:  # theta' = theta - lr (by_g g' + by_m m)
            by_g, by_m = 1.0, 0.0
        elif self.nesterov:
            by_g, by_m = 1.0 + mu * m_by_g, mu * m_by_m
        else:
            by_g, by_m = m_by_g, m_by_m
        table: Table = {
            ("theta", "theta"): 1 - lr * by_g * decay,
            ("theta", "g"): -lr * by_g * sign,
        }
        if self.momentum:
            table |= {
                ("theta", "momentum_buffer"): -lr * by_m,
                ("momentum_buffer", "theta"): m_by_g * decay,
                ("momentum_buffer", "g"): m_by_g * sign,
                ("momentum_buffer", "momentum_buffer"): m_by_m,
            }
        return table


@dataclass(frozen=True)
class Adam:
    """torch.optim.Adam, and AdamW (`decoupled`), both with or without amsgrad.

        g'     = g + weight_decay theta               -g instead of g with maximize
        m'     = beta1 m + (1 - beta1) g'
        v'     = beta2 v + (1 - beta2) g'^2
        x'     = max(x, v') with amsgrad, v' without
        D      = sqrt(x') / sqrt(1 - beta2^t) + eps   t = 1 in the first step
        theta' = theta - A m' / D                     A = lr / (1 - beta1^t)

    AdamW does not add the decay to g'; it starts from (1 - lr weight_decay) theta instead.
    m, v and x are the slots "exp_avg", "exp_avg_sq" and "max_exp_avg_sq".
    """

    amsgrad: bool
    maximize: bool
    decoupled: bool
    needs_gradient: bool = True
    fused: bool = False  # the loop stepped with torch's fused kernel, which rounds differently

    def initial(self, theta: Tensor, h: Hyperparams) -> tuple[Slots, Counters]:
        """Zeros for m and v, and for x with amsgrad."""
        names = ("exp_avg", "exp_avg_sq") + (("max_exp_avg_sq",) if self.amsgrad else ())
        return {name: torch.zeros_like(theta) for name in names}, {"step": 0.0}

    def update(self, theta, slots, counters, g, h) -> Updated:
        """The formulas above."""
        beta1, beta2, lr = h["betas.0"], h["betas.1"], h["lr"]
        t = counters["step"] + 1
        if self.fused:
            return self._update_fused(theta, slots, t, g, h)
        g = self._gradient(theta, g, h)
        if self.decoupled and h["weight_decay"]:
            theta = theta * (1 - lr * h["weight_decay"])
        m = slots["exp_avg"].lerp(g, 1 - beta1)
        v = x = (slots["exp_avg_sq"] * beta2).addcmul(g, g, value=1 - beta2)
        after = {"exp_avg": m, "exp_avg_sq": v}
        if self.amsgrad:
            x = after["max_exp_avg_sq"] = torch.maximum(slots["max_exp_avg_sq"], v)
        D = x.sqrt() / (1 - beta2**t) ** 0.5 + h["eps"]
        A = lr / (1 - beta1**t)
        return theta.addcdiv(m, D, value=-A), after, {"step": t}

    def _update_fused(self, theta, slots, t, g, h) -> Updated:
        """`update` by the kernel of torch.optim.AdamW(fused=True): the same bits as the loop's."""
        copy = lambda value: value.clone(memory_format=torch.contiguous_format)
        theta = copy(theta)
        after = {name: copy(slot) for name, slot in slots.items()}
        kernel: Any = getattr(torch, "_fused_adamw_" if self.decoupled else "_fused_adam_")
        kernel(
            [theta],
            [g.contiguous()],
            [after["exp_avg"]],
            [after["exp_avg_sq"]],
            [after["max_exp_avg_sq"]] if self.amsgrad else [],
            [torch.tensor(t, dtype=torch.float32, device=theta.device)],
            amsgrad=self.amsgrad,
            lr=h["lr"],
            beta1=h["betas.0"],
            beta2=h["betas.1"],
            weight_decay=h["weight_decay"],
            eps=h["eps"],
            maximize=self.maximize,
        )
        return theta, after, {"step": t}

    def table(self, theta, slots, counters, g, h) -> Table:
        """d (theta', m', v', x') / d (theta, m, v, x, g)."""
        beta1, beta2, lr = h["betas.0"], h["betas.1"], h["lr"]
        _, after, _ = self.update(theta, slots, counters, g, h)
        g = self._gradient(theta, g, h)  # g' = sign g + decay theta
        sign = -1.0 if self.maximize else 1.0
        decay = 0.0 if self.decoupled else h["weight_decay"]
        m_by_g, v_by_g = 1 - beta1, 2 * (1 - beta2) * g  # d m' / d g', d v' / d g'
        # d theta' / d m' and d theta' / d x'
        by_m, by_x = self._slopes(after, counters["step"] + 1, h)
        table: Table = {
            ("exp_avg", "exp_avg"): beta1,
            ("exp_avg", "g"): m_by_g * sign,
            ("exp_avg", "theta"): m_by_g * decay,
            ("exp_avg_sq", "exp_avg_sq"): beta2,
            ("exp_avg_sq", "g"): v_by_g * sign,
            ("exp_avg_sq", "theta"): v_by_g * decay,
        }
        by_v = by_x
        if self.amsgrad:
            grown = (after["exp_avg_sq"] > slots["max_exp_avg_sq"]).to(theta.dtype)  # x' = v'
            table |= {
                ("max_exp_avg_sq", "max_exp_avg_sq"): 1 - grown,
                ("max_exp_avg_sq", "exp_avg_sq"): grown * beta2,
                ("max_exp_avg_sq", "g"): grown * v_by_g * sign,
                ("max_exp_avg_sq", "theta"): grown * v_by_g * decay,
                ("theta", "max_exp_avg_sq"): by_x * (1 - grown),
            }
            by_v = by_x * grown
        by_g = by_m * m_by_g + by_v * v_by_g  # d theta' / d g'
        kept = 1 - lr * h["weight_decay"] if self.decoupled else 1.0
        return table | {
            ("theta", "theta"): kept + by_g * decay,
            ("theta", "g"): by_g * sign,
            ("theta", "exp_avg"): by_m * beta1,
            ("theta", "exp_avg_sq"): by_v * beta2,
        }

    def _slopes(self, after: Slots, t: float, h: Hyperparams) -> tuple[Tensor, Tensor]:
        """d theta' / d m' = -A / D, and d theta' / d x' = A m' / D^2 d D / d x'."""
        beta1, beta2, lr = h["betas.0"], h["betas.1"], h["lr"]
        m, x = after["exp_avg"], after["max_exp_avg_sq" if self.amsgrad else "exp_avg_sq"]
        root, correction = x.sqrt(), (1 - beta2**t) ** 0.5
        D = root / correction + h["eps"]
        A = lr / (1 - beta1**t)
        # Where x' is 0 every gradient so far was 0. So m' is 0 too, and the slope is 0, not 0/0.
        divisor = D**2 * 2 * correction * torch.where(root > 0, root, 1.0)
        return -A / D, torch.where(root > 0, A * m / divisor, 0.0)

    def _gradient(self, theta: Tensor, g: Tensor, h: Hyperparams) -> Tensor:
        """g'."""
        return _adjust_gradient(
            theta, g, self.maximize, 0.0 if self.decoupled else h["weight_decay"]
        )


def vjp_by_table(table: Table, after: Mapping[str, Tensor], sources: Iterable[str]) -> Slots:
    """Each source's adjoint: the sum over outputs of (d query / d output) (d output / d source)."""
    return {
        source: _weighted_sum([(table.get((output, source)), a) for output, a in after.items()])
        for source in sources
    }


def jvp_by_table(table: Table, before: Mapping[str, Tensor], outputs: Iterable[str]) -> Slots:
    """How each output changes: the sum over sources of (d output / d source) source_dot."""
    return {
        output: _weighted_sum([(table.get((output, source)), v) for source, v in before.items()])
        for output in outputs
    }


def _weighted_sum(terms: list[tuple[Tensor | float | None, Tensor]]) -> Tensor:
    """The sum of coefficient * vector. Coefficients of 0 and 1 are not multiplied."""
    total = None
    for coefficient, vector in terms:
        constant = coefficient if isinstance(coefficient, float) else None
        if coefficient is None or constant == 0.0:
            continue
        term = vector if constant == 1.0 else vector * coefficient
        total = term if total is None else total + term
    return torch.zeros_like(terms[0][1]) if total is None else total


def _adjust_gradient(theta: Tensor, g: Tensor, maximize: bool, weight_decay: float) -> Tensor:
    """g' = g + weight_decay theta, or -g + weight_decay theta."""
    g = -g if maximize else g
    return g.add(theta, alpha=weight_decay) if weight_decay else g


# --- the other optimizers of torch.optim ----------------------------------------------------------

# For every step a new optimizer is built, its state is set, and it is stepped once. Its table comes
# from autograd, through the same step with `differentiable=True`.

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

    def initial(self, theta: Tensor, h: Hyperparams) -> tuple[Slots, Counters]:
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


def sort_slots(slots: Slots) -> Slots:
    """By name: sums round by their order, and a file does not keep the order of its tensors."""
    return dict(sorted(slots.items()))


# --- all parameter groups -------------------------------------------------------------------------

# A formula of twenty operations on all of theta writes twenty vectors of its size, and on a CPU the
# system hands out fresh memory for each of them. A chunk stays in the cache, and so do its results.
# On a GPU a chunk is larger; it bounds the memory that the intermediate results take.

_ON_CPU = 1 << 15  # numbers at once, for each thread
_ON_GPU = 1 << 24
_FEWEST = 1 << 10  # of a row, however many rows there are

Named = Mapping[str, Tensor]


@dataclass(frozen=True)
class Elementwise:
    """A rule over all parameter groups of theta, each with its own hyperparameters."""

    rule: Rule
    group_sizes: tuple[int, ...]  # how many numbers of theta belong to each group

    def initial(self, theta: Tensor, hyperparams: list[Hyperparams]) -> tuple[Slots, GroupCounters]:
        """The slots, each [p], and the counters of an optimizer that has not stepped yet."""
        parts = theta.split(self.group_sizes, -1)
        groups = [self.rule.initial(part, h) for part, h in zip(parts, hyperparams)]
        names = groups[0][0]
        slots = {name: torch.cat([part[name] for part, _ in groups], -1) for name in names}
        return slots, tuple(counters for _, counters in groups)

    def update(self, state: State, g: Tensor, hyperparams: list[Hyperparams]) -> State:
        """The state after a step with the gradient g."""
        counters = list(state.counters)

        def step(group: int, at: Named, slots: Slots) -> Slots:
            theta, slots, counters[group] = self.rule.update(
                at["theta"], slots, state.counters[group], at["g"], hyperparams[group]
            )
            return {"theta": theta, **slots}

        slots = self._chunked(step, {"theta": state.theta, "g": g}, state.slots)
        return replace(state, theta=slots.pop("theta"), slots=slots, counters=tuple(counters))

    def vjp(
        self, state: State, g: Tensor, hyperparams: list[Hyperparams], after: Derivative
    ) -> tuple[Tensor, Derivative]:
        """d query / d g [Q, p], and d query / d the state before the step."""
        sources = ("g", *state.slots, "theta")

        def back(group: int, at: Named, slots: Slots, after: Named) -> Slots:
            return vjp_by_table(self._table(state, hyperparams, group, at, slots), after, sources)

        adjoints = {"theta": after.theta, **sort_slots(after.slots)}
        slots = self._chunked(back, {"theta": state.theta, "g": g}, state.slots, adjoints)
        a_g = slots.pop("g")
        return a_g, replace(after, theta=slots.pop("theta"), slots=slots)

    def jvp(
        self,
        state: State,
        g: Tensor,
        hyperparams: list[Hyperparams],
        before: Derivative,
        g_dot: Tensor,
    ) -> Derivative:
        """How the state after the step changes, from how g and the state before it change."""
        outputs = (*state.slots, "theta")

        def move(group: int, at: Named, slots: Slots, before: Named) -> Slots:
            return jvp_by_table(self._table(state, hyperparams, group, at, slots), before, outputs)

        tangents = {"g": g_dot, "theta": before.theta, **sort_slots(before.slots)}
        slots = self._chunked(move, {"theta": state.theta, "g": g}, state.slots, tangents)
        return replace(before, theta=slots.pop("theta"), slots=slots)

    def _table(
        self, state: State, hyperparams: list[Hyperparams], group: int, at: Named, slots: Slots
    ) -> Table:
        return self.rule.table(
            at["theta"], slots, state.counters[group], at["g"], hyperparams[group]
        )

    def split_slot(
        self, layout: Layout, slot: str, value: Tensor, hyperparams: list[Hyperparams]
    ) -> dict[str, Tensor]:
        """A slot by the names of the parameters, each in its own shape."""
        return layout.split(value)

    def _chunked(self, function: Callable[..., Slots], *inputs: Named) -> Slots:
        """function(group, *inputs), chunk by chunk.

        Arguments:
            function: is called with the number of a group and with a part of each tensor, all of
                the same length. It returns tensors of that length by name.
            inputs: tensors [..., p] by name.

        Returns:
            The function's tensors, each [..., p].
        """
        tensors = [t for named in inputs for t in named.values()]
        chunks = list(self._chunks(max(tensors, key=torch.numel)))
        if len(chunks) == 1:
            return dict(function(0, *inputs))
        results: Slots = {}
        for group, chunk in chunks:
            parts = ({name: t[..., chunk] for name, t in named.items()} for named in inputs)
            for name, t in function(group, *parts).items():
                if name not in results:
                    results[name] = t.new_empty((*t.shape[:-1], sum(self.group_sizes)))
                results[name][..., chunk] = t
        return results

    def _chunks(self, largest: Tensor) -> Iterator[tuple[int, slice]]:
        """The chunks of each group. None crosses from one group to the next."""
        rows = max(1, largest.numel() // max(1, largest.shape[-1]))
        most = _ON_GPU if largest.is_cuda else _ON_CPU * torch.get_num_threads()
        length = max(_FEWEST, most // rows)
        start = 0
        for group, size in enumerate(self.group_sizes):
            for at in range(start, start + max(1, size), length):
                yield group, slice(at, min(at + length, start + size))
            start += size


# --- the options of a parameter group -------------------------------------------------------------

_IGNORED = {"foreach", "fused", "capturable", "differentiable"}  # how torch computes, not what


def flatten_options(group: Mapping[str, Any], keys: Iterable[str]) -> Hyperparams:
    """The numbers among these options of a group: its hyperparameters, betas=(a, b) as betas.0 and
    betas.1.

    A None within a tuple, as in eps=(None, 1e-3), is kept as nan.
    """
    hyperparams: Hyperparams = {}
    for key in keys:
        value = group[key]
        if key in _IGNORED or isinstance(value, bool) or value is None:
            continue
        if isinstance(value, (tuple, list)):
            parts = [math.nan if part is None else float(part) for part in value]
            hyperparams |= {f"{key}.{k}": part for k, part in enumerate(parts)}
        elif isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1):
            hyperparams[key] = float(value)
    return hyperparams


def group_options(h: Hyperparams) -> dict[str, Any]:
    """The inverse of `flatten_options`: betas.0 and betas.1 become betas=(a, b)."""
    options: dict[str, Any] = {}
    for key, value in h.items():
        base, _, index = key.partition(".")
        part = None if index and math.isnan(value) else value
        options[base] = (*options.get(base, ()), part) if index else value
    return options


def read_flags(group: Mapping[str, Any], keys: Iterable[str]) -> Flags:
    """The options that select the formula, without the hyperparameters."""
    return {
        key: group[key]
        for key in keys
        if isinstance(group[key], (bool, str)) and key not in _IGNORED
    }

"""Optimizers as pure elementwise maps, each with its Jacobian.

An update turns (theta, slots, g) into (theta', slots') and treats every coordinate alike, so its Jacobian is a small *table*
of coefficient vectors: `table["theta", "g"]` is d theta' / d g, coordinate by coordinate. Retracing reads the table by
columns (the adjoint), parameter influence reads it by rows (the tangent); there is no second derivation to get wrong.
docs/derivations.md derives each entry.

SGD, Adam and AdamW are written out. The other optimizers of torch.optim are stepped once with `differentiable=True`, and
their table is what autograd says of that one step.
"""

import warnings
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

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

    def update(
        self, theta: Tensor, slots: Slots, clock: Clock, g: Tensor, h: Numbers
    ) -> tuple[Tensor, Slots, Clock]: ...

    def table(self, theta: Tensor, slots: Slots, clock: Clock, g: Tensor, h: Numbers) -> Table: ...


@dataclass(frozen=True)
class SGD:
    """torch.optim.SGD with all its options. `clock["step"] == 0` marks the first step, where the buffer is the gradient."""

    momentum: bool
    nesterov: bool
    maximize: bool
    needs_gradient: bool = False

    def initial(self, theta, h):
        return ({"momentum_buffer": torch.zeros_like(theta)} if self.momentum else {}), {
            "step": 0.0
        }

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
        keep = (
            1.0 if clock["step"] == 0 else 1 - h["dampening"]
        )  # d m' / d g', where g' = sign g + weight_decay theta
        carry = 0.0 if clock["step"] == 0 else mu  # d m' / d m
        if not self.momentum or not mu:
            by_g, by_m = 1.0, 0.0
        elif self.nesterov:
            by_g, by_m = 1.0 + mu * keep, mu * carry
        else:
            by_g, by_m = keep, carry
        table: Table = {
            ("theta", "theta"): 1 - lr * by_g * weight_decay,
            ("theta", "g"): -lr * by_g * sign,
        }
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
        by_v = torch.where(
            root > 0,
            scale * m / (denominator**2 * 2 * correction * torch.where(root > 0, root, 1.0)),
            0.0,
        )

        sign = -1.0 if self.maximize else 1.0
        decay = 0.0 if self.decoupled else h["weight_decay"]
        m_g, v_g = (
            1 - beta1,
            2 * (1 - beta2) * g,
        )  # by the decayed gradient g' = sign g + decay theta
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
        return (
            g.add(theta, alpha=h["weight_decay"]) if h["weight_decay"] and not self.decoupled else g
        )


def _zeros(*names: str):
    return lambda theta, h, flags: {name: torch.zeros_like(theta) for name in names}


def _rmsprop(theta, h, flags):
    names = (
        ["square_avg"]
        + ["momentum_buffer"] * (h["momentum"] > 0)
        + ["grad_avg"] * bool(flags["centered"])
    )
    return {name: torch.zeros_like(theta) for name in names}


#: the state that torch.optim gives a parameter it has not stepped yet: slots, and counters beside "step"
INITIAL_STATES = {
    "RMSprop": (_rmsprop, {}),
    "Adagrad": (
        lambda theta, h, _: {"sum": torch.full_like(theta, h["initial_accumulator_value"])},
        {},
    ),
    "Adadelta": (_zeros("square_avg", "acc_delta"), {}),
    "NAdam": (_zeros("exp_avg", "exp_avg_sq"), {"mu_product": lambda h: 1.0}),
    "RAdam": (_zeros("exp_avg", "exp_avg_sq"), {}),
    "Adamax": (_zeros("exp_avg", "exp_inf"), {}),
    "ASGD": (_zeros("ax"), {"eta": lambda h: h["lr"], "mu": lambda h: 1.0}),
    "Rprop": (
        lambda theta, h, _: {
            "prev": torch.zeros_like(theta),
            "step_size": torch.full_like(theta, h["lr"]),
        },
        {},
    ),
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
        fresh, counters = INITIAL_STATES[self.name]
        return fresh(theta, h, self.flags), {"step": 0.0} | {
            name: start(h) for name, start in counters.items()
        }

    def update(self, theta, slots, clock, g, h):
        new, slots, clock = self._step(
            theta.detach().clone(), {n: s.clone() for n, s in slots.items()}, clock, g, h, False
        )
        return new.detach(), {name: slot.detach() for name, slot in slots.items()}, clock

    def table(self, theta, slots, clock, g, h):
        slots = {name: self._nudged(name, slot, g) for name, slot in slots.items()}
        inputs = {"theta": theta, "g": g, **slots}
        inputs = {name: t.detach().clone().requires_grad_() for name, t in inputs.items()}
        with torch.enable_grad():
            copies = {
                name: t.clone() for name, t in inputs.items()
            }  # the step works in place, never on a leaf
            held = {name: copies[name] for name in slots}
            new, new_slots, _ = self._step(copies["theta"], held, clock, copies["g"], h, True)
        table: Table = {}
        for out, value in {"theta": new, **new_slots}.items():
            if value.grad_fn is None:
                continue
            rows = torch.autograd.grad(
                value.sum(), list(inputs.values()), retain_graph=True, allow_unused=True
            )
            table |= {(out, name): row for name, row in zip(inputs, rows) if row is not None}
        return table

    def _nudged(self, name: str, slot: Tensor, g: Tensor) -> Tensor:
        """sqrt has no derivative at 0. Where a second moment is 0 and so is the gradient, the first moment is 0 as well, and
        the product of the two derivatives is 0: an invisible nudge lets autograd say so instead of nan."""
        return (
            torch.where((slot == 0) & (g == 0), _NUDGE, slot) if name in _SECOND_MOMENTS else slot
        )

    def _step(self, theta, slots, clock, g, h, differentiable):
        with (
            warnings.catch_warnings()
        ):  # torch warns about .grad on tensors that are not leaves; here that is the point
            warnings.filterwarnings("ignore", message="The .grad attribute of a Tensor")
            options = {"foreach": False, "differentiable": differentiable}
            optimizer = getattr(torch.optim, self.name)(
                [theta], **unflatten_numbers(h), **self.flags, **options
            )
            # float32 counters are torch's choice and so the run's; its derivative may be taken more exactly
            exact = torch.float64 if differentiable else counter_dtype()
            counters = {name: torch.tensor(value, dtype=exact) for name, value in clock.items()}
            optimizer.state[theta] = {**slots, **counters}
            theta.grad = g.expand_as(theta)
            optimizer.step()
            state = optimizer.state[theta]
        return (
            theta,
            {name: state[name] for name in slots},
            {name: float(state[name]) for name in clock},
        )


def counter_dtype() -> torch.dtype:
    return torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32


def unflatten_numbers(h: Numbers) -> dict[str, Any]:
    options: dict[str, Any] = {}
    for key, value in h.items():
        base, _, index = key.partition(".")
        options[base] = (*options.get(base, ()), value) if index else value
    return options

"""Optimizers that take a parameter as a whole: a matrix is orthogonalized, or has row means.

Their Jacobian has one block per parameter, and no table. Its products come from autograd through
the formula, one parameter at a time. Slots need not have the parameter's shape: in a state, the
slots of one name lie one after the other, parameter by parameter.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.func import vjp, vmap

from .formula import Formula, Options, after_step, options_at
from .hyperparams import Numbers
from .state import Clock
from .update_rules import Slots
from .vjp import jvp


@dataclass(frozen=True)
class Blocks:
    """A formula over the parameters of all groups. Shapes: p parameters, Q adjoints or tangents."""

    formula: Formula
    flags: Mapping[str, Any]
    shapes: tuple[tuple[torch.Size, ...], ...]  # of the parameters of each group

    def initial(self, theta: Tensor, numbers: list[Numbers]) -> tuple[Slots, Clock]:
        """The slots and the clock of an optimizer that has not stepped yet."""
        clock = tuple(self.formula.counters() for _ in self.shapes)
        options = self._options(clock, numbers)
        sizes = [shape.numel() for shape, _ in options]
        parts = theta.split(sizes, -1)
        pairs = zip(parts, options)
        return self._join_slots(
            [self.formula.start(part.view(shape), o) for part, (shape, o) in pairs], theta
        ), clock

    def slot_shapes(self, clock: Clock, numbers: list[Numbers]) -> list[dict[str, torch.Size]]:
        """The shape of each slot of each parameter."""
        return [self.formula.shapes(shape, o) for shape, o in self._options(clock, numbers)]

    def update(
        self, theta: Tensor, slots: Slots, clock: Clock, g: Tensor, numbers: list[Numbers]
    ) -> tuple[Tensor, Slots, Clock]:
        """theta [p], slots and clock after a step; with a leading axis, those of K models."""

        def take(theta: Tensor, slots: Slots, g: Tensor) -> tuple[Tensor, Slots]:
            blocks = self._split(theta, slots, clock, g, numbers)
            after = [self.formula.update(part, g, own, o) for part, own, g, o in blocks]
            flat = torch.cat([part.reshape(-1) for part, _ in after])
            return flat, self._join_slots([own for _, own in after], theta)

        with torch.no_grad():
            theta, slots = (vmap(take) if theta.dim() > 1 else take)(theta, slots, g)
        return theta, slots, tuple(after_step(counters) for counters in clock)

    def pull(
        self,
        theta: Tensor,
        slots: Slots,
        clock: Clock,
        g: Tensor,
        numbers: list[Numbers],
        after: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """The adjoints of theta, g and the slots, from those after the step: each [Q, ...]."""
        found: list[tuple[Tensor, Tensor, Slots]] = []
        a_slots = {name: a for name, a in after.items() if name in slots}
        split = self._split(theta, slots, clock, g, numbers)
        coming = self._split(after["theta"], a_slots, clock, after["theta"], numbers)
        for (part, own, g_part, options), (a_part, a_own, _, _) in zip(split, coming):
            step = lambda part, g, own, o=options: self.formula.derived(part, g, own, o)
            pulled: Any = vjp(step, part, g_part, own)
            found.append(vmap(pulled[1])((a_part, a_own)))
        rows = len(after["theta"])
        flat = lambda parts: torch.cat([part.reshape(rows, -1) for part in parts], -1)
        a_theta, a_g = flat(one[0] for one in found), flat(one[1] for one in found)
        joined = self._join_slots([own for _, _, own in found], after["theta"], slots)
        return {"theta": a_theta, "g": a_g, **joined}

    def push(
        self,
        theta: Tensor,
        slots: Slots,
        clock: Clock,
        g: Tensor,
        numbers: list[Numbers],
        before: Mapping[str, Tensor],
    ) -> dict[str, Tensor]:
        """How theta and the slots move after the step, from how theta, g and the slots move."""
        found: list[tuple[Tensor, Slots]] = []
        slots_dot = {name: dot for name, dot in before.items() if name in slots}
        split = self._split(theta, slots, clock, g, numbers)
        coming = self._split(before["theta"], slots_dot, clock, before["g"], numbers)
        for (part, own, g_part, options), (dot, own_dot, g_dot, _) in zip(split, coming):
            step = lambda part, g, own, o=options: self.formula.derived(part, g, own, o)
            given = (part, g_part, own)
            along = lambda *tangents, f=step, at=given: jvp(f, at, tangents)[1]
            found.append(vmap(along)(dot, g_dot, own_dot))
        rows = len(before["theta"])
        theta_dot = torch.cat([dot.reshape(rows, -1) for dot, _ in found], -1)
        joined = self._join_slots([own for _, own in found], before["theta"], slots)
        return {"theta": theta_dot, **joined}

    # --- parameters side by side ------------------------------------------------------------------

    def _options(self, clock: Clock, numbers: list[Numbers]) -> list[tuple[torch.Size, Options]]:
        """Each parameter's shape, and what its group tells the formula."""
        return [
            (shape, options)
            for shapes, counters, h in zip(self.shapes, clock, numbers)
            for options in [options_at(h, self.flags, counters)]
            for shape in shapes
        ]

    def _split(
        self, theta: Tensor, slots: Slots, clock: Clock, g: Tensor, numbers: list[Numbers]
    ) -> Iterator[tuple[Tensor, Slots, Tensor, Options]]:
        """Each parameter with its slots, its gradient and its options, in their own shapes."""
        every = self._options(clock, numbers)
        shapes = self.slot_shapes(clock, numbers)
        sizes = [shape.numel() for shape, _ in every]
        thetas, gs = theta.split(sizes, -1), g.split(sizes, -1)
        own_sizes = lambda name: [s[name].numel() if name in s else 0 for s in shapes]
        parts = {name: slot.split(own_sizes(name), -1) for name, slot in slots.items()}
        for k, (shape, options) in enumerate(every):
            own = {name: _shape(parts[name][k], s) for name, s in shapes[k].items()}
            yield _shape(thetas[k], shape), own, _shape(gs[k], shape), options

    def _join_slots(
        self, parts: list[Slots], like: Tensor, names: Mapping[str, Any] | None = None
    ) -> Slots:
        """The slots of all parameters one after the other: each [..., numbers]."""
        names = dict.fromkeys(name for part in parts for name in part) if names is None else names
        lead = like.shape[:-1]
        flat = lambda t: t.reshape(*lead, -1)
        return {
            name: torch.cat([flat(part[name]) for part in parts if name in part], -1)
            for name in names
        }


def _shape(t: Tensor, shape: torch.Size) -> Tensor:
    """[..., n] -> [..., *shape]."""
    return t.reshape(*t.shape[:-1], *shape)

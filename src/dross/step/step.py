"""A training step as a record, and as a pure function of the state with its adjoint and its tangent.

    g       = clip( sum over micro-batches, over i in them, of  w_i c_i grad l(z_i; theta) )        c_i = 1/|S_t| unless recorded
    s_{t+1} = update(s_t, g)

This file knows the second line; objective.py knows the first.
"""

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from ..data.batch import MicroBatch
from .clipping import Clip
from .optimizers import Optimizer
from .state import Derivative, State
from .update_rules import Table


@dataclass(frozen=True)
class Step:
    """S_t, eta_t and whatever else the step used."""

    micros: tuple[MicroBatch, ...]  # more than one: gradient accumulation
    numbers: np.ndarray  # float64 [groups, columns]: the optimizer's lr, momentum, ... at this step
    epoch: int = 0
    clip: Clip | None = None

    @property
    def ids(self) -> np.ndarray:
        return np.concatenate([np.zeros(0, dtype=np.int64), *(micro.ids for micro in self.micros)])


def advance(
    optimizer: Optimizer, state: State, step: Step, g: Tensor, buffers: dict[str, Tensor]
) -> State:
    """s_{t+1} from s_t, the raw gradient and the buffers that the forward pass left."""
    g = step.clip(g) if step.clip else g
    theta, slots, clock = optimizer.update(state.theta, state.slots, state.clock, g, step.numbers)
    return State(theta, slots, buffers, clock)


def pull(
    optimizer: Optimizer, state: State, step: Step, g: Tensor, after: Derivative
) -> tuple[Tensor, Derivative]:
    """The adjoint of `advance`: d query / d g, and d query / d s as far as it does not pass through g."""
    table = _table(optimizer, state, step, g)
    inputs = {"theta": after.theta, **_ordered(after.slots)}
    a_g = _columns(table, "g", inputs)
    a_g = torch.zeros_like(after.theta) if a_g is None else a_g  # a rate of 0
    if step.clip:
        a_g = step.clip.derivative(g, a_g)
    columns = {name: _columns(table, name, inputs) for name in ("theta", *state.slots)}
    zero = torch.zeros_like(after.theta)
    before = {name: zero if column is None else column for name, column in columns.items()}
    return a_g, Derivative(before.pop("theta"), before, after.buffers)


def push(
    optimizer: Optimizer, state: State, step: Step, g: Tensor, before: Derivative, g_dot: Tensor
) -> Derivative:
    """The tangent of `advance`: how s_{t+1} moves when s_t moves by `before` and the raw gradient by `g_dot`."""
    table = _table(optimizer, state, step, g)
    g_dot = step.clip.derivative(g, g_dot) if step.clip else g_dot
    inputs = {"g": g_dot, "theta": before.theta, **_ordered(before.slots)}
    rows = {name: _rows(table, name, inputs) for name in ("theta", *state.slots)}
    return replace(before, theta=rows.pop("theta"), slots=rows)


def needs_gradient(optimizer: Optimizer, step: Step) -> bool:
    return optimizer.rule.needs_gradient or step.clip is not None


def _table(optimizer: Optimizer, state: State, step: Step, g: Tensor) -> Table:
    clipped = step.clip(g) if step.clip else g
    return optimizer.table(state.theta, state.slots, state.clock, clipped, step.numbers)


def _ordered(slots: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums round by their order, and a file does not keep the order of its tensors."""
    return dict(sorted(slots.items()))


def _columns(table: Table, name: str, outputs: dict[str, Tensor]) -> Tensor | None:
    return _sum(table, [((out, name), adjoint) for out, adjoint in outputs.items()])


def _rows(table: Table, name: str, inputs: dict[str, Tensor]) -> Tensor:
    total = _sum(table, [((name, source), tangent) for source, tangent in inputs.items()])
    return torch.zeros_like(inputs["theta"]) if total is None else total


def _sum(table: Table, terms: list[tuple[tuple[str, str], Tensor]]) -> Tensor | None:
    total = None
    for key, vector in terms:
        coefficient = table.get(key, 0.0)
        if isinstance(coefficient, float) and coefficient == 0.0:
            continue
        term = (
            vector
            if isinstance(coefficient, float) and coefficient == 1.0
            else vector * coefficient
        )
        total = term if total is None else total + term
    return total

"""A training step as a record, and as a pure function of the state with adjoint and tangent.

    g       = clip( 1/S sum_i w_i S c_i grad l(z_i; theta) ) over the i of all its micro-batches
    s_{t+1} = update(s_t, g)

S is a GradScaler's scale, 1 without one. It keeps gradients in the range of float16, where a pass
computes in that, and changes nothing else. objective.py knows the sum; this file knows the rest.
`advance` takes the step, `pull` carries an adjoint from s_{t+1} back to s_t, and `push` a tangent
from s_t on to s_{t+1}.
For plain SGD with rate eta, `pull` turns the adjoint u into a_g = -eta u and leaves u as it is;
the objective's pull then adds H a_g, and together that is the paper's Z_t u = u - eta H u.

Shapes: p parameters, Q adjoints or tangents at once.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from torch import Tensor

from ..data.batch import MicroBatch
from .casting import widen
from .clipping import Clip
from .optim import Optimizer
from .state import Clock, Derivative, Named, State


@dataclass(frozen=True)
class Step:
    """What is recorded of step t: the batch S_t, the rate eta_t, and whatever else it used."""

    micros: tuple[MicroBatch, ...]  # more than one: gradient accumulation
    numbers: np.ndarray  # float64 [groups, columns]: the optimizer's lr, momentum, ... at this step
    epoch: int = 0
    clip: Clip | None = None
    scale: float = 1.0  # a GradScaler's: the losses were multiplied by it, and the gradient divided

    @property
    def unscale(self) -> float:
        """1/S, rounded as a GradScaler rounds it."""
        return float(np.float32(1 / self.scale))

    @property
    def ids(self) -> np.ndarray:
        """The instances of all its micro-batches: int64 [|S_t|]."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(micro.ids for micro in self.micros)])


def advance(
    optimizer: Optimizer, state: State, step: Step, g: Tensor, buffers: dict[str, Tensor]
) -> State:
    """s_{t+1} from s_t, the gradient g [p] of the scaled losses, and the buffers after the pass."""
    g = prepare_gradient(step, g, optimizer.slices)
    theta, slots, clock = optimizer.update(state.theta, state.slots, state.clock, g, step.numbers)
    return State(theta, slots, buffers, clock)


def pull(
    optimizer: Optimizer, state: State, step: Step, g: Tensor, after: Derivative
) -> tuple[Tensor, Derivative]:
    """The adjoint of `advance`.

    Arguments:
        optimizer: the update.
        state: s_t.
        step: what was recorded of the step.
        g: the gradient of the scaled losses, [p]. Unused where `needs_gradient` is False.
        after: d query / d s_{t+1}.

    Returns:
        d query / d g, [Q, p]; and d query / d s_t as far as it does not pass through g.
    """
    a = {"theta": after.theta, **_sort(after.slots)}
    back = optimizer.pull(*_given(state, step, g), a)
    a_g = back["g"]
    if step.clip:
        a_g = step.clip.derivative(_unscale(step, g), a_g)
    slots = {name: back[name] for name in state.slots}
    return _unscale(step, a_g), Derivative(back["theta"], slots, after.buffers)


def push(
    optimizer: Optimizer, state: State, step: Step, g: Tensor, before: Derivative, g_dot: Tensor
) -> Derivative:
    """The tangent of `advance`.

    Arguments:
        optimizer: the update.
        state: s_t.
        step: what was recorded of the step.
        g: the gradient of the scaled losses, [p]. Unused where `needs_gradient` is False.
        before: how s_t moves.
        g_dot: how g moves, [Q, p].

    Returns:
        How s_{t+1} moves; its buffers are still those of `before`.
    """
    g_dot = _unscale(step, g_dot)
    g_dot = step.clip.derivative(_unscale(step, g), g_dot) if step.clip else g_dot
    dot = {"g": g_dot, "theta": before.theta, **_sort(before.slots)}
    moved = optimizer.push(*_given(state, step, g), dot)
    slots = {name: moved[name] for name in state.slots}
    return replace(before, theta=moved["theta"], slots=slots)


def needs_gradient(optimizer: Optimizer, step: Step) -> bool:
    """Whether `pull` and `push` depend on the gradient of the step."""
    return optimizer.needs_gradient or step.clip is not None


def _given(state: State, step: Step, g: Tensor) -> tuple[Tensor, Named, Clock, Tensor, np.ndarray]:
    """What the optimizer's derivative depends on, in at least 32 bits."""
    slots = {name: widen(slot) for name, slot in state.slots.items()}
    g = widen(prepare_gradient(step, g))
    return widen(state.theta), slots, state.clock, g, step.numbers


def _unscale(step: Step, g: Tensor) -> Tensor:
    """g / S, which is its own adjoint."""
    return g if step.scale == 1 else g * step.unscale


def prepare_gradient(step: Step, g: Tensor, slices: Sequence[slice] = ()) -> Tensor:
    """What the optimizer sees of a gradient: unscaled, then clipped.

    slices: where the parameters lie in it, so that the clip rounds as torch's does.
    """
    g = _unscale(step, g)
    return step.clip(g, slices) if step.clip else g


def _sort(slots: dict[str, Tensor]) -> dict[str, Tensor]:
    """Sums round by their order, and a file does not keep the order of its tensors."""
    return dict(sorted(slots.items()))

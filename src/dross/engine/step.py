"""A training step as a record, and as a pure function of the state with adjoint and tangent.

    g       = clip( 1/S sum_i w_i S c_i grad l(z_i; theta) ) over the i of all its micro-batches
    s_{t+1} = update(s_t, g)

S is a GradScaler's scale, 1 without one. It keeps gradients in the range of float16, where a pass
computes in that, and changes nothing else. objective.py knows the sum; this file knows the rest.
`take_step` computes g and calls `advance` for the update, `vjp` carries an adjoint from s_{t+1} back
to s_t, and `jvp` a tangent from s_t on to s_{t+1}.

For plain SGD with rate eta, `vjp` turns the adjoint u into a_g = -eta u and leaves u as it is;
the objective's vjp then adds H a_g, and together that is the paper's Z_t u = u - eta H u.

Shapes: p parameters, Q adjoints or tangents at once.
"""

import numbers
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from ..data.batch import AnyBatch, MicroBatch
from ..errors import InvalidInput
from .optim import Optimizer
from .state import Buffers, Derivative, Place, State

if TYPE_CHECKING:
    from .executor import Executor

Item = TypeVar("Item")


@dataclass(frozen=True)
class Step:
    """The record of step t: the batch S_t, the learning rate eta_t, and whatever else it used."""

    micros: tuple[MicroBatch, ...]  # more than one: gradient accumulation
    hyperparams: np.ndarray  # float64 [groups, columns]: the optimizer's lr, momentum, ...
    epoch: int = 0
    clip: "Clip | None" = None
    scale: float = 1.0  # a GradScaler's: the losses were multiplied by it, and the gradient divided

    @property
    def unscale(self) -> float:
        """1/S, rounded as a GradScaler rounds it."""
        return float(np.float32(1 / self.scale))

    @property
    def ids(self) -> np.ndarray:
        """The instances of all its micro-batches: int64 [|S_t|]."""
        return np.concatenate([np.zeros(0, dtype=np.int64), *(micro.ids for micro in self.micros)])


class StepReducer(Protocol):
    """How the work of a step is divided among ranks (distributed/)."""

    def own_part(self, batches: Sequence[AnyBatch]) -> list[tuple[int, slice, AnyBatch]]:
        """This rank's pieces: the micro-batch's number, the rows, and their instances."""
        ...

    def sum_over_theta(self, vector: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """A vector over theta and others, each summed over the ranks."""
        ...


def take_step(
    executor: "Executor",
    optimizer: Optimizer,
    state: State,
    step: Step,
    batches: Sequence[AnyBatch],
    reducer: StepReducer | None = None,
) -> tuple[State, Tensor, list[Tensor]]:
    """s_{t+1}, the gradient [p] of the scaled losses, and the losses of each micro-batch.

    Arguments:
        executor: computes the gradients.
        optimizer: the update.
        state: s_t.
        step: what was recorded of the step.
        batches: its micro-batches. Each starts from the buffers that the one before it left.
        reducer: divides the work among ranks; the losses are of this rank's part.
    """
    if reducer is not None:
        batches = [batch for _, _, batch in reducer.own_part(batches)]
    g: Tensor | None = None
    losses: list[Tensor] = []
    buffers = state.buffers
    for batch in batches:
        part, of_batch, buffers = executor.gradient(state.theta, buffers, batch.scaled(step.scale))
        g = part if g is None else g + part
        losses.append(of_batch)
    if g is None:  # no micro-batch is this rank's
        g = torch.zeros_like(state.theta)
    if reducer is not None:
        (g,) = reducer.sum_over_theta(g)
    return advance(optimizer, state, step, g, buffers), g, losses


def advance(
    optimizer: Optimizer, state: State, step: Step, g: Tensor, buffers: dict[str, Tensor]
) -> State:
    """s_{t+1} from s_t, the gradient g [p] of the scaled losses, and the buffers after the pass."""
    g = prepare_gradient(step, g, optimizer.slices)
    return replace(optimizer.update(state, g, step.hyperparams), buffers=buffers)


def vjp_step(
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
    a_g, before = optimizer.vjp(state, prepare_gradient(step, g), step.hyperparams, after)
    if step.clip:
        a_g = step.clip.derivative(_unscale(step, g), a_g)
    return _unscale(step, a_g), before


def jvp_step(
    optimizer: Optimizer, state: State, step: Step, g: Tensor, before: Derivative, g_dot: Tensor
) -> Derivative:
    """The tangent of `advance`.

    Arguments:
        optimizer: the update.
        state: s_t.
        step: what was recorded of the step.
        g: the gradient of the scaled losses, [p]. Unused where `needs_gradient` is False.
        before: how s_t changes.
        g_dot: how g changes, [Q, p].

    Returns:
        How s_{t+1} changes; its buffers are still those of `before`.
    """
    g_dot = _unscale(step, g_dot)
    if step.clip:
        g_dot = step.clip.derivative(_unscale(step, g), g_dot)
    return optimizer.jvp(state, prepare_gradient(step, g), step.hyperparams, before, g_dot)


def needs_gradient(optimizer: Optimizer, step: Step) -> bool:
    """Whether `vjp` and `jvp` depend on the gradient of the step."""
    return optimizer.needs_gradient or step.clip is not None


def _unscale(step: Step, g: Tensor) -> Tensor:
    """g / S, which is its own adjoint."""
    return g if step.scale == 1 else g * step.unscale


def prepare_gradient(step: Step, g: Tensor, slices: Sequence[Place] = ()) -> Tensor:
    """What the optimizer sees of a gradient: unscaled, then clipped.

    slices: where the parameters lie in it, so that the clip rounds as torch's does.
    """
    g = _unscale(step, g)
    return step.clip(g, slices) if step.clip else g


def sum_over_batches(
    batches: Iterable[Item],
    buffers: Buffers,
    compute: Callable[[Item, Buffers], tuple[Tensor, Buffers]],
    like: Tensor,
) -> tuple[Tensor, Buffers]:
    """The sum over the micro-batches of a step. Each starts from the buffers of the last one.

    Arguments:
        batches: the micro-batches, or this rank's part of them.
        buffers: what the first one starts from.
        compute: (batch, buffers) -> (its part of the sum, the buffers that it leaves).
        like: the shape of the sum where there is no batch.
    """
    total: Tensor | None = None
    for batch in batches:
        part, buffers = compute(batch, buffers)
        total = part if total is None else total + part
    return (torch.zeros_like(like) if total is None else total), buffers


# --- clips ----------------------------------------------------------------------------------------

# As differentiable maps. Both Jacobians are symmetric, so one function serves forwards and backwards.

_TORCH_EPSILON = 1e-6  # what torch.nn.utils.clip_grad_norm_ adds to the norm


@dataclass(frozen=True)
class ClipNorm:
    """Scale the whole gradient down to a norm, as torch.nn.utils.clip_grad_norm_ does.

        c = min(1, max_norm / (|g| + 1e-6)),        g -> c g

    Arguments:
        max_norm: the largest norm that a gradient keeps.

    Raises:
        InvalidInput: max_norm is not positive.
    """

    max_norm: float

    def __post_init__(self):
        _check_positive(self.max_norm)

    def __call__(self, g: Tensor, slices: Sequence[Place] = ()) -> Tensor:
        """The clipped gradient, [..., p].

        Arguments:
            g: the gradient, [..., p].
            slices: where each parameter lies in it, in the model's order. torch takes their norms
                one by one; with them, the bits are those of torch's own clip.
        """
        return g * self._coefficient(self.norms(g, slices))

    def derivative(self, g: Tensor, v: Tensor) -> Tensor:
        """J(g) v, where J = c I - c / (|g| + 1e-6) g g^T / |g|. Where nothing is clipped, J = I.

        Arguments:
            g: the gradient before clipping, [p].
            v: the vectors to multiply, [..., p].

        Returns:
            The products, [..., p].
        """
        norm, products = self.norm_and_products(g, v)
        c = self._coefficient(norm)
        if norm == 0 or c >= 1:
            return v
        along = products.unsqueeze(-1) * g / norm
        return c * v - c / (norm + _TORCH_EPSILON) * along

    def norms(self, g: Tensor, slices: Sequence[Place] = ()) -> Tensor:
        """|g| of each row: [..., p] -> [..., 1]."""
        if not slices or g.dim() > 1:
            return g.norm(dim=-1, keepdim=True)
        return torch.nn.utils.get_total_norm([g[part] for part in slices]).unsqueeze(0)

    def norm_and_products(self, g: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """|g| and <v, g>, of g [p] and v [..., p]."""
        return g.norm(), v @ g

    def _coefficient(self, norm: Tensor) -> Tensor:
        return torch.clamp(self.max_norm / (norm + _TORCH_EPSILON), max=1.0)


@dataclass(frozen=True)
class ClipValue:
    """Clamp every number of the gradient, as torch.nn.utils.clip_grad_value_ does.

    Arguments:
        limit: every number is clamped to [-limit, limit].

    Raises:
        InvalidInput: limit is not positive.
    """

    limit: float

    def __post_init__(self):
        _check_positive(self.limit)

    def __call__(self, g: Tensor, slices: Sequence[Place] = ()) -> Tensor:
        """The clipped gradient, [..., p]. Where the parameters lie does not matter here."""
        return g.clamp(-self.limit, self.limit)

    def derivative(self, g: Tensor, v: Tensor) -> Tensor:
        """J(g) v, where J is diagonal: 0 where g is clipped, 1 elsewhere.

        Arguments:
            g: the gradient before clipping, [p].
            v: the vectors to multiply, [..., p].

        Returns:
            The products, [..., p].
        """
        return v * (g.abs() <= self.limit)


def _check_positive(value: float) -> None:
    if not isinstance(value, numbers.Real) or not value > 0:
        raise InvalidInput(f"The clipping threshold must be a positive number, not {value!r}.")


Clip = ClipNorm | ClipValue


def clip_of(norm: float | None, value: float | None) -> Clip | None:
    """The clip that the options `clip_norm=` and `clip_value=` describe.

    Raises:
        InvalidInput: both are passed, or one is not a positive number.
    """
    if norm is not None and value is not None:
        raise InvalidInput("Pass either clip_norm or clip_value, not both.")
    if norm is not None:
        return ClipNorm(norm)
    return None if value is None else ClipValue(value)

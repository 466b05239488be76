"""Koh and Liang's influence functions at the final model: score_j = 1/N <grad l(z_j), H^-1 u>.

H is the Hessian of the mean training loss plus `damping` times the identity, u the gradient of the
query. The formula assumes a minimum of a strongly convex objective; the paper's point is that a
model trained with SGD is not there. The published solver (momentum SGD, few steps) stops far from
H^-1 u, and the exact solution often agrees less with the truth: both are offered, and how far a
solver got is reported in `scores.details`.

Products with instances' gradients and with the loss's Hessian, at one model in eval mode.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from .._progress import progress_bar
from ..data.batch import LazyBatch, MicroBatch
from ..engine.executor import Executor
from ..engine.state import State
from ..engine.update_rules import SGD
from ..errors import Diverged, InvalidInput
from ..influence.query import Query, as_query
from ..influence.run import Run
from ..influence.scores import Scores
from ..replay.recording import Recording

#: (v [Q, p], batch size or None for all) -> (H + damping) v
Product = Callable[[Tensor, int | None], Tensor]
_CONVERGED = 1e-4  # the largest relative residual of a solution
_CHUNK = 512  # instances in memory at once


class Solver(Protocol):
    """A way to solve (H + damping) v = u."""

    def solve(self, product: Product, u: Tensor, advance: Callable[[int], None]) -> Tensor:
        """v [Q, p] for u [Q, p]; `advance(1)` after each step."""
        ...

    @property
    def steps(self) -> int:
        """The largest number of steps."""
        ...


@dataclass(frozen=True)
class ConjugateGradients:
    """Conjugate gradients: exact up to a tolerance if H plus damping is positive definite.

    Arguments:
        steps: the largest number of steps.
        tolerance: the norm of the residual, relative to that of u, at which it stops.
    """

    steps: int = 200
    tolerance: float = 1e-8

    def solve(self, product: Product, u: Tensor, advance: Callable[[int], None]) -> Tensor:
        """Solve for v [Q, p]; raises `Diverged` if it encounters negative curvature."""
        v = torch.zeros_like(u)
        r = u.clone()
        direction = r.clone()
        size = (r * r).sum(1, keepdim=True)
        for _ in range(self.steps):
            if bool((size.sqrt() <= self.tolerance * u.norm(dim=1, keepdim=True)).all()):
                break
            image = product(direction, None)
            curvature = (direction * image).sum(1, keepdim=True)
            if not bool(((curvature > 0) | (size == 0)).all()):
                raise Diverged(
                    "Conjugate gradients encountered a direction of negative curvature: the "
                    "Hessian at this model is not positive definite. Use a larger damping factor, or "
                    "the MomentumSGD solver."
                )
            rate = torch.where(curvature > 0, size / curvature, 0.0)
            v = v + rate * direction
            r = r - rate * image
            new = (r * r).sum(1, keepdim=True)
            direction = r + torch.where(size > 0, new / size, 0.0) * direction
            size = new
            advance(1)
        return v


@dataclass(frozen=True)
class LiSSA:
    """v <- u + (I - (H + damping)/scale) v on mini-batches.

    Arguments:
        steps: how many steps are taken.
        batch_size: instances per step.
        scale: it converges if this exceeds the largest eigenvalue of H + damping.
    """

    steps: int = 1000
    batch_size: int = 64
    scale: float = 25.0

    def solve(self, product: Product, u: Tensor, advance: Callable[[int], None]) -> Tensor:
        """v [Q, p] after all steps."""
        v = u.clone()
        for _ in range(self.steps):
            v = u + v - product(v, self.batch_size) / self.scale
            advance(1)
        return v / self.scale


@dataclass(frozen=True)
class MomentumSGD:
    """The paper's solver: momentum SGD on v'(H + damping)v/2 - u'v, starting at u.

    Arguments:
        steps: how many steps are taken.
        rate: the learning rate.
        momentum: the momentum factor.
        batch_size: instances per step; None for the whole training set.
    """

    steps: int = 100
    rate: float = 0.01
    momentum: float = 0.9
    batch_size: int | None = None

    def solve(self, product: Product, u: Tensor, advance: Callable[[int], None]) -> Tensor:
        """v [Q, p] after all steps."""
        v = u.clone()
        velocity = torch.zeros_like(u)
        for _ in range(self.steps):
            g = product(v, self.batch_size) - u
            velocity = SGD.next_momentum_buffer(velocity, g, self.momentum)
            v = v - self.rate * velocity
            advance(1)
        return v


@dataclass(frozen=True)
class InfluenceFunction:
    """Koh and Liang's influence function at the final model: 1/N <grad l(z_j), (H + damping)^-1 u>.

    Arguments:
        solver: `ConjugateGradients()`, `LiSSA()` or `MomentumSGD()`.
        damping: what is added to the diagonal of H.
        penalty: whether the run's penalty is part of H and of the instances' gradients.
        seed: of the solver's mini-batches.
    """

    solver: Solver = field(default_factory=MomentumSGD)
    damping: float = 0.01
    penalty: bool = False
    seed: int = 0

    def score(self, run: Run, query: Query) -> Scores:
        """Solve for H^-1 u and score every training instance."""
        if self.damping < 0:
            raise InvalidInput(f"damping must not be negative, but it is {self.damping}.")
        recording = run.recording
        query = as_query(query)
        state = recording.state_at(run.steps)
        adjoint, value = query.derivative(recording.objective, state)
        u = adjoint.theta
        rng = np.random.default_rng(self.seed)
        count = len(run)
        gradients = InstanceGradients(recording, state, penalty=self.penalty)

        def product(v: Tensor, batch_size: int | None) -> Tensor:
            ids = None
            if batch_size is not None and batch_size < count:
                ids = rng.choice(count, batch_size, replace=False)
            return gradients.hessian_product(v, ids) + self.damping * v

        with progress_bar("solving H v = u", self.solver.steps, show=run.progress) as advance:
            v = self.solver.solve(product, u, advance)
        if not bool(torch.isfinite(v).all()):
            raise Diverged(
                "The solver for H^-1 u diverged: use a smaller learning rate, a larger scale, or a "
                "larger damping factor."
            )
        residuals = (product(v, None) - u).norm(dim=1) / u.norm(dim=1).clamp_min(1e-300)
        residual = float(residuals.max())
        values = gradients.products(v) / count
        details = {
            "residual": residual,
            "converged": residual < _CONVERGED,
            "solver": repr(self.solver),
        }
        values = values if value.ndim else values[0]
        return replace(run.scores(values, query), hessian=True, details=details)


class InstanceGradients:
    """The training instances' losses at one state: nothing random, nothing augmented.

    Arguments:
        recording: the recorded run.
        state: where the losses are taken.
        penalty: whether the run's penalty is part of the loss.
    """

    def __init__(self, recording: Recording, state: State, *, penalty: bool):
        used = recording.objective.penalty if penalty else None
        objective = replace(recording.objective, penalty=used, stochastic=False)
        self.executor = Executor(objective)
        self.instances = recording.instances
        self.state = state

    def products(self, v: Tensor) -> np.ndarray:
        """<v_q, grad l(z_j)> for all training instances: v [Q, p] -> float64 [Q, N]."""
        with self.executor.evaluating():
            parts = [
                self._pull(batch, v, hessian=False)[0].double()
                for batch in self._batches(self._all_ids)
            ]
        return torch.cat(parts, dim=1).cpu().numpy()

    def hessian_product(self, v: Tensor, ids: np.ndarray | None = None) -> Tensor:
        """H v_q with H the Hessian of the mean loss over some instances, or all: [Q, p]."""
        ids = self._all_ids if ids is None else ids
        with self.executor.evaluating():
            total = torch.zeros_like(v)
            for batch in self._batches(ids):
                total += self._pull(batch, v, hessian=True)[1]
        return total / len(ids)

    def losses(self) -> np.ndarray:
        """Every training instance's loss: float64 [N]."""
        theta = self.state.theta
        buffers = self.state.buffers
        with self.executor.evaluating():
            parts = [
                self.executor.losses(theta, buffers, batch)[0].double()
                for batch in self._batches(self._all_ids)
            ]
        return torch.cat(parts).cpu().numpy()

    @property
    def _all_ids(self) -> np.ndarray:
        return np.arange(len(self.instances))

    def _pull(self, batch: LazyBatch, v: Tensor, hessian: bool):
        return self.executor.vjp(self.state.theta, self.state.buffers, batch, v, {}, hessian)

    def _batches(self, ids: np.ndarray) -> Iterator[LazyBatch]:
        chunks = [ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK)]
        steps = [[MicroBatch(chunk, np.ones(len(chunk)))] for chunk in chunks]
        yield from (batch for (batch,) in self.instances.lazy_batches(steps, 0, 0, None))

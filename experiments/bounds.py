"""The paper's theory, as numbers.

Theorem 1 bounds |(theta_-j - theta) - Delta theta_-j|, the error of the estimated SGD-influence,
for losses whose Hessian lies between lambda I and Lambda I, when every rate is at most 1/Lambda.
Theorem 2 says how fast the error can grow without convexity. docs/derivations.md has the extension
to instances that are used more than once.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.utils._pytree import tree_map

from dross.data.batch import AnyBatch, Batch
from dross.engine.state import State
from dross.engine.step import Step
from dross.influence.run import Run
from dross.replay.recording import Recording


@dataclass(frozen=True)
class ErrorBound:
    """Theorem 1, per training instance."""

    bound: np.ndarray  # float64 [N]: the error of the estimate is at most this
    largest: np.ndarray  # float64 [N]: h_j(lambda): neither estimate nor truth is longer than it
    visits: np.ndarray  # int64 [N]: how often it was used; where once, the bound is the paper's


def theorem1(run: Run, strong: float, smooth: float) -> ErrorBound:
    """The bound of Theorem 1 for every instance of a plain SGD run.

        h_j(a)  = eta/|S| prod over later steps s of (1 - eta_s a)  |g(z_j)|    at its step
        bound_j = sqrt(2 (h_j(lambda)^2 + h_j(Lambda)^2))                       used once
        bound_j = sum of h(lambda) over its uses, for truth and for estimate    used more often

    Arguments:
        run: a run of plain SGD, without momentum, weight decay, clipping or BatchNorm.
        strong: the paper's lambda > 0: no eigenvalue of the instances' Hessians is smaller.
        smooth: the paper's Lambda: none is larger (the penalty included).

    Returns:
        ErrorBound: arrays [N], one number per training instance.

    Raises:
        ValueError: unless 0 < lambda <= Lambda and every rate is at most 1/Lambda, and for a run
            that is not plain SGD.
    """
    recording = run.recording
    _check_run(recording, strong, smooth)
    count = len(recording.instances)
    visits = np.zeros(count, dtype=np.int64)
    once = {a: np.zeros(count) for a in (strong, smooth)}  # sums of h_j over the uses seen so far
    truth = np.zeros(count)  # the same for the counterfactual run, whose own steps lack z_j
    with recording.executor.training():
        for taken in recording.walk_forward():
            eta, ids = _only_rate(recording, taken.step, taken.t), taken.step.ids
            if eta > 1 / smooth * (1 + 1e-12):
                raise ValueError(
                    f"Theorem 1 needs every rate to be at most 1/Lambda = {1 / smooth:.3g}; step "
                    f"{taken.t} has {eta:.3g}."
                )
            share = np.zeros(count)
            np.add.at(share, ids, 1 / max(len(ids), 1))  # the part of the batch that is z_j
            for a in once:
                once[a] *= 1 - eta * a
            truth *= 1 - eta * strong * (1 - share)
            norms = _gradient_norms(recording, taken.state, taken.batches)
            for j, norm in zip(ids, norms):
                for a in once:
                    once[a][j] += eta / len(ids) * norm
                truth[j] += eta / len(ids) * norm
                visits[j] += 1
    paper = np.sqrt(2 * (once[strong] ** 2 + once[smooth] ** 2))
    return ErrorBound(np.where(visits <= 1, paper, truth + once[strong]), once[strong], visits)


def theorem2(eta: float, steps: int, smooth: float, gradient: float, lipschitz: float) -> float:
    """Theorem 2 before its O(): 4 ((1 + eta Lambda)^(T-1) - 1) / Lambda * eta^2 T^2 G^2 L.

    Arguments:
        eta: the constant rate.
        steps: T, the number of steps.
        smooth: Lambda, the bound of the Hessian.
        gradient: G, the bound of every gradient.
        lipschitz: L, the Lipschitz constant of the Hessian.

    Returns:
        The bound of the error; infinite where it exceeds every float.

    Raises:
        ValueError: without a step, or for a negative constant.
    """
    if min(eta, smooth, gradient, lipschitz) < 0 or steps < 1:
        raise ValueError("Theorem 2 needs at least one step and constants that are not negative.")
    growth = eta * (steps - 1)
    if smooth > 0:
        try:
            growth = math.expm1((steps - 1) * math.log1p(eta * smooth)) / smooth
        except OverflowError:
            return math.inf
    return 4 * growth * eta**2 * steps**2 * gradient**2 * lipschitz


def _check_run(recording: Recording, strong: float, smooth: float) -> None:
    if not 0 < strong <= smooth:
        raise ValueError(f"Theorem 1 needs 0 < lambda <= Lambda, not {strong} and {smooth}.")
    made = recording.optimizer
    plain = made.name == "SGD" and not made.any_momentum
    if not plain or any(made.flags.values()) or recording.objective.layout.moving_buffers:
        raise ValueError(
            "Theorem 1 is about plain SGD on losses of single instances: no momentum, no BatchNorm."
        )
    tape, column = recording.tape, made.columns.index("weight_decay")
    if tape.entries and tape.read(0).steps[0].hyperparams[:, column].any():
        raise ValueError(
            "Theorem 1 is about plain SGD: put the penalty into the instance loss (penalty=), not "
            "into weight_decay."
        )


def _only_rate(recording: Recording, step: Step, t: int) -> float:
    rates = step.hyperparams[:, recording.optimizer.columns.index("lr")]
    weighted = any(micro.coefficients is not None for micro in step.micros)
    if weighted or step.clip or (rates != rates[0]).any():
        raise ValueError(
            f"Theorem 1 is about one rate and the plain mean of the losses; step {t} has rates, "
            "weights or clipping of its own."
        )
    return float(rates[0])


def _gradient_norms(recording: Recording, state: State, batches: Sequence[AnyBatch]) -> np.ndarray:
    """|g(z_i; theta_t)| for the instances of a step, in their order."""
    objective, norms = recording.objective, []
    for batch in (batch.load() for batch in batches):

        def single(theta: Tensor, x, y, batch=batch) -> Tensor:
            x, y = tree_map(lambda t: t[None], (x, y))
            return objective.losses(theta, {}, Batch(x, y, batch.c[:1], batch.seed))[0].sum()

        each = vmap(grad(single), in_dims=(None, 0, 0), randomness="same")
        norms.append(each(state.theta, batch.x, batch.y).norm(dim=1))
    return torch.cat(norms).double().cpu().numpy() if norms else np.zeros(0)

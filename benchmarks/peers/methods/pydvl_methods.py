"""pyDVL's influence functions: <H^-1 grad test loss, grad train loss>, positive for what lowers the loss: our sign."""

import numpy as np
import torch.nn.functional as F
from pydvl.influence.torch import (
    ArnoldiInfluence,
    CgInfluence,
    EkfacInfluence,
    LissaInfluence,
    NystroemSketchInfluence,
)
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from ..problem import Problem

DAMPING = 0.01
BATCH = 250


class Flattening(nn.Module):
    """A model that takes its instances under any leading axes, so that a whole validation set can be one query."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...]):
        super().__init__()
        self.model, self.shape = model, shape

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x.reshape(-1, *self.shape))


def _loss(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y.reshape(-1))


def _scores(problem: Problem, kind: str, make) -> np.ndarray:
    x, y = problem.pair
    influence = make(Flattening(problem.trained(), tuple(x.shape[1:]))).fit(
        DataLoader(TensorDataset(x, y), BATCH)
    )
    factors = influence.influence_factors(*problem.asked_for(kind))
    parts = [
        influence.influences_from_factors(factors, *part)
        for part in zip(x.split(BATCH), y.split(BATCH))
    ]
    rows = np.concatenate([part.detach().double().numpy() for part in parts], axis=1)
    return rows[0] if kind == "mean" else rows


def conjugate_gradients(problem: Problem, kind: str) -> np.ndarray:
    make = lambda model: CgInfluence(
        model, _loss, regularization=DAMPING, maxiter=100, solve_simultaneously=True
    )
    return _scores(problem, kind, make)


def lissa(problem: Problem, kind: str) -> np.ndarray:
    return _scores(
        problem, kind, lambda model: LissaInfluence(model, _loss, regularization=DAMPING)
    )


def arnoldi(problem: Problem, kind: str) -> np.ndarray:
    return _scores(
        problem, kind, lambda model: ArnoldiInfluence(model, _loss, regularization=DAMPING)
    )


def nystroem(problem: Problem, kind: str) -> np.ndarray:
    return _scores(
        problem,
        kind,
        lambda model: NystroemSketchInfluence(model, _loss, regularization=DAMPING, rank=10),
    )


def ekfac(problem: Problem, kind: str) -> np.ndarray:
    """pyDVL's EK-FAC brings its own cross entropy and takes plain instances: the mean is taken over single queries."""
    x, y = problem.pair
    influence = EkfacInfluence(
        problem.trained(), update_diagonal=True, hessian_regularization=DAMPING
    )
    influence = influence.fit(DataLoader(TensorDataset(x, y), BATCH))
    factors = influence.influence_factors(
        *(problem.validation if kind == "mean" else problem.asked)
    )
    parts = [
        influence.influences_from_factors(factors, *part)
        for part in zip(x.split(BATCH), y.split(BATCH))
    ]
    rows = np.concatenate([part.detach().double().numpy() for part in parts], axis=1)
    return rows.mean(0) if kind == "mean" else rows

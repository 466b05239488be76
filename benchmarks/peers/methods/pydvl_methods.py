"""pyDVL's influence functions: <H^-1 grad test loss, grad train loss>.

They are positive for what lowers the loss: our sign.
"""

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
    """A model that takes instances under any leading axes: a whole validation set is one query."""

    def __init__(self, model: nn.Module, shape: tuple[int, ...]):
        super().__init__()
        self.model, self.shape = model, shape

    def forward(self, x: Tensor) -> Tensor:
        """[..., instance] -> [B, classes]."""
        return self.model(x.reshape(-1, *self.shape))


def _loss(outputs: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(outputs, y.reshape(-1))


def _score(problem: Problem, kind: str, make) -> np.ndarray:
    shape = tuple(problem.pair[0].shape[1:])
    influence = make(Flattening(problem.load_trained(), shape))
    rows = _rows(problem, influence, problem.asked_for(kind))
    return rows[0] if kind == "mean" else rows


def _rows(problem: Problem, influence, asked: tuple[Tensor, Tensor]) -> np.ndarray:
    """[Q, N]."""
    x, y = problem.pair
    influence = influence.fit(DataLoader(TensorDataset(x, y), BATCH))
    factors = influence.influence_factors(*asked)
    parts = [
        influence.influences_from_factors(factors, *part)
        for part in zip(x.split(BATCH), y.split(BATCH))
    ]
    return np.concatenate([part.detach().double().numpy() for part in parts], axis=1)


def conjugate_gradients(problem: Problem, kind: str) -> np.ndarray:
    """By conjugate gradients, at most 100 iterations."""
    options = {"regularization": DAMPING, "maxiter": 100, "solve_simultaneously": True}
    return _score(problem, kind, lambda model: CgInfluence(model, _loss, **options))


def lissa(problem: Problem, kind: str) -> np.ndarray:
    """By LiSSA with pyDVL's defaults."""
    make = lambda model: LissaInfluence(model, _loss, regularization=DAMPING)
    return _score(problem, kind, make)


def arnoldi(problem: Problem, kind: str) -> np.ndarray:
    """By an Arnoldi iteration with pyDVL's defaults."""
    make = lambda model: ArnoldiInfluence(model, _loss, regularization=DAMPING)
    return _score(problem, kind, make)


def nystroem(problem: Problem, kind: str) -> np.ndarray:
    """By a Nystroem sketch of rank 10."""
    options = {"regularization": DAMPING, "rank": 10}
    return _score(problem, kind, lambda model: NystroemSketchInfluence(model, _loss, **options))


def ekfac(problem: Problem, kind: str) -> np.ndarray:
    """With EK-FAC, which brings its own cross entropy and takes plain instances.

    The mean query is the mean over single queries.
    """
    options = {"update_diagonal": True, "hessian_regularization": DAMPING}
    influence = EkfacInfluence(problem.load_trained(), **options)
    rows = _rows(problem, influence, problem.validation if kind == "mean" else problem.asked)
    return rows.mean(0) if kind == "mean" else rows

"""dattri: train representations times (transformed) test representations.

They are positive for what lowers the loss: our sign.
"""

import numpy as np
import torch
import torch.nn.functional as F
from dattri.algorithm import DVEmbAttributor, TracInAttributor, TRAKAttributor
from dattri.algorithm.influence_function import (
    IFAttributorArnoldi,
    IFAttributorCG,
    IFAttributorEKFAC,
    IFAttributorLiSSA,
)
from dattri.task import AttributionTask
from torch import Tensor
from torch.func import functional_call
from torch.utils.data import DataLoader, TensorDataset

from ..problem import Problem

DAMPING = 0.01


class _Functions:
    """Losses of a batch of any shape: dattri passes instances without their axis, or one more."""

    def __init__(self, problem: Problem):
        self.model, self.shape = problem.load_trained(), problem.pair[0].shape[1:]
        self.dtype = problem.pair[0].dtype

    def logits(self, params, data) -> tuple[Tensor, Tensor]:
        x, y = data
        x = x.reshape(-1, *self.shape).to(self.dtype)
        return functional_call(self.model, params, (x,)), y.reshape(-1).long()

    def loss(self, params, data) -> Tensor:
        return F.cross_entropy(*self.logits(params, data))

    def margin(self, params, data) -> Tensor:
        """TRAK's output function: log p/(1 - p) of the right class."""
        logits, y = self.logits(params, data)
        log_p = -F.cross_entropy(logits, y)
        return log_p - torch.log1p(-torch.exp(log_p).clamp_max(1 - 1e-6))

    def probability(self, params, data) -> Tensor:
        return torch.exp(-F.cross_entropy(*self.logits(params, data)))


def _task(
    problem: Problem, functions: _Functions, every_epoch: bool = False, **options
) -> AttributionTask:
    paths = problem.checkpoints if every_epoch else problem.checkpoints[-1:]
    states = [torch.load(path) for path in paths]
    return AttributionTask(
        options.pop("loss_func", functions.loss),
        functions.model,
        states if every_epoch else states[0],
        **options,
    )


def _loaders(
    problem: Problem, kind: str, batch: int | None = None
) -> tuple[DataLoader, DataLoader]:
    """One batch with the whole training set, as dattri advises; one item per query."""
    train, queries = TensorDataset(*problem.pair), TensorDataset(*problem.asked_for(kind))
    return DataLoader(train, batch or len(train)), DataLoader(queries, len(queries))


def _to_rows(scores: Tensor, kind: str) -> np.ndarray:
    rows = scores.detach().T.double().numpy()  # [Q, N]
    return rows[0] if kind == "mean" else rows


def _inner_product(problem: Problem, kind: str, make, **options) -> np.ndarray:
    functions = _Functions(problem)
    attributor = make(_task(problem, functions), **options)
    train, queries = _loaders(problem, kind)
    attributor.cache(train)
    return _to_rows(attributor.attribute(train, queries), kind)


def conjugate_gradients(problem: Problem, kind: str) -> np.ndarray:
    """The influence function by conjugate gradients."""
    return _inner_product(problem, kind, IFAttributorCG, regularization=DAMPING)


def lissa(problem: Problem, kind: str) -> np.ndarray:
    """The influence function by LiSSA."""
    return _inner_product(problem, kind, IFAttributorLiSSA)


def arnoldi(problem: Problem, kind: str) -> np.ndarray:
    """The influence function by an Arnoldi iteration.

    It divides by the square roots of the eigenvalues it finds: negative ones give NaN.
    """
    return _inner_product(problem, kind, IFAttributorArnoldi, regularization=DAMPING)


def ekfac(problem: Problem, kind: str) -> np.ndarray:
    """The influence function with EK-FAC."""
    return _inner_product(problem, kind, IFAttributorEKFAC, damping=DAMPING)


def trak(problem: Problem, kind: str) -> np.ndarray:
    """TRAK with the margin as output and the loss as target.

    Its score is what removing would add to minus the loss.
    """
    functions = _Functions(problem)
    task = _task(problem, functions, loss_func=functions.margin, target_func=functions.loss)
    attributor = TRAKAttributor(task, functions.probability)
    train, queries = _loaders(problem, kind, batch=250)
    attributor.cache(train)
    return -_to_rows(attributor.attribute(queries), kind)


def tracin(problem: Problem, kind: str) -> np.ndarray:
    """TracIn over the checkpoints of all epochs."""
    task = _task(problem, _Functions(problem), every_epoch=True)
    weights = torch.full((problem.setting.epochs,), problem.setting.lr)
    attributor = TracInAttributor(task, weights, normalized_grad=False)
    train, queries = _loaders(problem, kind, batch=250)
    return _to_rows(attributor.attribute(train, queries), kind)


def dvemb(problem: Problem, kind: str) -> np.ndarray:
    """Data value embedding, which watches a training of its own."""
    functions = _Functions(problem)
    attributor = DVEmbAttributor(_task(problem, functions), proj_dim=problem.setting.dvemb)
    model, (x, y) = functions.model, problem.pair
    model.load_state_dict(problem.fresh_model().state_dict())
    for epoch, ids in problem.training_steps(model):
        at = torch.from_numpy(ids)
        attributor.cache_gradients(epoch, (x[at], y[at]), at, problem.setting.lr)
    attributor.cache()
    return _to_rows(attributor.attribute(_loaders(problem, kind)[1]), kind)

"""captum: influence as inner products of gradients.

It is positive for proponents, which lower the loss: the same sign as ours.
"""

import numpy as np
import torch
from captum.influence import TracInCP
from captum.influence._core.arnoldi_influence_function import ArnoldiInfluenceFunction
from torch import nn
from torch.utils.data import TensorDataset

from ..problem import Problem

BATCH = 250
HESSIAN_ROWS = 1000  # at most, for the Hessian of the Arnoldi iteration


def _load(problem: Problem):
    def load(model: nn.Module, path: str) -> float:
        model.load_state_dict(torch.load(path))
        return problem.setting.lr

    return load


def _losses(problem: Problem) -> dict:
    """captum's quick gradients of single instances where the model allows them, else its default.

    The quick way knows linear layers and convolutions only.
    """
    modules = problem.fresh_model().modules()
    quick = not any(isinstance(module, (nn.Embedding, nn.LayerNorm)) for module in modules)
    return {
        "loss_fn": nn.CrossEntropyLoss(reduction="sum" if quick else "none"),
        "sample_wise_grads_per_batch": quick,
    }


def tracincp(problem: Problem, kind: str) -> np.ndarray:
    """TracInCP over the checkpoints of all epochs."""
    paths = [str(path) for path in problem.checkpoints]
    explainer = TracInCP(
        problem.load_trained(),
        TensorDataset(*problem.pair),
        paths,
        checkpoints_load_func=_load(problem),
        batch_size=BATCH,
        **_losses(problem),
    )
    if kind == "mean":
        total = explainer.influence(problem.validation, aggregate=True)[0]
        return total.detach().numpy() / len(problem.validation[1])
    return explainer.influence(problem.asked).detach().numpy()


def arnoldi(problem: Problem, kind: str) -> np.ndarray:
    """The influence function by an Arnoldi iteration."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randperm(len(problem.pair[1]), generator=generator)[:HESSIAN_ROWS]
    explainer = ArnoldiInfluenceFunction(
        problem.load_trained(),
        TensorDataset(*problem.pair),
        str(problem.checkpoints[-1]),
        checkpoints_load_func=_load(problem),
        batch_size=BATCH,
        hessian_dataset=TensorDataset(problem.pair[0][rows], problem.pair[1][rows]),
        **_losses(problem),
    )
    asked = problem.validation if kind == "mean" else problem.asked
    scores = explainer.influence(asked).detach().numpy()
    return scores.mean(0) if kind == "mean" else scores

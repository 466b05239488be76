"""captum: influence as inner products of gradients, positive for proponents, which lower the loss: the same sign as ours."""

import numpy as np
import torch
from captum.influence import TracInCP
from captum.influence._core.arnoldi_influence_function import ArnoldiInfluenceFunction
from torch import nn
from torch.utils.data import TensorDataset

from ..problem import Problem

BATCH = 250
HESSIAN_ROWS = 1000  # the Hessian of the Arnoldi iteration is taken over at most so many instances


def _load(problem: Problem):
    def load(model: nn.Module, path: str) -> float:
        model.load_state_dict(torch.load(path))
        return problem.setting.lr

    return load


def _losses(problem: Problem) -> dict:
    """captum's quick way to gradients of single instances knows linear layers and convolutions only; elsewhere its default."""
    quick = not any(
        isinstance(module, (nn.Embedding, nn.LayerNorm))
        for module in problem.fresh_model().modules()
    )
    return {
        "loss_fn": nn.CrossEntropyLoss(reduction="sum" if quick else "none"),
        "sample_wise_grads_per_batch": quick,
    }


def tracincp(problem: Problem, kind: str) -> np.ndarray:
    paths = [str(path) for path in problem.checkpoints]
    explainer = TracInCP(
        problem.trained(),
        TensorDataset(*problem.pair),
        paths,
        checkpoints_load_func=_load(problem),
        batch_size=BATCH,
        **_losses(problem),
    )
    if kind == "mean":
        return explainer.influence(problem.validation, aggregate=True)[0].detach().numpy() / len(
            problem.validation[1]
        )
    return explainer.influence(problem.asked).detach().numpy()


def arnoldi(problem: Problem, kind: str) -> np.ndarray:
    rows = torch.randperm(len(problem.pair[1]), generator=torch.Generator().manual_seed(0))[
        :HESSIAN_ROWS
    ]
    explainer = ArnoldiInfluenceFunction(
        problem.trained(),
        TensorDataset(*problem.pair),
        str(problem.checkpoints[-1]),
        checkpoints_load_func=_load(problem),
        batch_size=BATCH,
        hessian_dataset=TensorDataset(problem.pair[0][rows], problem.pair[1][rows]),
        **_losses(problem),
    )
    scores = (
        explainer.influence(problem.validation if kind == "mean" else problem.asked)
        .detach()
        .numpy()
    )
    return scores.mean(0) if kind == "mean" else scores

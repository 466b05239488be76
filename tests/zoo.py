"""Small problems of every kind that dross promises to handle. All smooth, so that derivatives can be checked to the last digits."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from oracles import Problem

F64 = torch.float64


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner, self.outer = nn.Linear(6, 6), nn.Linear(6, 6)
        self.outer.weight = self.inner.weight
        self.head = nn.Linear(6, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.outer(torch.tanh(self.inner(x)))))


class PartlyUsed(nn.Module):
    """One layer is frozen, one is never used."""

    def __init__(self):
        super().__init__()
        self.frozen, self.unused, self.head = nn.Linear(6, 5), nn.Linear(3, 3), nn.Linear(5, 3)
        self.frozen.requires_grad_(False)

    def forward(self, x):
        return self.head(torch.tanh(self.frozen(x)))


class Words(nn.Module):
    """Embeddings (some rows never used), LayerNorm, self-attention."""

    def __init__(self, attention: bool):
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(12, 8), nn.LayerNorm(8), nn.Linear(8, 3)
        self.block = (
            nn.TransformerEncoderLayer(8, 2, 16, 0.1, "gelu", batch_first=True)
            if attention
            else nn.Identity()
        )

    def forward(self, x):
        return self.head(self.norm(self.block(self.embed(x))).mean(1))


def mlp():
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))


def linear():
    return nn.Linear(6, 3)


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.GELU(), nn.AvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)
    )


def batchnorm():
    return nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3))


def batchnorm_cnn():
    layers = [nn.Conv2d(1, 3, 3), nn.BatchNorm2d(3, momentum=None), nn.GELU(), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, 3))


def shared():
    """One block, BatchNorm and all, that stands in two places."""
    block = nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6), nn.Tanh())
    return nn.Sequential(block, block, nn.Linear(6, 3))


def groupnorm():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.Flatten(), nn.Linear(64, 3)
    )


def dropout():
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Dropout(0.3), nn.Linear(9, 3))


MODELS: dict[str, Callable[[], nn.Module]] = {
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "batchnorm": batchnorm,
    "batchnorm_cnn": batchnorm_cnn,
    "groupnorm": groupnorm,
    "dropout": dropout,
    "tied": Tied,
    "shared": shared,
    "partly_used": PartlyUsed,
    "embedding": lambda: Words(False),
    "attention": lambda: Words(True),
}

# eps is larger than usual: with the default, Adam turns on a scale of 1e-8 where a gradient is nearly 0, and a finite difference
# would measure its own step width. Autograd through the unrolled run checks the defaults.
OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1),
    "momentum": lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01
    ),
    "nesterov": lambda p: torch.optim.SGD(
        p, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01
    ),
    "maximize": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.5, maximize=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.02, weight_decay=0.01, eps=1e-4),
    "amsgrad": lambda p: torch.optim.Adam(p, lr=0.02, amsgrad=True, eps=1e-4),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.02, weight_decay=0.1),
    "adamw_maximize": lambda p: torch.optim.AdamW(
        p, lr=0.02, weight_decay=0.1, amsgrad=True, maximize=True, eps=1e-4
    ),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, lr_decay=0.01),
    "adadelta": lambda p: torch.optim.Adadelta(p, lr=1.0),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.02, eps=1e-4),
    "radam": lambda p: torch.optim.RAdam(p, lr=0.02),
    "adamax": lambda p: torch.optim.Adamax(p, lr=0.02),
    "asgd": lambda p: torch.optim.ASGD(p, lr=0.1),
    "rprop": lambda p: torch.optim.Rprop(p, lr=0.01),
}


def inputs(model: str, count: int, generator: torch.Generator) -> Tensor:
    if model in ("embedding", "attention"):
        return torch.randint(
            0, 10, (count, 4), generator=generator
        )  # rows 10 and 11 are never used
    shape = (count, 1, 6, 6) if "cnn" in model or model == "groupnorm" else (count, 6)
    return torch.randn(shape, dtype=F64, generator=generator)


def ragged_batches(count: int, epochs: int, seed: int = 0) -> list[np.ndarray]:
    """Batches of 4 with a ragged last one, an instance that stands in one batch twice, and one that is never used."""
    rng = np.random.default_rng(seed)
    batches = []
    for _ in range(epochs):
        order = rng.permutation(count - 1)  # the last instance is never used
        batches += np.split(order, range(4, count - 1, 4))
    batches[1] = np.append(batches[1], batches[1][0])
    return batches


def problem(
    model: str = "mlp", optimizer: str = "sgd", *, count: int = 15, epochs: int = 2, **changes: Any
) -> Problem:
    generator = torch.Generator().manual_seed(7)
    X, X_val = inputs(model, count, generator), inputs(model, 9, generator)
    Y, Y_val = (torch.randint(0, 3, (n,), generator=generator) for n in (count, 9))
    batches = ragged_batches(count, epochs)
    made = {
        "model": lambda: MODELS[model]().to(F64),
        "optimizer": OPTIMIZERS[optimizer],
        "X": X,
        "Y": Y,
        "X_val": X_val,
        "Y_val": Y_val,
        "batches": batches,
        "epochs": epochs,
        "used": [int(batches[1][0]), int(batches[0][1]), count - 1],
    }
    return Problem(**{**made, **changes})

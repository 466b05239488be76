"""Small problems of every kind that dross promises to handle.

All are smooth, so that derivatives can be checked to the last digits.
"""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import SGD, Adam, AdamW

from tests.oracles import Problem

F64 = torch.float64


class Tied(nn.Module):
    """Two layers share one weight."""

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
        self.block = nn.Identity()
        if attention:
            self.block = nn.TransformerEncoderLayer(8, 2, 16, 0.1, "gelu", batch_first=True)

    def forward(self, x):
        return self.head(self.norm(self.block(self.embed(x))).mean(1))


class Centred(nn.Module):
    """Keeps a running mean of its activations, without BatchNorm, and subtracts it."""

    def __init__(self, in_place: bool):
        super().__init__()
        self.inner, self.head, self.in_place = nn.Linear(6, 5), nn.Linear(5, 3), in_place
        self.register_buffer("mean", torch.zeros(5))
        self.register_buffer("count", torch.zeros((), dtype=torch.int64))

    def forward(self, x):
        h = torch.tanh(self.inner(x))
        if self.training and self.in_place:
            with torch.no_grad():
                self.mean.mul_(0.8).add_(h.mean(0), alpha=0.2)
                self.count += 1
        elif self.training:
            self.mean = 0.8 * self.mean + 0.2 * h.detach().mean(0)
        return self.head(h - self.mean)


class Queue(nn.Module):
    """Compares its activations with those of the last eight instances, as MoCo does."""

    def __init__(self):
        super().__init__()
        self.inner, self.head, self.norm = nn.Linear(6, 5), nn.Linear(13, 3), nn.BatchNorm1d(6)
        self.register_buffer("queue", torch.linspace(-1, 1, 40).view(8, 5))
        self.register_buffer("place", torch.zeros(1, dtype=torch.int64))

    def forward(self, x):
        h = torch.tanh(self.inner(self.norm(x)))
        near = h @ self.queue.clone().detach().T
        if self.training:
            self.put(h)
        return self.head(torch.cat([h, torch.tanh(near)], 1))

    @torch.no_grad()
    def put(self, h):
        places = (int(self.place) + torch.arange(len(h))) % 8
        self.queue[places] = h
        self.place[0] = (int(self.place) + len(h)) % 8


def mlp():
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3))


def linear():
    return nn.Linear(6, 3)


def cnn():
    layers = [nn.Conv2d(1, 3, 3), nn.GELU(), nn.AvgPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(12, 3))


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
    layers = [nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.GELU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 3))


def dropout():
    return nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Dropout(0.3), nn.Linear(9, 3))


class Lion(torch.optim.Optimizer):
    """As the common packages have it."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.0):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            (b1, b2), lr = group["betas"], group["lr"]
            for p in (p for p in group["params"] if p.grad is not None):
                m = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                p.mul_(1 - lr * group["weight_decay"])
                p.sub_(torch.sign(b1 * m + (1 - b1) * p.grad), alpha=lr)
                m.lerp_(p.grad, 1 - b2)


def matrices(given) -> list:
    """The matrices among parameters or groups of them: Muon takes no others."""
    given = list(given)
    if isinstance(given[0], dict):
        return [group | {"params": matrices(group["params"])} for group in given]
    return [p for p in given if p.ndim == 2]


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
#: They move buffers by code of their own, which scores treat as constants
BUFFER_MODELS: dict[str, Callable[[], nn.Module]] = {
    "centered": lambda: Centred(in_place=True),
    "centered_anew": lambda: Centred(in_place=False),
    "queue": Queue,
}

# eps is larger than usual: with the default, Adam turns on a scale of 1e-8 where a gradient is
# nearly 0, and a finite difference would measure its own step width. Autograd through the unrolled
# run checks the defaults.
HAS_MUON = hasattr(torch.optim, "Muon")  # from torch 2.9 on
#: whether attention's dropout draws other numbers inside of torch.func: seen in 2.13, not in 2.6
ATTENTION_DRAWS_OTHERS = torch.torch_version.TorchVersion(torch.__version__) >= (2, 7)

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "sgd": partial(SGD, lr=0.1),
    "momentum": partial(SGD, lr=0.05, momentum=0.9, dampening=0.1, weight_decay=0.01),
    "nesterov": partial(SGD, lr=0.05, momentum=0.8, nesterov=True, weight_decay=0.01),
    "maximize": partial(SGD, lr=0.05, momentum=0.5, maximize=True),
    "adam": partial(Adam, lr=0.02, weight_decay=0.01, eps=1e-4),
    "amsgrad": partial(Adam, lr=0.02, amsgrad=True, eps=1e-4),
    "adamw": partial(AdamW, lr=0.02, weight_decay=0.1),
    "adamw_maximize": partial(
        AdamW, lr=0.02, weight_decay=0.1, amsgrad=True, maximize=True, eps=1e-4
    ),
    "rmsprop": partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True),
    "adagrad": partial(torch.optim.Adagrad, lr=0.05, lr_decay=0.01),
    "adadelta": partial(torch.optim.Adadelta, lr=1.0),
    "nadam": partial(torch.optim.NAdam, lr=0.02, eps=1e-4),
    "radam": partial(torch.optim.RAdam, lr=0.02),
    "adamax": partial(torch.optim.Adamax, lr=0.02),
    "asgd": partial(torch.optim.ASGD, lr=0.1),
    "rprop": partial(torch.optim.Rprop, lr=0.01),
    "adamw_fused": partial(AdamW, lr=0.02, weight_decay=0.1, eps=1e-4, fused=True),
    "sgd_foreach": partial(SGD, lr=0.05, momentum=0.9, nesterov=True, foreach=True),
    "adafactor": partial(torch.optim.Adafactor, lr=0.05, weight_decay=0.1),
    "adafactor_maximize": partial(torch.optim.Adafactor, lr=0.02, d=1.5, maximize=True),
    "muon": lambda given: torch.optim.Muon(matrices(given), lr=0.05),
    "muon_rms": lambda given: torch.optim.Muon(
        matrices(given), lr=0.1, nesterov=False, momentum=0.5, adjust_lr_fn="match_rms_adamw"
    ),
    "lion": partial(Lion, lr=0.01, weight_decay=0.1),
}
try:
    from transformers.optimization import Adafactor as OfTransformers
except ImportError:  # an extra
    pass
else:
    OPTIMIZERS["transformers_adafactor"] = partial(OfTransformers, weight_decay=0.1)
    OPTIMIZERS["transformers_adafactor_rate"] = partial(
        OfTransformers,
        lr=0.05,
        beta1=0.9,
        scale_parameter=False,
        relative_step=False,
    )
JUMPS = {"rprop", "lion"}  # by the sign of a gradient: their scores are 0


def inputs(model: str, count: int, generator: torch.Generator) -> Tensor:
    """Random inputs that the model takes, [count, ...]."""
    if model in ("embedding", "attention"):  # words 10 and 11 are never used
        return torch.randint(0, 10, (count, 4), generator=generator)
    shape = (count, 1, 6, 6) if "cnn" in model or model == "groupnorm" else (count, 6)
    return torch.randn(shape, dtype=F64, generator=generator)


def ragged_batches(count: int, epochs: int, seed: int = 0) -> list[np.ndarray]:
    """Batches of 4, the last one smaller. One instance is in a batch twice, one is never used."""
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
    """A training run of these kinds; changes: other values for the fields of `Problem`."""
    generator = torch.Generator().manual_seed(7)
    X, X_val = inputs(model, count, generator), inputs(model, 9, generator)
    Y, Y_val = (torch.randint(0, 3, (n,), generator=generator) for n in (count, 9))
    batches = ragged_batches(count, epochs)
    made = {
        "model": lambda: (MODELS | BUFFER_MODELS)[model]().to(F64),
        "optimizer": OPTIMIZERS[optimizer],
        "X": X,
        "Y": Y,
        "X_val": X_val,
        "Y_val": Y_val,
        "batches": batches,
        "epochs": epochs,
        "used": [int(batches[1][0]), int(batches[0][1])],
    }
    return Problem(**{**made, **changes})

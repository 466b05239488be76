"""The models that dross offers, and how one is trained: enough to train it again."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..engine.losses import Loss, find_loss
from ..errors import InvalidInput
from ..support.name_hints import check_name

MODELS = ("linear", "mlp", "cnn")
MOMENTUM = 0.9
_HIDDEN = 64
_MIN_BATCH_SIZE, _MAX_BATCH_SIZE = 16, 1024
_STEPS_PER_EPOCH = 30  # that the default batch size aims at

Pair = tuple[Tensor, Tensor]  # inputs [N, ...] and targets [N] or [N, 1]


@dataclass(frozen=True)
class Recipe:
    """A model and the settings of its training."""

    model: str
    inputs: tuple[int, ...]  # the shape of one instance
    outputs: int
    loss: str = "cross_entropy"
    rate: float = 0.1
    epochs: int = 30
    batch_size: int = 32
    decay: bool = True  # whether the rate decays; it did not in earlier versions
    make: Callable[[], nn.Module] | None = None  # for a model of the user's own
    device: str = "cpu"  # where it is trained; a project can be trained again on any other

    def build(self, seed: int) -> nn.Module:
        """A new model with the initial weights of this seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.make is not None:
                return self.make()
            return build_network(self.model, self.inputs, self.outputs)

    def count_parameters(self) -> int:
        """How many numbers the parameters of one model have."""
        return sum(p.numel() for p in self.build(0).parameters())

    def steps_per_epoch(self, count: int) -> int:
        """How many batches it takes to see `count` instances."""
        return -(-count // self.batch_size)

    def rate_factor(self, step: int, steps: int) -> float:
        """What the rate is multiplied by at a step, counted from 0: from 1 to 0 along a cosine.

        The last iterate is then the model, and not the model plus the noise of its last batches.
        """
        return 0.5 * (1 + math.cos(math.pi * step / steps)) if self.decay else 1.0

    @property
    def loss_function(self) -> Loss:
        """The loss, one number per instance."""
        return find_loss(self.loss)[1]

    def losses(self, outputs: Tensor, y: Tensor) -> Tensor:
        """The loss of every instance, [K, N], given the outputs of K models, [K, N, outputs]."""
        return torch.stack([self.loss_function(of_one_model, y) for of_one_model in outputs])

    def errors(self, outputs: Tensor, y: Tensor) -> Tensor:
        """How far off every output is, [K, N], given the outputs of K models, [K, N, outputs].

        A wrong class counts 1, a right one 0. A number counts by its distance from the target.
        """
        if self.loss == "cross_entropy":
            return (outputs.argmax(-1) != y).to(outputs.dtype)
        return self.losses(outputs, y).sqrt()

    @staticmethod
    def from_json(saved: dict[str, Any], make: Callable[[], nn.Module] | None) -> "Recipe":
        """The recipe that a project keeps; raises TypeError if it is not one."""
        settings: dict[str, Any] = {"decay": False} | saved  # earlier versions did not say
        return Recipe(**settings, make=make)

    def to_json(self) -> dict[str, Any]:
        """The settings as a project keeps them; a model of the user's own is named elsewhere."""
        names = ("model", "inputs", "outputs", "loss", "rate", "epochs", "batch_size", "decay")
        return {name: getattr(self, name) for name in names}


def build_network(kind: str, inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """A new network of one of the kinds in MODELS.

    The activations are smooth: the scores are first-order estimates, and kinks mislead them.
    """
    check_name("model", kind, MODELS)
    size = int(np.prod(inputs))
    if kind == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(size, outputs))
    if kind == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(size, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, outputs)
        )
    if len(inputs) != 3:
        raise InvalidInput(
            f"A cnn takes pictures, not inputs of shape {inputs}. Choose linear or mlp."
        )
    channels, height, width = inputs
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), outputs),
    )


def default_batch_size(count: int) -> int:
    """A power of two that gives about thirty steps per epoch of `count` instances."""
    wanted = 2 ** round(np.log2(max(count, 1) / _STEPS_PER_EPOCH))
    return int(min(_MAX_BATCH_SIZE, max(_MIN_BATCH_SIZE, wanted)))

"""The settings of the cleansing experiment: data sets, networks, methods and draws."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from .. import estimators
from .._checks import check_name
from ..datasets.augment import ShiftAndFlip
from ..datasets.models import cifar10_cnn, mnist_cnn
from ..errors import InvalidInput
from ..estimators import Estimator

REMOVED_COUNTS = (1, 3, 6, 10, 30, 60, 100, 300, 600, 1000, 3000, 6000, 10_000)
RETRAIN_WAYS = ("last", "all", "fresh")
_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_CIFAR_BLACK = tuple(-mean / std for mean, std in zip(_CIFAR_MEAN, _CIFAR_STD))


@dataclass(frozen=True)
class Settings:
    """Everything that decides a result. Results of different settings are never merged."""

    data: str = "mnist"
    train: int = 50_000
    validation: int = 10_000
    test: int = 10_000
    epochs: int = 20
    batch_size: int = 64
    rate: float = 0.05
    removed: tuple[int, ...] = REMOVED_COUNTS
    version: int = 2

    @staticmethod
    def of(data: str, quick: bool) -> "Settings":
        """The paper's settings for a data set, or a small version of them; raises InvalidInput."""
        check_name("cleansing experiment", data, TASKS)
        if quick:
            return Settings(data, 1500, 500, 1000, 4, 64, 0.05, (1, 3, 10, 30, 100, 300))
        return Settings(data, train=TASKS[data].train)


@dataclass(frozen=True)
class Task:
    """What the paper does with one data set."""

    model: Callable[[], nn.Module]
    augment: ShiftAndFlip
    damping: float  # of K&L, in the paper's public code
    train: int
    absent: str  # with BatchNorm, removal means gone from the batch and its statistics

    def prepare(self, images: np.ndarray) -> torch.Tensor:
        """uint8 [N, H, W] or [N, H, W, 3] -> float32 [N, C, H, W], scaled as in the paper."""
        x = torch.from_numpy(np.ascontiguousarray(images)).float() / 255
        if x.dim() == 3:
            return (x[:, None] - 0.5) / 0.5
        mean, std = (torch.tensor(value)[:, None, None] for value in (_CIFAR_MEAN, _CIFAR_STD))
        return (x.permute(0, 3, 1, 2) - mean) / std


_SHIFT = ShiftAndFlip(2, fill=-1.0)
_SHIFT_AND_FLIP = ShiftAndFlip(4, flip=True, fill=_CIFAR_BLACK)
TASKS = {
    "mnist": Task(mnist_cnn, _SHIFT, 0.1, 50_000, "weight"),
    "fashion-mnist": Task(mnist_cnn, _SHIFT, 0.1, 50_000, "weight"),
    "cifar10": Task(cifar10_cnn, _SHIFT_AND_FLIP, 10.0, 40_000, "batch"),
}


def build_methods(settings: Settings, draw: int) -> dict[str, Estimator]:
    """The paper's methods and the others, with the paper's settings, by name."""
    steps = max(1, 2 * settings.train // 1000)  # two epochs of batches of 1,000
    solver = estimators.MomentumSGD(steps, 0.005, 0.9, min(1000, settings.train))
    return {
        "retrace": estimators.Retrace(),
        "last-epoch": estimators.Retrace(epochs=1),
        "no-hessian": estimators.WithoutHessian(),
        "k&l": estimators.InfluenceFunction(solver, TASKS[settings.data].damping, seed=draw),
        "autoencoder": estimators.Autoencoder(epochs=settings.epochs, seed=draw),
        "isolation-forest": estimators.IsolationForest(seed=draw),
        "loss": estimators.TrainingLoss(),
        "random": estimators.Random(seed=draw),
    }


METHODS = tuple(build_methods(Settings(), 0))


def check_names(kind: str, names: Iterable[str], known: Iterable[str]) -> list[str]:
    """The names, all of them known; raises InvalidInput and suggests the nearest one."""
    return [check_name(kind, name, known) for name in names]


def parse_draws(draws: str) -> range:
    """The numbers that "0:30" or "7" stands for; raises InvalidInput."""
    first, colon, last = draws.partition(":")
    try:
        numbers = range(int(first or 0), int(last)) if colon else range(int(first), int(first) + 1)
    except ValueError:
        raise InvalidInput(f"Give draws as 0:30 or as one number, not '{draws}'.") from None
    if not len(numbers) or numbers[0] < 0:
        raise InvalidInput(f"'{draws}' names no draw.")
    return numbers


def split_positions(
    settings: Settings, number: int, available: int
) -> tuple[np.ndarray, np.ndarray]:
    """Where a draw's validation and training instances stand in the set's own training part."""
    needed = settings.train + settings.validation
    if needed > available:
        raise InvalidInput(f"{settings.data} has {available} training instances, not {needed}.")
    order = np.random.default_rng([7, number]).permutation(available)
    return order[: settings.validation], order[settings.validation :][: settings.train]

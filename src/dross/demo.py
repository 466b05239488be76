"""The whole story in a minute: the digits that scikit-learn ships, with some labels flipped on purpose."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import nn

from .queries import error_rate, mean_loss
from .run import Run
from .scores import Scores
from .training import train
from .verification import Verification

FLIPPED = 0.05
TRAIN, VALIDATION = 900, 400  # the other 497 digits are the test part


@dataclass(frozen=True)
class Digits:
    train: tuple[torch.Tensor, torch.Tensor]
    validation: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]
    true_labels: np.ndarray  # of the training part, before some were flipped
    flipped: np.ndarray  # bool [N]


@dataclass(frozen=True)
class Story:
    run: Run
    scores: Scores
    verification: Verification
    digits: Digits
    removed: int
    validation: dict[str, float]  # mean loss by what was removed: nothing, the most harmful, as many at random
    test: dict[str, float]
    test_error: dict[str, float]

    def found(self, m: int) -> int:
        """How many of the m most harmful instances have a flipped label."""
        return int(self.digits.flipped[self.scores.most_harmful(m)].sum())


def flipped_digits(seed: int = 0) -> Digits:
    from sklearn.datasets import load_digits

    x, y = (np.asarray(part) for part in load_digits(return_X_y=True))
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(x))
    x, y = x[order] / 16, y[order].copy()
    true = y[:TRAIN].copy()
    flipped = np.zeros(TRAIN, dtype=bool)
    flipped[rng.choice(TRAIN, round(FLIPPED * TRAIN), replace=False)] = True
    y[:TRAIN][flipped] = (true[flipped] + rng.integers(1, 10, flipped.sum())) % 10
    parts = [slice(0, TRAIN), slice(TRAIN, TRAIN + VALIDATION), slice(TRAIN + VALIDATION, None)]
    pairs = [(torch.tensor(x[part], dtype=torch.float32), torch.tensor(y[part])) for part in parts]
    return Digits(pairs[0], pairs[1], pairs[2], true, flipped)


def classifier() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))


def tell(folder: Path, *, checked: int = 64, removed: int = 45, progress: bool = True, overwrite: bool = True) -> Story:
    """Train, score, verify against true leave-one-out, and see what removing the most harmful instances does."""
    digits = flipped_digits()
    torch.manual_seed(0)
    model = classifier()
    run = train(
        model, digits.train, "cross_entropy", torch.optim.SGD(model.parameters(), lr=0.1), tape=folder, epochs=30,
        batch_size=32, progress=progress, overwrite=overwrite,
    )  # fmt: skip
    validation = mean_loss(digits.validation)
    scores = run.influence(validation)
    verification = run.verify(scores, validation, n=checked)

    harmful = scores.most_harmful(removed)
    at_random = np.random.default_rng(1).choice(TRAIN, removed, replace=False)
    without = run.counterfactual([[], harmful, at_random])
    kinds: list[str] = ["nothing", "most harmful", "random"]
    asked = (validation, mean_loss(digits.test), error_rate(digits.test))
    values = [dict(zip(kinds, map(float, without.evaluate(q)))) for q in asked]
    return Story(run, scores, verification, digits, removed, *values)

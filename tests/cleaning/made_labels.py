"""Data with validation labels that are wrong on purpose."""

import numpy as np

QUICK = {
    "repeats": 2,
    "epochs": 4,
    "lr": 0.1,
    "batch_size": 40,
    "check": 2,
    "model": "linear",
    "progress": False,
}
CLASSES = np.array(["ash", "birch", "cedar"])


def make_part(count: int, wrong: float, seed: int):
    """Three clusters; of some instances the label is that of the next one. X, labels, which."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, count)
    x = rng.normal(0, 1, (count, 5)) + 3.0 * np.eye(3, 5)[truth]
    flipped = rng.random(count) < wrong
    return x, CLASSES[np.where(flipped, (truth + 1) % 3, truth)], flipped

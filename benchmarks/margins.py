"""Which measure of a recorded run finds flipped labels: its margins, its scores, its last loss.

    DROSS_DATA=/path PYTHONPATH=src python -m benchmarks.margins

Each run trains on MNIST images of whose labels a part was flipped, at random or to the next class.
The area under the ROC curve says how often a flipped label is ranked before a correct one.
"""

import argparse
import tempfile
import time

import numpy as np
import torch
from experiments.datasets import load
from sklearn.metrics import roc_auc_score
from torch import nn

import dross
from dross.estimators import TrainingLoss


def build(name: str) -> nn.Module:
    """A network of the paper's size, or one with a hidden layer."""
    if name == "mlp":
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    convolutions = [nn.Conv2d(1, 16, 5, 2), nn.ReLU(), nn.Conv2d(16, 16, 3, 2), nn.ReLU()]
    return nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(400, 10))


def flip(labels: np.ndarray, share: float, noise: str, rng: np.random.Generator) -> np.ndarray:
    """Which labels are flipped, bool [N]; they are changed in place."""
    flipped = rng.random(len(labels)) < share
    shift = rng.integers(1, 10, len(labels)) if noise == "random" else 1
    labels[flipped] = ((labels + shift) % 10)[flipped]
    return flipped


def measure(
    network: str, noise: str, epochs: int, *, momentum: float, count: int, seed: int
) -> dict[str, float]:
    """The area under the ROC curve of each measure, and what it took in seconds."""
    rng = np.random.default_rng(seed)
    images, given = load("mnist").train
    chosen = rng.choice(len(given), count + 1000, replace=False)
    x = torch.tensor(np.asarray(images)[chosen], dtype=torch.float32).reshape(-1, 1, 28, 28) / 255
    y = np.asarray(given)[chosen].astype(np.int64)
    flipped = flip(y[:count], 0.1, noise, rng)
    labels = torch.from_numpy(y)
    torch.manual_seed(seed)
    model = build(network)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=momentum)
    found: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:

        def took(name: str, action):
            start = time.perf_counter()
            result = action()
            found[f"{name}, s"] = time.perf_counter() - start
            return result

        train_set = (x[:count], labels[:count])
        options = {"epochs": epochs, "batch_size": 64, "seed": seed, "progress": False}
        options |= {"path": f"{folder}/tape", "keep": dross.tape.Checkpoints()}
        run = took(
            "training",
            lambda: dross.train(model, train_set, "cross_entropy", optimizer, **options),
        )
        query = dross.mean_loss((x[count:], labels[count:]))
        ranked = {
            "margins": took("margins", run.margins),
            "scores": took("scores", lambda: run.influence(query).values),
            "training loss": took("loss", lambda: TrainingLoss().score(run, query).values),
        }
    for name, values in ranked.items():
        used = ~np.isnan(values)
        found[name] = float(roc_auc_score(flipped[used], -values[used]))
    return found


def main() -> None:
    """Print a table, one row per network, kind of noise and number of epochs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=4000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--momentum", type=float, default=0.9)
    given = parser.parse_args()
    print("| network | flipped to | epochs | margins | training loss | scores | seconds |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for network in ("mlp", "cnn"):
        for noise in ("random", "next class"):
            for epochs in (5, 20):
                options = {"momentum": given.momentum, "count": given.count}
                rows = [
                    measure(network, noise, epochs, **options, seed=seed)
                    for seed in range(given.seeds)
                ]
                mean = {name: np.mean([row[name] for row in rows]) for name in rows[0]}
                areas = [f"{mean[n]:.3f}" for n in ("margins", "training loss", "scores")]
                parts = ("training", "margins", "scores")
                seconds = ", ".join(f"{name} {mean[f'{name}, s']:.1f}" for name in parts)
                print("|", " | ".join([network, noise, str(epochs), *areas, seconds]), "|")


if __name__ == "__main__":
    main()

"""The README's picture: estimated against true leave-one-out changes on the demo's digits.

    PYTHONPATH=src python experiments/verified_scatter.py docs/figures/verified.svg

One panel is for a smooth network, one for a kinked one.
"""

import sys
import tempfile

import matplotlib
import numpy as np
import torch
from torch import nn

import dross
from dross.demo import load_flipped_digits
from dross.influence.verify import Verification

matplotlib.use("svg")
import matplotlib.pyplot as plt

LEFT_OUT = np.random.default_rng(0).choice(900, 200, replace=False)
STYLE = {
    "svg.hashsalt": "dross",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def verify(digits, activation: type[nn.Module]) -> Verification:
    """Train a network with this activation, and retrain it without each of 200 random instances."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), activation(), nn.Linear(32, 10))
    with tempfile.TemporaryDirectory() as folder:
        run = dross.train(
            model,
            digits.train,
            "cross_entropy",
            torch.optim.SGD(model.parameters(), lr=0.1),
            path=folder + "/tape",
            epochs=30,
            batch_size=32,
        )
        query = dross.mean_loss(digits.validation)
        return run.verify(run.influence(query), LEFT_OUT)


def draw(panel, check: Verification, flipped: np.ndarray) -> None:
    """Draw estimated against true changes, flipped labels apart."""
    for kind, colour, label in (
        (~flipped, "#5b7a99", "right label"),
        (flipped, "#c2452d", "flipped label"),
    ):
        style = {"s": 9, "color": colour, "alpha": 0.8, "linewidths": 0}
        panel.scatter(check.estimated[kind], check.actual[kind], label=label, **style)
    low = min(check.estimated.min(), check.actual.min())
    high = max(check.estimated.max(), check.actual.max())
    panel.plot([low, high], [low, high], color="0.6", linewidth=0.8, zorder=0)


def main(path: str) -> None:
    """Write the picture."""
    matplotlib.rcParams.update(STYLE)
    digits = load_flipped_digits()
    figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.2), constrained_layout=True)
    for panel, activation in zip(panels, (nn.GELU, nn.ReLU)):
        name, check = activation.__name__, verify(digits, activation)
        draw(panel, check, digits.flipped[check.instances])
        panel.set(title=f"{name}: Kendall's tau {check.tau:.2f}", xlabel="score: estimated change")
        panel.locator_params(axis="x", nbins=5)
        agreement = f"tau {check.tau:.3f} spearman {check.spearman:.3f} slope {check.slope:.3f}"
        print(name, agreement)
    panels[0].set_ylabel("true change in the validation loss")
    panels[0].legend(frameon=False, loc="upper left")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/verified.svg")

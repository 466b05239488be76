"""The README's picture: estimated against true leave-one-out changes on the demo's digits, for a smooth and a kinked network.

python experiments/verified_scatter.py docs/figures/verified.svg
"""

import sys
import tempfile

import matplotlib
import torch
from torch import nn

import dross
from dross.demo import load_flipped_digits

matplotlib.use("svg")
import matplotlib.pyplot as plt


def main(path: str) -> None:
    matplotlib.rcParams.update(
        {
            "svg.hashsalt": "dross",
            "font.size": 9,
            "axes.spines.top": False,
            "axes.spines.right": False,
        }
    )
    digits = load_flipped_digits()
    figure, panels = plt.subplots(1, 2, figsize=(7.2, 3.2), constrained_layout=True)
    for panel, activation in zip(panels, (nn.GELU, nn.ReLU)):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(64, 32), activation(), nn.Linear(32, 10))
        with tempfile.TemporaryDirectory() as folder:
            run = dross.train(
                model,
                digits.train,
                "cross_entropy",
                torch.optim.SGD(model.parameters(), lr=0.1),
                tape=folder + "/tape",
                epochs=30,
                batch_size=32,
            )
            query = dross.mean_loss(digits.validation)
            check = run.verify(run.influence(query), query, n=200)
        flipped = digits.flipped[check.instances]
        for kind, colour, label in (
            (~flipped, "#5b7a99", "right label"),
            (flipped, "#c2452d", "flipped label"),
        ):
            panel.scatter(
                check.estimated[kind],
                check.actual[kind],
                s=9,
                color=colour,
                label=label,
                alpha=0.8,
                linewidths=0,
            )
        low, high = (
            min(check.estimated.min(), check.actual.min()),
            max(check.estimated.max(), check.actual.max()),
        )
        panel.plot([low, high], [low, high], color="0.6", linewidth=0.8, zorder=0)
        panel.set(
            title=f"{activation.__name__}: Kendall's tau {check.tau:.2f}",
            xlabel="score: estimated change",
        )
        panel.locator_params(axis="x", nbins=5)
        print(
            activation.__name__,
            f"tau {check.tau:.3f} spearman {check.spearman:.3f} slope {check.slope:.3f}",
        )
    panels[0].set_ylabel("true change of the validation loss")
    panels[0].legend(frameon=False, loc="upper left")
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "docs/figures/verified.svg")

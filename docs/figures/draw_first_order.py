"""When first-order estimates fail: estimated against true changes over learning rates, steps and kinks.

    PYTHONPATH=src python docs/figures/draw_first_order.py      # about a minute on two cores

Twelve real runs on the demo's digits (900 to learn from, 5 % with a wrong label). In each, the
same 64 instances, drawn at random, are left out, one at a time. Writes first-order.svg beside this
file.
"""

import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import dross
from dross import _figures as charts
from dross.demo import load_flipped_digits
from dross.influence.verify import Verification

RATES, EPOCHS, BATCH = (0.03, 0.3, 0.8), (6, 30), 50
LEFT_OUT = np.random.default_rng(0).choice(900, 64, replace=False)
KINKS = {"GELU": nn.GELU, "ReLU": nn.ReLU}


def compare(activation: type[nn.Module], rate: float, epochs: int) -> Verification:
    """Train once, score, and train again without each of 64 instances drawn at random."""
    digits = load_flipped_digits()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 32), activation(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    with tempfile.TemporaryDirectory() as folder:
        run = dross.train(
            model,
            digits.train,
            "cross_entropy",
            optimizer,
            epochs=epochs,
            batch_size=BATCH,
            path=f"{folder}/tape",
            progress=False,
        )
        query = dross.mean_loss(digits.validation)
        return run.verify(run.influence(query), LEFT_OUT)


def draw(panel, check: Verification, title: str, colour: str) -> None:
    """One panel: a dot for each instance, and the line on which estimate and truth agree."""
    scale = 1000
    estimated, actual = scale * check.estimated, scale * check.actual
    ends = [min(estimated.min(), actual.min()), max(estimated.max(), actual.max())]
    panel.plot(ends, ends, color=charts.GREY, linewidth=0.8, zorder=0)
    panel.scatter(estimated, actual, s=7, color=colour, linewidths=0, alpha=0.8)
    panel.set_title(f"{title}\nKendall's tau {round(check.tau, 2) + 0.0:.2f}", fontsize=7)
    panel.tick_params(labelsize=6)


def main() -> None:
    """Run everything, print the agreement, and write the figure."""
    settings = [(kink, epochs, rate) for kink in KINKS for epochs in EPOCHS for rate in RATES]
    figure, cells = charts.panels(len(settings), 3, height=1.75)
    steps = -(-900 // BATCH)
    for panel, (kink, epochs, rate) in zip(cells, settings):
        check = compare(KINKS[kink], rate, epochs)
        title = f"{kink}, learning rate {rate:g}, {steps * epochs} steps"
        print(f"{title}: tau {check.tau:.2f}", flush=True)
        draw(panel, check, title, charts.BLUE if kink == "GELU" else charts.RED)
    figure.supxlabel("estimated change in the validation loss, in thousandths", fontsize=8)
    figure.supylabel("true change", fontsize=8)
    charts.save_svg(charts.as_svg(figure), Path(__file__).with_name("first-order.svg"))


if __name__ == "__main__":
    main()

"""Harmful or mislabeled, and a verdict seed by seed, both from the demo's digits.

    PYTHONPATH=src python docs/figures/draw_cleaning.py      # about a minute on two cores

Writes harm.svg and verdict.svg beside this file.
"""

import tempfile
from pathlib import Path

import numpy as np

from dross import _figures as charts
from dross.demo import DemoResult, load_flipped_digits, run_demo

HERE = Path(__file__).parent


def draw_harm(result: DemoResult) -> None:
    """Each training digit by its two numbers: does it harm, and is its label wrong?"""
    rows = result.project.table
    flipped = load_flipped_digits().flipped[[int(Path(s).stem) for s in rows["source"]]]
    figure, (panel,) = charts.panels(1, 1, width=5.4, height=3.4)
    for kind, colour, label in (
        (~flipped, charts.BLUE, "right label"),
        (flipped, charts.RED, "flipped label"),
    ):
        style = {"s": 8, "color": colour, "alpha": 0.7, "linewidths": 0, "label": label}
        panel.scatter(1e4 * rows["score"][kind], rows["wrong"][kind], **style)
    panel.axvline(0, color=charts.GREY, linewidth=0.7)
    panel.axhline(0.5, color=charts.GREY, linewidth=0.7)
    panel.set_xlabel("score: change in the expected held-out error, in 0.01 points")
    panel.set_ylabel("probability that its label is wrong")
    panel.legend(loc="center right")
    charts.save_svg(charts.as_svg(figure), HERE / "harm.svg")
    wrong, harmful = (rows["wrong"] > 0.5).to_numpy(), (rows["score"] < 0).to_numpy()
    print(
        f"{harmful.sum()} of {len(rows)} harm, {wrong.sum()} are probably mislabeled; "
        f"{(wrong & ~harmful).sum()} of these do no harm; of {flipped.sum()} flipped ones "
        f"{(flipped & harmful).sum()} harm and {(flipped & wrong).sum()} are called wrong"
    )


def draw_verdict(result: DemoResult) -> None:
    """The log loss of the three models of every seed, and the changes with their interval."""
    verdict = result.verdict
    assert verdict is not None
    loss = verdict.metrics["log loss"]
    figure, (left, right) = charts.panels(2, 2, width=7.2, height=2.8)
    names = ("before", "after the plan", "random edits")
    values = np.array([loss.before, loss.after, loss.random])
    for seed in values.T:
        left.plot(range(3), seed, color=charts.GREY, linewidth=0.6, zorder=0)
    for place, colour in enumerate((charts.GREY, charts.BLUE, charts.ORANGE)):
        left.scatter([place] * values.shape[1], values[place], s=10, color=colour)
    left.set_xticks(range(3), names, fontsize=7)
    left.set_ylabel("log loss on the test rows")
    left.set_title("one line for each seed")
    rows = {
        "after the plan": (values[1] - values[0], loss.interval, charts.BLUE),
        "random edits": (values[2] - values[0], loss.random_interval, charts.ORANGE),
    }
    for place, (differences, (low, high), colour) in enumerate(rows.values()):
        right.plot([low, high], [place] * 2, color=colour, linewidth=2.5, alpha=0.5)
        right.scatter(differences, [place] * len(differences), s=8, color=colour)
    right.axvline(0, color="black", linewidth=0.7)
    right.set_yticks(range(2), list(rows), fontsize=7)
    right.set_ylim(-0.6, 1.6)
    right.set_xlabel("change in the log loss, with 95 % confidence intervals")
    right.set_title(f"the verdict: {verdict.verdict}")
    charts.save_svg(charts.as_svg(figure), HERE / "verdict.svg")
    print(verdict.sentence)


def main() -> None:
    """Run the demo and draw both figures."""
    with tempfile.TemporaryDirectory() as folder:
        result = run_demo(Path(folder) / "demo", progress=False, say=lambda line: None)
        draw_harm(result)
        draw_verdict(result)


if __name__ == "__main__":
    main()

"""How the plans that competed are drawn: in the report, on the page and in a notebook."""

from typing import Any

import numpy as np

from ...support.charts import BLUE, RED
from .candidates import KINDS

_KIND_COLOURS = (
    "black",
    BLUE,
    "#db982e",
    RED,
    "#50aee8",
    "#883244",
    "#8d1de0",
    "#c2a3a5",
    "#1b0583",
)  # apart for colour-blind readers, too (tests/review/test_colours.py)
_KIND_MARKERS = "os^DvPX*<>"
_TICKS = (1, 3, 10, 30, 100, 300, 1000, 3000, 10_000)


def draw_competition(panel: Any, about: dict[str, Any]) -> None:
    """Draw what every plan that was tried would have achieved, given `Project.about`.

    For projects of earlier versions, draw what each number of removals would have.
    """
    if "plans" in about:
        _draw_plans(panel, about["plans"])
    else:
        _draw_curve(panel, about["curve"])


def _draw_plans(panel: Any, plans: dict) -> None:
    """The change of the validation error against how many instances a plan touches, by kind."""
    for kind, colour in zip(KINDS, _KIND_COLOURS, strict=True):
        tried = sorted((p for p in plans["tried"] if p["kind"] == kind), key=lambda p: p["size"])
        if not tried:  # it would be a name in the legend without a line
            continue
        changes = [100 * plan["change"] for plan in tried]
        sizes = [plan["size"] for plan in tried]
        marker = _KIND_MARKERS[list(KINDS).index(kind)]
        panel.plot(sizes, changes, color=colour, marker=marker, markersize=3.5, label=kind)
    for plan in plans["finalists"]:
        if plan["name"] == plans["recommended"]:
            place = (len(plan["removed"]) + len(plan["relabelled"]), 100 * plan["change"])
            panel.plot(*place, marker="o", markersize=9, color="none", markeredgecolor="black")
    panel.axhline(0, color="0.4", linewidth=0.7)
    panel.set(xscale="log", xlabel="instances touched", ylabel="change of the error, %")
    largest = max(plan["size"] for plan in plans["tried"])
    ticks = [size for size in _TICKS if size <= largest]
    panel.set_xticks(ticks, [f"{size:,}" for size in ticks])
    panel.minorticks_off()
    panel.legend(fontsize=7)


def _draw_curve(panel: Any, curve: dict) -> None:
    """How many to remove, in projects of earlier versions."""
    sizes, changes = np.array(curve["sizes"]), np.array(curve["changes"])
    for one_seed in changes:
        panel.plot(sizes, one_seed, color="0.8", linewidth=0.7)
    mean, error = changes.mean(0), np.array(curve["errors"])
    low, high = mean - 2 * error, mean + 2 * error
    panel.fill_between(sizes, low, high, color=BLUE, alpha=0.15, linewidth=0)
    panel.plot(sizes, mean, color=BLUE, marker="o", markersize=3)
    panel.axhline(0, color="0.4", linewidth=0.7)
    if curve["m"] in sizes:
        panel.axvline(curve["m"], color=RED, linewidth=0.8, linestyle=":")
    panel.set(xscale="log", xlabel="instances removed", ylabel="change of the validation loss")
    panel.set_xticks(sizes, [f"{m:,}" for m in sizes])
    panel.minorticks_off()

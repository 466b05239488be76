"""Plots of results, on the user's axes or on new ones; matplotlib is imported when needed."""

from typing import Any

import numpy as np

from .charts import BLUE, GREY, RED
from .installed import check_installed


def open_axes(ax: Any) -> Any:
    """The user's axes, or new ones in the user's own style and backend.

    Raises:
        InvalidInput: matplotlib is not installed.
    """
    check_installed("A plot", "matplotlib")
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6.4, 3.6), layout="constrained")[1]


def plot_ranked(ax: Any, values: np.ndarray) -> None:
    """Scores [N] from the lowest to the highest: what is below 0 is harmful."""
    ranked = np.sort(values)
    places, harmful = np.arange(1, len(ranked) + 1), int((ranked < 0).sum())
    for colour, name, which in ((RED, "harmful", ranked < 0), (BLUE, "helpful", ranked > 0)):
        label = f"{name}: {int(which.sum()):,}"
        ax.fill_between(places, 0, ranked, where=which, step="mid", color=colour, label=label)
    ax.axhline(0, color=GREY, linewidth=0.8)
    ax.set(xlabel="instances, the most harmful first", ylabel="score")
    ax.ticklabel_format(axis="y", style="sci", scilimits=(-2, 2))
    ax.margins(x=0.01)
    ax.legend(loc="upper left" if harmful <= len(ranked) / 2 else "lower right")


def plot_agreement(ax: Any, estimated: np.ndarray, actual: np.ndarray) -> None:
    """Estimated against true changes, [K] each; on the line they are the same."""
    ax.scatter(estimated, actual, s=12, color=BLUE, alpha=0.8, linewidths=0)
    ends = [min(estimated.min(), actual.min()), max(estimated.max(), actual.max())]
    ax.plot(ends, ends, color="0.6", linewidth=0.7, zorder=0)
    ax.set(xlabel="estimated change", ylabel="change when retrained without it")
    ax.ticklabel_format(style="sci", scilimits=(-2, 2))
    ax.locator_params(nbins=5)

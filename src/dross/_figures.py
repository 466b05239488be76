"""Figures in one style, as SVG or on the user's axes, and arrays as PNG."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from ._io import write_bytes

BLUE, ORANGE, RED, GREY, GREEN = "#2f5d8a", "#d98e3f", "#c2452d", "#8a8f96", "#4d8a5c"


_STYLE = {
    "svg.hashsalt": "dross",
    "text.parse_math": False,  # a name may have a $ in it
    "font.size": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
    "axes.titlesize": 8,
    "legend.fontsize": 7,
    "figure.constrained_layout.use": True,
}


@contextmanager
def house_style() -> Iterator[None]:
    """Draw in our style inside the block, or inside the function that this decorates.

    The style and the backend that the user has chosen for matplotlib stay as they are.
    """
    from matplotlib import style

    with style.context(["default", _STYLE]):
        yield


def panels(
    count: int, columns: int, *, width: float = 7.6, height: float = 2.3, **options: Any
) -> tuple[Any, list[Any]]:
    """Return a figure and its `count` panels, row by row; the places left over stay empty."""
    from matplotlib.figure import Figure

    rows = -(-count // columns)
    figure = Figure(figsize=(width, height * rows))
    grid = figure.subplots(rows, columns, squeeze=False, **options)
    cells = list(grid.ravel())
    for cell in cells[count:]:
        cell.set_visible(False)
    return figure, cells[:count]


def as_svg(figure: Any) -> str:
    """Return the figure as an <svg> element, the same bytes every time."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    whole = re.sub(r"<metadata>.*?</metadata>", "", text.getvalue(), flags=re.DOTALL)
    return whole[whole.index("<svg") :]


def save_svg(svg: str, path: Path) -> Path:
    """Write an <svg> element as its own file, and return the path."""
    write_bytes(path, f'<?xml version="1.0" encoding="utf-8"?>\n{svg}'.encode())
    return path


def open_axes(ax: Any) -> Any:
    """The user's axes, or new ones in the user's own style and backend."""
    if ax is not None:
        return ax
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(6.4, 3.6), layout="constrained")[1]


def plot_ranked(ax: Any, values: np.ndarray) -> None:
    """Scores [N] from the lowest to the highest: what is below 0 is harmful."""
    ranked = np.sort(values)
    places = np.arange(1, len(ranked) + 1)
    harmful = int((ranked < 0).sum())
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
    ax.set(xlabel="estimated change", ylabel="change when the model is retrained without it")
    ax.ticklabel_format(style="sci", scilimits=(-2, 2))
    ax.locator_params(nbins=5)


def encode_png(image: np.ndarray) -> bytes:
    """Return the bytes of a PNG file for an image, uint8 [H, W] or [H, W, 3]."""
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(image).save(out, "png", optimize=True)
    return out.getvalue()

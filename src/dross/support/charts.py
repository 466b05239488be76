"""One style for all figures, and figures as SVG text that can stand inside a page."""

import io
import re
from pathlib import Path
from typing import Any

from ..errors import BadInput
from .atomic_files import write_text

BLUE, ORANGE, RED, GREY, GREEN = "#2f5d8a", "#d98e3f", "#c2452d", "#8a8f96", "#4d8a5c"


def load_pyplot() -> Any:
    """Import matplotlib's pyplot and set our style; without matplotlib, say what to install."""
    try:
        import matplotlib
    except ImportError:
        raise BadInput(
            "Figures need matplotlib: pip install matplotlib. The results themselves are kept."
        ) from None
    matplotlib.use("svg")
    matplotlib.rcParams.update(
        {
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
    )
    import matplotlib.pyplot as plt

    return plt


def panels(
    count: int, columns: int, *, width: float = 7.6, height: float = 2.3, **options: Any
) -> tuple[Any, list[Any]]:
    """Return a figure and its `count` panels, row by row; the places left over stay empty."""
    rows = -(-count // columns)
    figure, grid = load_pyplot().subplots(
        rows, columns, figsize=(width, height * rows), squeeze=False, **options
    )
    cells = list(grid.ravel())
    for cell in cells[count:]:
        cell.set_visible(False)
    return figure, cells[:count]


def as_svg(figure: Any) -> str:
    """Return the figure as an <svg> element, the same bytes every time, and close it."""
    text = io.StringIO()
    figure.savefig(text, format="svg", metadata={"Date": None})
    load_pyplot().close(figure)
    whole = re.sub(r"<metadata>.*?</metadata>", "", text.getvalue(), flags=re.DOTALL)
    return whole[whole.index("<svg") :]


def save_svg(svg: str, path: Path) -> Path:
    """Write an <svg> element as a file of its own, and return the path."""
    write_text(path, '<?xml version="1.0" encoding="utf-8"?>\n' + svg)
    return path

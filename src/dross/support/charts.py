"""One style for all figures, and figures as SVG text that can stand inside a page."""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ..errors import InvalidInput
from .atomic_files import write_text

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

    Raises:
        InvalidInput: matplotlib is not installed.
    """
    try:
        from matplotlib import style
    except ImportError:
        raise InvalidInput(
            "Figures need matplotlib: pip install matplotlib. The results themselves are kept."
        ) from None
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
    """Write an <svg> element as a file of its own, and return the path."""
    write_text(path, '<?xml version="1.0" encoding="utf-8"?>\n' + svg)
    return path

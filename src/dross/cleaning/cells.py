"""A cell of a table as text, and the order in which the cells of a row are shown."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

_WHOLE = re.compile(r"[+-]?\d{1,15}\.0", re.ASCII)


def format_cell(value: Any) -> str | None:
    """Return a cell as text, or None if it is missing; whole numbers are 63, not 63.0.

    Tables with gaps hold whole numbers as floats, and write them with one zero. 63.00 has two
    because somebody wanted them, and stays.
    """
    if value is None or value != value:
        return None
    text = str(value)
    return text[:-2] if _WHOLE.fullmatch(text) else text


def name_label(label: Any, about: Mapping[str, Any]) -> str:
    """Return a label as a person reads it, given `Project.about`.

    The name of a class is what it is; a value to be predicted is a number.
    """
    return str(label) if about["task"] == "classification" else format_cell(label) or ""


def order_columns(
    names: Iterable[Any], weights: Sequence[Sequence[Any]], unusual: Iterable[str]
) -> list[str]:
    """Return the columns of a row, those that matter most for it first.

    Arguments:
        names: All columns of the row.
        weights: [[column, how much it speaks for the label], ...], where that is known.
        unusual: Columns whose cells are unusual; they come next.
    """
    known = [str(name) for name in names]
    heavy = [str(name) for name, _ in sorted(weights, key=lambda entry: -abs(entry[1]))]
    first = [name for name in [*heavy, *unusual] if name in set(known)]
    return list(dict.fromkeys([*first, *known]))

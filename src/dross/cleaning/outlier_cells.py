"""Which cells of a table are unusual for their column, in words.

The rules are robust: one wild cell does not make another one usual. A number is unusual if it is
both beyond the 1st or the 99th percentile and far from the median, by three deviations that are
estimated from the median distance to it. A category or a gap is unusual if less than 1 % of the
rows have it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from .columns import Column
from .numbers import parse_finite
from .source import Frame, Series

_RARE_SHARE = 0.01
_FAR = 3  # deviations
_DEVIATION_PER_DISTANCE = 1.4826  # of normal numbers: their deviation over the median distance

_Describe = Callable[[Any], str]  # "" for a usual cell


class UnusualCells:
    """What is usual in each column of a table, worked out once.

    Arguments:
        content: The table.
        columns: What its columns are; kinds other than numbers and categories are skipped.
    """

    def __init__(self, content: Frame, columns: Sequence[Column]):
        makers = {"number": _judge_number, "category": _judge_category}
        self._describe: dict[str, _Describe] = {
            column.name: _with_gaps(content[column.name], makers[column.kind])
            for column in columns
            if column.kind in makers and column.name in content.columns
        }

    def __call__(self, row: Mapping[Any, Any]) -> dict[str, str]:
        """Return what is unusual in a row: {column: in words}."""
        found = {name: describe(row[name]) for name, describe in self._describe.items()}
        return {name: words for name, words in found.items() if words}


def _with_gaps(cells: Series, make: Callable[[Series], _Describe]) -> _Describe:
    """The rule of a column, and that of its gaps."""
    gaps = float(cells.isna().mean())
    words = f"missing: only {_percent(gaps)} of rows have no value here"
    about_gap = words if gaps < _RARE_SHARE else ""
    describe = make(cells.dropna())
    return lambda value: about_gap if value is None or value != value else describe(value)


def _judge_number(cells: Series) -> _Describe:
    numbers = np.sort(parse_finite(cells).dropna().to_numpy(float))
    if len(numbers) == 0:
        return lambda value: ""
    median = float(np.median(numbers))
    distance = _FAR * _DEVIATION_PER_DISTANCE * float(np.median(np.abs(numbers - median)))
    low, high = np.quantile(numbers, [_RARE_SHARE, 1 - _RARE_SHARE])

    def describe(value: Any) -> str:
        number = _to_number(value)
        if not low <= number <= high and abs(number - median) > distance:
            is_high = number > high
            place = np.searchsorted(numbers, number, "left" if is_high else "right")
            as_far = len(numbers) - place if is_high else place
            share, word = max(as_far, 1) / len(numbers), "high" if is_high else "low"
            return f"unusually {word}: only {_percent(share)} of rows are this {word}"
        return ""

    return describe


def _to_number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return np.nan
    return number if np.isfinite(number) else np.nan


def _judge_category(cells: Series) -> _Describe:
    shares: dict[Any, float] = cells.value_counts(normalize=True).to_dict()
    rarest = 1 / max(len(cells), 1)

    def describe(value: Any) -> str:
        share = shares.get(value, 0.0)
        rare = share < _RARE_SHARE and rarest < _RARE_SHARE
        return f"rare: only {_percent(max(share, rarest))} of rows have it" if rare else ""

    return describe


def _percent(share: float) -> str:
    percent = 100 * share
    return "0.1\u00a0%" if 0 < percent < 0.1 else f"{percent:.1f}\u00a0%"

"""What is learnt: the labels of a task, and numbers in text."""

import re
from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas

from ..errors import InvalidInput

# numbers ---


LARGEST = float(np.finfo(np.float32).max)  # models learn in float32
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


def read_number(text: Any) -> float | None:
    """The number that a text is; None for anything else, such as 1_000, which Python would read."""
    return float(text) if isinstance(text, str) and _NUMBER.fullmatch(text) else None


def read_learnable(text: Any) -> float | None:
    """The number that a text is, if a model can learn it: not infinite, not too large."""
    number = read_number(text)
    return number if number is not None and abs(number) <= LARGEST else None


def parse_numbers(cells: Any) -> Any:
    """A pandas.Series of cells as numbers, infinities among them; nan for all others."""
    numbers: Any = pandas.to_numeric(cells, errors="coerce")
    return numbers.astype(float)


def parse_finite(cells: Any) -> Any:
    """Cells as finite numbers; nan for all others."""
    return parse_numbers(cells).replace([np.inf, -np.inf], np.nan)


def check_size(names: Sequence[str], column: str, numbers: np.ndarray) -> None:
    """Refuse numbers that are infinite or too large for float32; missing ones are allowed.

    Arguments:
        names: The names of the instances they belong to.
        column: Their column.
        numbers: One for each instance.
    """
    wrong = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(wrong):
        first = int(wrong[0])
        more = f" (and {len(wrong) - 1:,} more)" if len(wrong) > 1 else ""
        raise InvalidInput(
            f"{names[first]}: '{column}' is {numbers[first]:g}{more}, too large to learn "
            f"from: the largest is {LARGEST:.2g}. Correct it, or leave it empty."
        )

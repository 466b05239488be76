"""Checks of arguments that several public functions take."""

import os
from typing import Any

import numpy as np

from ..errors import BadInput


def check_whole(value: Any, what: str) -> int:
    """The value as an int, or an error that calls it `what`."""
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise BadInput(f"{what} must be a whole number, not {value!r}.")
    return int(value)


def check_count(value: Any, what: str, *, at_most: int, because: str, at_least: int = 1) -> int:
    """The value as an int within limits, or an error that calls it `what`.

    Arguments:
        value: What was given.
        what: Its name.
        at_most: The largest that is accepted.
        because: Why no larger one is: the end of a sentence.
        at_least: The smallest that is accepted.
    """
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise BadInput(f"{what} must be at least {at_least} and whole, not {value!r}.")
    count = int(value)
    if count < at_least:
        raise BadInput(f"{what} must be at least {at_least} and whole, not {shorten(count)}.")
    if count > at_most:
        raise BadInput(f"{what} must be at most {at_most:,}, not {shorten(count)}: {because}.")
    return count


def shorten(number: int) -> str:
    """A whole number for a message: one of more than 20 digits is only described."""
    return f"{number}" if abs(number) < 10**20 else "a number of more than 20 digits"


def check_folder(value: Any, what: str) -> str | os.PathLike:
    """The value if it can name a folder, or an error that calls it `what`."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise BadInput(f"{what} must be the path of a folder, not {value!r}.")
    if not os.fspath(value) or "\0" in os.fspath(value):
        raise BadInput(f"{what} must be the path of a folder; {os.fspath(value)!r} is none.")
    return value


def check_function(value: Any, what: str) -> None:
    """Refuse what is neither None nor can be called, with an error that calls it `what`."""
    if value is not None and not callable(value):
        raise BadInput(f"{what} must be a function, not {value!r}.")


def check_number(value: Any, what: str) -> float:
    """The value as a float, or an error that calls it `what`."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise BadInput(f"{what} must be a number, not {value!r}.") from None

"""Checks of arguments that several public functions take."""

import difflib
import inspect
import os
from collections.abc import Callable, Iterable
from numbers import Integral
from pathlib import PurePath
from typing import Any

from ._text import printable
from .errors import InvalidInput

_MOST_NAMES = 30  # that a message lists
_LONGEST_NAME = 255  # bytes, on nearly all file systems


def check_whole(value: Any, what: str) -> int:
    """The value as an int, or an error that calls it `what`."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidInput(f"{what} must be a whole number, not {value!r}.")
    return int(value)


def check_count(value: Any, what: str, *, at_most: int, because: str, at_least: int = 1) -> int:
    """The value as an int within limits, or an error that calls it `what`.

    Arguments:
        value: The argument.
        what: Its name.
        at_most: The largest that is accepted.
        because: Why no larger one is: the end of a sentence.
        at_least: The smallest that is accepted.
    """
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or int(value) < at_least:
        raise InvalidInput(
            f"{what} must be a whole number of at least {at_least}, not {value!r:.40}."
        )
    if int(value) > at_most:
        raise InvalidInput(f"{what} must be at most {at_most:,}, not {value!r:.40}: {because}.")
    return int(value)


def check_folder(value: Any, what: str) -> str | os.PathLike:
    """The value if it can name a folder, or an error that calls it `what`."""
    if not isinstance(value, (str, os.PathLike)) or not isinstance(os.fspath(value), str):
        raise InvalidInput(f"{what} must be the path to a folder, not {value!r}.")
    if not os.fspath(value) or "\0" in os.fspath(value):
        raise InvalidInput(
            f"{what} must be the path to a folder, but {os.fspath(value)!r} is not a folder."
        )
    check_file_name(os.fspath(value))
    check_reachable(value)
    return value


def check_reachable(path: str | os.PathLike) -> None:
    """Refuse a path that leads through a folder, or to one, that may not be entered.

    Such a path looks like one where nothing is.
    """
    try:
        os.stat(os.path.join(path, "."))
    except PermissionError as error:
        raise InvalidInput(f"{os.fspath(path)} cannot be reached: {error.strerror}.") from None
    except OSError:  # nothing is there, or a file
        pass


def check_file_name(name: str) -> None:
    """Refuse the name of a file or folder that no file system or no report could hold."""
    try:
        name.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidInput(
            f"The name of {printable(name)} is not UTF-8. Rename the file."
        ) from None
    longest = max(PurePath(name).parts, key=len, default="")
    if len(longest.encode()) > _LONGEST_NAME:
        raise InvalidInput(
            f"'{longest[:40]}...' is too long for a file name: it has {len(longest.encode())} "
            f"bytes, and the limit is {_LONGEST_NAME}."
        )


def check_function(value: Any, what: str) -> None:
    """Refuse what is neither None nor callable, with an error that calls it `what`."""
    if value is not None and not callable(value):
        raise InvalidInput(f"{what} must be a function, not {value!r}.")


def check_signature(function: Callable, call: str, given: str) -> None:
    """Refuse a function that cannot be called with as many arguments as dross passes to it.

    Arguments:
        function: what the user passed.
        call: how dross calls it, such as "loss(outputs, targets)".
        given: what the arguments are.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # of a function that is not written in Python
        return
    try:
        signature.bind(*[None] * (call.count(",") + 1))
    except TypeError:
        raise InvalidInput(
            f"The function takes {signature}, but dross calls {call}: {given}."
        ) from None


def check_number(value: Any, what: str) -> float:
    """The value as a float, or an error that calls it `what`."""
    try:
        return float(value)
    except (TypeError, ValueError):
        raise InvalidInput(f"{what} must be a number, not {value!r}.") from None


def check_name(kind: str, name: str, known: Iterable[str], where: str = "") -> str:
    """Return the name if it is known; otherwise raise InvalidInput with the closest known name.

    Arguments:
        kind: What it is the name of.
        name: The name.
        known: All names that there are.
        where: Where they are, such as " in people.csv".
    """
    known = list(known)
    if name not in known:
        folded = {str(one).casefold(): one for one in known}
        near = difflib.get_close_matches(str(name).casefold(), folded, n=1)
        hint = f" Did you mean '{folded[near[0]]}'?" if near else ""
        more = f" and {len(known) - _MOST_NAMES:,} more" if len(known) > _MOST_NAMES else ""
        shown = ", ".join(map(str, known[:_MOST_NAMES]))
        raise InvalidInput(
            f"There is no {kind} named '{name}'{where}.{hint} Valid names are: {shown}{more}."
        )
    return name

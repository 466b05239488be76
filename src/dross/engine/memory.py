"""When memory runs out: free what can be made again, and go on with half as much."""

import warnings
from collections.abc import Callable
from typing import TypeVar

import torch

from ..errors import DrossWarning

Result = TypeVar("Result")


def try_to_fit(
    action: Callable[[], Result],
    size: int,
    *,
    what: str,
    free: Callable[[], object],
    may_halve: bool = True,
    advice: str = "",
) -> Result | None:
    """action(), or None where it ran out of memory: the caller then goes on with half the size.

    Arguments:
        action: the work, on `size` things at once.
        size: how many; a single thing cannot be halved.
        what: the things, for the warning: "models at once".
        free: frees memory whose contents can be made again.
        may_halve: False where the caller cannot go on with less.
        advice: a note for the error when a single thing does not fit.

    Raises:
        torch.OutOfMemoryError: where a single thing does not fit.
    """
    try:
        return action()
    except torch.OutOfMemoryError as error:
        if size == 1 and advice:
            error.add_note(f"dross: {advice}")
        if size == 1 or not may_halve:
            raise
    # outside the handler, because the error itself holds memory
    free()
    warnings.warn(f"Out of memory: going on with {size // 2} {what}.", DrossWarning, stacklevel=3)
    return None

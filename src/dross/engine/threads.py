"""How many CPU threads a pass runs on.

torch divides every operation between all threads. For a small model this saves nothing. And when
another program keeps one core busy, every operation waits for the thread on that core: on two
cores, one of them busy, the demo took eight minutes instead of half a minute. So a small pass runs
on one thread. Its size is counted, not timed: the same pass gets the same number of threads every
time, and rounds the same way.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

# operations of the forward passes; from about here on, two threads are a fifth faster than one
_MIN_OPERATIONS_FOR_ALL_THREADS = 2**23

_depth = 0  # how many manage_threads() are open
_allowed = 1  # the number of threads outside them


@contextmanager
def manage_threads() -> Iterator[None]:
    """Inside, `set_threads_for` sets the number of threads. At the end it is what it was before."""
    global _depth, _allowed
    if _depth == 0:
        _allowed = torch.get_num_threads()
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _depth == 0:
            _set_threads(_allowed)


def set_threads_for(operations: float) -> None:
    """Choose the number of threads for a pass of this many operations."""
    if _depth:
        _set_threads(_allowed if operations >= _MIN_OPERATIONS_FOR_ALL_THREADS else 1)


def _set_threads(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)

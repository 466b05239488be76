"""How many of a processor's threads a pass gets.

torch divides an operation of a small model between all of them, which saves nothing; and when another program keeps one core busy, every operation waits for
the thread that shares that core: the demo, half a minute, took eight on two cores of which one was busy. So a small pass runs on one thread. What is small is
counted, not timed: the same pass gets the same threads every time, and rounds the same way.
"""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_WORTH_SEVERAL = (
    2**23
)  # operations of the forward passes: from about here on two threads are a fifth quicker than one

_depth = 0
_allowed = 1


@contextmanager
def manage_threads() -> Iterator[None]:
    """Inside, `use_for` decides; at the end everybody else has as many as before."""
    global _depth, _allowed
    if _depth == 0:
        _allowed = torch.get_num_threads()
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _depth == 0:
            _use(_allowed)


def use_for(operations: float) -> None:
    """Run what follows on the threads that so much work is worth."""
    if _depth:
        _use(_allowed if operations >= _WORTH_SEVERAL else 1)


def _use(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)

"""Going backwards with few states: the cuts are the best there are."""

import math
from functools import cache

import pytest

from dross.replay import schedule


@cache
def least(steps: int, capacity: int) -> float:
    """How often a step is taken at most, by trying every cut.

    A single step needs no memory: its state is there.
    """
    if steps <= max(1, capacity):
        return 1
    if capacity == 0:
        return math.inf
    cuts = range(1, steps)
    return min(max(1 + least(cut, capacity), least(steps - cut, capacity - 1)) for cut in cuts)


@cache
def taken(steps: int, capacity: int) -> tuple[int, int]:
    """How often a step is taken at most, and how many are taken in all, by the schedule's cuts."""
    if steps <= max(1, capacity):
        return 1, steps
    cut = schedule.split_point(steps, capacity)
    (before, again), (after, once) = taken(cut, capacity), taken(steps - cut, capacity - 1)
    return max(1 + before, after), cut + again + once


@pytest.mark.parametrize("capacity", range(1, 8))
def test_the_cuts_are_the_best_there_are(capacity):
    for steps in range(1, 61):
        assert (
            taken(steps, capacity)[0]
            == schedule.repetitions(steps, capacity)
            == least(steps, capacity)
        )


def test_a_row_that_fits_is_taken_once_and_a_little_more_costs_a_little_more():
    assert taken(100, 100) == (1, 100)
    assert taken(101, 100) == (2, 103)
    assert taken(150, 100)[1] == 201

"""Going backwards with few states: the cuts are the best there are."""

import math
from functools import cache

import pytest

from dross.replay import checkpoint_schedule


@cache
def least(steps: int, room: int) -> float:
    """How often a step is taken at most, by trying every cut. A single step needs no room: its state is in hand."""
    if steps <= max(1, room):
        return 1
    return (
        min(max(1 + least(cut, room), least(steps - cut, room - 1)) for cut in range(1, steps))
        if room
        else math.inf
    )


@cache
def taken(steps: int, room: int) -> tuple[int, int]:
    """How often a step is taken at most, and how many are taken in all, with the cuts of the schedule."""
    if steps <= max(1, room):
        return 1, steps
    cut = checkpoint_schedule.first_part(steps, room)
    (before, again), (after, once) = taken(cut, room), taken(steps - cut, room - 1)
    return max(1 + before, after), cut + again + once


@pytest.mark.parametrize("room", range(1, 8))
def test_the_cuts_are_the_best_there_are(room):
    for steps in range(1, 61):
        assert taken(steps, room)[0] == checkpoint_schedule.times(steps, room) == least(steps, room)


def test_a_row_that_fits_is_taken_once_and_a_little_more_costs_a_little_more():
    assert taken(100, 100) == (1, 100)
    assert taken(101, 100) == (2, 103)
    assert taken(150, 100)[1] == 201

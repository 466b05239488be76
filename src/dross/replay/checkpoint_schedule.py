"""How to go backwards through a row of steps when only few of its states fit into memory.

A row is cut in two. Its first part is replayed to reach the state in the middle. Then the second
part is done, with one state less to spare, and after it the first part. With memory for r states
(the one at the start included) and each step taken at most k times, the longest row has

    longest_row(r, k) = longest_row(r, k - 1) + longest_row(r - 1, k)
    longest_row(r, 1) = r,    longest_row(1, k) = k

steps, where the two terms are the two parts: five states and three times are enough for 41 steps,
nine states and four times for 550.
"""

import math
from dataclasses import dataclass


def longest_row(capacity: int, times: int) -> int:
    """The longest row for a number of states in memory and of times that each step is taken."""
    if capacity < 1 or times < 1:
        return 0
    return math.comb(capacity + times, times) - math.comb(capacity + times - 2, times - 1)


def repetitions(steps: int, capacity: int) -> int:
    """How often a step is taken at most, with memory for `capacity` states."""
    k = 1
    while longest_row(capacity, k) < steps:
        k += 1
    return k


def split_point(steps: int, capacity: int) -> int:
    """Where to cut a row of more steps than fit: the length of its first part.

    As early as the second part can be done with each step taken one time less, or else where the
    first part is as long as it may be.
    """
    k = repetitions(steps, capacity)
    return min(longest_row(capacity, k - 1), steps - longest_row(capacity - 1, k - 1))


@dataclass(frozen=True)
class RowsTaken:
    """What going backwards through a row costs."""

    steps: int  # that are taken, each as often as it is
    without_gradient: tuple[int, ...]  # steps whose state is known and which are not taken


def rows_taken(steps: int, capacity: int, begin: int = 0, check_end: bool = True) -> RowsTaken:
    """Count what `SegmentReplay` takes again of a row of which no state but the first is kept.

    Arguments:
        steps: in the row.
        capacity: how many states fit.
        begin: steps before this one are not asked for.
        check_end: whether the last step is taken in any case, to compare its end with the tape.
    """
    taken, alone = 0, []
    rows = [(0, steps, capacity)]
    while rows:
        low, high, fitting = rows.pop()
        if high <= begin:
            continue
        length = high - low
        if length == 1 and not check_end:
            alone.append(low)
        elif length <= max(1, fitting):
            taken, check_end = taken + length, False
        else:
            middle = low + split_point(length, fitting)
            taken += middle - low
            rows += [(low, middle, fitting), (middle, high, fitting - 1)]
    return RowsTaken(taken, tuple(alone))

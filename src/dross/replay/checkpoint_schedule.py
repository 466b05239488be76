"""How to go backwards through a row of steps with room for few of its states.

A row is cut in two: its first part is gone through to know the state in the middle, its second part is done with one state less of room, then its first part
again. With room for r states, of which the one at the start is one, and each step taken at most k times, the longest row is

    reach(r, k) = reach(r, k - 1) + reach(r - 1, k),        reach(r, 1) = r,  reach(1, k) = k

where the two parts are the two terms: five states and three times are enough for 41 steps, nine and four for 550.
"""

import math


def reach(room: int, times: int) -> int:
    """The longest row that can be done with so many states and each step taken at most so many times."""
    if room < 1 or times < 1:
        return 0
    return math.comb(room + times, times) - math.comb(room + times - 2, times - 1)


def times(steps: int, room: int) -> int:
    """How often a step is taken at most."""
    k = 1
    while reach(room, k) < steps:
        k += 1
    return k


def first_part(steps: int, room: int) -> int:
    """Where to cut a row that is longer than the room: as early as the second part can be done with taking each step once less, or else
    where the first part is as long as it may be."""
    k = times(steps, room)
    return min(reach(room, k - 1), steps - reach(room - 1, k - 1))

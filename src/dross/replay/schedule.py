"""How to go backwards through a stretch of steps when only few of its states fit into memory.

A stretch is cut in two. Its first part is replayed to reach the state in the middle. Then the second
part is done, with one state less to spare, and after it the first part. With memory for r states
(the one at the start included) and each step taken at most k times, the longest stretch has

    longest_stretch(r, k) = longest_stretch(r, k - 1) + longest_stretch(r - 1, k)
    longest_stretch(r, 1) = r,    longest_stretch(1, k) = k

steps, where the two terms are the two parts: five states and three times are enough for 41 steps,
nine states and four times for 550.
"""

import math
from dataclasses import dataclass

from .._checks import check_whole
from .._text import say_count
from ..errors import InvalidInput
from ..tape.reader import Tape


def longest_stretch(capacity: int, times: int) -> int:
    """The longest stretch for a number of states in memory and of times that each step is taken."""
    if capacity < 1 or times < 1:
        return 0
    return math.comb(capacity + times, times) - math.comb(capacity + times - 2, times - 1)


def repetitions(steps: int, capacity: int) -> int:
    """How often a step is taken at most, with memory for `capacity` states."""
    k = 1
    while longest_stretch(capacity, k) < steps:
        k += 1
    return k


def split_point(steps: int, capacity: int) -> int:
    """Where to cut a stretch of more steps than fit: the length of its first part.

    As early as the second part can be done with each step taken one time less, or else where the
    first part is as long as it may be.
    """
    k = repetitions(steps, capacity)
    return min(longest_stretch(capacity, k - 1), steps - longest_stretch(capacity - 1, k - 1))


@dataclass(frozen=True)
class ReplayCost:
    """What going backwards through a stretch costs."""

    steps: int  # that are taken, each as often as it is
    without_gradient: tuple[int, ...]  # steps whose state is known and which are not taken


def replay_cost(steps: int, capacity: int, begin: int = 0, check_end: bool = True) -> ReplayCost:
    """Count what `SegmentReplay` takes again of a stretch of which no state but the first is kept.

    Arguments:
        steps: in the stretch.
        capacity: how many states fit.
        begin: steps before this one are not asked for.
        check_end: whether the last step is taken in any case, to compare its end with the tape.
    """
    taken = 0
    alone = []
    stretches = [(0, steps, capacity)]
    while stretches:
        low, high, fitting = stretches.pop()
        if high <= begin:
            continue
        length = high - low
        if length == 1 and not check_end:
            alone.append(low)
        elif length <= max(1, fitting):
            taken += length
            check_end = False
        else:
            middle = low + split_point(length, fitting)
            taken += middle - low
            stretches += [(low, middle, fitting), (middle, high, fitting - 1)]
    return ReplayCost(taken, tuple(alone))


@dataclass(frozen=True)
class StepRange:
    """Steps first..stop-1, of the epochs oldest..newest; the model is queried after `stop` steps."""

    first: int
    stop: int
    oldest: int = 0
    newest: int = 0

    @property
    def epochs(self) -> int:
        """How many epochs it covers."""
        return self.newest - self.oldest + 1


def choose_steps(tape: Tape, *, epochs: int | None = None, step: int | None = None) -> StepRange:
    """The steps to look at when the model is queried after `step` steps (all by default).

    Arguments:
        tape: the recorded run.
        epochs: how many of the last epochs before that; by default all that are kept.
        step: after how many steps the model is queried.

    Raises:
        InvalidInput: if the tape does not contain those steps or epochs.
    """
    stop = tape.steps if step is None else check_step(tape, step)
    oldest, newest = _epochs_before(tape, stop, epochs)
    return StepRange(start_of_epoch(tape, oldest), stop, oldest, newest)


def check_step(tape: Tape, step: int) -> int:
    """A number of steps after which the tape has the model; raises InvalidInput."""
    if not tape.first <= check_whole(step, "step") <= tape.steps:
        raise InvalidInput(
            f"step={step}: the tape contains the model after {tape.first} to {tape.steps} steps."
        )
    return step


def _epochs_before(tape: Tape, stop: int, epochs: int | None) -> tuple[int, int]:
    epochs = None if epochs is None else check_whole(epochs, "epochs")
    if epochs is not None and epochs < 1:
        raise InvalidInput(f"epochs must be at least 1, not {epochs}.")
    if stop == tape.first:
        return (0, 0)
    newest = tape.step(stop - 1).epoch
    oldest = tape.entries[0].epochs[0]
    if epochs is None:
        return (oldest, newest)
    if newest - epochs + 1 < oldest:
        kept = say_count(newest - oldest + 1, "epoch")
        has = f"keeps only the last {kept}" if tape.first > 0 else f"has {kept}"
        raise InvalidInput(f"The tape {has}, but epochs={epochs} was requested.")
    return (newest - epochs + 1, newest)


def start_of_epoch(tape: Tape, epoch: int) -> int:
    """The first kept step of this epoch or a later one."""
    indices = (k for k, entry in enumerate(tape.entries) if entry.epochs[1] >= epoch)
    if (index := next(indices, None)) is None:
        return tape.steps
    segment = tape.read(index)
    return segment.first + next(k for k, s in enumerate(segment.steps) if s.epoch >= epoch)

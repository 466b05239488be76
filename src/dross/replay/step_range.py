"""Which steps of a tape a question is about."""

from dataclasses import dataclass

from .._checks import check_whole
from ..errors import InvalidInput
from ..tape.reader import Tape


@dataclass(frozen=True)
class Window:
    """Steps first..stop-1, of the epochs oldest..newest; the model is asked after `stop` steps."""

    first: int
    stop: int
    oldest: int = 0
    newest: int = 0

    @property
    def epochs(self) -> int:
        """How many epochs it covers."""
        return self.newest - self.oldest + 1


def choose_window(tape: Tape, *, epochs: int | None = None, at: int | None = None) -> Window:
    """The steps to look at when the model is asked after `at` steps (all by default).

    Arguments:
        tape: the recorded run.
        epochs: how many of the last epochs before that; by default all that are kept.
        at: after how many steps the model is asked.

    Raises:
        InvalidInput: where the tape does not hold those steps or epochs.
    """
    stop = check_at(tape, at)
    oldest, newest = _epochs_before(tape, stop, epochs)
    return Window(start_of_epoch(tape, oldest), stop, oldest, newest)


def check_at(tape: Tape, at: int | None) -> int:
    """The number of steps after which the model is asked."""
    at = None if at is None else check_whole(at, "at")
    if at is not None and not tape.first <= at <= tape.steps:
        raise InvalidInput(
            f"at={at}: the tape holds the model after {tape.first} to {tape.steps} steps."
        )
    return tape.steps if at is None else at


def _epochs_before(tape: Tape, stop: int, epochs: int | None) -> tuple[int, int]:
    epochs = None if epochs is None else check_whole(epochs, "epochs")
    if epochs is not None and epochs < 1:
        raise InvalidInput(f"epochs must be at least 1, not {epochs}.")
    if stop == tape.first:
        return (0, 0)
    newest, oldest = _epoch_of(tape, stop - 1), tape.entries[0]["epochs"][0]
    if epochs is None:
        return (oldest, newest)
    if tape.first > 0 and newest - epochs + 1 < oldest:
        kept = newest - oldest + 1
        raise InvalidInput(f"The tape keeps only the last {kept} epochs; {epochs} were asked for.")
    return (max(oldest, newest - epochs + 1), newest)


def _epoch_of(tape: Tape, t: int) -> int:
    """The epoch of step t."""
    ends = (entry["first"] + entry["steps"] for entry in tape.entries)
    segment = tape.read(next(index for index, end in enumerate(ends) if t < end))
    return segment.steps[t - segment.first].epoch


def start_of_epoch(tape: Tape, epoch: int) -> int:
    """The first kept step of this epoch or a later one."""
    indices = (k for k, entry in enumerate(tape.entries) if entry["epochs"][1] >= epoch)
    if (index := next(indices, None)) is None:
        return tape.steps
    segment = tape.read(index)
    return segment.first + next(k for k, s in enumerate(segment.steps) if s.epoch >= epoch)

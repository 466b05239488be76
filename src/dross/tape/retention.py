"""What a tape keeps of a run.

A strategy is an object, and a segment is a starting state and the steps taken from it.

    EveryStep()            every state: the quickest retrace, the most disk (the paper's choice)
    Checkpoints(every=k)   one state per k steps, the rest replayed; about sqrt(T) by default
    LastEpochs(e)          only the last e epochs (the paper's approximation)
    Budget(bytes)          every step or a spacing of checkpoints with which the tape fits

By default every step is kept if all states take at most 128 MB, and checkpoints otherwise.
"""

import math
import numbers
from abc import ABC, abstractmethod
from dataclasses import dataclass

from .._checks import check_whole
from ..errors import InvalidInput

_MAX_SEGMENT_BYTES = 32 << 20
_MAX_SEGMENT_STEPS = 256
_SEGMENT_HEADER_BYTES = 4 << 10  # what a segment takes beside states and steps
_SMALL_TAPE_BYTES = 128 << 20  # states of this size are all kept by default
_DEFAULT_MEMORY_BYTES = 1 << 30  # where a budget names only the bytes on disk


class Keep(ABC):
    """The methods of every strategy."""

    @abstractmethod
    def resolve(self, planned: int | None, state_bytes: int, step_bytes: int) -> "Spacing":
        """Which states are kept of a run whose sizes are known.

        Arguments:
            planned: the number of steps, if it is known.
            state_bytes: the size of one state.
            step_bytes: the size of one step without its state.
        """

    @property
    def last_epochs(self) -> int | None:
        """How many epochs are kept; each then starts a new segment. None: all of them."""
        return None

    @property
    def memory(self) -> int | None:
        """Bytes for the states of a replay, for runs side by side and for training data."""
        return None


class Spacing(Keep):
    """A strategy that does not depend on the sizes of the run."""

    def resolve(self, planned: int | None, state_bytes: int, step_bytes: int) -> "Spacing":
        """Itself."""
        return self

    @property
    def every_state(self) -> bool:
        """Whether the state before every step is kept, not only before a segment's first."""
        return False

    @abstractmethod
    def length(self, first: int, planned: int | None, state_bytes: int) -> int:
        """The number of steps for the segment that starts at step `first`."""


def check_keep(keep: object) -> None:
    """Refuse anything that is not a strategy; None stands for the default one."""
    if keep is not None and not isinstance(keep, Keep):
        raise InvalidInput(
            f"keep must be EveryStep(), Checkpoints(), LastEpochs() or Budget(bytes), not {keep!r}."
        )


@dataclass(frozen=True)
class EveryStep(Spacing):
    """Keep the state before every step: the fastest retrace, but the most disk space.

    A retrace reads every state and replays no step.
    """

    @property
    def every_state(self) -> bool:
        """True: no step has to be replayed."""
        return True

    def length(self, first: int, planned: int | None, state_bytes: int) -> int:
        """The number of steps that gives a file of a convenient size."""
        return max(1, min(_MAX_SEGMENT_STEPS, _MAX_SEGMENT_BYTES // max(state_bytes, 1)))


@dataclass(frozen=True)
class Checkpoints(Spacing):
    """Keep one state per `every` steps; a retrace replays the steps between them.

    Arguments:
        every: steps between two kept states. By default about sqrt(T) for a run of T steps.

    Raises:
        InvalidInput: `every` is smaller than 1.
    """

    every: int | None = None

    def __post_init__(self):
        every = 1 if self.every is None else check_whole(self.every, "Checkpoints(every=...)")
        if every < 1:
            raise InvalidInput(f"Checkpoints(every=...) needs at least 1 step, not {self.every}.")

    def length(self, first: int, planned: int | None, state_bytes: int) -> int:
        """`every`, or about the square root of the number of steps."""
        if self.every is not None:
            return self.every
        if planned is not None:
            return max(1, round(math.sqrt(planned)))
        # It grows along with the run: still about sqrt(T) when T is not known.
        return max(16, math.isqrt(first))


@dataclass(frozen=True)
class DefaultRetention(Checkpoints):
    """What is kept when the caller does not say: every step of a small run, else checkpoints."""

    def resolve(self, planned: int | None, state_bytes: int, step_bytes: int) -> Spacing:
        """Every step where all states are small, and checkpoints otherwise."""
        small = planned is not None and planned * state_bytes <= _SMALL_TAPE_BYTES
        return EveryStep() if small else Checkpoints()


@dataclass(frozen=True)
class LastEpochs(Spacing):
    """Keep only the last epochs of a run; a retrace then covers only these epochs.

    Arguments:
        epochs: how many of the last epochs are kept.
        inside: which of their states are kept, `EveryStep()` or `Checkpoints()`.

    Raises:
        InvalidInput: `epochs` is smaller than 1.
    """

    epochs: int = 1
    inside: EveryStep | Checkpoints = Checkpoints()

    def __post_init__(self):
        if not isinstance(self.inside, (EveryStep, Checkpoints)):
            raise InvalidInput(f"inside must be EveryStep() or Checkpoints(), not {self.inside!r}.")
        if check_whole(self.epochs, "LastEpochs(epochs)") < 1:
            raise InvalidInput(f"LastEpochs needs at least 1 epoch, not {self.epochs}.")

    @property
    def every_state(self) -> bool:
        """The value from `inside`."""
        return self.inside.every_state

    @property
    def last_epochs(self) -> int | None:
        """Number of epochs that are kept."""
        return self.epochs

    def length(self, first: int, planned: int | None, state_bytes: int) -> int:
        """The value from `inside`."""
        return self.inside.length(first, planned, state_bytes)


@dataclass(frozen=True)
class Budget(Keep):
    """Keep as many states as fit, on disk and in memory.

    If all states fit, all are kept. Otherwise the run is cut into segments of one length, with
    the state before each. That is decided before the run begins.

    Arguments:
        bytes: of the tape on disk.
        in_memory: bytes for the states that a replay holds at a time where the model is (host or
            device), for counterfactual runs side by side, and for training data that are held
            instead of being read again. By default as many as on disk, and at most 1 GiB. The
            states before and after the current step, its batch and the model's own passes come on
            top.
        steps: how many steps the run will take, for a `Recorder`, which has no other way to know
            it.

    Raises:
        InvalidInput: a number is not positive. When a run begins: the budget cannot hold its first
            and last states and the list of instances, or the number of steps is not known.
    """

    bytes: int
    in_memory: int | None = None
    steps: int | None = None

    def __post_init__(self):
        in_memory = self.bytes if self.in_memory is None else self.in_memory
        for value in (self.bytes, in_memory):
            if not isinstance(value, numbers.Real):
                raise InvalidInput(f"A budget must be a number of bytes, not {value!r}.")
            if value <= 0:
                raise InvalidInput(f"A budget needs a positive number of bytes, not {value}.")
        if self.steps is not None and check_whole(self.steps, "Budget(steps=...)") < 1:
            raise InvalidInput(f"Budget(steps=...) needs at least 1 step, not {self.steps}.")

    @property
    def memory(self) -> int | None:
        """`in_memory`, or its default."""
        return min(self.bytes, _DEFAULT_MEMORY_BYTES) if self.in_memory is None else self.in_memory

    def resolve(self, planned: int | None, state_bytes: int, step_bytes: int) -> Spacing:
        """Every step if all states fit; otherwise a checkpoint interval at which they fit.

        Raises:
            InvalidInput: the first and the last state and the list of instances do not fit.
        """
        steps = self.steps if planned is None else planned
        if steps is None:
            raise InvalidInput(
                "The number of steps of this run is not known, so a budget cannot be divided "
                "among them: pass it as keep=Budget(bytes, steps=...), or use "
                "keep=Checkpoints(every=k)."
            )
        ends = 2 * (state_bytes + _SEGMENT_HEADER_BYTES)  # the first state and the last one
        fixed = ends + steps * step_bytes
        if self.bytes < fixed:
            raise InvalidInput(
                f"A budget of {self.bytes:,} bytes cannot hold the first and the last state of "
                f"this model and the list of instances: it must be at least {fixed:,}."
            )
        if steps * state_bytes + fixed <= self.bytes:
            return EveryStep()
        states = 1 + (self.bytes - fixed) // (state_bytes + _SEGMENT_HEADER_BYTES)
        return Checkpoints(every=max(1, math.ceil(steps / states)))

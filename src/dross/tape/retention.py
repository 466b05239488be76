"""What a tape holds of a run. A strategy is an object; a segment is a starting state and the steps taken from it.

EveryStep()            every state: the quickest retrace, the most disk (the paper's choice)
Checkpoints(every=k)   one state per k steps, the rest replayed; about sqrt(T) by default
LastEpochs(e)          only the last e epochs (the paper's approximation)
Budget(bytes)          picks among them so that the states fit, and bounds what is held in memory

Who says nothing gets every step where all states take no more than 128 MB, and checkpoints otherwise.
"""

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from ..errors import BadInput

_SEGMENT_BYTES = 32 << 20
_SEGMENT_STEPS = 256
_SEGMENT_HEADER = 4 << 10  # what a segment takes beside states and steps
_SMALL = 128 << 20  # bytes of states that nobody minds on a disk
_HELD = 1 << 30  # bytes in memory, where only those on disk were given


class Keep(ABC):
    """What every strategy answers."""

    @property
    def every_state(self) -> bool:
        """Keep the state before every step, not only before a segment's first."""
        return False

    @abstractmethod
    def length(self, first: int, planned: int | None, state_bytes: int) -> int:
        """How many steps the segment that starts at step `first` shall have."""

    def settled(self, planned: int | None, state_bytes: int, step_bytes: int) -> "Keep":
        """The strategy to use, once it is known how large a state and a step are and (perhaps) how many steps there will be."""
        return self

    @property
    def last_epochs(self) -> int | None:
        """Forget the epochs before the last so many, and start a new segment with each epoch."""
        return None

    @property
    def limit(self) -> int | None:
        """Thin the tape out when it takes more bytes than this."""
        return None

    @property
    def memory(self) -> int | None:
        """Bytes of states that a replay may hold at a time, of counterfactual runs side by side, and of data that may be held instead of being read again."""
        return None


@dataclass(frozen=True)
class EveryStep(Keep):
    @property
    def every_state(self) -> bool:
        return True

    def length(self, first: int, planned: int | None, state_bytes: int) -> int:
        return max(1, min(_SEGMENT_STEPS, _SEGMENT_BYTES // max(state_bytes, 1)))


@dataclass(frozen=True)
class Checkpoints(Keep):
    every: int | None = None

    def __post_init__(self):
        if self.every is not None and self.every < 1:
            raise BadInput(f"Checkpoints(every=...) needs at least 1 step, not {self.every}.")

    def length(self, first: int, planned: int | None, state_bytes: int) -> int:
        if self.every is not None:
            return self.every
        if planned is not None:
            return max(1, round(math.sqrt(planned)))
        return max(
            16, math.isqrt(first)
        )  # grows along with the run: still about sqrt(T) when T is not known


@dataclass(frozen=True)
class DefaultRetention(Checkpoints):
    """What is kept when nobody says what to keep."""

    def settled(self, planned: int | None, state_bytes: int, step_bytes: int) -> Keep:
        return (
            EveryStep()
            if planned is not None and planned * state_bytes <= _SMALL
            else Checkpoints()
        )


@dataclass(frozen=True)
class LastEpochs(Keep):
    epochs: int = 1
    inside: EveryStep | Checkpoints = Checkpoints()

    def __post_init__(self):
        if self.epochs < 1:
            raise BadInput(f"LastEpochs needs at least 1 epoch, not {self.epochs}.")

    @property
    def every_state(self) -> bool:
        return self.inside.every_state

    @property
    def last_epochs(self) -> int | None:
        return self.epochs

    def length(self, first: int, planned: int | None, state_bytes: int) -> int:
        return self.inside.length(first, planned, state_bytes)


@dataclass(frozen=True)
class Budget(Keep):
    """bytes: of the tape on disk. in_memory: of states that a replay holds at a time where the model is (host or device), of
    counterfactual runs side by side, and of training data that are held instead of being read again; by default as many, and at most 1 GiB. The states before and after
    the step in hand, its batch and the model's own passes come on top."""

    bytes: int
    in_memory: int | None = None
    spacing: int = 16  # to begin with; a tape that is thinned out goes on with longer segments

    def __post_init__(self):
        if min(self.bytes, self.bytes if self.in_memory is None else self.in_memory) <= 0:
            raise BadInput(f"A budget needs a positive number of bytes, not {self.bytes}.")

    @property
    def limit(self) -> int | None:
        return self.bytes

    @property
    def memory(self) -> int | None:
        return min(self.bytes, _HELD) if self.in_memory is None else self.in_memory

    def length(self, first: int, planned: int | None, state_bytes: int) -> int:
        return self.spacing

    def settled(self, planned: int | None, state_bytes: int, step_bytes: int) -> Keep:
        fixed = (
            2 * (state_bytes + _SEGMENT_HEADER) + (planned or 0) * step_bytes
        )  # the first state, the last one, all steps
        if self.bytes < fixed:
            raise BadInput(
                f"A budget of {self.bytes:,} bytes cannot hold the first and the last state of this model and the list of "
                f"instances: give at least {fixed:,}."
            )
        if planned is None:
            return self
        if planned * state_bytes + fixed <= self.bytes:
            return EveryStep()
        states = 1 + (self.bytes - fixed) // (state_bytes + _SEGMENT_HEADER)
        return replace(self, spacing=max(1, math.ceil(planned / states)))

"""What a tape holds of a run. A strategy is an object; a segment is a starting state and the steps taken from it.

    EveryStep()            every state: the quickest retrace, the most disk (the paper's choice)
    Checkpoints(every=k)   one state per k steps, the rest replayed; about sqrt(T) by default
    LastEpochs(e)          only the last e epochs (the paper's approximation)
    Budget(bytes)          picks among them so that the states fit
"""

import math
from dataclasses import dataclass, field
from typing import Protocol

from .errors import BadInput

_SEGMENT_BYTES = 32 << 20
_SEGMENT_STEPS = 256
_STEP_BYTES = 8 << 10  # what a step itself may take beside its state: ids, rates


class Keep(Protocol):
    every_state: bool
    by_epoch: bool  # start a new segment with each epoch
    last_epochs: int | None  # forget the epochs before the last so many
    limit: int | None  # thin the tape out when its states take more bytes than this

    def length(self, first: int, planned: int | None, state_bytes: int) -> int:
        """How many steps the segment that starts at step `first` shall have."""
        ...

    def settled(self, planned: int | None, state_bytes: int) -> "Keep":
        """The strategy to use, once it is known how large a state is and (perhaps) how many steps there will be."""
        ...


@dataclass(frozen=True)
class EveryStep:
    every_state: bool = field(default=True, init=False)
    by_epoch: bool = field(default=False, init=False)
    last_epochs: int | None = field(default=None, init=False)
    limit: int | None = field(default=None, init=False)

    def length(self, first: int, planned: int | None, state_bytes: int) -> int:
        return max(1, min(_SEGMENT_STEPS, _SEGMENT_BYTES // max(state_bytes, 1)))

    def settled(self, planned: int | None, state_bytes: int) -> Keep:
        return self


@dataclass(frozen=True)
class Checkpoints:
    every: int | None = None
    every_state: bool = field(default=False, init=False)
    by_epoch: bool = field(default=False, init=False)
    last_epochs: int | None = field(default=None, init=False)
    limit: int | None = field(default=None, init=False)

    def __post_init__(self):
        if self.every is not None and self.every < 1:
            raise BadInput(f"Checkpoints(every=...) needs at least 1 step, not {self.every}.")

    def length(self, first: int, planned: int | None, state_bytes: int) -> int:
        if self.every is not None:
            return self.every
        if planned is not None:
            return max(1, round(math.sqrt(planned)))
        return max(16, math.isqrt(first))  # grows along with the run: still about sqrt(T) when T is not known

    def settled(self, planned: int | None, state_bytes: int) -> Keep:
        return self


@dataclass(frozen=True)
class LastEpochs:
    epochs: int = 1
    inside: EveryStep | Checkpoints = Checkpoints()
    by_epoch: bool = field(default=True, init=False)
    limit: int | None = field(default=None, init=False)

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

    def settled(self, planned: int | None, state_bytes: int) -> Keep:
        return self


@dataclass(frozen=True)
class Budget:
    bytes: int
    every_state: bool = field(default=False, init=False)
    by_epoch: bool = field(default=False, init=False)
    last_epochs: int | None = field(default=None, init=False)
    spacing: int = field(default=16, init=False)

    def __post_init__(self):
        if self.bytes <= 0:
            raise BadInput(f"A budget needs a positive number of bytes, not {self.bytes}.")

    @property
    def limit(self) -> int | None:
        return self.bytes

    def length(self, first: int, planned: int | None, state_bytes: int) -> int:
        return self.spacing

    def settled(self, planned: int | None, state_bytes: int) -> Keep:
        smallest = 2 * state_bytes + _STEP_BYTES  # where the run starts and where it ends
        if self.bytes < smallest:
            raise BadInput(
                f"A budget of {self.bytes:,} bytes cannot hold the first and the last state of this model: "
                f"give at least {smallest:,}."
            )
        if planned is None:
            return self
        if planned * (state_bytes + _STEP_BYTES) + smallest <= self.bytes:
            return EveryStep()
        states = max(1, (self.bytes - smallest) // (state_bytes + _STEP_BYTES))
        return Checkpoints(every=max(1, math.ceil(planned / states)))

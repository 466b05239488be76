"""Take the steps of a segment again, with no more of its states in memory than fit."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ..data.batch import AnyBatch, LazyBatch
from ..data.dataset import EVERYTHING
from ..engine.device import HostCopy, side_stream
from ..engine.memory import halve
from ..engine.state import State
from ..engine.step import Step, needs_gradient, take_step
from ..engine.step_stacks import take_steps
from ..engine.tolerance import ROUNDING, is_close, size
from ..errors import InputChanged
from ..tape.format import Segment
from ..tape.reader import Tape
from . import schedule

if TYPE_CHECKING:
    from .recording import Recording

_MAX_BYTES_OF_STATES = 1 << 30  # of one segment held in memory, where no budget was given

Check = Callable[[], None]
#: the states before each step, the gradients that a retrace needs, and the end state
Replayed = tuple[list[State], list[Tensor | None], State]


@dataclass(frozen=True)
class Block:
    """Consecutive steps of a run, from step `first` on, with the state before each."""

    first: int
    steps: Sequence[Step]
    batches: Sequence[list[LazyBatch]]
    states: list[State]
    gradients: list[Tensor | None]  # where replaying gave them and a reverse step needs them

    def from_step(self, first: int) -> "Block":
        """Without the steps before number `first`."""
        k = max(0, first - self.first)
        return Block(
            self.first + k, self.steps[k:], self.batches[k:], self.states[k:], self.gradients[k:]
        )


@dataclass(frozen=True)
class SegmentReplay:
    """Takes the steps of a recording's segments again."""

    recording: "Recording"

    def blocks(self, index: int, segment: Segment, begin: int, stop: int) -> Iterator[Block]:
        """The steps of a segment from `begin` to before `stop`, in blocks, the last block first.

        A segment whose states do not fit into memory is replayed more than once, block by block.
        """
        last = min(stop, segment.end) - segment.first
        if len(segment.states) == len(segment.steps):
            gradients, check = self._check_links(index, segment, last)
            yield self._block(segment, 0, segment.states[:last], gradients)
            check()  # now that a GPU has enough to do
        else:
            yield from self._replayed_blocks(index, segment, begin - segment.first, last)

    def _block(
        self, segment: Segment, low: int, states: list[State], gradients: list[Tensor | None]
    ) -> Block:
        first = segment.first + low
        steps = segment.steps[low : low + len(states)]
        return Block(first, steps, self.recording.batches(first, steps), states, gradients)

    def _check_links(
        self, index: int, segment: Segment, count: int
    ) -> tuple[list[Tensor | None], Check]:
        """Check that each kept state leads to the next. Its gradients, and the last check.

        On a tape of dross.train whose data was digested as a whole, only the first step is
        checked, as a sample. Data that are read batch by batch may have changed anywhere, and in
        the user's own loop anything may have happened between two steps: then all are.
        """
        tape = self.recording.tape
        is_sample_enough = tape.manifest.data_digest == EVERYTHING and not tape.manifest.foreign
        suspect = range(min(count, 1)) if is_sample_enough else range(count)
        gradients: list[Tensor | None] = [None] * count
        batches = self.recording.batches(segment.first, segment.steps[: len(suspect)])
        check = do_nothing
        for k in suspect:
            after, gradients[k] = self._take(segment.steps[k], segment.states[k], batches[k])
            check()  # of the step before, while a GPU takes this one
            if k + 1 < len(segment.steps):
                expected = lambda k=k: segment.states[k + 1]
                check = check_later(after, expected, segment.first + k + 1, tape)
            else:
                check = self._check_end_later(index, after, segment)
        return gradients, check

    # --- states are replayed ----------------------------------------------------------------------

    def _replayed_blocks(
        self, index: int, segment: Segment, begin: int, last: int
    ) -> Iterator[Block]:
        """Steps begin..last-1 of a segment (see schedule.py). A block may start before `begin`."""
        check_end = last == len(segment.steps)  # by the last block, which comes first
        # from, to, the state at the start, and how many states fit, that one included
        stretches = [(0, last, segment.states[0], self.capacity(segment, last))]
        while stretches:
            low, high, start, capacity = stretches.pop()
            length = high - low
            if high <= begin:
                continue
            if length == 1 and not check_end:
                yield self._block(segment, low, [start], [None])
                continue
            if length <= max(1, capacity):
                replayed = self._replay_if_it_fits(segment, low, high, start)
                if replayed is not None:
                    states, gradients, end = replayed
                    check = do_nothing
                    if check_end:
                        check = self._check_end_later(index, end, segment)
                    del replayed, end, start
                    block = self._block(segment, low, states, gradients)
                    del states, gradients
                    yield block
                    del block  # before the next one is made
                    check()
                    check_end = False
                    continue
                capacity = length // 2
            middle = low + schedule.split_point(length, capacity)
            reached, capacity = self._replay_to(segment, low, middle, start, capacity)
            stretches.append((low, middle, start, capacity))
            stretches.append((middle, high, reached, capacity - 1))
            del start, reached

    def state_after(self, segment: Segment, steps: int) -> State:
        """The state after the first `steps` steps of a segment."""
        capacity = self.capacity(segment, steps)
        return self._replay_to(segment, 0, steps, segment.states[0], capacity)[0]

    def _replay_to(
        self, segment: Segment, low: int, high: int, state: State, capacity: int
    ) -> tuple[State, int]:
        """The state after steps low..high-1 of a segment, and how many states fit."""
        while low < high:
            end = min(high, low + max(1, capacity - 1))  # the one at the start is held, too
            replayed = self._replay_if_it_fits(segment, low, end, state)
            if replayed is None:
                capacity = 1 + (end - low) // 2
            else:
                state = replayed[2]
                low = end
            del replayed  # before others are made
        # a copy: on a GPU it is a part of a stack of states, which it would keep alive
        return state.map(torch.clone), capacity

    def _replay_if_it_fits(
        self, segment: Segment, low: int, high: int, start: State
    ) -> Replayed | None:
        """`replay_steps` low..high-1 of a segment, or None if the states do not fit."""
        recording = self.recording
        steps = segment.steps[low:high]
        try:
            return self.replay_steps(steps, start, recording.batches(segment.first + low, steps))
        except torch.OutOfMemoryError as error:
            halve(
                error,
                len(steps),
                what="states at a time",
                free=recording.executor.free_memory,
                may_halve=recording.reducer.size == 1,  # other ranks go on to the next step
            )
        return None

    def replay_steps(
        self, steps: Sequence[Step], state: State, batches: Sequence[list[LazyBatch]]
    ) -> Replayed:
        """The states before each step, the gradients that a retrace needs, and the end state."""
        recording = self.recording
        if recording.reducer.size == 1 and not self._need_gradients(steps):
            after = take_steps(recording.executor, recording.optimizer, state, steps, batches)
            states = [state, *after]
            return states[:-1], [None] * len(steps), states[-1]
        states = [state]
        gradients = []
        for step, micros in zip(steps, batches):
            after, g = self._take(step, states[-1], micros)
            states.append(after)
            gradients.append(g)
        return states[:-1], gradients, states[-1]

    def _take(
        self, step: Step, state: State, batches: Sequence[AnyBatch]
    ) -> tuple[State, Tensor | None]:
        """The state after a step, and its gradient where a reverse step needs it."""
        executor = self.recording.executor
        optimizer = self.recording.optimizer
        reducer = self.recording.reducer
        after, g, _ = take_step(executor, optimizer, state, step, batches, reducer=reducer)
        return after, g if needs_gradient(optimizer, step) else None

    def _need_gradients(self, steps: Sequence[Step]) -> bool:
        return any(needs_gradient(self.recording.optimizer, step) for step in steps)

    def capacity(self, segment: Segment, steps: int) -> int:
        """How many states to hold at a time while a stretch of `steps` steps is replayed.

        With a memory budget, the states before and after the current step come on top.
        """
        state = segment.states[0]
        gradient_bytes = state.theta.nbytes if self._need_gradients(segment.steps) else 0
        each = self.recording.reducer.largest(max(1, state.nbytes + gradient_bytes))
        if (allowed := self.recording.memory_limit) is None:
            return max(_MAX_BYTES_OF_STATES // each, steps.bit_length())
        return max(1, allowed // each)

    # --- checks -----------------------------------------------------------------------------------

    def check_end(self, index: int, reached: State, segment: Segment) -> None:
        """Refuse a replayed segment that does not end where the recording continued from."""
        self._check_end_later(index, reached, segment)()

    def _check_end_later(self, index: int, reached: State, segment: Segment) -> Check:
        tape = self.recording.tape
        last = index + 1 == len(tape.entries)
        recorded = lambda: tape.end_state() if last else tape.read(index + 1).states[0]
        return check_later(reached, recorded, segment.end, tape)

    def check_segment(self, index: int, segment: Segment) -> None:
        """Check the end of a segment for a walk that starts in its middle."""
        if len(segment.states) < len(segment.steps):
            self.check_end(index, self.state_after(segment, len(segment.steps)), segment)


def check_same(reached: State, recorded: State, t: int, tape: Tape) -> None:
    """Refuse a replay whose state after t steps is not the recorded one."""
    check_later(reached, lambda: recorded, t, tape)()


def check_later(
    reached: State, recorded: Callable[[], State], t: int, tape: Tape
) -> Callable[[], None]:
    """`check_same`, as a function for the caller to call.

    On a GPU it is called when the GPU has other work to do meanwhile. On a CPU the check is done
    here, and the function does nothing.

    Arguments:
        reached: the state that the replay reached.
        recorded: gives the recorded state.
        t: the number of steps that led there.
        tape: says where the run was recorded.

    Raises:
        InputChanged: if the two differ by more than rounding.
    """
    copy = HostCopy(reached.tensors())
    device = reached.theta.device

    def check() -> None:
        with side_stream(device):
            expected = recorded().map(lambda t: t.cpu()).tensors()
            _compare(copy.wait(), expected, device, t, tape)

    if device.type == "cuda":
        return check
    check()
    return do_nothing


def do_nothing() -> None:
    """A check that finds nothing: there is none to do, or it has been done."""


def _compare(
    reached: dict[str, Tensor],
    recorded: dict[str, Tensor],
    device: torch.device,
    t: int,
    tape: Tape,
) -> None:
    """Tolerates rounding (another loop's optimizer adds in another order), and nothing else."""
    for name, expected in recorded.items():
        value = reached[name]
        if torch.equal(value, expected):
            continue
        if not expected.is_floating_point():
            raise InputChanged(
                f"Replaying step {t - 1} leads to a different {name}: the run belongs to a "
                "different model or dataset."
            )
        scale = size(expected, ROUNDING)
        least = torch.finfo(expected.dtype).tiny
        if not is_close(value, expected, ROUNDING, scale=max(scale, least)):
            difference = size(value - expected, ROUNDING)
            manifest = tape.manifest
            raise InputChanged(
                f"Replaying step {t - 1} leads to a different {name} (largest difference "
                f"{difference:.1e}; the values are about {scale:.1e}). The run was recorded on "
                f"{manifest.device} with torch {manifest.torch}; this is {device} with torch "
                f"{torch.__version__}. Retrace the run in the same environment, and pass the loss, "
                "the penalty and the data that were used in training. Your own loop must not change "
                "the model between steps."
            )

"""Take the steps of a segment again, with no more of its states in memory than fit."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..data.batch import AnyBatch, LazyBatch
from ..data.dataset import EVERYTHING
from ..distributed.ranks import Reducer
from ..engine.device import HostCopy, side_stream
from ..engine.executor import Executor
from ..engine.fit import MemoryGuard
from ..engine.optim import Optimizer
from ..engine.state import State
from ..engine.step import Step, needs_gradient, take_step, take_steps
from ..engine.tolerance import ROUNDING, is_close, size
from ..errors import DrossWarning, InputChanged
from ..tape.format import Segment
from ..tape.reader import Tape
from . import schedule

_MAX_BYTES_OF_STATES = 1 << 30  # of one segment held in memory, where no budget was given
MAX_RECOMPUTES_BEFORE_WARNING = 8  # how often one step is taken

Check = Callable[[], None]
StatesAndGradients = tuple[list[State], list[Tensor | None]]


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
        steps, batches = self.steps[k:], self.batches[k:]
        return Block(self.first + k, steps, batches, self.states[k:], self.gradients[k:])


@dataclass(frozen=True)
class SegmentReplay:
    """Takes the steps of segments again."""

    tape: Tape
    executor: Executor
    optimizer: Optimizer
    reducer: Reducer
    batches: Callable[[int, Sequence[Step]], list[list[LazyBatch]]]
    memory: int | None = None  # bytes of states that may be held, where a budget says so

    def blocks(self, index: int, segment: Segment, begin: int, stop: int) -> Iterator[Block]:
        """The steps of a segment from `begin` to before `stop`, in blocks, the last block first.

        A segment whose states do not fit into memory is replayed more than once, block by block.
        """
        if len(segment.states) == len(segment.steps):
            parts = self._kept_states(index, segment, min(stop, segment.end) - segment.first)
        else:
            parts = self._replayed_states(index, segment, begin, stop)
        for first, (states, gradients) in parts:
            steps = segment.steps[first - segment.first :][: len(states)]
            yield Block(first, steps, self.batches(first, steps), states, gradients)
            del states, gradients  # before the next ones are made

    # --- every state is on the tape ---------------------------------------------------------------

    def _kept_states(
        self, index: int, segment: Segment, count: int
    ) -> Iterator[tuple[int, StatesAndGradients]]:
        gradients, check = self._check_links(index, segment, count)
        yield segment.first, (segment.states[:count], gradients)
        check()  # now that a GPU has enough to do

    def _check_links(
        self, index: int, segment: Segment, count: int
    ) -> tuple[list[Tensor | None], Check]:
        """Check that each kept state leads to the next. The gradients found, and the last check.

        On a tape of dross.train whose data were digested as a whole, only the first step is
        checked, as a sample. Data that are read batch by batch may have changed anywhere, and in a
        loop of the user's own anything may have happened between two steps: then all are.
        """
        made = self.tape.manifest
        is_sample_enough = made.data_digest == EVERYTHING and not made.foreign
        suspect = range(min(count, 1)) if is_sample_enough else range(count)
        gradients: list[Tensor | None] = [None] * count
        batches = self.batches(segment.first, segment.steps[: len(suspect)])
        check = do_nothing
        for k in suspect:
            after, gradients[k] = self._take(segment.steps[k], segment.states[k], batches[k])
            check()  # of the step before, while a GPU takes this one
            if k + 1 < len(segment.steps):
                expected = lambda k=k: segment.states[k + 1]
                check = check_later(after, expected, segment.first + k + 1, self.tape)
            else:
                check = self.check_end_later(index, after, segment)
        return gradients, check

    # --- states are replayed ----------------------------------------------------------------------

    def _replayed_states(
        self, index: int, segment: Segment, begin: int, stop: int
    ) -> Iterator[tuple[int, StatesAndGradients]]:
        """Replayed states in blocks (see schedule.py). One may begin before `begin`."""
        first, last = segment.first, min(stop, segment.end) - segment.first
        capacity = self.capacity(segment, last)
        self._warn_of_recomputes(segment, last, capacity)
        check_end = last == len(segment.steps)  # by the last block, which comes first
        # from, to, the state at the start, and how many states fit, that one included
        rows = [(0, last, segment.states[0], capacity)]
        while rows:
            low, high, start, capacity = rows.pop()
            if high <= begin - first:
                continue
            steps = segment.steps[low:high]
            if len(steps) == 1 and not check_end:
                yield first + low, ([start], [None])
                continue
            if len(steps) <= max(1, capacity):
                if (found := self._replay_if_it_fits(first + low, steps, start)) is not None:
                    states, gradients, end = found
                    check = self.check_end_later(index, end, segment) if check_end else do_nothing
                    del found, end, start
                    yield first + low, (states, gradients)
                    del states, gradients
                    check()
                    check_end = False
                    continue
                capacity = len(steps) // 2
            middle = low + schedule.split_point(len(steps), capacity)
            reached, capacity = self.replay_to_end(
                first + low, segment.steps[low:middle], start, capacity
            )
            rows += [(low, middle, start, capacity), (middle, high, reached, capacity - 1)]
            del start, reached

    def replay_to_end(
        self, first: int, steps: Sequence[Step], state: State, capacity: int
    ) -> tuple[State, int]:
        """The state after these steps, and how many states fit."""
        k = 0
        while k < len(steps):
            row = steps[k : k + max(1, capacity - 1)]  # the one at the start is held, too
            if (found := self._replay_if_it_fits(first + k, row, state)) is None:
                capacity = 1 + len(row) // 2
            else:
                state, k = found[2], k + len(row)
            del found  # before others are made
        # a copy: on a GPU it is a part of a row of states, which it would keep alive
        return state.map(torch.clone), capacity

    def replay_first_steps(self, segment: Segment, steps: int) -> State:
        """The state after the first `steps` steps of a segment."""
        taken, capacity = segment.steps[:steps], self.capacity(segment, steps)
        return self.replay_to_end(segment.first, taken, segment.states[0], capacity)[0]

    def _replay_if_it_fits(self, first: int, steps: Sequence[Step], start: State):
        """`replay_steps`, or None where the states do not fit into memory."""
        with MemoryGuard(
            len(steps),
            what="states at once",
            free=self.executor.free_memory,
            may_halve=self.reducer.size == 1,  # other ranks go on to the next step
        ):
            return self.replay_steps(steps, start, self.batches(first, steps))
        return None

    def replay_steps(
        self, steps: Sequence[Step], state: State, batches: Sequence[list[LazyBatch]]
    ) -> tuple[list[State], list[Tensor | None], State]:
        """The states before each step, the gradients that a retrace needs, and the end state."""
        if self.reducer.size == 1 and not self._need_gradients(steps):
            after = take_steps(self.executor, self.optimizer, state, steps, batches)
            states = [state, *after]
            return states[:-1], [None] * len(steps), states[-1]
        states, gradients = [state], []
        for step, own in zip(steps, batches):
            after, g = self._take(step, states[-1], own)
            states.append(after)
            gradients.append(g)
        return states[:-1], gradients, states[-1]

    def _take(
        self, step: Step, state: State, batches: Sequence[AnyBatch]
    ) -> tuple[State, Tensor | None]:
        given = (self.executor, self.optimizer, state, step, batches)
        after, g, _ = take_step(*given, reducer=self.reducer)
        return after, g if needs_gradient(self.optimizer, step) else None

    def _need_gradients(self, steps: Sequence[Step]) -> bool:
        return any(needs_gradient(self.optimizer, step) for step in steps)

    # --- memory -----------------------------------------------------------------------------------

    def capacity(self, segment: Segment, steps: int) -> int:
        """How many states to hold at a time while a row of `steps` steps is replayed.

        With a memory budget, the states before and after the current step come on top.
        """
        if (allowed := self.memory) is None:
            by_default = _MAX_BYTES_OF_STATES // self._bytes_per_state(segment)
            return max(by_default, steps.bit_length())
        return max(1, allowed // self._bytes_per_state(segment))

    def _bytes_per_state(self, segment: Segment) -> int:
        """The size of a state and of the gradient that is kept with it."""
        state = segment.states[0]
        gradient = state.theta.nbytes if self._need_gradients(segment.steps) else 0
        return self.reducer.largest(max(1, state.nbytes + gradient))

    def _warn_of_recomputes(self, segment: Segment, steps: int, capacity: int) -> None:
        most = MAX_RECOMPUTES_BEFORE_WARNING
        if (times := schedule.repetitions(steps, capacity)) <= most:
            return
        more = range(capacity, steps + 1)
        needed = next(n for n in more if schedule.repetitions(steps, n) <= most)
        warnings.warn(
            f"Memory holds {capacity} states, so some steps are taken up to {times} times. With "
            f"{needed} states, in_memory={needed * self._bytes_per_state(segment):,}, it would be "
            f"at most {most} times.",
            DrossWarning,
            stacklevel=6,
        )

    # --- checks -----------------------------------------------------------------------------------

    def check_end(self, index: int, reached: State, segment: Segment) -> None:
        """Refuse a replayed segment that does not end where the recording went on from."""
        self.check_end_later(index, reached, segment)()

    def check_end_later(self, index: int, reached: State, segment: Segment) -> Check:
        """`check_end` as a function, called when a GPU has other work to do meanwhile."""
        last = index + 1 == len(self.tape.entries)
        recorded = lambda: self.tape.end_state() if last else self.tape.read(index + 1).states[0]
        return check_later(reached, recorded, segment.end, self.tape)

    def check_segment(self, index: int, segment: Segment) -> None:
        """Check the end of a segment for a walk that starts in its middle."""
        if len(segment.states) < len(segment.steps):
            reached = self.replay_first_steps(segment, len(segment.steps))
            self.check_end(index, reached, segment)


def check_same(reached: State, recorded: State, t: int, tape: Tape) -> None:
    """Refuse a replay that reached another state after t steps than the recorded one."""
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
        InputChanged: where the two differ by more than rounding.
    """
    copy, device = HostCopy(reached.tensors()), reached.theta.device

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
    for name, value in recorded.items():
        own = reached[name]
        if torch.equal(own, value):
            continue
        if not value.is_floating_point():
            raise InputChanged(
                f"Step {t - 1} replayed to another {name}: the run is of another model or data set."
            )
        scale = size(value, ROUNDING)
        if not is_close(own, value, ROUNDING, scale=max(scale, torch.finfo(value.dtype).tiny)):
            made, difference = tape.manifest, size(own - value, ROUNDING)
            raise InputChanged(
                f"Step {t - 1} replayed to a different {name} (largest difference {difference:.1e} "
                f"of {scale:.1e}). The run was recorded on {made.device} with torch "
                f"{made.torch}; this is {device} with torch {torch.__version__}. Retrace it "
                "there, and pass the loss, the penalty and the data it was trained with; a loop of "
                "your own must not change the model between steps."
            )

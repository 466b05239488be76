"""Run a segment or a whole tape again, exactly as it was."""

import os
import warnings
import zlib
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from ..autodiff import precision
from ..data.batch import AnyBatch, Augment, LazyBatch
from ..data.dataset import Instances, checksum_bytes
from ..errors import BadInput, DrossWarning, TapeMismatch
from ..execution import compiled
from ..execution.streams import side_stream
from ..parallel.ranks import ALONE, Ranks
from ..step.inspect_model import device_and_dtype, unwrapped
from ..step.layout import Layout, State, check_constants, check_signature
from ..step.loss import NAMED, resolve
from ..step.objective import Objective, Penalty
from ..step.optimizers import Optimizer
from ..step.step import Step, needs_gradient
from ..tape.reader import Tape
from ..tape.segment import Segment
from . import checkpoint_schedule
from .replay_check import comparison, nothing
from .take_steps import take_step, take_steps

_STATES_AT_ONCE = (
    1 << 30
)  # bytes of states of one segment held in memory, where no budget was given
_PATIENCE = 8  # times that a step is taken before somebody is told


def checksum(batch: AnyBatch) -> int:
    """Of what the model sees, to tell a data set that has changed from a replay that went wrong."""
    value, batch = 0, batch.realized()
    for leaf in tree_leaves((batch.x, batch.y)):
        value = zlib.crc32(checksum_bytes(leaf), value)
    return value


@dataclass(frozen=True)
class Recording:
    """A tape with everything that is needed to run it again."""

    tape: Tape
    objective: Objective
    optimizer: Optimizer
    instances: Instances
    augment: Augment | None
    seed: int
    ranks: Ranks = ALONE  # who shares the work of a step

    @staticmethod
    def open(
        place: str | os.PathLike,
        model: nn.Module,
        train_set: Any,
        loss: Any,
        penalty: Penalty | None,
        augment: Augment | None,
    ) -> "Recording":
        """A tape with the model, the data and the loss that it was recorded with, or an error that says which of them is another."""
        tape = Tape(place)
        made, model = tape.manifest, unwrapped(model)
        layout = Layout.from_json(made["layout"], made["model"])
        check_signature(made["model"], model, layout)
        loss_name, loss_function = resolve(loss)
        for what, recorded, given in (
            ("loss", made["loss"], loss_name),
            ("penalty", made["penalty"], penalty is not None),
            ("augment", made["augment"], augment is not None),
        ):
            if recorded != given:
                raise TapeMismatch(
                    f"The run was recorded with {what}={recorded} and is opened with {what}={given}. Pass what it was trained with."
                )
        device, dtype = device_and_dtype(model)
        instances = Instances(train_set, device, dtype, made.get("memory"))
        if made["instances"] not in (None, len(instances)) or made["data"] not in (
            None,
            instances.fingerprint(),
        ):
            raise TapeMismatch(
                f"The run was trained on another data set ({made['instances']} instances; this one has {len(instances)}, or "
                "other contents). Pass the data set it was trained on."
            )
        objective = Objective(
            model,
            layout,
            loss_function,
            loss_name,
            penalty,
            made["stochastic"],
            tuple(made["evaluated"]),
            tuple(made["unused"]),
            precision.check(made.get("arithmetic", "strict"), device, dtype),
        )
        optimizer = Optimizer.from_json(made["optimizer"], layout.group_sizes)
        if tape.entries and compiled.asked_for():
            objective.graphs.usual = len(tape.read(0).steps[0].ids)
        return Recording(tape, objective, optimizer, instances, augment, made["seed"])

    def __reduce__(self):
        """To another process a run travels as what it takes to open its tape there: graphs, caches and copies of the data stay here."""
        made, objective = self.tape.manifest, self.objective
        loss = objective.loss_name if objective.loss_name in NAMED else objective.loss
        given = (objective.model, self.instances.source, loss, objective.penalty, self.augment)
        return _reopened, (self.tape.storage.absolute, made["id"], made["steps"], *given)

    @property
    def device(self) -> torch.device:
        return self.instances.device

    def batches(self, first: int, steps: Sequence[Step]) -> list[list[LazyBatch]]:
        """What each of these steps was fed; the first of them is step number `first`."""
        return self.instances.feed(steps, first, self.seed, self.augment)

    def segment(self, index: int) -> Segment:
        """A segment on the device."""
        return self._checked(self.tape.read(index))

    def segments(self, indices: Sequence[int]) -> Iterator[Segment]:
        """These segments; while one is in use the next is read, unless a budget says how much may be held."""
        ahead = self.tape.manifest.get("memory") is None
        with ThreadPoolExecutor(1, "dross-tape") as reader:
            coming: Future[Segment] | None = None
            for index, after in zip(indices, [*indices[1:], None]):
                found = self.tape.read(index) if coming is None else coming.result()
                coming = (
                    reader.submit(self.tape.read, after) if ahead and after is not None else None
                )
                segment = self._checked(found)
                del found  # on a CPU, too, the segment is a copy
                yield segment
                del segment

    def _checked(self, segment: Segment) -> Segment:
        """Moved onto the device, once it is known that the data set is still the one it was recorded with."""
        largest = max((int(step.ids.max()) for step in segment.steps if len(step.ids)), default=0)
        if largest >= len(self.instances):
            raise TapeMismatch(
                f"The run used instance {largest}, but the data set has only {len(self.instances)} instances."
            )
        with side_stream(self.device) as user:
            segment = replace(segment, states=self._all_placed(segment.states, user))
            (first,) = self.batches(segment.first, segment.steps[:1])
            if first and checksum(first[0]) != segment.checksum and not self._augmented_elsewhere():
                raise TapeMismatch(
                    f"At step {segment.first} the data set gives other inputs or labels than the run was trained on. Pass the same "
                    "data set, the same augment and no random transforms of your own: an instance must look the same twice."
                )
        return segment

    def _all_placed(self, states: list[State], user: "torch.cuda.Stream | None") -> list[State]:
        if user is None:
            return [state.map(self._placed) for state in states]
        together = State.stacked(states).map(self._placed)  # one transfer for all of them
        apart = [
            replace(together.map(lambda t, k=k: t[k].clone()), clock=state.clock)
            for k, state in enumerate(states)
        ]
        for state in apart:
            state.map(lambda t: t.record_stream(user) or t)
        return apart

    def _placed(self, t: Tensor) -> Tensor:
        # A copy even on the CPU: vectorized sums round differently on memory that is not aligned, as a file's is not.
        return t.to(self.device, copy=True)

    def _augmented_elsewhere(self) -> bool:
        """Augmented floats may differ in the last bit between devices; the arrival check judges those replays."""
        return self.augment is not None and str(self.device) != self.tape.manifest["device"]

    def backwards(self, first: int, stop: int) -> Iterator[tuple[int, Segment]]:
        """The segments that hold steps first..stop-1, last first."""
        indices = self.holding(first, stop)[::-1]
        yield from zip(indices, self.segments(indices))

    def holding(self, first: int, stop: int) -> list[int]:
        """Which segments hold steps first..stop-1."""
        return [
            k
            for k, entry in enumerate(self.tape.entries)
            if entry["first"] < stop and entry["first"] + entry["steps"] > first
        ]

    def check_unchanged(self) -> None:
        """The frozen weights and the data must still be the recorded ones: both are the user's, who may have touched them."""
        made = self.tape.manifest
        check_constants(made["model"], self.objective.model, self.objective.layout)
        if self.instances.aliased and made["data"] not in (None, self.instances.fingerprint()):
            raise TapeMismatch(
                "The training data have been changed in place since the run was recorded. Pass them as they were."
            )

    def blocks(
        self, index: int, segment: Segment, begin: int, stop: int
    ) -> Iterator[tuple[int, list[State], list[Tensor | None]]]:
        """The part of a segment from `begin` to before `stop`, last block first: (its first step, the state before each step, and the gradients
        where replaying gave them). A segment whose states do not fit into memory is replayed more than once, block by block."""
        count = min(stop, segment.end) - segment.first
        if len(segment.states) == len(segment.steps):
            gradients, check = self._links(index, segment, count)
            yield segment.first, segment.states[:count], gradients
            check()  # now that a GPU has enough to do
            return
        arrives = (
            (lambda end: self._arrival(index, end, segment))
            if count == len(segment.steps)
            else None
        )
        yield from self._blocks(segment, begin - segment.first, count, arrives)

    def _blocks(
        self,
        segment: Segment,
        begin: int,
        stop: int,
        arrives: Callable[[State], Callable[[], None]] | None,
    ) -> Iterator[tuple[int, list[State], list[Tensor | None]]]:
        """The steps of a segment from number `begin` to `stop`, in blocks, with as few states at a time as there is room for (schedule.py). A block may begin sooner."""
        room = self._room(segment, stop)
        self._warn_of_patience(segment, stop, room)
        rows = [
            (0, stop, segment.states[0], room)
        ]  # from, to, the state at the start, and for how many there is room with that one
        while rows:
            low, high, start, room = rows.pop()
            if high <= begin:
                continue
            steps = segment.steps[low:high]
            if len(steps) == 1 and arrives is None:
                yield segment.first + low, [start], [None]
                continue
            if len(steps) <= max(1, room):
                if (found := self._fitting_row(segment.first + low, steps, start)) is not None:
                    states, gradients, end = found
                    check = arrives(end) if arrives else nothing
                    del found, end, start
                    yield segment.first + low, states, gradients
                    del states, gradients
                    check()
                    arrives = None  # the last block came first
                    continue
                room = len(steps) // 2
            middle = low + checkpoint_schedule.first_part(len(steps), room)
            reached, room = self._passed(
                segment.first + low, segment.steps[low:middle], start, room
            )
            rows += [(low, middle, start, room), (middle, high, reached, room - 1)]
            del start, reached

    def _room(self, segment: Segment, steps: int) -> int:
        """How many of so many states are held at a time; where a budget was given, those before and after the step in hand come on top."""
        each = self._bytes_each(segment)
        if (allowed := self.tape.manifest.get("memory")) is None:
            return max(_STATES_AT_ONCE // each, steps.bit_length())
        return max(1, allowed // each)

    def _bytes_each(self, segment: Segment) -> int:
        """Of a state, and of the gradient that is kept with it."""
        state = segment.states[0]
        gradient = any(needs_gradient(self.optimizer, step) for step in segment.steps)
        return max(1, state.nbytes + (state.theta.nbytes if gradient else 0))

    def _warn_of_patience(self, segment: Segment, steps: int, room: int) -> None:
        if (times := checkpoint_schedule.times(steps, room)) > _PATIENCE:
            needed = next(
                more
                for more in range(room, steps + 1)
                if checkpoint_schedule.times(steps, more) <= _PATIENCE
            )
            warnings.warn(
                f"There is room for {room} states in memory, so some of the steps are taken up to {times} times; "
                f"{needed} states, in_memory={needed * self._bytes_each(segment):,}, would do with {_PATIENCE}.",
                DrossWarning,
                stacklevel=6,
            )

    def _passed(
        self, first: int, steps: Sequence[Step], state: State, room: int
    ) -> tuple[State, int]:
        """The state after these steps, and how many states do fit."""
        k = 0
        while k < len(steps):
            row = steps[k : k + max(1, room - 1)]  # the one at the start is held, too
            if (found := self._fitting_row(first + k, row, state)) is None:
                room = 1 + len(row) // 2
            else:
                state, k = found[2], k + len(row)
            del found  # before others are made
        return state.map(
            torch.clone
        ), room  # on a GPU it is a part of a row of states, which would all be held with it

    def _fitting_row(self, first: int, steps: Sequence[Step], start: State):
        """None where the states do not fit into the memory that there is."""
        try:
            return self._row(steps, start, self.batches(first, steps))
        except torch.OutOfMemoryError:
            if len(steps) == 1 or self.ranks.size > 1:  # the other ranks go on to the next step
                raise
        self.objective.graphs.give_back()
        warnings.warn(
            f"Out of memory: going on with {len(steps) // 2} states at once.",
            DrossWarning,
            stacklevel=2,
        )
        return None

    def _row(
        self, steps: Sequence[Step], state: State, feeds: Sequence[list[LazyBatch]]
    ) -> tuple[list[State], list[Tensor | None], State]:
        """The states before each step, the gradients that a retrace will need, and the state after the last."""
        if self.ranks.size == 1 and not any(needs_gradient(self.optimizer, step) for step in steps):
            states = [state, *take_steps(self.objective, self.optimizer, state, steps, feeds)]
            return states[:-1], [None] * len(steps), states[-1]
        states, gradients = [state], []
        for step, batches in zip(steps, feeds):
            after, g = self._taken(step, states[-1], batches)
            states.append(after)
            gradients.append(g)
        return states[:-1], gradients, states[-1]

    def _taken(
        self, step: Step, state: State, batches: Sequence[AnyBatch]
    ) -> tuple[State, Tensor | None]:
        after, g, _ = take_step(
            self.objective, self.optimizer, state, step, batches, ranks=self.ranks
        )
        return after, g if needs_gradient(self.optimizer, step) else None

    def _links(
        self, index: int, segment: Segment, count: int
    ) -> tuple[list[Tensor | None], Callable[[], None]]:
        """Where every state was kept, each must lead to the next. dross.train wrote them so, and its first step is a sample; in
        somebody else's loop anything may have happened in between. The gradients that this gives, and the check."""
        suspect = range(count) if self.tape.manifest["foreign"] else range(min(count, 1))
        gradients: list[Tensor | None] = [None] * count
        batches = self.batches(segment.first, segment.steps[: len(suspect)])
        check = nothing
        for k in suspect:
            after, gradients[k] = self._taken(segment.steps[k], segment.states[k], batches[k])
            check()  # of the step before, while a GPU takes this one
            if k + 1 < len(segment.steps):
                check = comparison(
                    after, lambda k=k: segment.states[k + 1], segment.first + k + 1, self.tape
                )
            else:
                check = self._arrival(index, after, segment)
        return gradients, check

    def check_replay(self, index: int, segment: Segment) -> None:
        """Whether a segment's steps still lead where they led: somebody who goes on in the middle of it has not seen its end."""
        if len(segment.states) < len(segment.steps):
            end, _ = self._passed(
                segment.first,
                segment.steps,
                segment.states[0],
                self._room(segment, len(segment.steps)),
            )
            self.check_arrival(index, end, segment)

    def check_arrival(self, index: int, arrived: State, segment: Segment) -> None:
        self._arrival(index, arrived, segment)()

    def _arrival(self, index: int, arrived: State, segment: Segment) -> Callable[[], None]:
        """The end of a replayed segment must be where the recording went on from. Call the result to check it."""
        last = index + 1 == len(self.tape.entries)
        recorded = lambda: self.tape.end_state() if last else self.tape.read(index + 1).states[0]
        return comparison(arrived, recorded, segment.end, self.tape)

    def state_at(self, t: int) -> State:
        """The state after t steps."""
        if t == self.tape.steps:
            return self.tape.end_state().map(self._placed)
        if not self.tape.first <= t <= self.tape.steps:
            raise BadInput(
                f"The tape holds the model after {self.tape.first} to {self.tape.steps} steps; {t} is not among them."
            )
        index = next(
            i for i, e in enumerate(self.tape.entries) if e["first"] <= t < e["first"] + e["steps"]
        )
        segment = self.segment(index)
        if len(segment.states) == len(segment.steps):
            return segment.states[t - segment.first]
        steps = segment.steps[: t - segment.first]
        with self.objective.training():
            return self._passed(
                segment.first, steps, segment.states[0], self._room(segment, len(steps))
            )[0]

    def checked_end(self, at: int | None) -> int:
        """The number of steps after which the model is asked."""
        if at is not None and not self.tape.first <= at <= self.tape.steps:
            raise BadInput(
                f"at={at}: the tape holds the model after {self.tape.first} to {self.tape.steps} steps."
            )
        return self.tape.steps if at is None else at

    def epoch_of(self, t: int) -> int:
        """The epoch of step t."""
        index = next(
            i for i, entry in enumerate(self.tape.entries) if t < entry["first"] + entry["steps"]
        )
        segment = self.tape.read(index)
        return segment.steps[t - segment.first].epoch

    def start_of(self, epoch: int) -> int:
        """The first kept step of this epoch or a later one."""
        index = next(
            (i for i, entry in enumerate(self.tape.entries) if entry["epochs"][1] >= epoch), None
        )
        if index is None:
            return self.tape.steps
        segment = self.tape.read(index)
        return segment.first + next(
            k for k, step in enumerate(segment.steps) if step.epoch >= epoch
        )

    def epochs_before(self, stop: int, epochs: int | None) -> tuple[int, int]:
        """The epochs to look at when the model after `stop` steps is asked: all that are kept, or the last so many."""
        if epochs is not None and epochs < 1:
            raise BadInput(f"epochs must be at least 1, not {epochs}.")
        if stop == self.tape.first:
            return (0, 0)
        newest, oldest = self.epoch_of(stop - 1), self.tape.entries[0]["epochs"][0]
        if epochs is not None and self.tape.first > 0 and newest - epochs + 1 < oldest:
            raise BadInput(
                f"The tape keeps only the last {newest - oldest + 1} epochs; {epochs} were asked for."
            )
        return (oldest if epochs is None else max(oldest, newest - epochs + 1), newest)


def _reopened(place: str, id: str, steps: int, *given: Any) -> Recording:
    opened = Recording.open(place, *given)
    if (opened.tape.manifest["id"], opened.tape.steps) != (id, steps):
        raise TapeMismatch(
            f"The tape at {place} is another one here than where the work was sent from. Give both the same folder."
        )
    return opened

"""A tape with everything that is needed to run it again, exactly as it was."""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.batch import Augment, LazyBatch
from ..data.dataset import IDS_BEGIN_AT_0, Instances
from ..data.fingerprint import checksum
from ..distributed.ranks import ALONE, Reducer
from ..engine.device import side_stream
from ..engine.executor import Executor
from ..engine.inspect import device_and_dtype, is_shard, unwrap_model
from ..engine.losses import NAMED_LOSSES, find_loss
from ..engine.objective import Objective, Penalty
from ..engine.optim import Optimizer
from ..engine.state import State, check_constants, check_signature
from ..engine.step import Step, take_step
from ..errors import InputChanged, InvalidInput, NotSupported
from ..tape.format import Manifest, Segment
from ..tape.reader import Tape
from .average import AVERAGE, MODEL, Average, FinalModel
from .schedule import check_step
from .segments import Block, SegmentReplay, check_same


@dataclass(frozen=True)
class TakenStep:
    """A step that has been taken again."""

    t: int
    step: Step
    batches: list[LazyBatch]
    state: State  # before it
    gradient: Tensor  # [p], of the scaled losses


@dataclass(frozen=True)
class Recording:
    """A tape with everything that is needed to run it again."""

    tape: Tape
    executor: Executor
    optimizer: Optimizer
    instances: Instances
    augment: Augment | None
    seed: int
    reducer: Reducer = ALONE  # shares the work of a step among ranks

    @staticmethod
    def open(
        place: str | os.PathLike,
        model: nn.Module,
        train_set: Any,
        loss: Any,
        penalty: Penalty | None,
        augment: Augment | None,
    ) -> "Recording":
        """A tape with the model, the data and the loss that it was recorded with.

        Raises:
            InputChanged: if one of them differs; the message names it.
        """
        tape = Tape(place)
        manifest = tape.manifest
        model = unwrap_model(model)
        _check_whole(model)
        check_signature(manifest.model, model, manifest.layout)
        loss_name, loss_function = find_loss(loss)
        _check_same_settings(manifest, loss_name, penalty, augment)
        device, dtype = device_and_dtype(model, without_weights=True)
        instances = Instances(train_set, device, dtype, manifest.memory)
        _check_same_data(manifest, instances)
        instances.orders = manifest.orders
        objective = Objective(
            model,
            manifest.layout,
            loss_function,
            loss_name,
            penalty,
            stochastic=manifest.stochastic,
            evaluated=manifest.evaluated,
            unused=manifest.unused,
            precision=manifest.precision.on_device(device),
        )
        optimizer = manifest.optimizer.for_layout(manifest.layout)
        executor = Executor(objective, threads=manifest.threads)
        return Recording(tape, executor, optimizer, instances, augment, manifest.seed)

    def __reduce__(self):
        """Pickle a run as what it takes to open its tape in another process.

        Graphs, caches and copies of the data stay here.
        """
        manifest = self.tape.manifest
        objective = self.objective
        loss = objective.loss_name if objective.loss_name in NAMED_LOSSES else objective.loss
        return _reopen, (
            self.tape.storage.absolute,
            manifest.id,
            manifest.steps,
            objective.model,
            self.instances.source,
            loss,
            objective.penalty,
            self.augment,
        )

    @property
    def objective(self) -> Objective:
        """The losses of the run and their derivatives."""
        return self.executor.objective

    @property
    def device(self) -> torch.device:
        """Where the model and the batches are."""
        return self.instances.device

    @property
    def memory_limit(self) -> int | None:
        """Bytes of states that a replay may hold, if there is a budget."""
        return self.tape.manifest.memory

    def batches(self, first: int, steps: Sequence[Step]) -> list[list[LazyBatch]]:
        """The batches of each of these steps; the first of them is step number `first`."""
        micros = [step.micros for step in steps]
        return self.instances.lazy_batches(micros, first, self.seed, self.augment)

    # --- walks ------------------------------------------------------------------------------------

    def recorded_steps(self, first: int, stop: int) -> Iterator[tuple[int, Step, list[LazyBatch]]]:
        """Steps first..stop-1 as (number, step, batches). Nothing is computed."""
        for segment in self.segments(self.find_segments(first, stop)):
            all_batches = self.batches(segment.first, segment.steps)
            numbers = range(segment.first, segment.end)
            for t, step, batches in zip(numbers, segment.steps, all_batches):
                if first <= t < stop:
                    yield t, step, batches

    def used_instances(self, first: int, stop: int) -> np.ndarray:
        """Which instances steps first..stop-1 used: bool [N]."""
        used = np.zeros(len(self.instances), dtype=bool)
        for index in self.find_segments(first, stop):
            segment = self.tape.read(index)
            for step in segment.steps[max(0, first - segment.first) : stop - segment.first]:
                used[step.ids] = True
        return used

    def walk_forward(self) -> Iterator[TakenStep]:
        """Every kept step, taken again. Each end that the tape knows is compared with it."""
        for index, segment in enumerate(self.segments(range(len(self.tape.entries)))):
            state = segment.states[0]
            all_batches = self.batches(segment.first, segment.steps)
            for k, (step, batches) in enumerate(zip(segment.steps, all_batches)):
                after, g, _ = take_step(self.executor, self.optimizer, state, step, batches)
                yield TakenStep(segment.first + k, step, batches, state, g)
                state = after
                if k + 1 < len(segment.states):
                    state = segment.states[k + 1]
                    check_same(after, state, segment.first + k + 1, self.tape)
            self.segment_replay.check_end(index, state, segment)

    def walk_backward(self, first: int, stop: int, position: int) -> Iterator[Block]:
        """Steps first..stop-1 in blocks, the last block first, each compared with the tape.

        position: where an earlier walk was interrupted: steps from there on have been seen.
        """
        for index, segment in self.segments_backward(first, position):
            if position < min(stop, segment.end):
                self.segment_replay.check_segment(index, segment)
            for block in self.segment_replay.blocks(index, segment, first, position):
                yield block.from_step(first)
                del block  # before the next one is made

    @property
    def segment_replay(self) -> SegmentReplay:
        """Takes the steps of segments again."""
        return SegmentReplay(self)

    # --- segments and states ----------------------------------------------------------------------

    def segment(self, index: int) -> Segment:
        """A segment on the device."""
        return self._move_and_check(self.tape.read(index))

    def segments(self, indices: Sequence[int]) -> Iterator[Segment]:
        """These segments. While one is in use the next is read, unless memory is limited."""
        ahead = self.memory_limit is None
        with ThreadPoolExecutor(1, "dross-tape") as reader:
            coming: Future[Segment] | None = None
            for index, following in zip(indices, [*indices[1:], None]):
                read = self.tape.read(index) if coming is None else coming.result()
                coming = None
                if ahead and following is not None:
                    coming = reader.submit(self.tape.read, following)
                segment = self._move_and_check(read)
                del read  # on a CPU, too, the segment is a copy
                yield segment
                del segment

    def segments_backward(self, first: int, stop: int) -> Iterator[tuple[int, Segment]]:
        """The segments that hold steps first..stop-1 with their indices, last first."""
        indices = self.find_segments(first, stop)[::-1]
        yield from zip(indices, self.segments(indices))

    def find_segments(self, first: int, stop: int) -> list[int]:
        """Which segments hold steps first..stop-1."""
        return [
            k
            for k, entry in enumerate(self.tape.entries)
            if entry.first < stop and entry.stop > first
        ]

    def state_at(self, t: int) -> State:
        """The state after t steps."""
        check_step(self.tape, t)
        if t == self.tape.steps:
            return self.tape.end_state().map(self._move)
        (index,) = self.find_segments(t, t + 1)
        segment = self.segment(index)
        if len(segment.states) == len(segment.steps):
            return segment.states[t - segment.first]
        with self.executor.training():
            return self.segment_replay.state_after(segment, t - segment.first)

    def model(self, weights: str, step: int | None = None) -> FinalModel | Average:
        """The model that is queried.

        Arguments:
            weights: MODEL, or AVERAGE for the averaged weights that were watched during the run.
            step: after how many steps; all by default.

        Raises:
            InvalidInput: if the tape does not contain that step, or no averaged weights.
        """
        if weights == MODEL:
            return FinalModel(self.state_at(self.tape.steps if step is None else step))
        if weights != AVERAGE:
            raise InvalidInput(f"weights must be 'model' or 'average', not {weights!r}.")
        if step not in (None, self.tape.steps):
            raise InvalidInput("The average is known only at the end of the run: leave out `step`.")
        record = self.tape.average()
        if record is None or not len(record.steps):
            raise InvalidInput(
                "The tape has no averaged weights: call recorder.watch_average(averaged) before "
                "training, and averaged.update_parameters(model) between steps."
            )
        layout = self.objective.layout
        named = {name: self._move(t) for name, t in record.tensors.items()}
        theta = layout.flatten({name: named[name] for name in layout.names})
        buffers = {name: named[name] for name in layout.moving_buffers}
        end = self.state_at(self.tape.steps)
        return Average(replace(end, theta=theta, buffers=buffers), record)

    def _move_and_check(self, segment: Segment) -> Segment:
        """The segment on the device. Its first batch must be what the run was trained on."""
        largest = max((int(step.ids.max()) for step in segment.steps if len(step.ids)), default=0)
        if largest >= len(self.instances):
            hint = f" {IDS_BEGIN_AT_0}" if largest == len(self.instances) else ""
            raise InputChanged(
                f"The run used instance {largest}, but the dataset has only "
                f"{len(self.instances)} instances.{hint}"
            )
        with side_stream(self.device) as user:
            segment = replace(segment, states=self._move_states(segment.states, user))
            (first,) = self.batches(segment.first, segment.steps[:1])
            changed = bool(first) and checksum(first[0]) != segment.checksum
            if changed and not self._augmented_elsewhere():
                if self._has_ids_from_1(segment):
                    raise InputChanged(
                        f"The ids that the loop recorded at step {segment.first} begin at 1. "
                        f"{IDS_BEGIN_AT_0}"
                    )
                raise InputChanged(
                    f"At step {segment.first} the dataset returns different inputs or labels than "
                    "during training. Pass the same dataset and augment. The recorded ids must be "
                    "the indices of the instances in this dataset, and it must return an instance "
                    "unchanged every time, without random transforms."
                )
        return segment

    def _has_ids_from_1(self, segment: Segment) -> bool:
        """Whether the dataset has what was recorded, each instance at the index before its id."""
        step = segment.steps[0]
        if step.ids.min() < 1:
            return False
        shifted = replace(step, micros=tuple(replace(m, ids=m.ids - 1) for m in step.micros))
        (first,) = self.batches(segment.first, [shifted])
        return checksum(first[0]) == segment.checksum

    def _move_states(self, states: list[State], user: "torch.cuda.Stream | None") -> list[State]:
        if user is None:
            return [state.map(self._move) for state in states]
        together = State.stack(states).map(self._move)  # one transfer for all of them
        moved = [
            replace(together.map(lambda t, k=k: t[k].clone()), counters=state.counters)
            for k, state in enumerate(states)
        ]
        for state in moved:
            state.map(lambda t: t.record_stream(user) or t)
        return moved

    def _move(self, t: Tensor) -> Tensor:
        # a copy even on the CPU: vectorized sums round differently on memory that is not aligned,
        # as a file's is not
        return t.to(self.device, copy=True)

    def _augmented_elsewhere(self) -> bool:
        """Whether augmented inputs may differ in the last bit, because the device differs.

        Then the end of the segment is compared instead.
        """
        return self.augment is not None and str(self.device) != self.tape.manifest.device

    def check_unchanged(self) -> None:
        """Refuse frozen weights or data that the user has changed since the recording."""
        manifest = self.tape.manifest
        check_constants(manifest.model, self.objective.model, self.objective.layout)
        if self.instances.aliased and not _has_digest(manifest, self.instances):
            raise InputChanged(
                "The training data has been changed in place since the run was recorded. Pass "
                "the original data."
            )


def _check_whole(model: nn.Module) -> None:
    if any(is_shard(p) for p in model.parameters()):
        raise NotSupported(
            "fully_shard has been applied to the model. Open the tape with a new model to which it "
            "has not been applied. That model may be on the meta device (with "
            "torch.device('meta')), since its own weights are not used. influence(query, group=..., "
            "sharded=True) then keeps the states in shards."
        )


def _check_same_settings(
    manifest: Manifest, loss_name: str, penalty: Penalty | None, augment: Augment | None
) -> None:
    passed = {"loss": loss_name, "penalty": penalty is not None, "augment": augment is not None}
    for what, value in passed.items():
        recorded = getattr(manifest, what)
        if recorded != value:
            if what != "loss":
                how = ("with", "without") if recorded else ("without", "with")
                raise InputChanged(
                    f"The run was recorded {how[0]} `{what}`, but is opened {how[1]} it. Pass the "
                    "same arguments as during training."
                )
            raise InputChanged(
                f"The run was recorded with the loss {recorded}, but is opened with {value}. Pass "
                "the loss that was used during training."
            )


def _check_same_data(manifest: Manifest, instances: Instances) -> None:
    count = manifest.instances
    if count not in (None, len(instances)) or not _has_digest(manifest, instances):
        raise InputChanged(
            f"The run was recorded on a different dataset: it had {count} instances, and this one "
            f"has {len(instances)} or different values. Pass the dataset it was recorded on."
        )


def _has_digest(manifest: Manifest, instances: Instances) -> bool:
    """Whether the data is that of the manifest, as far as it tells."""
    return manifest.data_digest is None or manifest.data == instances.fingerprint(
        manifest.data_digest
    )


def _reopen(place: str, id: str, steps: int, *arguments: Any) -> Recording:
    opened = Recording.open(place, *arguments)
    if (opened.tape.manifest.id, opened.tape.steps) != (id, steps):
        raise InputChanged(
            f"The tape at {place} is not the one that this task was created for. Make sure that "
            "all processes use the same folder."
        )
    return opened

"""What a retrace will take: time, memory and disk. One step is measured, the rest is counted."""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from .._text import say_bytes, say_count, say_duration
from ..data.batch import LazyBatch
from ..engine.device import measure_peak, measure_seconds
from ..engine.state import Derivative, State
from ..engine.step import Step, needs_gradient, take_step
from ..errors import InvalidInput
from ..replay import schedule
from ..replay.recording import Recording
from ..replay.schedule import StepRange
from .retrace import reverse_step


@dataclass(frozen=True)
class RetracePlan:
    """The estimated cost of a retrace. Made by `Run.plan`.

        print(run.plan(query))
        run.plan(query).seconds

    Bytes are those that a retrace holds besides the model and the training data.
    """

    device: str
    queries: int
    steps: int  # number of steps that are retraced
    taken_again: int  # number of steps replayed; a step counts once for each replay
    repetitions: int  # the maximum number of times that any step is replayed
    step_seconds: float  # duration of an average step
    reverse_seconds: float  # duration of an average reverse step, for all queries
    read_seconds: float
    states_at_once: int  # number of states held in memory at a time
    state_bytes: int  # size of one state and of the gradient kept with it
    adjoint_bytes: int  # size of the adjoints of all queries
    score_bytes: int
    pass_bytes: int  # peak memory of a step or a reverse step
    disk_bytes: int  # number of bytes read from disk

    @property
    def seconds(self) -> float:
        """The duration of the retrace."""
        replay = self.taken_again * self.step_seconds
        return replay + self.steps * self.reverse_seconds + self.read_seconds

    @property
    def training_steps(self) -> float:
        """The duration of the retrace as a multiple of that of one replay of these steps."""
        training = self.steps * self.step_seconds
        return self.seconds / training if training > 0 else 0.0

    @property
    def peak_bytes(self) -> int:
        """The peak number of bytes held at any time."""
        states = self.states_at_once * self.state_bytes
        return states + self.adjoint_bytes + self.score_bytes + self.pass_bytes

    def __str__(self) -> str:
        again = f"{self.taken_again:,} replayed"
        if self.repetitions > 1:
            again += f", each up to {self.repetitions} times"
        steps = say_count(self.steps, "step")
        queries = say_count(self.queries, "query", "queries")
        states = say_count(self.states_at_once, "state")
        lines = [
            f"A retrace of {steps} for {queries} on {self.device}",
            f"  time    about {say_duration(self.seconds)}, {self.training_steps:.1f} times as "
            "long as training",
            f"          reverse step {say_duration(self.reverse_seconds)}, "
            f"step {say_duration(self.step_seconds)}; {again}",
            f"  memory  about {say_bytes(self.peak_bytes)} besides the model and the data",
            f"          {states} {say_bytes(self.states_at_once * self.state_bytes)}, adjoints "
            f"{say_bytes(self.adjoint_bytes)}, scores {say_bytes(self.score_bytes)}, "
            f"passes {say_bytes(self.pass_bytes)}",
            f"  disk    {say_bytes(self.disk_bytes)} to read",
        ]
        return "\n".join(lines)

    def __repr__(self) -> str:
        return (
            f"<RetracePlan: {say_count(self.steps, 'step')}, "
            f"{say_count(self.queries, 'query', 'queries')}, about {say_duration(self.seconds)}, "
            f"{say_bytes(self.peak_bytes)}>"
        )


def make_plan(recording: Recording, queries: int, steps: StepRange) -> RetracePlan:
    """The plan of a retrace.

    Arguments:
        recording: the run.
        queries: how many values the query has.
        steps: those that are retraced.

    Raises:
        InvalidInput: if there is no step to measure.
    """
    if steps.first >= steps.stop:
        raise InvalidInput(
            "The tape contains no steps of these epochs, so there is nothing to plan."
        )
    indices = recording.find_segments(steps.first, steps.stop)
    state, step, batches = _first_step(recording, indices[0])
    after = _random_adjoint(state, queries, recording.objective.held)
    device = recording.device

    def take() -> tuple:
        return take_step(recording.executor, recording.optimizer, state, step, batches)

    def reverse() -> tuple:
        return reverse_step(recording, step, batches, state, g, after)

    with recording.executor.training():
        (_, g, _), step_bytes = measure_peak(take, device)
        _, reverse_bytes = measure_peak(reverse, device)
        step_seconds = measure_seconds(take, device)
        reverse_seconds = measure_seconds(reverse, device)
    sizes = [len(step.ids) for k in indices for step in recording.tape.read(k).steps]
    work = float(np.mean(sizes)) / max(1, len(step.ids))  # of an average step, in measured ones
    taken_again, repetitions, states_at_once = count_replays(recording, steps)
    disk_bytes, read_seconds = _measure_reading(recording, indices)
    gradient_bytes = state.theta.nbytes if needs_gradient(recording.optimizer, step) else 0
    return RetracePlan(
        device=str(recording.device),
        queries=queries,
        steps=steps.stop - steps.first,
        taken_again=taken_again,
        repetitions=repetitions,
        step_seconds=work * step_seconds,
        reverse_seconds=work * reverse_seconds,
        read_seconds=read_seconds,
        states_at_once=states_at_once,
        state_bytes=state.nbytes + gradient_bytes,
        adjoint_bytes=sum(t.nbytes for t in after.tensors().values()),
        score_bytes=8 * queries * steps.epochs * len(recording.instances),
        pass_bytes=max(step_bytes, reverse_bytes),
        disk_bytes=disk_bytes,
    )


# --- what is counted ------------------------------------------------------------------------------


def count_replays(recording: Recording, steps: StepRange) -> tuple[int, int, int]:
    """Gradients of whole steps that a retrace computes, the most for one step, states at once."""
    taken = 0
    repetitions = 0
    states_at_once = 0
    is_users_loop = recording.tape.manifest.foreign
    for index in recording.find_segments(steps.first, steps.stop):
        segment = recording.tape.read(index)
        begin = max(0, steps.first - segment.first)
        last = min(steps.stop, segment.end) - segment.first
        if len(segment.states) == len(segment.steps):  # all are on the tape
            wanted = segment.steps[begin:last]
            needing = sum(needs_gradient(recording.optimizer, step) for step in wanted)
            checked = last if is_users_loop else 1
            # a checked step's gradient serves its reverse step, too
            first_needed = needs_gradient(recording.optimizer, segment.steps[0]) and begin == 0
            reused = needing if is_users_loop else int(first_needed)
            taken += checked + needing - reused
            repetitions = max(repetitions, 1)
            states_at_once = max(states_at_once, len(segment.states))
            continue
        capacity = recording.segment_replay.capacity(segment, last)
        cost = schedule.replay_cost(last, capacity, begin, last == len(segment.steps))
        alone = [segment.steps[k] for k in cost.without_gradient]
        taken += cost.steps + sum(needs_gradient(recording.optimizer, step) for step in alone)
        repetitions = max(repetitions, schedule.repetitions(last, capacity))
        states_at_once = max(states_at_once, min(last, capacity) + 1)
    return taken, repetitions, states_at_once


# --- what is measured -----------------------------------------------------------------------------


def _first_step(recording: Recording, index: int) -> tuple[State, Step, list[LazyBatch]]:
    """The state that a segment starts from, and its first step that has a batch."""
    segment = recording.segment(index)
    for step, batches in zip(segment.steps, recording.batches(segment.first, segment.steps)):
        if batches:
            return segment.states[0], step, batches
    raise InvalidInput("No step of these epochs has a batch, so there is nothing to plan.")


def _random_adjoint(state: State, queries: int, held: Sequence[str]) -> Derivative:
    generator = torch.Generator().manual_seed(0)
    random = lambda t: torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device)
    return Derivative.zeros(state, queries, held).map(random)


def _measure_reading(recording: Recording, indices: list[int]) -> tuple[int, float]:
    """Bytes of the files that are read, and how long that takes at the speed of the first one."""
    tape = recording.tape
    sizes = [entry.bytes for entry in (*tape.entries, tape.end)]
    # also the file after each, which says where its replay should end, and the end of the run
    total = sum(sizes[k] + sizes[k + 1] for k in indices) + sizes[-1]
    start = time.perf_counter()
    tape.read(indices[0])
    return total, total * (time.perf_counter() - start) / sizes[indices[0]]

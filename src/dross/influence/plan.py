"""A plan of a retrace: how it will be computed, and the time, memory and disk that it takes.

Makes a `RetracePlan`: counts what can be counted, and measures one step.
"""

import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from .._text import say_count
from ..data.batch import LazyBatch
from ..engine.device import measure_peak
from ..engine.state import Derivative, State
from ..engine.step import Step, needs_gradient, take_step
from ..errors import InvalidInput
from ..replay import schedule
from ..replay.recording import Recording
from ..replay.schedule import Window
from .retrace import reverse_step


@dataclass(frozen=True)
class RetracePlan:
    """What a retrace takes, known from one measured step. Made by `Run.plan`.

        print(run.plan(query))
        run.plan(query).seconds

    Times and the bytes of passes are measured at the first step of the window. Everything else is
    counted: which steps are taken again, how many states are held, what is read.
    """

    device: str
    queries: int  # that are asked
    steps: int  # that are retraced
    taken_again: int  # gradients that are computed for it, a step as often as it is taken
    repetitions: int  # how often one step is taken again at most
    kept_states: int  # that the tape has of these steps
    states_at_once: int  # that are held at a time, with the gradients that go with them
    state_bytes: int  # one of them
    gradient_bytes_kept: int  # with each state, where the optimizer's derivative needs it
    adjoint_bytes: int  # of all queries
    score_bytes: int  # 8 per query, epoch and instance
    batch: int  # instances of the measured micro-batch
    rows_at_once: int  # of them in one reverse pass
    queries_at_once: int  # in one reverse pass
    step_seconds: float  # taking the measured step again
    reverse_seconds: float  # its reverse step, for all queries
    work: float  # that of an average step, in measured steps
    pass_bytes: int  # the most that one of the two passes holds
    counted: bool  # pass_bytes were counted from its tensors, not measured by an allocator
    disk_bytes: int  # that are read
    read_seconds: float

    @property
    def seconds(self) -> float:
        """How long the retrace takes."""
        passes = self.taken_again * self.step_seconds + self.steps * self.reverse_seconds
        return self.work * passes + self.read_seconds

    @property
    def training_steps(self) -> float:
        """The same, as a multiple of the time in which a replay would take these steps once."""
        training = self.work * self.steps * self.step_seconds
        return self.seconds / training if training > 0 else 0.0

    @property
    def limits(self) -> tuple[int, int | None]:
        """How many queries, and how many instances of a batch, a pull takes at once."""
        return self.queries_at_once, None if self.rows_at_once == self.batch else self.rows_at_once

    @property
    def states_bytes(self) -> int:
        """All states that are held at a time, and the gradients with them."""
        return self.states_at_once * (self.state_bytes + self.gradient_bytes_kept)

    @property
    def peak_bytes(self) -> int:
        """The most that is held at a time, besides the model and the training data."""
        return self.states_bytes + self.adjoint_bytes + self.score_bytes + self.pass_bytes

    def __str__(self) -> str:
        again = f"{self.taken_again:,} taken again"
        if self.repetitions > 1:
            again += f", each up to {self.repetitions} times"
        how = "counted" if self.counted else "measured"
        cut = f"{self.rows_at_once} of {self.batch} instances"
        queries = say_count(self.queries, "query", "queries")
        together = f"{self.queries_at_once} of {queries}"
        state = say_count(self.states_at_once, "state")
        return "\n".join(
            [
                f"A retrace of {say_count(self.steps, 'step')} for {queries} on {self.device}",
                f"  time    about {_time(self.seconds)}, {self.training_steps:.1f} times as long "
                "as training",
                f"          reverse step {_time(self.reverse_seconds)}, "
                f"step {_time(self.step_seconds)}; {again}",
                f"  memory  about {_size(self.peak_bytes)} besides the model and the data",
                f"          {state} {_size(self.states_bytes)}, adjoints "
                f"{_size(self.adjoint_bytes)}, passes {_size(self.pass_bytes)} ({how}),",
                f"          scores {_size(self.score_bytes)}",
                f"  passes  {cut} and {together} at once",
                f"  disk    {_size(self.disk_bytes)} to read; the tape has "
                f"{say_count(self.kept_states, 'state')} of {_size(self.state_bytes)}",
            ]
        )

    def __repr__(self) -> str:
        return (
            f"<RetracePlan: {say_count(self.steps, 'step')}, "
            f"{say_count(self.queries, 'query', 'queries')}, about {_time(self.seconds)}, "
            f"{_size(self.peak_bytes)}>"
        )


def _size(count: int) -> str:
    """Bytes as a person reads them, in powers of ten."""
    for unit, factor in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if count >= factor:
            return f"{count / factor:.3g} {unit}"
    return f"{count} bytes"


def _time(seconds: float) -> str:
    if seconds >= 5400:
        return f"{seconds / 3600:.1f} hours"
    if seconds >= 90:
        return f"{seconds / 60:.1f} minutes"
    return f"{seconds:.3g} s" if seconds >= 0.1 else f"{seconds * 1e3:.3g} ms"


_LEAST_STATES = 3  # the start of a row, the step in hand, and the end


@dataclass(frozen=True)
class _Measured:
    """One step and its reverse step."""

    step_seconds: float
    reverse_seconds: float
    pass_bytes: int


def make_plan(
    recording: Recording, queries: int, window: Window, memory: int | None = None
) -> tuple[RetracePlan, Recording]:
    """The plan of a retrace, and the recording with the sizes that the plan has chosen.

    Arguments:
        recording: the run.
        queries: how many are asked.
        window: the steps.
        memory: bytes for states, adjoints, scores and passes together; by default states have the
            run's budget, and passes take what they take.

    Raises:
        InvalidInput: where there is no step to measure, or the memory is too small.
    """
    if window.first >= window.stop:
        raise InvalidInput("The tape holds no steps in this window, so there is nothing to plan.")
    probe = _Probe(recording, queries, window)
    fixed = probe.adjoint_bytes + 8 * queries * window.epochs * len(recording.instances)
    least = fixed + _LEAST_STATES * probe.held_bytes
    with recording.executor.training():
        measured = probe.fit(None if memory is None else memory - least)
    if memory is not None:
        left = memory - fixed - measured.pass_bytes
        recording = replace(recording, memory=max(left - 2 * probe.held_bytes, probe.held_bytes))
    taken, most, at_once = count_taken(recording, window)
    files, seconds = _count_reading(recording, window)
    plan = RetracePlan(
        device=str(recording.device),
        queries=queries,
        steps=window.stop - window.first,
        taken_again=taken,
        repetitions=most,
        kept_states=_count_kept(recording, window),
        states_at_once=at_once,
        state_bytes=probe.state.nbytes,
        gradient_bytes_kept=probe.held_bytes - probe.state.nbytes,
        adjoint_bytes=probe.adjoint_bytes,
        score_bytes=fixed - probe.adjoint_bytes,
        batch=probe.rows,
        rows_at_once=probe.rows_at_once,
        queries_at_once=probe.queries_at_once,
        step_seconds=measured.step_seconds,
        reverse_seconds=measured.reverse_seconds,
        work=probe.work,
        pass_bytes=measured.pass_bytes,
        counted=recording.device.type != "cuda",
        disk_bytes=files,
        read_seconds=seconds,
    )
    return plan, recording


# --- what is counted ------------------------------------------------------------------------------


def count_taken(recording: Recording, window: Window) -> tuple[int, int, int]:
    """Gradients of whole steps that a retrace computes, the most for one step, states at once."""
    taken, most, held = 0, 0, 0
    replay, foreign = recording.replay, recording.tape.manifest["foreign"]
    for index in recording.find_segments(window.first, window.stop):
        segment = recording.tape.read(index)
        last = min(window.stop, segment.end) - segment.first
        wanted = segment.steps[max(0, window.first - segment.first) : last]
        needing = sum(needs_gradient(recording.optimizer, step) for step in wanted)
        if len(segment.states) == len(segment.steps):
            checked = last if foreign else 1
            # a checked step's gradient serves its reverse step, too
            first_needed = needs_gradient(recording.optimizer, segment.steps[0])
            reused = needing if foreign else int(first_needed and window.first <= segment.first)
            taken, most = taken + checked + needing - reused, max(most, 1)
            held = max(held, len(segment.states))
            continue
        capacity = replay.capacity(segment, last)
        begin = max(0, window.first - segment.first)
        ends = last == len(segment.steps)
        rows = schedule.rows_taken(last, capacity, begin, ends)
        alone = sum(
            needs_gradient(recording.optimizer, segment.steps[k]) for k in rows.without_gradient
        )
        taken += rows.steps + alone
        most = max(most, schedule.repetitions(last, capacity))
        held = max(held, min(last, capacity) + 1)
    return taken, most, held


def _count_kept(recording: Recording, window: Window) -> int:
    entries = recording.find_segments(window.first, window.stop)
    return sum(len(recording.tape.read(k).states) for k in entries)


def _count_reading(recording: Recording, window: Window) -> tuple[int, float]:
    """Bytes of the files that are read, and how long that takes at the speed of the first one."""
    tape, indices = recording.tape, recording.find_segments(window.first, window.stop)
    sizes = [entry["bytes"] for entry in tape.entries] + [tape.manifest["end"]["bytes"]]
    own = sum(sizes[k] for k in indices)
    following = sum(sizes[k + 1] for k in indices)  # where a replay should have ended
    start = time.perf_counter()
    tape.read(indices[0])
    speed = max(time.perf_counter() - start, 1e-9) / sizes[indices[0]]
    total = own + following + sizes[-1]
    return total, total * speed


# --- what is measured -----------------------------------------------------------------------------


class _Probe:
    """The first step of the window, taken and taken back once."""

    def __init__(self, recording: Recording, queries: int, window: Window):
        self.recording, self.queries = recording, queries
        segment = recording.segment(recording.find_segments(window.first, window.stop)[0])
        self.state: State = segment.states[0]
        self.step, self.batches = _first_with_batch(recording, segment)
        largest = max(self.batches, key=lambda batch: len(batch.c))
        self.rows = self.rows_at_once = recording.executor.cuts.rows(largest.load())
        self.queries_at_once = queries
        gradient = self.state.theta.nbytes if needs_gradient(recording.optimizer, self.step) else 0
        self.held_bytes = self.state.nbytes + gradient
        one = Derivative.zeros(self.state, 1, recording.objective.held)
        self.adjoint_bytes = queries * sum(t.nbytes for t in one.tensors().values())
        self.work = _average_work(recording, window, self.step)

    def fit(self, allowed: int | None) -> _Measured:
        """Measure the step in the largest parts that fit into the allowed bytes."""
        executor = self.recording.executor
        while True:
            cut = None if self.rows_at_once == self.rows else self.rows_at_once
            with executor.limited(self.queries_at_once, cut):
                measured = self._measure()
            if allowed is None or measured.pass_bytes <= allowed:
                return measured
            if self.queries_at_once > 1:
                self.queries_at_once //= 2
            elif self.rows_at_once > 1 and self._can_cut():
                self.rows_at_once //= 2
            else:
                raise InvalidInput(
                    "The memory is too small for this run: states and adjoints leave "
                    f"{max(0, allowed):,} bytes, but a pass of one query takes "
                    f"{measured.pass_bytes:,}. Give at least "
                    f"{measured.pass_bytes - allowed:,} bytes more."
                )

    def _can_cut(self) -> bool:
        batch = self.batches[0].load()
        return self.recording.executor.cuts.can_cut(self.state.theta, batch)

    def _measure(self) -> _Measured:
        recording, device = self.recording, self.recording.device
        generator = torch.Generator().manual_seed(0)
        random = lambda t: torch.randn(t.shape, generator=generator, dtype=t.dtype).to(t.device)
        zeros = Derivative.zeros(self.state, self.queries, recording.objective.held)
        after = zeros.map(random)
        del zeros
        given = (recording.executor, recording.optimizer, self.state, self.step, self.batches)
        take = lambda: take_step(*given)
        (_, g, _), step_bytes = measure_peak(take, device)
        back = lambda: reverse_step(recording, self.step, self.batches, self.state, g, after)
        _, reverse_bytes = measure_peak(back, device)
        plans = list(recording.executor.plans)
        self.queries_at_once = min([self.queries, *(plan.queries_at_once for plan in plans)])
        again, reverse = _seconds(take, device), _seconds(back, device)
        return _Measured(again, reverse, max(step_bytes, reverse_bytes))


def _seconds(action, device: torch.device) -> float:
    start = time.perf_counter()
    action()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def _first_with_batch(recording: Recording, segment) -> tuple[Step, list[LazyBatch]]:
    batches = recording.batches(segment.first, segment.steps)
    found = ((step, own) for step, own in zip(segment.steps, batches) if own)
    if (first := next(found, None)) is None:
        raise InvalidInput("No step of this window has a batch, so there is nothing to plan.")
    return first


def _average_work(recording: Recording, window: Window, measured: Step) -> float:
    """The mean number of instances of a step, divided by that of the measured step."""
    sizes = [
        len(step.ids)
        for index in recording.find_segments(window.first, window.stop)
        for step in recording.tape.read(index).steps
    ]
    return float(np.mean(sizes)) / max(1, len(measured.ids))

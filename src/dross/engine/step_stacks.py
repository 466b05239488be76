"""Several steps as one pass: on a GPU the steps of a small network are captured together."""

from collections.abc import Hashable, Sequence
from dataclasses import replace

from torch import Tensor

from ..data.batch import AnyBatch, LazyBatch, LazyBatches
from .executor import Executor
from .optim import Optimizer
from .state import State
from .step import Step, take_step
from .update_rules import SGD

STEPS_AT_ONCE = 16
_MAX_PARAMETERS = 1 << 22  # the steps of a larger network keep a GPU busy one by one


def take_steps(
    executor: Executor,
    optimizer: Optimizer,
    state: State,
    steps: Sequence[Step],
    batches: Sequence[list[LazyBatch]],
) -> list[State]:
    """The state after each of these steps. On a GPU several of them may be one pass."""
    after: list[State] = []
    for part in cut_into_stacks("training steps", executor, optimizer, state, steps, batches):
        k = part.start
        if part.stop - k == 1:
            after.append(take_step(executor, optimizer, state, steps[k], batches[k])[0])
        else:
            alike = LazyBatches(tuple(only for (only,) in batches[part]))
            after += _take_together(executor, optimizer, state, steps[k], alike)
        state = after[-1]
    return after


def _take_together(
    executor: Executor, optimizer: Optimizer, state: State, step: Step, batches: LazyBatches
) -> list[State]:
    def take(
        each: Sequence[AnyBatch], theta: Tensor, slots: dict, buffers: dict
    ) -> tuple[Tensor, dict, dict]:
        now = State(theta, slots, buffers, state.counters)
        states = []
        for batch in each:
            now, _, _ = take_step(executor, optimizer, now, step, [batch])
            states.append(now)
        stacked = State.stack(states)
        return stacked.theta, stacked.slots, stacked.buffers

    theta, slots, buffers = executor.run(
        "training steps",
        take,
        batches,
        state.theta,
        state.slots,
        state.buffers,
        key=(step.hyperparams.tobytes(),),  # they are captured as they are
    )
    counters = tuple({"step": one["step"] + 1} for one in state.counters)
    return unstack_steps(State(theta, slots, buffers, counters), len(batches.batches))


def cut_into_stacks(
    name: str,
    executor: Executor,
    optimizer: Optimizer,
    start: State,
    steps: Sequence[Step],
    batches: Sequence[list[LazyBatch]],
) -> list[slice]:
    """Cut steps into stacks of STEPS_AT_ONCE steps that can be one pass, and single steps.

    Arguments:
        name: of the pass that takes several steps.
        executor, optimizer: of the run.
        start: the state before the first step.
        steps, batches: the steps, and the micro-batches of each.
    """
    possible = (
        executor.would_capture(name, start.theta)
        and start.theta.numel() <= _MAX_PARAMETERS
        and len(optimizer.group_sizes) == 1
        and isinstance(optimizer.rule, SGD)  # others count steps, and a captured number stays
    )
    kinds = [_kind(step, micros) if possible else None for step, micros in zip(steps, batches)]
    if kinds and start.counters and start.counters[0].get("step") == 0:
        kinds[0] = None  # the first step of momentum is another formula
    parts = []
    at = 0
    while at < len(steps):
        some = kinds[at : at + STEPS_AT_ONCE]
        alike = len(some) == STEPS_AT_ONCE and some[0] is not None and len(set(some)) == 1
        parts.append(slice(at, at + (STEPS_AT_ONCE if alike else 1)))
        at = parts[-1].stop
    return parts


def _kind(step: Step, batches: Sequence[LazyBatch]) -> Hashable | None:
    """Steps of the same kind may be captured together. None: a step that is taken alone."""
    if len(batches) != 1 or step.clip is not None or step.scale != 1:
        return None
    if not batches[0].source.capturable:
        return None
    return len(batches[0].ids), step.hyperparams.tobytes()


def unstack_steps(stacked: State, count: int) -> list[State]:
    """Each step's state, its counters one further than the one before."""
    counters = [tuple({"step": one["step"] + k} for one in stacked.counters) for k in range(count)]
    return [replace(stacked.map(lambda t, k=k: t[k]), counters=counters[k]) for k in range(count)]

"""Take a training step, or several.

`dross.train` applies `take_step` to its batches, and everything later applies the same function to
the steps of the tape. So a run and its replay do not differ.

On a GPU a step of a small network is over before Python has launched the next one. Steps that
differ in nothing but their instances (the same number of them, the same rate) are therefore
captured many at a time and launched at once. The result is that of one step after the other.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

import torch
from torch import Tensor

from ..data.lazy_batch import AnyBatch, LazyBatch, LazyBatches
from ..distributed.reducer import ALONE, Reducer
from ..engine.executor import Executor
from ..engine.optim import Optimizer
from ..engine.state import State
from ..engine.step import Step, advance
from ..engine.update_rules import SGD

STEPS_AT_ONCE = 16
_MAX_PARAMETERS = 1 << 22  # the steps of a larger network keep a GPU busy one by one

Buffers = dict[str, Tensor]
Item = TypeVar("Item")


def sum_over_batches(
    batches: Iterable[Item],
    buffers: Buffers,
    compute: Callable[[Item, Buffers], tuple[Tensor, Buffers]],
    like: Tensor,
) -> tuple[Tensor, Buffers]:
    """The sum over the micro-batches of a step. Each starts from the buffers of the last one.

    Arguments:
        batches: the micro-batches, or this rank's part of them.
        buffers: what the first one starts from.
        compute: (batch, buffers) -> (its part of the sum, the buffers that it leaves).
        like: the shape of the sum where there is no batch.
    """
    total: Tensor | None = None
    for batch in batches:
        part, buffers = compute(batch, buffers)
        total = part if total is None else total + part
    return (torch.zeros_like(like) if total is None else total), buffers


def take_step(
    executor: Executor,
    optimizer: Optimizer,
    state: State,
    step: Step,
    batches: Sequence[AnyBatch],
    w: list[Tensor] | None = None,
    reducer: Reducer = ALONE,
) -> tuple[State, Tensor, list[Tensor]]:
    """s_{t+1}, the gradient [p] of the scaled losses, and the losses of each micro-batch.

    Arguments:
        executor: computes the gradients.
        optimizer: the update.
        state: s_t.
        step: what was recorded of the step.
        batches: its micro-batches.
        w: instance weights per micro-batch, all 1 by default.
        reducer: shares the work among ranks; the losses are of this rank's part.
    """
    losses: list[Tensor] = []

    def gradient(piece, buffers: Buffers) -> tuple[Tensor, Buffers]:
        k, rows, batch = piece
        weights = None if w is None else w[k][rows]
        scaled = batch.scaled(step.scale)
        g, seen, buffers = executor.gradient(state.theta, buffers, scaled, weights)
        losses.append(seen)
        return g, buffers

    g, buffers = sum_over_batches(reducer.own_part(batches), state.buffers, gradient, state.theta)
    (g,) = reducer.sum_over_theta(g)
    return advance(optimizer, state, step, g, buffers), g, losses


def take_steps(
    executor: Executor,
    optimizer: Optimizer,
    state: State,
    steps: Sequence[Step],
    batches: Sequence[list[LazyBatch]],
) -> list[State]:
    """The state after each of these steps. On a GPU several of them may be one pass."""
    after: list[State] = []
    for part in group_steps("training steps", executor, optimizer, state, steps, batches):
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
        each: Sequence[AnyBatch], theta: Tensor, slots: dict, buffers: dict, numbers: bytes
    ) -> tuple[Tensor, dict, dict]:
        now, states = State(theta, slots, buffers, state.clock), []
        for batch in each:
            now, _, _ = take_step(executor, optimizer, now, step, [batch])
            states.append(now)
        stacked = State.stack(states)
        return stacked.theta, stacked.slots, stacked.buffers

    # the numbers are captured as they are: as an argument, they tell graphs of other rates apart
    given = (state.theta, state.slots, state.buffers, step.numbers.tobytes())
    theta, slots, buffers = executor.run("training steps", take, batches, *given)
    clock = tuple({"step": one["step"] + 1} for one in state.clock)
    return unstack_steps(State(theta, slots, buffers, clock), len(batches.batches))


# --- steps that are alike -------------------------------------------------------------------------


def group_steps(
    name: str,
    executor: Executor,
    optimizer: Optimizer,
    start: State,
    steps: Sequence[Step],
    batches: Sequence[list[LazyBatch]],
) -> list[slice]:
    """Cut steps into parts: STEPS_AT_ONCE steps that can be one pass, or a single step.

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
        and optimizer.blocks is None
        and isinstance(optimizer.rule, SGD)  # others count steps, and a captured number stays
    )
    kinds = [_kind(step, own) if possible else None for step, own in zip(steps, batches)]
    if kinds and start.clock and start.clock[0].get("step") == 0:
        kinds[0] = None  # the first step of momentum is another formula
    parts, at = [], 0
    while at < len(steps):
        row = kinds[at : at + STEPS_AT_ONCE]
        alike = len(row) == STEPS_AT_ONCE and row[0] is not None and len(set(row)) == 1
        parts.append(slice(at, at + (STEPS_AT_ONCE if alike else 1)))
        at = parts[-1].stop
    return parts


def _kind(step: Step, batches: Sequence[LazyBatch]) -> Hashable | None:
    """Steps of the same kind may be captured together. None: a step that is taken alone."""
    if len(batches) != 1 or step.clip is not None or step.scale != 1:
        return None
    if not batches[0].source.capturable:
        return None
    return len(batches[0].ids), step.numbers.tobytes()


def unstack_steps(stacked: State, count: int) -> list[State]:
    """Each step's state, its clock one further than the one before."""
    clocks = [tuple({"step": one["step"] + k} for one in stacked.clock) for k in range(count)]
    return [replace(stacked.map(lambda t, k=k: t[k]), clock=clocks[k]) for k in range(count)]

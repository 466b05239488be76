"""The adjoint of a training step, and of several in a row."""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..data.lazy_batch import AnyBatch, LazyBatches
from ..engine.executor import Executor
from ..engine.state import Derivative, State
from ..engine.step import (
    Step,
    group_steps,
    needs_gradient,
    pull,
    sum_over_batches,
    take_step,
    unstack_steps,
)
from ..replay.recording import Recording
from ..replay.segment_replay import Block


def reverse_step(
    recording: Recording,
    step: Step,
    batches: Sequence[AnyBatch],
    state: State,
    g: Tensor | None,
    after: Derivative,
    hessian: bool = True,
) -> tuple[Derivative, Tensor]:
    """The adjoint before a step, and d query / d w_i for the instances of the step: [Q, |S_t|].

    Arguments:
        recording: the run.
        step: what was recorded of the step.
        batches: its micro-batches.
        state: s_t, before the step.
        g: the raw gradient [p] where it is known; computed here where the update's derivative
            depends on it.
        after: the adjoint after the step.
        hessian: False leaves the Hessian-vector product out.
    """
    executor, optimizer, reducer = recording.executor, recording.optimizer, recording.reducer
    if g is None and needs_gradient(optimizer, step):
        _, g, _ = take_step(executor, optimizer, state, step, batches, reducer=reducer)
    g = torch.zeros_like(state.theta) if g is None else g  # the update's table does not look at it
    a_g, before = pull(optimizer, state, step, g, after)

    found = []
    buffers = _buffers_before_each(executor, state, batches, bool(after.buffers))

    def pull_batch(piece, a_buffers: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        k, _, batch = piece
        given = (state.theta, buffers[k], batch.scaled(step.scale), a_g, a_buffers, hessian)
        terms, product, a_buffers = executor.pull(*given)
        found.append((piece, terms))
        return product, a_buffers

    pieces = reversed(reducer.own_part(batches))
    product, a_buffers = sum_over_batches(pieces, after.buffers, pull_batch, before.theta)
    terms = reducer.merge_terms(found[::-1], batches, before.theta)
    if hessian:
        product, terms = reducer.sum_over_theta(product, terms)
        before = replace(before, theta=before.theta + product)
    else:
        (terms,) = reducer.sum(terms)
    return replace(before, buffers=a_buffers), terms


def reverse_steps(
    recording: Recording,
    block: Block,
    adjoint: Derivative,
    hessian: bool,
    advance: Callable[[int], None],
    enter: Callable[[Derivative, int], Derivative] | None = None,
) -> tuple[Derivative, list[Tensor]]:
    """The adjoint before a block of steps, and the terms of each step, the last step's first.

    On a GPU several steps may be one pass.

    Arguments:
        recording: the run.
        block: the steps, with the state before each.
        adjoint: after the last of them.
        hessian: False leaves the Hessian-vector product out.
        advance: is called with the number of steps done.
        enter: (adjoint, t) -> the adjoint after t steps, where a query also asks the state there.
    """
    found: list[Tensor] = []
    for part in reversed(_parts(recording, block, alone=enter is not None)):
        k = part.start
        if enter is not None:
            adjoint = enter(adjoint, block.first + part.stop)
        if part.stop - k == 1:
            given = (block.steps[k], block.batches[k], block.states[k], block.gradients[k])
            adjoint, terms = reverse_step(recording, *given, adjoint, hessian)
            found.append(terms)
        else:
            alike = LazyBatches(tuple(only for (only,) in block.batches[part]))
            given = (block.steps[k], alike, block.states[part])
            adjoint, rows = _reverse_together(recording, *given, adjoint, hessian)
            found += list(rows.flip(0))
        advance(part.stop - k)
    return adjoint, found


def _parts(recording: Recording, block: Block, *, alone: bool) -> list[slice]:
    if not block.steps:
        return []
    # ranks exchange sums in every step, and a pull in float16 checks whether it was finite
    looks = recording.objective.precision.narrow is torch.float16
    if alone or recording.reducer.size > 1 or looks:
        return [slice(k, k + 1) for k in range(len(block.steps))]
    given = (recording.executor, recording.optimizer, block.states[0], block.steps, block.batches)
    return group_steps("reverse steps", *given)


def _reverse_together(
    recording: Recording,
    step: Step,
    batches: LazyBatches,
    states: Sequence[State],
    after: Derivative,
    hessian: bool,
) -> tuple[Derivative, Tensor]:
    """Several steps that are alike as one pass: the adjoint before them, terms [steps, Q, B]."""
    clock = states[0].clock

    def go_back(each: Sequence[AnyBatch], theta, slots, buffers, a_theta, a_slots, a_buffers, *_):
        adjoint, terms = Derivative(a_theta, a_slots, a_buffers), []
        before = unstack_steps(State(theta, slots, buffers, clock), len(each))
        for batch, state in zip(reversed(each), reversed(before)):
            adjoint, part = reverse_step(recording, step, [batch], state, None, adjoint, hessian)
            terms.append(part)
        return torch.stack(terms[::-1]), adjoint.theta, adjoint.slots, adjoint.buffers

    s = State.stack(states)
    # the numbers are captured as they are: as arguments, they tell one graph from another
    captured = (step.numbers.tobytes(), hessian)
    given = (s.theta, s.slots, s.buffers, after.theta, after.slots, after.buffers, *captured)
    terms, *parts = recording.executor.run("reverse steps", go_back, batches, *given)
    return Derivative(*parts), terms


def _buffers_before_each(
    executor: Executor, state: State, batches: Sequence[AnyBatch], moving: bool
) -> list[dict[str, Tensor]]:
    """The buffers that each micro-batch started from."""
    if not moving:
        return [state.buffers] * len(batches)
    buffers = [state.buffers]
    for batch in batches[:-1]:
        buffers.append(executor.losses(state.theta, buffers[-1], batch)[1])
    return buffers

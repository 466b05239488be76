"""Take a training step, or several.

Training is the first replay: `dross.train` folds `take_step` over its batches, and everything later folds the same function
over the tape, so a run and its replay differ in nothing.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ..data.batch import AnyBatch, LazyBatch, LazyBatches
from ..parallel.ranks import ALONE, Ranks
from ..step.layout import State
from ..step.objective import Objective
from ..step.optimizers import Optimizer
from ..step.step import Step, advance
from . import several_steps


def take_step(
    objective: Objective,
    optimizer: Optimizer,
    state: State,
    step: Step,
    batches: Sequence[AnyBatch],
    w: list[Tensor] | None = None,
    ranks: Ranks = ALONE,
) -> tuple[State, Tensor, list[Tensor]]:
    """s_{t+1}, the raw gradient and the losses of each micro-batch (where ranks share the work, of this rank's part).

    w: instance weights per micro-batch, all 1 by default."""
    g, losses, buffers = None, [], state.buffers
    for k, rows, batch in ranks.share(batches):
        part, seen, buffers = objective.gradient(
            state.theta, buffers, batch, None if w is None else w[k][rows]
        )
        g = part if g is None else g + part
        losses.append(seen)
    (g,) = ranks.total(torch.zeros_like(state.theta) if g is None else g)
    return advance(optimizer, state, step, g, buffers), g, losses


def take_steps(
    objective: Objective,
    optimizer: Optimizer,
    state: State,
    steps: Sequence[Step],
    feeds: Sequence[list[LazyBatch]],
) -> list[State]:
    """The state after each of these steps. On a GPU several of them may be one pass."""
    after: list[State] = []
    for part in several_steps.cut("training steps", objective, optimizer, state, steps, feeds):
        if part.stop - part.start == 1:
            after.append(
                take_step(objective, optimizer, state, steps[part.start], feeds[part.start])[0]
            )
        else:
            after += _together(
                objective,
                optimizer,
                state,
                steps[part.start],
                LazyBatches(tuple(b for (b,) in feeds[part])),
            )
        state = after[-1]
    return after


def _together(
    objective: Objective, optimizer: Optimizer, state: State, step: Step, batches: LazyBatches
) -> list[State]:
    def taken(
        each: Sequence[AnyBatch], theta: Tensor, slots: dict, buffers: dict, numbers: bytes
    ) -> tuple[Tensor, dict, dict]:
        now, states = State(theta, slots, buffers, state.clock), []
        for batch in each:
            now, _, _ = take_step(objective, optimizer, now, step, [batch])
            states.append(now)
        all_of_them = State.stacked(states)
        return all_of_them.theta, all_of_them.slots, all_of_them.buffers

    # the numbers are captured as they are: among the arguments, they tell this graph from those of other rates
    found = objective.graphs.run(
        "training steps",
        taken,
        batches,
        state.theta,
        state.slots,
        state.buffers,
        step.numbers.tobytes(),
    )
    clock = tuple({"step": one["step"] + 1} for one in state.clock)
    theta, slots, buffers = found
    return several_steps.apart(State(theta, slots, buffers, clock), len(batches.batches))

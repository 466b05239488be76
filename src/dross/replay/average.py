"""Queries of averaged weights: how much each state of the run counts in them.

    average_n = (1 - a_n) average_{n-1} + a_n theta_{t_n}        the n-th update, after t_n steps

So the average is the sum over t of W_t theta_t, and the adjoint of a query at it enters the retrace
after every averaged step, times W_t (docs/derivations.md).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cached_property

import torch

from ..engine.state import Derivative, State
from ..errors import InvalidInput
from ..tape.average_record import AverageRecord

MODEL, AVERAGE = "model", "average"


@dataclass(frozen=True)
class Average:
    """An average of the states of a run, by the number of steps that led to each."""

    state: State  # the averaged model; its slots are those of the run's end, and not used
    record: AverageRecord

    @cached_property
    def weights(self) -> dict[int, float]:
        """W_t: how much theta after t steps counts in the average."""
        return sum_weights(zip(self.record.steps.tolist(), self.record.rates.tolist()))

    @cached_property
    def buffer_weights(self) -> dict[int, float]:
        """The same for the moving buffers."""
        if self.record.buffers == "averaged":
            return self.weights
        steps = self.record.steps.tolist()
        return {steps[-1]: 1.0} if self.record.buffers == "copied" and steps else {}

    def enter(self, adjoint: Derivative, seed: Derivative, t: int) -> Derivative:
        """The adjoint after t steps, with what the query's derivative at the average adds."""
        weight, of_buffers = self.weights.get(t), self.buffer_weights.get(t)
        if weight is not None:
            adjoint = replace(adjoint, theta=adjoint.theta + weight * seed.theta)
        if of_buffers is None:
            return adjoint
        own = adjoint.buffers
        added = {name: of_buffers * a for name, a in seed.buffers.items()}
        buffers = {name: own[name] + a if name in own else a for name, a in added.items()}
        return replace(adjoint, buffers=buffers)

    # --- of other runs ----------------------------------------------------------------------------

    def add(self, total: State | None, state: State, t: int) -> State | None:
        """The weighted sum of states so far, with the state after t steps."""
        weight, of_buffers = self.weights.get(t, 0.0), self.buffer_weights.get(t, 0.0)
        if not weight and not of_buffers:
            return total
        floating = {n: b for n, b in state.buffers.items() if b.is_floating_point()}
        if total is None:
            zeros = {name: torch.zeros_like(b) for name, b in floating.items()}
            total = State(torch.zeros_like(state.theta), {}, zeros)
        buffers = {name: total.buffers[name] + of_buffers * b for name, b in floating.items()}
        return replace(total, theta=total.theta + weight * state.theta, buffers=buffers)

    def of_runs(self, sums: State | None, like: State) -> State:
        """The averages of K runs from the sums of their states. Row 0 is the replica.

        What was averaged before the runs began is the same for all, and cancels.

        Arguments:
            sums: each run's sum of weighted states, with a leading axis [K]; None: nothing of these
                steps is in the average.
            like: the runs' states at their end, [K, ...].
        """
        rows = len(like.theta)
        every = self.state.map(lambda t: t.expand(rows, *t.shape).clone())
        if sums is None:
            return replace(like, theta=every.theta, buffers=every.buffers)
        moved = {name: total - total[:1] for name, total in sums.buffers.items()}
        buffers = {n: b + moved[n] if n in moved else b for n, b in every.buffers.items()}
        return replace(like, theta=every.theta + sums.theta - sums.theta[:1], buffers=buffers)


def sum_weights(updates: Iterable[tuple[int, float]]) -> dict[int, float]:
    """W_t from the updates (t_n, a_n) in their order: a_n times what later updates leave of it."""
    weights: dict[int, float] = {}
    left = 1.0
    for t, rate in reversed(list(updates)):
        weights[t] = weights.get(t, 0.0) + left * rate
        left *= 1.0 - rate
    return {t: weight for t, weight in weights.items() if weight}


def check_of(of: str) -> bool:
    """Whether the average is asked for, and not the model itself."""
    if of not in (MODEL, AVERAGE):
        raise InvalidInput(f"of must be 'model' or 'average', not {of!r}.")
    return of == AVERAGE

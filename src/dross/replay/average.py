"""Which weights of a run a query is asked of: the model's own, or an average of them.

An average is theta_avg = sum over t of W_t theta_t. So the adjoint of a query of the average is not
known at the end of the run: a part W_t of it enters at each state that was averaged.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch

from ..engine.state import Derivative, State
from ..tape.format import AverageRecord

MODEL = "model"
AVERAGE = "average"


@dataclass(frozen=True)
class FinalModel:
    """The model after the last step that is retraced."""

    state: State
    enters_once = True  # the query's derivative, at the end

    def begin(self, query_adjoint: Derivative) -> Derivative:
        """The adjoint that a retrace begins with."""
        return query_adjoint

    def enter(self, adjoint: Derivative, t: int) -> Derivative:
        """The adjoint after t steps, with what the query adds to it there: nothing."""
        return adjoint

    def add_state(self, total: State | None, state: State, t: int) -> State | None:
        """Nothing of a counterfactual run's states is added up."""
        return None

    def of_runs(self, total: State | None, ends: State) -> State:
        """The models of K counterfactual runs: their last states."""
        return ends


@dataclass
class Average:
    """An average of the states of a run, by the number of steps that led to each."""

    state: State  # the averaged model; its slots are those of the run's end, and not used
    record: AverageRecord
    _query_adjoint: Derivative = field(
        init=False, repr=False
    )  # the query's derivative at the average
    enters_once = False

    @cached_property
    def weights(self) -> dict[int, float]:
        """W_t: how much theta after t steps counts in the average."""
        return sum_weights(zip(self.record.steps.tolist(), self.record.rates.tolist()))

    @cached_property
    def buffer_weights(self) -> dict[int, float]:
        """The same for the moving buffers."""
        if self.record.notes.buffers == "averaged":
            return self.weights
        steps = self.record.steps.tolist()
        return {steps[-1]: 1.0} if self.record.notes.buffers == "copied" and steps else {}

    # --- of a retrace -----------------------------------------------------------------------------

    def begin(self, query_adjoint: Derivative) -> Derivative:
        """The adjoint that a retrace begins with: 0. The query's enters where it was averaged."""
        self._query_adjoint = query_adjoint
        return query_adjoint.map(torch.zeros_like)

    def enter(self, adjoint: Derivative, t: int) -> Derivative:
        """The adjoint after t steps, with W_t times the query's derivative at the average."""
        query_adjoint = self._query_adjoint
        if (weight := self.weights.get(t)) is not None:
            adjoint = replace(adjoint, theta=adjoint.theta + weight * query_adjoint.theta)
        if (weight := self.buffer_weights.get(t)) is None:
            return adjoint
        buffers = {}
        for name, a in query_adjoint.buffers.items():
            added = weight * a
            buffers[name] = adjoint.buffers[name] + added if name in adjoint.buffers else added
        return replace(adjoint, buffers=buffers)

    # --- of counterfactual runs -------------------------------------------------------------------

    def add_state(self, total: State | None, state: State, t: int) -> State | None:
        """The weighted sum of a run's states so far, with the state after t steps."""
        weight = self.weights.get(t, 0.0)
        of_buffers = self.buffer_weights.get(t, 0.0)
        if not weight and not of_buffers:
            return total
        floating = {n: b for n, b in state.buffers.items() if b.is_floating_point()}
        if total is None:
            zeros = {name: torch.zeros_like(b) for name, b in floating.items()}
            total = State(torch.zeros_like(state.theta), {}, zeros)
        buffers = {name: total.buffers[name] + of_buffers * b for name, b in floating.items()}
        return replace(total, theta=total.theta + weight * state.theta, buffers=buffers)

    def of_runs(self, total: State | None, ends: State) -> State:
        """The averages of K runs from the sums of their states. Row 0 is the replica.

        What was averaged before the runs began is the same for all, and cancels.

        Arguments:
            total: each run's sum of weighted states, with a leading axis [K]; None: nothing of
                these steps is in the average.
            ends: the runs' last states, [K, ...].
        """
        rows = len(ends.theta)
        every = self.state.map(lambda t: t.expand(rows, *t.shape).clone())
        if total is None:
            return replace(ends, theta=every.theta, buffers=every.buffers)
        moved = {name: sums - sums[:1] for name, sums in total.buffers.items()}
        buffers = {n: b + moved[n] if n in moved else b for n, b in every.buffers.items()}
        return replace(ends, theta=every.theta + total.theta - total.theta[:1], buffers=buffers)


def sum_weights(updates: Iterable[tuple[int, float]]) -> dict[int, float]:
    """W_t from the updates (t_n, a_n) in their order: a_n times what later updates leave of it."""
    weights: dict[int, float] = {}
    left = 1.0
    for t, rate in reversed(list(updates)):
        weights[t] = weights.get(t, 0.0) + left * rate
        left *= 1.0 - rate
    return {t: weight for t, weight in weights.items() if weight}

"""Estimators that follow the recorded run: the retrace itself, and what is left of it without the Hessian."""

from dataclasses import dataclass

import numpy as np

from ..errors import NotSupported
from ..influence.query import Query, as_query
from ..influence.retrace import retrace
from ..influence.run import Run
from ..influence.scores import Scores
from .instance_gradients import InstanceGradients


@dataclass(frozen=True)
class Retrace:
    """The paper's estimator: `run.influence(query, epochs=epochs)`."""

    epochs: int | None = None

    def score(self, run: Run, query: Query) -> Scores:
        return run.influence(query, epochs=self.epochs)


@dataclass(frozen=True)
class WithoutHessian:
    """sum over all steps of eta_t/|S_t| <u, g(z_j; theta_t)> with u never updated: TracIn over every step.

    It costs less and ignores how later steps react to the instance's absence.
    """

    epochs: int | None = None

    def score(self, run: Run, query: Query) -> Scores:
        return retrace(
            run.recording, as_query(query), epochs=self.epochs, hessian=False, progress=run.progress
        )


def without_hessian(run: Run, query: Query, *, epochs: int | None = None) -> Scores:
    """`WithoutHessian(epochs).score(run, query)`."""
    return WithoutHessian(epochs).score(run, query)


@dataclass(frozen=True)
class TracIn:
    """TracInCP (Pruthi et al. 2020): at the end of each epoch, eta/|S| <grad query(theta), grad l(z_j; theta)>, summed up."""

    def score(self, run: Run, query: Query) -> Scores:
        recording, query = run.recording, as_query(query)
        if "lr" not in recording.optimizer.columns:
            raise NotSupported("TracIn needs an optimizer with a rate.")
        oldest, newest = recording.epochs_before(run.steps, None)
        rows, scalar = [], False
        for epoch in range(oldest, newest + 1):
            last = recording.start_of(epoch + 1) - 1
            segment = recording.tape.read(
                next(
                    i
                    for i, e in enumerate(recording.tape.entries)
                    if last < e["first"] + e["steps"]
                )
            )
            step = segment.steps[last - segment.first]
            scale = float(step.numbers[0, recording.optimizer.columns.index("lr")]) / max(
                len(step.ids), 1
            )
            state = recording.state_at(last + 1)
            u, scalar = query.seed(recording.objective, state)
            rows.append(scale * InstanceGradients(recording, state, penalty=True).products(u.theta))
        by_epoch = np.stack(rows, axis=1)  # [Q, E, N]
        values = by_epoch.sum(1)
        if scalar:
            values, by_epoch = values[0], by_epoch[0]
        return Scores(values, by_epoch, query.name, oldest, run.steps, hessian=False)

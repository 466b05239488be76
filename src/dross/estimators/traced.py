"""Estimators that follow the recorded run: the retrace, and what is left without the Hessian."""

from dataclasses import dataclass

import numpy as np
import torch

from ..errors import NotSupported
from ..influence.query import Query, as_query
from ..influence.retrace import retrace
from ..influence.run import Run
from ..influence.scores import Scores
from ..replay.recording import Recording
from ..replay.schedule import choose_steps, start_of_epoch
from .inverse_hessian import InstanceGradients


@dataclass(frozen=True)
class Retrace:
    """The paper's estimator: `run.influence(query, epochs=epochs)`.

    Arguments:
        epochs: how many of the last epochs are retraced; all by default.
    """

    epochs: int | None = None

    def score(self, run: Run, query: Query) -> Scores:
        """Retrace the run and score every training instance."""
        return run.influence(query, epochs=self.epochs)


@dataclass(frozen=True)
class WithoutHessian:
    """TracIn over every step: sum over t of eta_t/|S_t| <u, g(z_j; theta_t)>, with a fixed u.

    It costs less and ignores how later steps react to the instance's absence.

    Arguments:
        epochs: how many of the last epochs are summed up; all by default.
    """

    epochs: int | None = None

    def score(self, run: Run, query: Query) -> Scores:
        """Go through the recorded steps and score every training instance."""
        return retrace(
            run.recording, as_query(query), epochs=self.epochs, hessian=False, progress=run.progress
        )


@dataclass(frozen=True)
class TracIn:
    """TracInCP (Pruthi et al. 2020).

    At the end of each epoch, eta/|S| <grad query(theta), grad l(z_j; theta)>, summed up.
    """

    def score(self, run: Run, query: Query) -> Scores:
        """Sum the products of gradients at the end of every recorded epoch."""
        recording = run.recording
        query = as_query(query)
        if "lr" not in recording.optimizer.columns:
            raise NotSupported("TracIn needs an optimizer with a learning rate.")
        steps = choose_steps(recording.tape)
        rows = []
        value = torch.zeros(())
        for epoch in range(steps.oldest, steps.newest + 1):
            last = start_of_epoch(recording.tape, epoch + 1) - 1
            state = recording.state_at(last + 1)
            adjoint, value = query.derivative(recording.objective, state)
            products = InstanceGradients(recording, state, penalty=True).products(adjoint.theta)
            rows.append(_rate_per_instance(recording, last) * products)
        used = recording.used_instances(0, run.steps)
        by_epoch = np.where(used, np.stack(rows, axis=1), np.nan)  # [Q, E, N]
        return Scores.of_query(
            by_epoch,
            query,
            value,
            first_epoch=steps.oldest,
            step=run.steps,
            hessian=False,
        )


def _rate_per_instance(recording: Recording, t: int) -> float:
    """eta_t/|S_t|."""
    step = recording.tape.step(t)
    rate = float(step.hyperparams[0, recording.optimizer.columns.index("lr")])
    return rate / max(len(step.ids), 1)

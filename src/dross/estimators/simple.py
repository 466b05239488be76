"""The two simplest estimators, the training loss and chance."""

from dataclasses import dataclass

import numpy as np

from ..influence.query import Query
from ..influence.run import Run
from ..influence.scores import Scores
from .inverse_hessian import InstanceGradients


def as_scores(run: Run, query: Query, values: np.ndarray) -> Scores:
    """Scores of an estimator that returns one number per instance [N], whatever the query.

    They are the same for each value of the query, and nan where the run never used the instance.
    """
    shape = (*run.evaluate(query).shape, len(run))
    return run.scores(np.broadcast_to(values, shape), query)


@dataclass(frozen=True)
class TrainingLoss:
    """score = -loss under the final model: the instances that the model fits worst come first.

    It finds wrong labels, and ignores their effect on the query.
    """

    def score(self, run: Run, query: Query) -> Scores:
        """Score every training instance with its negative loss under the final model."""
        state = run.recording.state_at(run.steps)
        gradients = InstanceGradients(run.recording, state, penalty=False)
        return as_scores(run, query, -gradients.losses())


@dataclass(frozen=True)
class Random:
    """The control that every other method has to beat.

    Arguments:
        seed: of the random numbers.
    """

    seed: int = 0

    def score(self, run: Run, query: Query) -> Scores:
        """Score every training instance with a random number from the normal distribution."""
        values = np.random.default_rng(self.seed).standard_normal(len(run))
        return as_scores(run, query, values)

"""The two simplest estimators: the training loss, and chance."""

from dataclasses import dataclass

import numpy as np

from ..influence.query import Query, as_query
from ..influence.run import Run
from ..influence.scores import Scores
from .instance_gradients import InstanceGradients
from .outliers import as_scores


@dataclass(frozen=True)
class TrainingLoss:
    """score = -loss at the final model: what the model has not learnt comes first.

    It finds wrong labels, and does not ask what they do to the query.
    """

    def score(self, run: Run, query: Query) -> Scores:
        """Score every training instance by minus its loss at the final model."""
        state = run.recording.state_at(run.steps)
        gradients = InstanceGradients(run.recording, state, penalty=False)
        return as_scores(run, as_query(query), -gradients.losses())


@dataclass(frozen=True)
class Random:
    """The control that every other method has to beat.

    Arguments:
        seed: of the random numbers.
    """

    seed: int = 0

    def score(self, run: Run, query: Query) -> Scores:
        """Score every training instance by a normal random number."""
        values = np.random.default_rng(self.seed).standard_normal(len(run))
        return as_scores(run, as_query(query), values)

"""The two simplest: the training loss, and chance."""

from dataclasses import dataclass

import numpy as np

from ..influence.query import Query, as_query
from ..influence.run import Run
from ..influence.scores import Scores
from .instance_gradients import InstanceGradients
from .outliers import suspicion


@dataclass(frozen=True)
class TrainingLoss:
    """score = -loss at the final model: what the model has not learnt comes first. Finds wrong labels; does not ask what they do."""

    def score(self, run: Run, query: Query) -> Scores:
        gradients = InstanceGradients(
            run.recording, run.recording.state_at(run.steps), penalty=False
        )
        return suspicion(run, as_query(query), -gradients.losses())


@dataclass(frozen=True)
class Random:
    """The control that every other method has to beat."""

    seed: int = 0

    def score(self, run: Run, query: Query) -> Scores:
        return suspicion(
            run, as_query(query), np.random.default_rng(self.seed).standard_normal(len(run))
        )

"""Outlier detection as the paper's baselines use it.

The query's data is taken to be healthy, and a training instance that does not look like it is
suspect. Scores are those of scikit-learn's `score_samples`: the lower, the more of an outlier.

Instances are seen through the model: the inputs of its last linear layer, which in the paper's
networks is the flattened output of the convolutions.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ..data.dataset import Instances
from ..errors import InvalidInput, NotSupported
from ..influence.query import Query, as_query
from ..influence.run import Run
from ..influence.scores import Scores
from ..support.installed import check_installed

_CHUNK = 1024


def inputs_in_chunks(instances: Instances) -> Iterator[Any]:
    """The inputs of all instances in order, some at a time, on the run's device."""
    for start in range(0, len(instances), _CHUNK):
        x, _ = instances[np.arange(start, min(start + _CHUNK, len(instances)))]
        yield x


def features(run: Run, instances: Instances) -> np.ndarray:
    """The inputs of the model's last linear layer, at the trained model in eval mode.

    Returns:
        float32 [N, d].

    Raises:
        NotSupported: the model has no linear layer.
    """
    objective, state = run.recording.objective, run.recording.state_at(run.steps)
    linear = [module for module in objective.model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise NotSupported(
            "Outlier detection looks at the inputs of the model's last linear layer, and this "
            "model has none."
        )
    seen: list[np.ndarray] = []
    hook = linear[-1].register_forward_pre_hook(
        lambda _, args: seen.append(args[0].detach().flatten(1).float().cpu().numpy())
    )
    try:
        with objective.evaluating(), torch.no_grad():
            for x in inputs_in_chunks(instances):
                objective.predict(state.theta, state.buffers, x)
    finally:
        hook.remove()
    return np.concatenate(seen)


def query_instances(run: Run, query: Query) -> Instances:
    """The data that the query is about; raises InvalidInput where it has none."""
    if as_query(query).data is None:
        raise InvalidInput(
            "Outlier detection needs the data of the query: build it with dross.mean_loss or "
            "dross.losses."
        )
    return Instances(query.data, run.recording.instances.device, run.recording.instances.dtype)


def as_scores(run: Run, query: Query, values: np.ndarray) -> Scores:
    """Scores of an estimator that gives one number per instance [N], whatever the epoch."""
    values = values.astype(np.float64)
    return Scores(values, values[None], query.name, 0, run.steps, hessian=False)


def _score_outliers(detector: Any, run: Run, query: Query) -> Scores:
    detector.fit(features(run, query_instances(run, query)))
    values = detector.score_samples(features(run, run.recording.instances))
    return as_scores(run, query, np.asarray(values))


@dataclass(frozen=True)
class IsolationForest:
    """Suspect what an isolation forest isolates quickly; scikit-learn's defaults, as in the paper.

    Arguments:
        seed: of the forest.
    """

    seed: int = 0

    def score(self, run: Run, query: Query) -> Scores:
        """Score every training instance by how normal it is among the query's data."""
        check_installed("An outlier detector", "sklearn")
        from sklearn import ensemble

        return _score_outliers(ensemble.IsolationForest(random_state=self.seed), run, query)


@dataclass(frozen=True)
class LocalOutlierFactor:
    """Suspect what lies in a sparser region than its neighbours in the query's data.

    Arguments:
        neighbours: how many neighbours the densities are taken from.
    """

    neighbours: int = 20

    def score(self, run: Run, query: Query) -> Scores:
        """Score every training instance by minus its local outlier factor."""
        check_installed("An outlier detector", "sklearn")
        from sklearn import neighbors

        detector = neighbors.LocalOutlierFactor(self.neighbours, novelty=True)
        return _score_outliers(detector, run, query)


@dataclass(frozen=True)
class OneClassSVM:
    """Suspect what lies outside of the region that a one-class SVM draws around the query's data.

    Arguments:
        nu: the largest share of the query's data that may lie outside.
    """

    nu: float = 0.5

    def score(self, run: Run, query: Query) -> Scores:
        """Score every training instance by its place inside or outside of the region."""
        check_installed("An outlier detector", "sklearn")
        from sklearn import svm

        return _score_outliers(svm.OneClassSVM(nu=self.nu), run, query)

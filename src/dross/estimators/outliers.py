"""Outlier detection as the paper's baselines use it: the query's data is taken to be healthy, and a training instance that does not look
like it is suspect. Scores are those of scikit-learn's `score_samples`: the lower, the more of an outlier.

Instances are seen through the model: the inputs of its last linear layer, which in the paper's networks is the flattened output of
the convolutions.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ..data.dataset import Instances
from ..errors import BadInput, NotSupported
from ..influence.query import Query, as_query
from ..influence.run import Run
from ..influence.scores import Scores

_CHUNK = 1024


def features(run: Run, instances: Instances) -> np.ndarray:
    """The inputs of the model's last linear layer, at the trained model in eval mode: float32 [N, d]."""
    objective, state = run.recording.objective, run.recording.state_at(run.steps)
    last = [module for module in objective.model.modules() if isinstance(module, nn.Linear)]
    if not last:
        raise NotSupported(
            "Outlier detection looks at the inputs of the model's last linear layer, and this model has none."
        )
    seen: list[np.ndarray] = []
    hook = last[-1].register_forward_pre_hook(
        lambda _, args: seen.append(args[0].detach().flatten(1).float().cpu().numpy())
    )
    try:
        with objective.evaluating(), torch.no_grad():
            for start in range(0, len(instances), _CHUNK):
                x, _ = instances[np.arange(start, min(start + _CHUNK, len(instances)))]
                objective.predict(state.theta, state.buffers, x)
    finally:
        hook.remove()
    return np.concatenate(seen)


def healthy(run: Run, query: Query) -> Instances:
    """The data that the query is about."""
    if as_query(query).data is None:
        raise BadInput(
            "Outlier detection needs the data of the query: build it with dross.mean_loss or dross.losses."
        )
    return Instances(query.data, run.recording.instances.device, run.recording.instances.dtype)


def suspicion(run: Run, query: Query, values: np.ndarray) -> Scores:
    values = values.astype(np.float64)
    return Scores(values, values[None], query.name, 0, run.steps, hessian=False)


def _outlierness(detector: Any, run: Run, query: Query) -> Scores:
    detector.fit(features(run, healthy(run, query)))
    return suspicion(
        run, query, np.asarray(detector.score_samples(features(run, run.recording.instances)))
    )


@dataclass(frozen=True)
class IsolationForest:
    """scikit-learn's defaults, as in the paper."""

    seed: int = 0

    def score(self, run: Run, query: Query) -> Scores:
        from sklearn import ensemble

        return _outlierness(ensemble.IsolationForest(random_state=self.seed), run, query)


@dataclass(frozen=True)
class LocalOutlierFactor:
    neighbours: int = 20

    def score(self, run: Run, query: Query) -> Scores:
        from sklearn import neighbors

        return _outlierness(neighbors.LocalOutlierFactor(self.neighbours, novelty=True), run, query)


@dataclass(frozen=True)
class OneClassSVM:
    nu: float = 0.5

    def score(self, run: Run, query: Query) -> Scores:
        from sklearn import svm

        return _outlierness(svm.OneClassSVM(nu=self.nu), run, query)

"""The two simplest estimators, the training loss and chance, and the features of instances."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from ..data.dataset import Instances
from ..errors import NotSupported
from ..influence.query import Query, as_query
from ..influence.run import Run
from ..influence.scores import Scores
from .inverse_hessian import InstanceGradients

_CHUNK = 1024  # instances in memory at once


def as_scores(run: Run, query: Query, values: np.ndarray) -> Scores:
    """Scores of an estimator that gives one number per instance [N], whatever the epoch."""
    values = values.astype(np.float64)
    return Scores(values, values[None], query=query, step=run.steps, hessian=False)


@dataclass(frozen=True)
class TrainingLoss:
    """score = -loss at the final model: what the model has not learned comes first.

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
    objective = run.recording.objective
    state = run.recording.state_at(run.steps)
    linear = [module for module in objective.model.modules() if isinstance(module, nn.Linear)]
    if not linear:
        raise NotSupported(
            "The features are the inputs of the model's last linear layer, and this model has none."
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

"""Outlier detection as the paper's baselines use it.

The query's data is taken to be healthy, and a training instance that does not look like it is
suspect. Scores are those of scikit-learn's `score_samples`: the lower, the more of an outlier.

Instances are seen through the model: the inputs of its last linear layer, which in the paper's
networks is the flattened output of the convolutions.

The paper's autoencoder baseline: score = -|x - reconstruction|^2.

The autoencoder is trained on the query's data with the run's own augmentation.

The two simplest estimators: the training loss, and chance.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import nn

from .._checks import check_installed
from .._progress import progress_bar
from ..data.dataset import Instances
from ..data.seeds import make_generator, use_seed
from ..datasets.models import cifar10_autoencoder, dense, mnist_autoencoder
from ..errors import InvalidInput, NotSupported
from ..influence.query import Query, as_query
from ..influence.run import Run
from ..influence.scores import Scores
from .inverse_hessian import InstanceGradients

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


def network(shape: tuple[int, ...]) -> nn.Module:
    """The paper's architecture for its two image shapes; a small dense one for flat inputs."""
    if shape == (1, 28, 28):
        return mnist_autoencoder()
    if shape == (3, 32, 32):
        return cifar10_autoencoder()
    if len(shape) == 1:
        middle, inner = max(2, shape[0] // 2), max(1, shape[0] // 4)
        return dense(shape[0], middle, inner, middle, shape[0])
    raise NotSupported(
        f"There is no autoencoder for inputs of shape {shape}: only 1x28x28, 3x32x32 and flat "
        "vectors."
    )


@dataclass(frozen=True)
class Autoencoder:
    """Suspect what an autoencoder of the query's data reconstructs badly.

    Arguments:
        epochs: how long the autoencoder is trained.
        batch_size: instances per step.
        rate: Adam's learning rate.
        seed: of its initial weights, its batches and their augmentation.
    """

    epochs: int = 20
    batch_size: int = 128
    rate: float = 0.001
    seed: int = 0

    def score(self, run: Run, query: Query) -> Scores:
        """Score every training instance by minus its squared reconstruction error."""
        model = self._train(run, query_instances(run, query))
        with torch.no_grad():
            errors = [
                (model(x) - x).square().flatten(1).sum(1).double().cpu().numpy()
                for x in inputs_in_chunks(run.recording.instances)
            ]
        return as_scores(run, query, -np.concatenate(errors))

    def _train(self, run: Run, reference: Instances) -> nn.Module:
        recording, device = run.recording, run.recording.device
        x, _ = reference[np.arange(1)]
        with use_seed(device, self.seed):
            model = network(tuple(x.shape[1:])).to(device, recording.instances.dtype)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.rate)
        rng = np.random.default_rng(self.seed)
        per_epoch = -(-len(reference) // self.batch_size)
        with progress_bar(
            "training an autoencoder", self.epochs * per_epoch, show=run.progress
        ) as advance:
            for epoch in range(self.epochs):
                for k, ids in enumerate(np.array_split(rng.permutation(len(reference)), per_epoch)):
                    x, _ = reference[ids]
                    if recording.augment is not None:
                        x = recording.augment(x, make_generator(device, self.seed, epoch, k))
                    loss = (model(x) - x).square().flatten(1).sum(1).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    advance(1)
        return model


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

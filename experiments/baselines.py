"""The paper's outlier detectors as estimators: Section 7.2 compares with them.

The query's data are taken to be healthy, and a training instance that does not look like them is
suspect. As everywhere, the lowest scores are the ones to remove first.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from dross.cleaning.scoring import inputs_in_chunks, last_layer_inputs
from dross.data.dataset import Instances
from dross.data.seeds import make_generator, use_seed
from dross.estimators.simple import as_scores
from dross.influence.query import Query
from dross.influence.run import Run
from dross.influence.scores import Scores

from .networks import autoencoder


@dataclass(frozen=True)
class IsolationForest:
    """Suspect what an isolation forest isolates quickly; scikit-learn's defaults, as in the paper.

    It sees the inputs of the model's last linear layer, which in the paper's networks is the
    flattened output of the convolutions.
    """

    seed: int = 0

    def score(self, run: Run, query: Query) -> Scores:
        """Score every training instance by how normal it is among the query's data."""
        from sklearn.ensemble import IsolationForest

        forest = IsolationForest(random_state=self.seed)
        forest.fit(last_layer_inputs(run, _query_instances(run, query)))
        values = forest.score_samples(last_layer_inputs(run, run.recording.instances))
        return as_scores(run, query, np.asarray(values))


@dataclass(frozen=True)
class Autoencoder:
    """Suspect what an autoencoder of the query's data reconstructs badly.

    It is trained with Adam and with the run's own augmentation, on images of 1x28x28 or 3x32x32.
    score = -|x - reconstruction|^2.
    """

    epochs: int = 20
    batch_size: int = 128
    rate: float = 0.001
    seed: int = 0

    def score(self, run: Run, query: Query) -> Scores:
        """Score every training instance by minus its squared reconstruction error."""
        model = self._train(run, _query_instances(run, query))
        errors = []
        with torch.no_grad():
            for x in inputs_in_chunks(run.recording.instances):
                errors.append(_squared_error(model, x).double().cpu().numpy())
        return as_scores(run, query, -np.concatenate(errors))

    def _train(self, run: Run, reference: Instances) -> nn.Module:
        recording = run.recording
        first, _ = reference[np.arange(1)]
        channels = first.shape[1]
        wide, narrow = (24, 12) if channels == 1 else (64, 32)
        with use_seed(recording.device, self.seed):
            model = autoencoder(channels, wide, narrow)
            model = model.to(recording.device, recording.instances.dtype)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.rate)
        rng = np.random.default_rng(self.seed)
        per_epoch = -(-len(reference) // self.batch_size)
        for epoch in range(self.epochs):
            batches = np.array_split(rng.permutation(len(reference)), per_epoch)
            for k, ids in enumerate(batches):
                x, _ = reference[ids]
                if recording.augment is not None:
                    seeded = make_generator(recording.device, self.seed, epoch, k)
                    x = recording.augment(x, seeded)
                optimizer.zero_grad()
                _squared_error(model, x).mean().backward()
                optimizer.step()
        return model


def _squared_error(model: nn.Module, x: Tensor) -> Tensor:
    return (model(x) - x).square().flatten(1).sum(1)  # [B]


def _query_instances(run: Run, query: Query) -> Instances:
    instances = run.recording.instances
    return Instances(query.data, instances.device, instances.dtype)

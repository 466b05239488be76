"""The paper's autoencoder baseline: score = -|x - reconstruction|^2.

The autoencoder is trained on the query's data with the run's own augmentation.
"""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..data.dataset import Instances
from ..data.seeds import make_generator, use_seed
from ..datasets.models import cifar10_autoencoder, dense, mnist_autoencoder
from ..errors import NotSupported
from ..influence.query import Query
from ..influence.run import Run
from ..influence.scores import Scores
from ..support.progress import progress_bar
from .outliers import as_scores, inputs_in_chunks, query_instances


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

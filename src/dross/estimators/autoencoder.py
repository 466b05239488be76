"""The paper's autoencoder baseline: trained on the query's data with the run's own augmentation, score = -|x - reconstruction|^2."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from ..data.seeds import generator, seeded
from ..datasets.models import cifar10_autoencoder, dense, mnist_autoencoder
from ..errors import NotSupported
from ..influence.query import Query
from ..influence.run import Run
from ..influence.scores import Scores
from ..support.progress import progress_bar
from .outliers import healthy, suspicion


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
        f"There is no autoencoder for inputs of shape {shape}: only 1x28x28, 3x32x32 and flat vectors."
    )


@dataclass(frozen=True)
class Autoencoder:
    epochs: int = 20
    batch_size: int = 128
    rate: float = 0.001
    seed: int = 0

    def score(self, run: Run, query: Query) -> Scores:
        recording, reference = run.recording, healthy(run, query)
        device = recording.device
        x, _ = reference[np.arange(1)]
        with seeded(device, self.seed):
            model = network(tuple(x.shape[1:])).to(device, recording.instances.dtype)
        optimizer = torch.optim.Adam(model.parameters(), lr=self.rate)
        rng = np.random.default_rng(self.seed)
        per_epoch = -(-len(reference) // self.batch_size)
        steps = self.epochs * per_epoch
        with progress_bar("training an autoencoder", steps, show=run.progress) as advance:
            for epoch in range(self.epochs):
                for k, ids in enumerate(np.array_split(rng.permutation(len(reference)), per_epoch)):
                    x, _ = reference[ids]
                    if recording.augment is not None:
                        x = recording.augment(x, generator(device, self.seed, epoch, k))
                    loss = (model(x) - x).square().flatten(1).sum(1).mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    advance(1)
        instances, errors = recording.instances, []
        with torch.no_grad():
            for start in range(0, len(instances), 1024):
                x, _ = instances[np.arange(start, min(start + 1024, len(instances)))]
                errors.append((model(x) - x).square().flatten(1).sum(1).double().cpu().numpy())
        return suspicion(run, query, -np.concatenate(errors))

"""Products with instances' gradients and with the loss's Hessian, at one model in eval mode."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..data.batch import MicroBatch
from ..data.lazy_batch import LazyBatch
from ..engine.executor import Executor
from ..engine.state import State
from ..replay.recording import Recording

_CHUNK = 512


class InstanceGradients:
    """The training instances' losses at one state: nothing random, nothing augmented.

    Arguments:
        recording: the recorded run.
        state: where the losses are taken.
        penalty: whether the run's penalty is part of the loss.
    """

    def __init__(self, recording: Recording, state: State, *, penalty: bool):
        used = recording.objective.penalty if penalty else None
        objective = replace(recording.objective, penalty=used, stochastic=False)
        self.executor = Executor(objective)
        self.instances, self.state = recording.instances, state

    def products(self, v: Tensor) -> np.ndarray:
        """<v_q, grad l(z_j)> for all training instances: v [Q, p] -> float64 [Q, N]."""
        with self.executor.evaluating():
            parts = [
                self._pull(batch, v, hessian=False)[0].double()
                for batch in self._batches(self._all_ids)
            ]
        return torch.cat(parts, dim=1).cpu().numpy()

    def hessian_product(self, v: Tensor, ids: np.ndarray | None = None) -> Tensor:
        """H v_q with H the Hessian of the mean loss over some instances, or all: [Q, p]."""
        ids = self._all_ids if ids is None else ids
        with self.executor.evaluating():
            total = torch.zeros_like(v)
            for batch in self._batches(ids):
                total += self._pull(batch, v, hessian=True)[1]
        return total / len(ids)

    def losses(self) -> np.ndarray:
        """Every training instance's loss: float64 [N]."""
        theta, buffers = self.state.theta, self.state.buffers
        with self.executor.evaluating():
            parts = [
                self.executor.losses(theta, buffers, batch)[0].double()
                for batch in self._batches(self._all_ids)
            ]
        return torch.cat(parts).cpu().numpy()

    @property
    def _all_ids(self) -> np.ndarray:
        return np.arange(len(self.instances))

    def _pull(self, batch: LazyBatch, v: Tensor, hessian: bool):
        return self.executor.pull(self.state.theta, self.state.buffers, batch, v, {}, hessian)

    def _batches(self, ids: np.ndarray) -> Iterator[LazyBatch]:
        chunks = [ids[start : start + _CHUNK] for start in range(0, len(ids), _CHUNK)]
        steps = [[MicroBatch(chunk, np.ones(len(chunk)))] for chunk in chunks]
        yield from (batch for (batch,) in self.instances.lazy_batches(steps, 0, 0, None))

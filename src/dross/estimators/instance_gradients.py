"""Products with every training instance's gradient, and with the Hessian of the training loss, at one model in eval mode."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..batch import Batch
from ..layout import State
from ..objective import Objective
from ..replay import Recording

_CHUNK = 512


def products(recording: Recording, state: State, v: Tensor, *, penalty: bool) -> np.ndarray:
    """<v_q, grad l(z_j)> for all training instances: v [Q, p] -> float64 [Q, N]."""
    objective = _plain(recording, penalty)
    parts = []
    with objective.evaluating():
        for batch in _batches(recording, np.arange(len(recording.instances))):
            parts.append(objective.pull(state.theta, state.buffers, batch, v, {}, hessian=False)[0].double().cpu().numpy())
    return np.concatenate(parts, axis=1)


def hessian_product(recording: Recording, state: State, v: Tensor, ids: np.ndarray, *, penalty: bool) -> Tensor:
    """H v_q, with H the Hessian of the mean loss over the given instances: [Q, p] -> [Q, p]."""
    objective = _plain(recording, penalty)
    total = torch.zeros_like(v)
    with objective.evaluating():
        for batch in _batches(recording, ids):
            total += objective.pull(state.theta, state.buffers, batch, v, {}, hessian=True)[1]
    return total / len(ids)


def losses(recording: Recording, state: State) -> np.ndarray:
    """Every training instance's loss, without the penalty: float64 [N]."""
    objective = _plain(recording, False)
    with objective.evaluating(), torch.no_grad():
        parts = [
            objective.losses(state.theta, state.buffers, batch)[0].double().cpu().numpy()
            for batch in _batches(recording, np.arange(len(recording.instances)))
        ]
    return np.concatenate(parts)


def _plain(recording: Recording, penalty: bool) -> Objective:
    """The objective outside of training: nothing random, and with its own choice between forward and reverse mode."""
    kept = recording.objective.penalty if penalty else None
    return replace(recording.objective, penalty=kept, stochastic=False, forward_mode=None)


def _batches(recording: Recording, ids: np.ndarray) -> Iterator[Batch]:
    instances = recording.instances
    for start in range(0, len(ids), _CHUNK):
        x, y = instances[ids[start : start + _CHUNK]]
        yield Batch(x, y, torch.ones(len(ids[start : start + _CHUNK]), dtype=instances.dtype, device=instances.device), 0)

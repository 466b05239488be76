"""traker: TRAK scores say how much an instance raises the margin of a target.

That lowers its loss: our sign. A loss falls by 1 - p per unit of margin, which turns margins of
single targets into losses before they are averaged.
"""

import tempfile

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset
from trak import TRAKer

from ..problem import Problem

DIMENSIONS, BATCH = 512, 250


def trak(problem: Problem, kind: str) -> np.ndarray:
    """TRAK with one checkpoint."""
    model, (x, y) = problem.load_trained(), problem.validation if kind == "mean" else problem.asked
    state = torch.load(problem.checkpoints[-1])
    with tempfile.TemporaryDirectory(prefix="traker-") as folder:
        traker = TRAKer(
            model,
            "image_classification",
            train_set_size=len(problem.pair[1]),
            save_dir=folder,
            device="cpu",
            proj_dim=DIMENSIONS,
            use_half_precision=False,
        )
        traker.load_checkpoint(state, model_id=0)
        for batch in DataLoader(TensorDataset(*problem.pair), BATCH):
            traker.featurize(batch, num_samples=len(batch[1]))
        traker.finalize_features()
        traker.start_scoring_checkpoint("queries", state, model_id=0, num_targets=len(y))
        for batch in DataLoader(TensorDataset(x, y), BATCH):
            traker.score(batch, num_samples=len(batch[1]))
        scores = np.array(traker.finalize_scores("queries"), dtype=np.float64).T  # [V, N]
    with torch.no_grad():
        p = model(x).softmax(-1)[torch.arange(len(y)), y].double().numpy()
    scores *= (1 - p)[:, None]
    return scores.mean(0) if kind == "mean" else scores

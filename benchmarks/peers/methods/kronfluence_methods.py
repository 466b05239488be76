"""kronfluence: EK-FAC over linear layers and convolutions.

Scores are positive for what lowers the measured loss: our sign.
"""

import tempfile

import numpy as np
import torch
import torch.nn.functional as F
from kronfluence.analyzer import Analyzer, prepare_model
from kronfluence.arguments import FactorArguments, ScoreArguments
from kronfluence.task import Task
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from ..problem import Problem

BATCH = 250


class Classification(Task):
    """Cross entropy, both to train and to measure."""

    def compute_train_loss(
        self, batch: tuple[Tensor, Tensor], model: nn.Module, sample: bool = False
    ) -> Tensor:
        """The summed loss, of sampled labels for the true Fisher."""
        x, y = batch
        logits = model(x)
        if sample:
            with torch.no_grad():
                y = torch.multinomial(logits.detach().softmax(-1), 1).flatten()
        return F.cross_entropy(logits, y, reduction="sum")

    def compute_measurement(self, batch: tuple[Tensor, Tensor], model: nn.Module) -> Tensor:
        """The summed loss of the query."""
        return self.compute_train_loss(batch, model)


def ekfac(problem: Problem, kind: str) -> np.ndarray:
    """Scores with EK-FAC and kronfluence's heuristic damping."""
    torch.manual_seed(0)  # of the sampled labels
    task, train = Classification(), TensorDataset(*problem.pair)
    queries = TensorDataset(*(problem.validation if kind == "mean" else problem.asked))
    with tempfile.TemporaryDirectory(prefix="kronfluence-") as folder:
        model = prepare_model(problem.load_trained(), task)
        options = {"cpu": True, "disable_tqdm": True, "output_dir": folder}
        analyzer = Analyzer("peers", model, task, **options)
        factors = FactorArguments(strategy="ekfac")
        analyzer.fit_all_factors("factors", train, per_device_batch_size=BATCH, factor_args=factors)
        averaged = kind == "mean"
        analyzer.compute_pairwise_scores(
            "scores",
            "factors",
            queries,
            train,
            per_device_query_batch_size=len(queries),
            per_device_train_batch_size=BATCH,
            score_args=ScoreArguments(damping_factor=None, aggregate_query_gradients=averaged),
        )
        scores = analyzer.load_pairwise_scores("scores")["all_modules"].double().numpy()
    return scores[0] / len(queries) if kind == "mean" else scores

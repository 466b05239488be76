"""From scores and truth to the numbers of the table."""

from pathlib import Path

import numpy as np
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import roc_auc_score

from .problem import Problem
from .truth import SHARES, groups


def measure_agreement(problem: Problem, scores: dict[str, np.ndarray]) -> dict[str, float]:
    """Agreement with the truth, as far as it is there, and with the flipped labels."""
    numbers: dict[str, float] = {}
    for part, removed in groups(problem).items():
        path = problem.folder / f"truth-{part}.npz"
        if not path.exists():
            continue
        with np.load(path) as truth:
            for kind, given in scores.items():
                rows, true = np.atleast_2d(given), np.atleast_2d(truth[kind])
                # [Q, K]
                predicted = np.array([[row[ids].sum() for ids in removed] for row in rows])
                spearman = _mean(spearmanr, predicted, true)
                if part == "loo":
                    numbers[f"loo_kendall_{kind}"] = _mean(kendalltau, predicted, true)
                    numbers[f"loo_spearman_{kind}"] = spearman
                else:
                    numbers[f"lds_{part}_{kind}"] = spearman
    flipped = np.zeros(problem.setting.train, dtype=bool)
    flipped[problem.data["flipped"].numpy()] = True
    numbers["auroc"] = float(roc_auc_score(flipped, -scores["mean"]))
    return numbers


def _mean(correlation, predicted: np.ndarray, true: np.ndarray) -> float:
    """The mean correlation over queries; where all scores are equal there is no order: 0."""
    values = [
        0.0 if np.ptp(p) == 0 or np.ptp(t) == 0 else correlation(p, t).statistic
        for p, t in zip(predicted, true)
    ]
    return float(np.mean(values))


COLUMNS = (
    *(f"loo_{what}_{kind}" for kind in ("mean", "singles") for what in ("kendall", "spearman")),
    *(f"lds_{share:g}_{kind}" for kind in ("mean", "singles") for share in SHARES),
    "auroc",
    "time_mean",
    "time_singles",
    "memory",
)


def load_scores(path: Path) -> dict[str, np.ndarray]:
    """The scores of a method by kind of query."""
    with np.load(path) as kept:
        return {kind: kept[kind] for kind in kept.files}

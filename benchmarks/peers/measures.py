"""From scores and truth to the numbers of the table."""

from pathlib import Path

import numpy as np
from scipy.stats import kendalltau, spearmanr
from sklearn.metrics import roc_auc_score

from .problem import Problem
from .truth import SHARES, groups


def measured(problem: Problem, scores: dict[str, np.ndarray]) -> dict[str, float]:
    """Agreement with the truth, as far as it has been bought; and how well the scores find the flipped labels."""
    numbers: dict[str, float] = {}
    for part, removed in groups(problem).items():
        path = problem.folder / f"truth-{part}.npz"
        if not path.exists():
            continue
        with np.load(path) as truth:
            for kind, given in scores.items():
                rows, true = np.atleast_2d(given), np.atleast_2d(truth[kind])
                predicted = np.array(
                    [[row[ids].sum() for ids in removed] for row in rows]
                )  # [Q, K]
                if part == "loo":
                    numbers[f"loo_kendall_{kind}"] = _mean(
                        lambda a, b: kendalltau(a, b).statistic, predicted, true
                    )
                    numbers[f"loo_spearman_{kind}"] = _mean(
                        lambda a, b: spearmanr(a, b).statistic, predicted, true
                    )
                else:
                    numbers[f"lds_{part}_{kind}"] = _mean(
                        lambda a, b: spearmanr(a, b).statistic, predicted, true
                    )
    flipped = np.zeros(problem.setting.train, dtype=bool)
    flipped[problem.data["flipped"].numpy()] = True
    numbers["auroc"] = float(roc_auc_score(flipped, -scores["mean"]))
    return numbers


def _mean(statistic, predicted: np.ndarray, true: np.ndarray) -> float:
    """Over queries; a method that gives every instance the same score has no order, which counts as 0."""
    return float(
        np.mean(
            [
                0.0 if np.ptp(p) == 0 or np.ptp(t) == 0 else statistic(p, t)
                for p, t in zip(predicted, true)
            ]
        )
    )


COLUMNS = (
    *(f"loo_{what}_{kind}" for kind in ("mean", "singles") for what in ("kendall", "spearman")),
    *(f"lds_{share:g}_{kind}" for kind in ("mean", "singles") for share in SHARES),
    "auroc",
    "time_mean",
    "time_singles",
    "memory",
)


def load_scores(path: Path) -> dict[str, np.ndarray]:
    with np.load(path) as kept:
        return {kind: kept[kind] for kind in kept.files}

"""Scores against counterfactual fine-tunings, and what tells beforehand how well they agree."""

from pathlib import Path

import numpy as np
from scipy import stats

import dross
from dross.influence.verify import compare_subsets

SHARES = (0.01, 0.02, 0.03, 0.05)  # of the examples, in a subset that is left out
SUBSETS, SINGLES = 24, 12


def choose_groups(count: int, scores: np.ndarray, seed: int) -> tuple[list, list]:
    """Random subsets of 1 to 5 %, and single examples: half of them extremes, half random."""
    random = np.random.default_rng([seed, 3])
    sizes = [max(2, round(SHARES[k % len(SHARES)] * count)) for k in range(SUBSETS)]
    subsets = [np.sort(random.choice(count, size, replace=False)).tolist() for size in sizes]
    order = np.argsort(scores)
    extremes = [*order[: SINGLES // 4], *order[-(SINGLES // 4) :]]
    rest = random.choice(np.setdiff1d(order, extremes), SINGLES - len(extremes), replace=False)
    return subsets, [[int(j)] for j in [*extremes, *rest]]


def compare_with_truth(
    run: dross.Run, query: dross.Query, scores: dross.Scores, *, seed: int, folder: Path | None
) -> dict:
    """The agreement of scores with the true changes, and the proxy of it.

    The LDS is that of `Run.lds`, over subsets of several sizes.
    """
    subsets, singles = choose_groups(len(run), scores.values, seed)
    groups = [*subsets, *singles]
    actual = run.counterfactual(groups, folder=folder).changes(query)
    estimated = np.array([scores.values[group].sum() for group in groups])
    some, one = slice(0, len(subsets)), slice(len(subsets), None)
    slope = float((estimated[some] * actual[some]).sum() / (estimated[some] ** 2).sum())
    off = np.abs(actual - estimated)[some].mean() / np.abs(actual[some]).mean()
    return {
        "lds": compare_subsets(scores, [np.array(ids) for ids in subsets], actual[some]).value,
        "tau_subsets": float(stats.kendalltau(estimated[some], actual[some]).statistic),
        "tau_singles": float(stats.kendalltau(estimated[one], actual[one]).statistic),
        "slope": slope,
        "relative_error": float(off),
        "estimated": estimated.tolist(),
        "actual": actual.tolist(),
    }

"""The truth: the same run without one instance, and without random shares of the training set."""

import numpy as np

from .problem import Problem

SHARES = (0.01, 0.05, 0.1, 0.5)


def groups(problem: Problem) -> dict[str, list[np.ndarray]]:
    """What is removed: single instances ("loo"), and `subsets` random subsets per share."""
    setting, rng = problem.setting, np.random.default_rng(2)
    chosen = {"loo": [np.array([j]) for j in rng.choice(setting.train, setting.loo, replace=False)]}
    for share in SHARES:
        size = max(1, round(share * setting.train))
        chosen[f"{share:g}"] = [
            rng.choice(setting.train, size, replace=False) for _ in range(setting.subsets)
        ]
    return chosen


def measure(problem: Problem, part: str) -> dict[str, np.ndarray]:
    """The true change in the mean validation loss [K] and in the single losses [Q, K]."""
    runs = problem.run.counterfactual(groups(problem)[part])
    return {kind: runs.changes(problem.query(kind)) for kind in ("mean", "singles")}

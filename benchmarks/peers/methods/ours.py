"""dross itself, its approximations, and two controls."""

import tempfile
from pathlib import Path

import numpy as np

from dross.estimators import Random, TrainingLoss, WithoutHessian

from ..problem import Problem

RUNS = 4


def retrace(problem: Problem, kind: str) -> np.ndarray:
    """The exact retrace of the whole run."""
    return problem.run.influence(problem.query(kind)).values


def last_epochs(problem: Problem, kind: str) -> np.ndarray:
    """The retrace of the last third of the epochs."""
    epochs = max(1, problem.setting.epochs // 3)
    return problem.run.influence(problem.query(kind), epochs=epochs).values


def no_hessian(problem: Problem, kind: str) -> np.ndarray:
    """Every step, with the Hessian left out."""
    return WithoutHessian().score(problem.run, problem.query(kind)).values


def average_over_runs(problem: Problem, kind: str) -> np.ndarray:
    """The mean of the exact scores of several runs with other seeds."""
    scores = [problem.run.influence(problem.query(kind)).values]
    for seed in range(1, RUNS):
        with tempfile.TemporaryDirectory(prefix="dross-peers-") as folder:
            run = problem.record(Path(folder) / "tape", seed)
            scores.append(run.influence(problem.query(kind)).values)
    return np.mean(scores, axis=0)


def training_loss(problem: Problem, kind: str) -> np.ndarray:
    """Minus the instance's own loss."""
    scores = TrainingLoss().score(problem.run, problem.query("mean"))
    return _repeat(scores.values, problem, kind)


def chance(problem: Problem, kind: str) -> np.ndarray:
    """Random numbers."""
    scores = Random().score(problem.run, problem.query("mean"))
    return _repeat(scores.values, problem, kind)


def _repeat(values: np.ndarray, problem: Problem, kind: str) -> np.ndarray:
    return values if kind == "mean" else np.tile(values, (len(problem.asked[1]), 1))

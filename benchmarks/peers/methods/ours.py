"""dross itself, its approximations, and two controls."""

import tempfile
from pathlib import Path

import numpy as np

from dross.estimators import Random, TrainingLoss, WithoutHessian

from ..problem import Problem

RUNS = 4


def retrace(problem: Problem, kind: str) -> np.ndarray:
    return problem.run.influence(problem.query(kind)).values


def last_epochs(problem: Problem, kind: str) -> np.ndarray:
    return problem.run.influence(
        problem.query(kind), epochs=max(1, problem.setting.epochs // 3)
    ).values


def no_hessian(problem: Problem, kind: str) -> np.ndarray:
    return WithoutHessian().score(problem.run, problem.query(kind)).values


def averaged(problem: Problem, kind: str) -> np.ndarray:
    scores = [problem.run.influence(problem.query(kind)).values]
    for seed in range(1, RUNS):
        with tempfile.TemporaryDirectory(prefix="dross-peers-") as folder:
            scores.append(
                problem.record(Path(folder) / "tape", seed).influence(problem.query(kind)).values
            )
    return np.mean(scores, axis=0)


def training_loss(problem: Problem, kind: str) -> np.ndarray:
    return _repeated(TrainingLoss().score(problem.run, problem.query("mean")).values, problem, kind)


def chance(problem: Problem, kind: str) -> np.ndarray:
    return _repeated(Random().score(problem.run, problem.query("mean")).values, problem, kind)


def _repeated(values: np.ndarray, problem: Problem, kind: str) -> np.ndarray:
    return values if kind == "mean" else np.tile(values, (len(problem.asked[1]), 1))

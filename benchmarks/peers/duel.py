"""dross against bergson's MAGIC, which computes the same scores: their costs and differences."""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import dross

from .methods.bergson_magic import Magic
from .problem import Problem

# A backward pass of MAGIC that takes longer is not repeated for ten queries: it is the same work.
SECONDS_OF_A_LONG_PASS = 10.0
SECONDS_OF_ALL_ROUNDS = 60.0  # after which no other round begins


def duel(problem: Problem) -> dict:
    """CPU seconds of both, alternating, and the largest difference of their scores (float32)."""
    spent: dict[str, list[float]] = {}

    def time_call(what: str, function, *arguments):
        start = time.process_time()
        value = function(*arguments)
        spent.setdefault(what, []).append(time.process_time() - start)
        return value

    asked = tuple(part[:10] for part in problem.validation)
    mean, ten = problem.query("mean"), dross.losses(asked)
    measured_ten, ours, theirs = True, None, None
    for _ in range(problem.setting.rounds):
        if sum(map(sum, spent.values())) > SECONDS_OF_ALL_ROUNDS:
            break
        with tempfile.TemporaryDirectory(prefix="dross-peers-") as folder:
            time_call("training", problem.train_plainly)
            run = time_call("dross recording", problem.record, Path(folder) / "tape")
            ours = time_call("dross 1 query", run.influence, mean).values
            time_call("dross 10 queries", run.influence, ten)
            time_call("training", problem.train_plainly)
            magic = time_call("magic recording", Magic, problem, f"{folder}/magic")
            theirs = time_call("magic 1 query", magic.scores, *problem.validation)
            measured_ten = spent["magic 1 query"][0] < SECONDS_OF_A_LONG_PASS
            if measured_ten:
                one_by_one = [(x[None], y[None]) for x, y in zip(*asked)]
                ask = lambda magic=magic, pairs=one_by_one: [magic.scores(*pair) for pair in pairs]
                time_call("magic 10 queries", ask)
            few = problem.record(Path(folder) / "few", keep=dross.tape.Checkpoints())
            time_call("training", problem.train_plainly)
            time_call("dross 1 query, checkpoints", few.influence, mean)
            time_call("dross 10 queries, checkpoints", few.influence, ten)
    assert ours is not None and theirs is not None
    return {
        "seconds": spent,
        "magic 10 queries measured": measured_ten,
        "difference": _difference(ours, theirs),
    }


def equality(problem: Problem) -> dict:
    """The largest difference of the scores in float64.

    torchopt's Adam corrects its bias in torch's default type, and bergson adds a constant under the
    root: both are set so that they do not show.
    """
    torch.set_default_dtype(torch.float64)
    model, (x, y), (x_val, y_val) = problem.fresh_model().double(), problem.pair, problem.validation
    wide = lambda t: t.double() if t.is_floating_point() else t
    with tempfile.TemporaryDirectory(prefix="dross-peers-") as folder:
        run = dross.train(
            model,
            (wide(x), y),
            "cross_entropy",
            problem.optimizer(model),
            path=f"{folder}/tape",
            batches=problem.batches(),
            epochs=problem.setting.epochs,
            progress=False,
        )
        ours = run.influence(dross.mean_loss((wide(x_val), y_val))).values
        magic = Magic(problem, f"{folder}/magic", torch.float64, eps_root=1e-30)
        theirs = magic.scores(x_val, y_val)
    return {"difference": _difference(ours, theirs)}


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(ours).max())

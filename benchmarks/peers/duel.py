"""dross against bergson's MAGIC, which computes the same scores: costs side by side in one process, and how equal they are."""

import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import dross

from .methods.bergson_magic import Magic
from .problem import Problem

LONG = 10.0  # seconds: a backward pass of MAGIC that takes longer is not repeated ten times; each one is the same work
ENOUGH = 60.0  # seconds, after which no other round begins


def duel(problem: Problem) -> dict:
    """CPU seconds of each, the sides alternating; and the largest difference of scores over the largest score (float32)."""
    spent: dict[str, list[float]] = {}

    def timed(what: str, function, *arguments):
        start = time.process_time()
        value = function(*arguments)
        spent.setdefault(what, []).append(time.process_time() - start)
        return value

    mean, ten = (
        problem.query("mean"),
        dross.losses(asked := tuple(part[:10] for part in problem.validation)),
    )
    measured_ten, ours, theirs = True, None, None
    for _ in range(problem.setting.rounds):
        if sum(map(sum, spent.values())) > ENOUGH:
            break
        with tempfile.TemporaryDirectory(prefix="dross-peers-") as folder:
            timed("training", problem.plain_training)
            run = timed("dross recording", problem.record, Path(folder) / "tape")
            ours = timed("dross 1 query", run.influence, mean).values
            timed("dross 10 queries", run.influence, ten)
            timed("training", problem.plain_training)
            magic = timed("magic recording", Magic, problem, f"{folder}/magic")
            theirs = timed("magic 1 query", magic.scores, *problem.validation)
            measured_ten = spent["magic 1 query"][0] < LONG
            if measured_ten:
                timed(
                    "magic 10 queries",
                    lambda magic=magic: [magic.scores(x[None], y[None]) for x, y in zip(*asked)],
                )
            few = problem.record(Path(folder) / "few", keep=dross.Checkpoints())
            timed("training", problem.plain_training)
            timed("dross 1 query, checkpoints", few.influence, mean)
            timed("dross 10 queries, checkpoints", few.influence, ten)
    assert ours is not None and theirs is not None
    return {
        "seconds": spent,
        "magic 10 queries measured": measured_ten,
        "difference": _difference(ours, theirs),
    }


def equality(problem: Problem) -> dict:
    """The difference in float64. torchopt's Adam corrects its bias in torch's default type, and bergson adds a constant under the
    root: both are set so that they do not show."""
    torch.set_default_dtype(torch.float64)
    model, (x, y), (x_val, y_val) = problem.fresh_model().double(), problem.pair, problem.validation
    wide = lambda t: t.double() if t.is_floating_point() else t
    with tempfile.TemporaryDirectory(prefix="dross-peers-") as folder:
        run = dross.train(
            model,
            (wide(x), y),
            "cross_entropy",
            problem.optimizer(model),
            tape=f"{folder}/tape",
            batches=problem.batches(),
            epochs=problem.setting.epochs,
            progress=False,
        )
        ours = run.influence(dross.mean_loss((wide(x_val), y_val))).values
        theirs = Magic(problem, f"{folder}/magic", torch.float64, eps_root=1e-30).scores(
            x_val, y_val
        )
    return {"difference": _difference(ours, theirs)}


def _difference(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(ours).max())

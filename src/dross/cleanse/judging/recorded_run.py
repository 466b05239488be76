"""Retrain All and Retrain Last: the first recorded run without the removed instances."""

from pathlib import Path

import numpy as np

from ...influence.query_makers import error_rate, mean_loss
from ..inputs.prepared import PreparedData
from ..learning.recipe import Recipe
from ..learning.score import record_run


def replay_recorded_run(
    recipe: Recipe, prepared: PreparedData, folder: Path, seed: int, removed: np.ndarray
) -> dict[str, dict[str, float]]:
    """How the test part's loss, and for classes the error, change: {"all": ..., "last": ...}.

    Arguments:
        recipe: Of the run.
        prepared: Its data.
        folder: Of its tape.
        seed: Of the project.
        removed: The ids of the instances that are left out.
    """
    data, test = prepared.pair("train"), prepared.pair("test")
    run = record_run(recipe, data, 0, folder, seed=seed, progress=False)
    queries = {"loss": mean_loss(test)}
    if prepared.source.task == "classification":
        queries["error"] = error_rate(test)
    units = {"loss": find_loss_unit(prepared), "error": 1.0}
    found = {}
    for way, epochs in (("all", None), ("last", 1)):
        without = run.counterfactual([removed], epochs=epochs)
        changes = {
            f"{name}_change": units[name] * float(without.changes(query)[0])
            for name, query in queries.items()
        }
        after = {
            f"{name}_after": units[name] * float(without.evaluate(query)[0])
            for name, query in queries.items()
        }
        found[way] = changes | after
    return found


def find_loss_unit(prepared: PreparedData) -> float:
    """A regression learns labels of mean 0 and spread 1; verdicts are in the label's units."""
    return 1.0 if prepared.source.task == "classification" else prepared.scale[1] ** 2

"""How sure each suggestion is: its own confidence, from 0 to 1.

It is the product of two chances, each estimated for the instance alone:

harm    that the mean score over many more runs would still be below 0: Student's t of the mean
        and the spread over the R runs, with R - 1 degrees of freedom
wrong   that the label is wrong, by models that did not learn the instance. Where it is to be
        relabelled, p(prediction): the new label has to be right, too

Where one of them is not known (one run; a number to predict), the other stands alone. An instance
that hurts with a label that seems right has a low confidence: what it costs on one validation part
need not be what it costs on the next.
"""

from typing import Any

import numpy as np

from ..plans.actions import RELABEL


def suggestion_confidence(instances: Any, runs: int) -> np.ndarray:
    """The confidence of acting on each instance, [N]; nan where nothing is known.

    Arguments:
        instances: The columns score, spread, wrong, probability, label_probability and action of
            `Project.instances`. Earlier versions had no `wrong`: 1 - label_probability is used
            instead.
        runs: How many runs the scores are averaged over.
    """
    column = lambda name: instances[name].to_numpy(dtype=float)
    harm = harm_chance(column("score"), column("spread"), runs)
    relabelled = (instances["action"] == RELABEL).to_numpy()
    doubted = column("wrong") if "wrong" in instances else 1 - column("label_probability")
    wrong = np.where(relabelled, column("probability"), doubted)
    return np.where(np.isnan(harm), wrong, harm * np.where(np.isnan(wrong), 1.0, wrong))


def harm_chance(score: np.ndarray, spread: np.ndarray, runs: int) -> np.ndarray:
    """The chance that the mean score over many more runs would be below 0, [N].

    Arguments:
        score: The mean over the runs, [N].
        spread: The standard deviation over them, [N].
        runs: How many they are; with one nothing is known, and all chances are nan.
    """
    from scipy.special import stdtr

    if runs < 2:
        return np.full(len(score), np.nan)
    error = spread / np.sqrt(runs - 1)  # the deviation divides by R, not by R - 1
    with np.errstate(divide="ignore", invalid="ignore"):
        chance = stdtr(runs - 1, -score / error)
    return np.where(score == 0, 0.5, chance)

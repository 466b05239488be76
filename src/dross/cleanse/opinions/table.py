"""The table of training instances: one row each, with what is known about it."""

import numpy as np

from ..inputs.source import Frame, import_pandas
from ..learning.score import InstanceScores, rank
from .beliefs import Beliefs


def instance_table(
    scored: InstanceScores,
    beliefs: Beliefs,
    labels: np.ndarray,
    names: list[str],
    classes: list[str],
    scale: tuple[float, float],
    outliers: np.ndarray,
) -> Frame:
    """One row per training instance, with the columns that `Project.instances` describes.

    Arguments:
        scored: What the runs and the cross-fitted models say.
        beliefs: What models of several kinds think of the labels.
        labels: As they were read, [N].
        names: Where each instance comes from.
        classes: The names of the classes; none for a regression.
        scale: The mean and the deviation of a regression's labels.
        outliers: See `outlier_ranks`, [N].
    """
    pandas = import_pandas()
    by_run = scored.by_run
    suspects = np.flatnonzero(beliefs.suspect)
    mislabel_rank = np.full(len(labels), -1)
    mislabel_rank[suspects] = rank(-beliefs.doubt[suspects])
    given = np.array([classes.index(label) for label in labels]) if classes else labels
    columns = {
        "source": names,
        "label": [str(label) if classes else f"{label:.6g}" for label in labels],
        "score": scored.scores,
        "spread": by_run.std(0),
        "harmful_in": (by_run < 0).sum(0),
        "harm_rank": rank(scored.scores),
        "loss": scored.held_out.mean(0),
        "training_loss": scored.losses.mean(0),
        "mislabel_rank": mislabel_rank,
        "wrong": beliefs.wrong,
        **describe_beliefs(beliefs, given, classes, scale),
        "agreement": _agreement(scored, beliefs),
        "outlier": outliers,
        "verified": np.nan,
    }
    return pandas.DataFrame(columns, index=pandas.RangeIndex(len(labels), name="id"))


def describe_beliefs(
    beliefs: Beliefs, given: np.ndarray, classes: list[str], scale: tuple[float, float]
) -> dict[str, np.ndarray]:
    """The predicted label in words, its chance and that of the given one, as columns.

    Arguments:
        beliefs: About N labels.
        given: The places of the given labels among the classes, [N]; ignored without classes.
        classes: Their names; none for a regression.
        scale: The mean and the deviation of a regression's labels.
    """
    predicted = beliefs.predicted.numpy()
    if beliefs.chances is None:
        values, nothing = predicted[:, 0] * scale[1] + scale[0], np.full(len(given), np.nan)
        words = np.array([f"{value:.6g}" for value in values], dtype=object)
        return {"prediction": words, "probability": nothing, "label_probability": nothing}
    rows = np.arange(len(given))
    return {
        "prediction": np.array(classes, dtype=object)[predicted],
        "probability": beliefs.chances[rows, predicted],
        "label_probability": beliefs.chances[rows, given],
    }


def _agreement(scored: InstanceScores, beliefs: Beliefs) -> np.ndarray:
    """How far the networks agree, [N]."""
    if beliefs.chances is None:
        return np.exp(-scored.outputs[..., 0].std(0))  # in deviations of the labels
    return (scored.outputs.argmax(-1) == beliefs.predicted.numpy()).mean(0)

"""The tables of a project: one row per training instance, and one per label that can be checked."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas

from .checked_labels import CheckedLabels
from .label_noise import LIKELY, LabelPosterior
from .modality import Frame, PreparedData
from .scoring import InstanceScores, mean_over_runs, rank


def instance_table(
    data: PreparedData,
    scored: InstanceScores,
    noise: LabelPosterior,
    checked: CheckedLabels,
    outliers: np.ndarray,
) -> Frame:
    """One row per training instance, with the columns that `Project.instances` describes.

    Arguments:
        data: The data set.
        scored: What the recorded runs found.
        noise: What is known about the labels; training instances come first.
        checked: What a person has said: a label that was corrected was wrong.
        outliers: See `outlier_ranks`, [N].
    """
    part = data.part("train")
    count = len(part)
    beliefs = _describe_labels(data, noise, np.arange(count))
    if checked.part == "train":
        beliefs["wrong"][[*checked.wrong, *checked.corrected]] = 1.0
    suspects = np.flatnonzero((beliefs["wrong"] > LIKELY) | beliefs.pop("differs"))
    mislabel_rank = np.full(count, -1)
    mislabel_rank[suspects] = rank(-beliefs["wrong"][suspects])
    columns = {
        "source": part.names,
        "label": [_as_text(label) for label in part.labels],
        "score": scored.scores,
        "spread": scored.spread,
        "harmful_in": (scored.by_run < 0).sum(0),
        "learned_in": scored.runs,
        "harm_rank": rank(scored.scores),
        "loss": _held_out_losses(data, noise, count),
        "training_loss": mean_over_runs(scored.losses),
        "mislabel_rank": mislabel_rank,
        **beliefs,
        "outlier": outliers,
        "verified": np.nan,
    }
    return pandas.DataFrame(columns, index=pandas.RangeIndex(count, name="id"))


def label_table(
    data: PreparedData,
    noise: LabelPosterior,
    checked: CheckedLabels,
    checks: list[int],
    *,
    trusted: bool,
) -> Frame:
    """One row per label that a person may check: of the validation part, or else of all rows.

    The column `rank` orders those that are worth a check: first the labels that would decide most,
    then, of a validation part, the other likely wrong ones. It is -1 for all others.

    Arguments:
        data: As it was given.
        noise: What is known about the labels.
        checked: What a person has said.
        checks: The places of the labels that would decide most, the first first.
        trusted: Whether no validation label is doubted.
    """
    part = checked.part
    source, count = data.part(part), len(data.y[part])
    start = len(data.y["train"]) if part == "validation" else 0
    left = checked.left(count)
    beliefs = _describe_labels(data, noise, start + np.arange(len(left)), data.parts[part][left])
    beliefs.pop("differs")
    wrong = np.zeros(count)
    wrong[left] = beliefs["wrong"]
    order = list(checks)
    if part == "validation" and not trusted:
        likely = np.flatnonzero(wrong > LIKELY)
        order += [place for place in likely[np.argsort(-wrong[likely])] if place not in order]
    order = [place for place in order if place not in checked.decided]
    ranks = np.full(count, -1)
    ranks[order] = np.arange(len(order))
    columns = {
        "source": source.names,
        "label": [_as_text(label) for label in source.labels],
        **{name: _spread(column, left, count) for name, column in beliefs.items()},
        "checked": [checked.words.get(place, "") for place in range(count)],
        "rank": ranks,
    }
    return pandas.DataFrame(columns, index=pandas.RangeIndex(count, name="id"))


def edited_labels(data: PreparedData, labels: Iterable[Any]) -> list[str]:
    """New labels as people read them: names of classes, or numbers."""
    classes = data.source.classes
    return [classes[int(label)] if classes else _as_text(float(label)) for label in labels]


def _describe_labels(
    data: PreparedData, noise: LabelPosterior, places: np.ndarray, ids: np.ndarray | None = None
) -> dict[str, Any]:
    """The predicted label of some rows, its probability, and how likely the given one is wrong.

    `probability` and `label_probability` are those of models that did not learn the row. `differs`:
    they would label it otherwise.

    Arguments:
        data: The data set.
        noise: Of all rows.
        places: Of the rows.
        ids: Of the instances in the source; by default those of the training part.
    """
    wrong = noise.p_wrong[places]
    other = noise.best_other[places]
    classes = data.source.classes
    if not classes:
        return {
            "wrong": wrong,
            "prediction": np.array([_as_text(value) for value in other], dtype=object),
            "probability": np.full(len(places), np.nan),
            "label_probability": np.full(len(places), np.nan),
            "differs": np.zeros(len(places), dtype=bool),
        }
    clean = noise.p_clean[places]
    rows = np.arange(len(places))
    given_labels = data.source.labels[data.parts["train"] if ids is None else ids]
    index = {name: number for number, name in enumerate(classes)}
    given = np.array([index[label] for label in given_labels], dtype=np.int64)
    predicted = np.where(wrong > LIKELY, other, clean.argmax(1))
    return {
        "wrong": wrong,
        "prediction": np.array(classes, dtype=object)[predicted],
        "probability": clean[rows, predicted],
        "label_probability": clean[rows, given],
        "differs": predicted != given,
    }


def _held_out_losses(data: PreparedData, noise: LabelPosterior, count: int) -> np.ndarray:
    """The loss of each training instance by models that did not learn it, [N]."""
    rows = np.arange(count)
    if data.source.classes:
        given = data.y["train"].numpy()
        return -np.log(np.maximum(noise.p_clean[rows, given], 1e-12))
    return ((noise.best_other[:count] - data.part("train").labels) / data.scale[1]) ** 2


def _spread(values: np.ndarray, places: np.ndarray, count: int) -> np.ndarray:
    """The values at their places of `count`; "" or nan at the others."""
    empty = "" if values.dtype == object else np.nan
    everyone = np.full(count, empty, dtype=values.dtype)
    everyone[places] = values
    return everyone


def _as_text(label: Any) -> str:
    return str(label) if isinstance(label, str) else f"{label:.6g}"

"""Which labels are doubted: what models that have not learnt them say of a held-out part.

The recorded runs learn the training part alone, so none of them has seen a validation label. A
label is doubted where it is more likely wrong than right, as one of the training part is
(`Beliefs.wrong`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ...influence.run import Run
from ..inputs.prepared import PreparedData
from ..inputs.source import Frame, import_pandas
from ..learning.recipe import Recipe
from ..learning.score import final_outputs
from ..opinions.beliefs import LIKELY, Beliefs, mean_chances

_TEXTS = ("source", "label", "prediction", "checked")
_NUMBERS = ("wrong", "probability", "label_probability", "change")


def find_doubted(recipe: Recipe, outputs: np.ndarray, y: Tensor) -> np.ndarray:
    """Which labels are doubted, bool [N].

    Arguments:
        recipe: Of the models.
        outputs: Of models that have not learnt the labels, [models, N, outputs].
        y: The labels as a model learns them.
    """
    return Beliefs.of(recipe, outputs, y).wrong > LIKELY


@dataclass(frozen=True)
class Scored:
    """The validation part as the scores used it: corrected by a person, or as it was given."""

    places: np.ndarray  # int64 [S]: the places in the validation part of those that were used
    y: Tensor  # [S]: their labels as a model learns them
    checked: Mapping[int, str]  # place -> right, wrong or relabelled: what a person has said
    change: np.ndarray  # [S]: what the recommended plan does to the models' error on each


def validation_table(
    recipe: Recipe, runs: Sequence[Run], data: PreparedData, scored: Scored, *, trusted: bool
) -> Frame:
    """One row per validation instance; `rank` is -1 where the label is not doubted.

    Rank 0 is the doubted label on which the recommendation hangs the most: `change` is what the
    recommended plan does to the models' error on the instance, and so what the instance adds to the
    comparison that chose the plan. Whether it speaks for the plan (below 0) or against it is right
    only if its label is.

    Arguments:
        recipe: Of the runs.
        runs: That have learnt the training part alone.
        data: Whose validation part is asked about, as it was given.
        scored: The same as the scores used it.
        trusted: Whether all labels count as right.
    """
    source, count = data.part("validation"), len(data.y["validation"])
    outputs = np.stack([final_outputs(run, data.x["validation"]).numpy() for run in runs])
    beliefs = Beliefs.of(recipe, outputs[:, scored.places], scored.y)
    doubted = np.zeros(count, dtype=bool)
    if not trusted:
        doubted[scored.places] = beliefs.wrong > LIKELY
        doubted[list(scored.checked)] = False
    change, wrong = np.full(count, np.nan), np.full(count, np.nan)
    change[scored.places], wrong[scored.places] = scored.change, beliefs.wrong
    weight = np.abs(np.nan_to_num(change))
    ranks = np.empty(count, dtype=np.int64)
    ranks[np.lexsort((-np.nan_to_num(wrong), -weight, ~doubted))] = np.arange(count)
    predicted = dict(zip(scored.places.tolist(), beliefs.predicted))
    said = _describe_opinions(outputs, data, predicted)
    columns = {
        "source": source.names,
        "label": [_in_words(label) for label in source.labels],
        "wrong": wrong,
        **said,
        "change": change,
        "checked": [scored.checked.get(place, "") for place in range(count)],
        "rank": np.where(doubted, ranks, -1),
    }
    pandas = import_pandas()
    return pandas.DataFrame(columns, index=pandas.RangeIndex(count, name="id"))


def list_doubted(table: Frame) -> Frame:
    """The doubted labels of a `validation_table`, the most important first."""
    return table[table["rank"] >= 0].sort_values("rank", kind="stable")


def no_doubts() -> Frame:
    """What projects of earlier versions know of validation labels: a table without rows."""
    pandas = import_pandas()
    empty = {name: pandas.Series(dtype=object) for name in _TEXTS}
    empty |= {name: pandas.Series(dtype=float) for name in _NUMBERS}
    table = pandas.DataFrame(empty | {"rank": pandas.Series(dtype="int64")})
    table.index.name = "id"
    return table


def _describe_opinions(
    outputs: np.ndarray, data: PreparedData, predicted: Mapping[int, Tensor]
) -> dict[str, np.ndarray]:
    """What the models say, as columns.

    outputs: [models, V, outputs]; predicted: places of the labels that they would give, where more
    is known than their likeliest.
    """
    given = data.y["validation"]
    if not data.source.classes:
        values = outputs[..., 0].mean(0) * data.scale[1] + data.scale[0]
        nothing = np.full(len(given), np.nan)
        words = np.array([_in_words(value) for value in values], dtype=object)
        return {"prediction": words, "probability": nothing, "label_probability": nothing}
    chances, rows = mean_chances(outputs), np.arange(len(given))
    best = chances.argmax(1)
    best[list(predicted)] = [int(place) for place in predicted.values()]
    return {
        "prediction": np.array(data.source.classes, dtype=object)[best],
        "probability": chances[rows, best],
        "label_probability": chances[rows, given.numpy()],
    }


def _in_words(label: str | float) -> str:
    return str(label) if isinstance(label, str) else f"{label:.6g}"

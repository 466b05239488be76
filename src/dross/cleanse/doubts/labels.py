"""Which labels of a held-out part are doubted by models that have not learnt them.

A label is doubted if it is more likely wrong than right, as in the training part (`Beliefs.wrong`).
About the validation part the models of `opinions/` are asked, which learn training instances only.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..inputs.prepared import PreparedData
from ..inputs.source import Frame, import_pandas
from ..learning.recipe import Recipe
from ..opinions.beliefs import LIKELY, Beliefs
from ..opinions.table import describe_beliefs

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
    beliefs: Beliefs  # about their labels, [S]
    checked: Mapping[int, str]  # place -> right, wrong or relabelled: what a person has said
    change: np.ndarray  # [S]: what the recommended plan does to the models' error on each


def validation_table(data: PreparedData, scored: Scored, *, trusted: bool) -> Frame:
    """One row per validation instance; `rank` is -1 where the label is not doubted.

    Rank 0 is the doubted label on which the recommendation depends most: `change` is what the
    recommended plan does to the models' error on the instance, and so what the instance adds to the
    comparison that chose the plan. Whether it speaks for the plan (below 0) or against it is right
    only if its label is. Of an instance that was left out, only the label is known.

    Arguments:
        data: Whose validation part is asked about, as it was given.
        scored: The same as the scores used it.
        trusted: Whether all labels count as right.
    """
    source, count = data.part("validation"), len(data.y["validation"])
    places, beliefs = scored.places, scored.beliefs
    doubted = np.zeros(count, dtype=bool)
    if not trusted:
        doubted[places] = beliefs.wrong > LIKELY
        doubted[list(scored.checked)] = False
    given = data.y["validation"].numpy()[places]
    said = {
        "wrong": beliefs.wrong,
        **describe_beliefs(beliefs, given, data.source.classes, data.scale),
        "change": scored.change,
    }
    everyone = {name: _spread(column, places, count) for name, column in said.items()}
    weight, wrong = (np.nan_to_num(everyone[name]) for name in ("change", "wrong"))
    ranks = np.empty(count, dtype=np.int64)
    ranks[np.lexsort((-wrong, -np.abs(weight), ~doubted))] = np.arange(count)
    columns = {
        "source": source.names,
        "label": [_in_words(label) for label in source.labels],
        **everyone,
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


def _spread(values: np.ndarray, places: np.ndarray, count: int) -> np.ndarray:
    """The values at their places of `count`; "" or nan at the others."""
    empty = "" if values.dtype == object else np.nan
    everyone = np.full(count, empty, dtype=values.dtype)
    everyone[places] = values
    return everyone


def _in_words(label: str | float) -> str:
    return str(label) if isinstance(label, str) else f"{label:.6g}"

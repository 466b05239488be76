"""Validation labels to check first, as the page lists and explains them.

The page numbers all instances in one row: the training part, and after it the validation part. On
the disk every decision names its part, and ids are places in it.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from ...cleanse.decision_state import TRAIN, VALIDATION, Decision
from ...cleanse.display.cells import name_label
from ...cleanse.findings import format_amount
from ...cleanse.inputs.source import Frame
from ...cleanse.plans.actions import KEEP
from ...errors import BadInput
from ..listing import Filter, Listing, finite_or_none
from ..sentences import format_percent, full_content

_SAID = {
    "right": "that the label is right, so it is not doubted",
    "wrong": "that the label is wrong, so it was left out",
    "relabelled": "what the label really is, and it was scored with that",
}
_NO_REASONS = {"words": [], "unusual": {}, "columns": []}


class ValidationLabels:
    """The validation instances of a project by the numbers that the page gives them."""

    def __init__(self, listing: Listing):
        self.listing, self.project = listing, listing.project
        self.start = len(self.project.instances)  # the number of the first

    def __len__(self) -> int:
        return len(self._table)

    @property
    def _table(self) -> Frame:
        return self.project.validation_labels

    def locate(self, changes: Mapping[int, Decision]) -> tuple[str, dict[int, Decision]]:
        """Decisions by the numbers of the page, as a part and decisions by ids in it.

        Raises:
            BadInput: they are about both parts.
        """
        ours = {id for id in changes if id >= self.start}
        if not ours:
            return TRAIN, dict(changes)
        if len(ours) < len(changes):
            raise BadInput("Decide about training and validation instances one after the other.")
        return VALIDATION, {id - self.start: decision for id, decision in changes.items()}

    def number(self, part: str, id: int) -> int:
        """The number that the page gives to an instance of a part."""
        return id + self.start if part == VALIDATION else id

    def source(self, number: int) -> str:
        """Where an instance of either part comes from."""
        table, id = self.project.instances, number
        if number >= self.start:
            table, id = self._table, number - self.start
        return str(table.at[id, "source"]) if id in table.index else ""

    # --- the list ---

    def list_numbers(self, wanted: Filter, decisions: Mapping[int, Decision]) -> list[int]:
        """What passes the filter: the doubted in their order, then what a person has checked."""
        table, keep = self._table, self._matches(wanted.search)
        rank, change = table["rank"].to_numpy(int), np.nan_to_num(table["change"].to_numpy(float))
        decided = np.isin(np.arange(len(table)), list(decisions))
        keep &= (rank >= 0) | decided | (table["checked"].to_numpy(object) != "")
        keep &= (change >= wanted.lowest) & (change <= wanted.highest)
        label, prediction = (table[name].to_numpy(object) for name in ("label", "prediction"))
        if wanted.label:
            keep &= label == wanted.label
        if wanted.prediction:
            keep &= (label == prediction) == (wanted.prediction == "agrees")
            keep &= prediction != ""  # of what was left out, no model says anything
        if wanted.state in ("decided", "undecided"):
            keep &= decided == (wanted.state == "decided")
        elif wanted.state:
            ids = [id for id, (action, _) in decisions.items() if action == wanted.state]
            keep &= np.isin(np.arange(len(table)), ids)
        order = np.lexsort((rank, rank < 0))
        return [self.number(VALIDATION, place) for place in order[keep[order]].tolist()]

    def _matches(self, search: str) -> np.ndarray:
        return np.fromiter((search in text for text in self._texts), bool, len(self._texts))

    @cached_property
    def _texts(self) -> list[str]:
        table, content = self._table, self._content
        columns = [table[name] for name in ("source", "label", "prediction")]
        columns += [content[name] for name in content.columns]
        rows = zip(*(column.to_list() for column in columns))
        return ["\n".join(str(value) for value in row if value is not None).lower() for row in rows]

    @cached_property
    def _content(self) -> Frame:
        return self.project.validation.drop(columns=[" source", " label"])

    def item(self, number: int) -> dict[str, Any]:
        """What the list shows of an instance, as JSON."""
        place = number - self.start
        row, nothing = self._table.loc[place], _NO_REASONS
        return {
            "id": number,
            "part": VALIDATION,
            "place": place,
            "source": str(row["source"]),
            "label": name_label(row["label"], self.project.about),
            "prediction": name_label(row["prediction"], self.project.about),
            "probability": finite_or_none(row["probability"]),
            "effect": finite_or_none(row["change"]),
            "action": KEEP,
            "confidence": None,
            "harmful_in": 0,
            "copy": None,
        } | self.listing.short_content(self._content.loc[place], nothing)

    # --- why ---

    def explain(self, number: int) -> dict[str, Any]:
        """Everything that the page shows about an instance, as JSON."""
        row, content = self._table.loc[number - self.start], self._content.loc[number - self.start]
        found = {"Label": self._describe_label(row), "Weight": _describe_weight(row["change"])}
        if math.isfinite(row["wrong"]):
            chance = f"The estimated chance that it is wrong is {format_percent(row['wrong'])}."
            found["Label"] += f" {chance}"
        if row["checked"]:
            found["Checked"] = f"When this was scored, a person had said {_SAID[row['checked']]}."
        found["What to do"] = (
            "Say whether the label is right, wrong, or really something else. Then run the same "
            "dross clean command again: it uses what you said. The input is not changed."
        )
        return self.item(number) | {
            "sentences": [{"about": subject, "text": text} for subject, text in found.items()],
            "content": full_content(self.listing, content, _NO_REASONS),
            "words": [],
        }

    def _describe_label(self, row: Any) -> str:
        given = f"It is a validation instance, labelled {row['label']}. "
        if not row["prediction"]:
            return f"{given}It was left out of the scores, so no model was asked about it."
        if not self.project.classes:
            return f"{given}The models, which have not learnt it, predict {row['prediction']}."
        own, best = format_percent(row["label_probability"]), format_percent(row["probability"])
        if row["prediction"] == row["label"]:
            return f"{given}The models, which have not learnt it, agree ({own})."
        return (
            f"{given}The models, which have not learnt it, say {row['prediction']} with "
            f"probability {best}; they give its label {own}."
        )


def _describe_weight(change: float) -> str:
    if not math.isfinite(change):
        return "It had no part in the comparison of plans."
    if change == 0:
        return (
            "The plan that did best changes nothing for it: the recommendation does not rest on it."
        )
    side, moved = ("for", "lowers") if change < 0 else ("against", "raises")
    return (
        f"The plan that did best {moved} the error of the models on it by {format_amount(change)}: "
        f"with this label it speaks {side} the plan."
    )

"""Labels to check first, as the page lists and explains them.

They are those of the validation file or, where there is none, of the training instances. The page
numbers all instances in one row: the training part, and after it the labels to check. On the disk
every decision names its part, and ids are places in it.
"""

import math
from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from ..cleaning.decisions import TRAIN, VALIDATION, Decision
from ..cleaning.explain import name_label
from ..cleaning.modality import Frame
from ..cleaning.plans import KEEP
from ..errors import InvalidInput
from .listing import Filter, Listing, finite_or_none
from .sentences import format_percent, full_content

_SAID = {
    "right": "the label is right",
    "wrong": "the label is wrong",
    "relabelled": "it has another label",
}
_NO_REASONS = {"words": [], "unusual": {}, "columns": []}


class LabelChecks:
    """The labels of a project that a person may check, by the numbers that the page gives them."""

    def __init__(self, listing: Listing):
        self.listing, self.project = listing, listing.project
        self.start = len(self.project.instances)  # the number of the first

    def __len__(self) -> int:
        return len(self._table)

    @property
    def is_shown(self) -> bool:
        """Whether there are labels to check, or labels that were checked before."""
        table = self._table
        return bool(((table["rank"] >= 0) | (table["checked"] != "")).any())

    @cached_property
    def wanted(self) -> frozenset[int]:
        """The places of the labels that should be checked."""
        table = self._table
        return frozenset(table.index[table["rank"] >= 0].tolist())

    @property
    def _table(self) -> Frame:
        return self.project.label_table

    def locate(self, changes: Mapping[int, Decision]) -> tuple[str, dict[int, Decision]]:
        """Decisions by the numbers of the page, as a part and decisions by ids in it.

        Raises:
            InvalidInput: they are about both parts.
        """
        ours = {id for id in changes if id >= self.start}
        if not ours:
            return TRAIN, dict(changes)
        if len(ours) < len(changes):
            raise InvalidInput("Decide about instances and check labels one after the other.")
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
        """What passes the filter: those to check in their order, then what is checked."""
        table, keep = self._table, self._matches(wanted.search)
        rank = table["rank"].to_numpy(int)
        wrong = 100 * np.nan_to_num(table["wrong"].to_numpy(float))  # as the page shows it
        decided = np.isin(np.arange(len(table)), list(decisions))
        keep &= (rank >= 0) | decided | (table["checked"].to_numpy(object) != "")
        keep &= (wrong >= wanted.lowest) & (wrong <= wanted.highest)
        label, prediction = (table[name].to_numpy(object) for name in ("label", "prediction"))
        if wanted.label:
            keep &= label == wanted.label
        if wanted.prediction:
            keep &= (label == prediction) == (wanted.prediction == "agrees")
            keep &= prediction != ""  # of what was left out, nothing is predicted
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
        if self.project.checks_training:
            return self.project.content
        return self.project.validation.drop(columns=[" source", " label"])

    def item(self, number: int) -> dict[str, Any]:
        """What the list shows of an instance, as JSON."""
        place = number - self.start
        row, nothing = self._table.loc[place], _NO_REASONS
        return {
            "id": number,
            "part": VALIDATION,
            "place": place,
            "picture_part": TRAIN if self.project.checks_training else VALIDATION,
            "source": str(row["source"]),
            "label": name_label(row["label"], self.project.about),
            "prediction": name_label(row["prediction"], self.project.about),
            "probability": finite_or_none(row["probability"]),
            "wrong": finite_or_none(row["wrong"]),
            "effect": None,
            "action": KEEP,
            "confidence": None,
            "harmful_in": 0,
            "learned_in": 0,
            "copy": None,
        } | self.listing.short_content(self._content.loc[place], nothing)

    # --- why ---

    def explain(self, number: int) -> dict[str, Any]:
        """Everything that the page shows about an instance, as JSON."""
        row, content = self._table.loc[number - self.start], self._content.loc[number - self.start]
        found = {"Label": self._describe_label(row)}
        if math.isfinite(row["wrong"]):
            chance = f"The label is wrong with probability {format_percent(row['wrong'])}."
            found["Label"] += f" {chance}"
        if row["checked"]:
            found["Checked"] = f"Before this was computed, a person said: {_SAID[row['checked']]}."
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
        whose = "an instance" if self.project.checks_training else "a validation instance"
        given = f"It is {whose}, labelled {row['label']}. "
        if not row["prediction"]:
            return f"{given}It was left out, so nothing was predicted for it."
        models = "Models that did not learn it"
        if not self.project.classes:
            return f"{given}{models} predict {row['prediction']}."
        own, best = format_percent(row["label_probability"]), format_percent(row["probability"])
        if row["prediction"] == row["label"]:
            return f"{given}{models} agree ({own})."
        return f"{given}{models} predict {row['prediction']} ({best}); they give its label {own}."

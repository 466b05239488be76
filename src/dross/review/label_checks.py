"""Labels to check first, as the page lists and explains them.

They are those of the validation file or, if there is none, of the training instances. The page
numbers all instances in one row: the training set, and after it the labels to check. On the disk
every decision names its set, and ids are positions in it.
"""

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import numpy as np

from ..cleaning.decisions import TRAIN, VALIDATION, Decision
from ..cleaning.explain import Reasons
from ..cleaning.modality import Frame
from ..cleaning.plans import KEEP
from ..errors import InvalidInput
from .listing import Filter, Listing, Searched
from .sentences import describe_label, full_content

_CHECKED = {
    "right": "the label is right",
    "wrong": "the label is wrong",
    "relabeled": "another label is right",
}


class LabelChecks:
    """The labels of a project that a person may check, by the numbers that the page gives them."""

    def __init__(self, listing: Listing):
        self.listing = listing
        self.project = listing.project
        self.start = len(self.project.table)  # the number of the first

    def __len__(self) -> int:
        return len(self._table)

    @property
    def is_shown(self) -> bool:
        """Whether there are labels to check, or labels that were checked before."""
        table = self._table
        return bool(((table["rank"] >= 0) | (table["checked"] != "")).any())

    @cached_property
    def wanted(self) -> frozenset[int]:
        """The positions of the labels that should be checked."""
        table = self._table
        return frozenset(table.index[table["rank"] >= 0].tolist())

    @property
    def _table(self) -> Frame:
        return self.project.label_table

    def locate(self, changes: Mapping[int, Decision]) -> tuple[str, dict[int, Decision]]:
        """Decisions by the numbers of the page, as a set and decisions by ids in it.

        Raises:
            InvalidInput: they are about both sets.
        """
        ours = {id for id in changes if id >= self.start}
        if not ours:
            return TRAIN, dict(changes)
        if len(ours) < len(changes):
            raise InvalidInput(
                "Decide on training instances and check validation labels in separate steps."
            )
        return VALIDATION, {id - self.start: decision for id, decision in changes.items()}

    def number(self, part: str, id: int) -> int:
        """The number of an instance of a set on the page."""
        return id + self.start if part == VALIDATION else id

    def source(self, number: int) -> str:
        """Where an instance of either set comes from."""
        if number < self.start:
            return str(self.project.table.at[number, "source"])
        return str(self._table.at[number - self.start, "source"])

    # --- the list ---------------------------------------------------------------------------------

    def list_numbers(self, wanted: Filter, decisions: Mapping[int, Decision]) -> list[int]:
        """What passes the filter: those to check in their order, then what is checked."""
        table = self._table
        rank = table["rank"].to_numpy(int)
        wrong = 100 * np.nan_to_num(table["wrong"].to_numpy(float))  # as the page shows it
        keep = self._searched.matches(wanted, wrong, decisions)
        decided = np.isin(np.arange(len(table)), list(decisions))
        keep &= (rank >= 0) | decided | (table["checked"].to_numpy(object) != "")
        order = np.lexsort((rank, rank < 0))
        return [self.number(VALIDATION, place) for place in order[keep[order]].tolist()]

    @cached_property
    def _searched(self) -> Searched:
        return Searched(self._table, self._content)

    @cached_property
    def _content(self) -> Frame:
        if self.project.checks_training:
            return self.project.content
        return self.project.validation.drop(columns=[" source", " label"])

    def item(self, number: int) -> dict[str, Any]:
        """What the list shows of an instance, as JSON."""
        place = number - self.start
        row = self._table.loc[place]
        return {
            "id": number,
            "part": VALIDATION,
            "place": place,
            "image_part": TRAIN if self.project.checks_training else VALIDATION,
            "source": str(row["source"]),
            "label": row["label"],
            "prediction": row["prediction"],
            "probability": float(row["probability"]),
            "wrong": float(row["wrong"]),
            "effect": None,
            "action": KEEP,
            "confidence": None,
            "harmful_in": 0,
            "learned_in": 0,
            "copy": None,
        } | self.listing.short_content(self._content.loc[place], Reasons())

    # --- why --------------------------------------------------------------------------------------

    def explain(self, number: int) -> dict[str, Any]:
        """Everything that the page shows about an instance, as JSON."""
        row = self._table.loc[number - self.start]
        found = {"Label": describe_label(row, self.project.info)}
        if row["checked"]:
            found["Checked"] = (
                f"Checked by a person before these results were computed: {_CHECKED[row['checked']]}."
            )
        found["What to do"] = (
            "Mark the label as right or wrong, or choose the right label. Then run the same dross "
            "clean command again: it uses your answers. The input is not changed."
        )
        return self.item(number) | {
            "sentences": [{"about": subject, "text": text} for subject, text in found.items()],
            "content": full_content(self.listing, self._content.loc[row.name], Reasons()),
            "words": [],
        }

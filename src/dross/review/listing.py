"""Which instances a list shows, and how each looks in it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from ..cleanse.decisions import Decision
from ..cleanse.project import Project
from ..errors import BadInput

TABS = ("harmful", "mislabelled", "all")
LONGEST = 100_000  # browsers cannot scroll much further
_COLUMNS_IN_LIST = 30
_TEXT_IN_LIST = 420


@dataclass(frozen=True)
class Filter:
    tab: str = "harmful"
    label: str = ""
    prediction: str = ""  # "differs" from the label, or "agrees" with it
    state: str = ""  # undecided, decided, keep, remove, relabel
    lowest: float = -math.inf
    highest: float = math.inf
    search: str = ""

    @staticmethod
    def read(query: Mapping[str, str]) -> "Filter":
        """From the parameters of an address."""
        wanted = Filter(
            query.get("tab") or "harmful",
            query.get("class", ""),
            query.get("prediction", ""),
            query.get("state", ""),
            _bound(query.get("min"), -math.inf),
            _bound(query.get("max"), math.inf),
            query.get("q", "").strip().lower(),
        )
        for value, known in (
            (wanted.tab, TABS),
            (wanted.prediction, ("", "differs", "agrees")),
            (wanted.state, ("", "undecided", "decided", "keep", "remove", "relabel")),
        ):
            if value not in known:
                raise BadInput(
                    f"{value!r} is not a filter; it is one of {', '.join(known).strip(', ')}."
                )
        return wanted


class Listing:
    def __init__(self, project: Project):
        self.project = project

    @cached_property
    def layout(self) -> str:
        """images, text or table: how instances are shown."""
        kind, columns = self.project.about["kind"], list(self.project.content.columns)
        if kind in ("images", "text", "table"):
            return kind
        return (
            "text"
            if columns == ["text"]
            else "images"
            if (self.project.folder / "pictures").is_dir()
            else "table"
        )

    @cached_property
    def columns(self) -> list[dict[str, Any]]:
        """Of a table: the names of its columns, and how many characters wide each is shown."""
        if self.layout != "table":
            return []
        content = self.project.content
        sample = content.iloc[:: max(1, len(content) // 500)]
        wide = lambda name: max(len(str(name)), *(len(str(value)) for value in sample[name]), 3)
        return [
            {"name": str(name), "width": min(wide(name), 26)}
            for name in content.columns[:_COLUMNS_IN_LIST]
        ]

    def ids(self, wanted: Filter, decisions: Mapping[int, Decision]) -> list[int]:
        """In the order of the tab."""
        keep = (
            self._searched(wanted.search)
            & (self._score >= wanted.lowest)
            & (self._score <= wanted.highest)
        )
        if wanted.label:
            keep &= self._label == wanted.label
        if wanted.prediction:
            keep &= (self._label == self._prediction) == (wanted.prediction == "agrees")
        if wanted.state:
            keep &= self._in_state(wanted.state, decisions)
        if wanted.tab == "harmful":
            keep &= self._score < 0
        if wanted.tab == "mislabelled":
            keep &= self._mislabel_rank >= 0
        order = self._by_mislabel if wanted.tab == "mislabelled" else self._by_harm
        return order[keep[order]].tolist()

    def item(self, id: int) -> dict[str, Any]:
        row = self.project.instances.loc[id]
        return {
            "id": id,
            "source": str(row["source"]),
            "label": str(row["label"]),
            "prediction": str(row["prediction"]),
            "probability": number(row["probability"]),
            "score": number(row["score"]),
            "harmful_in": int(row["harmful_in"]),
        } | self._looks(id)

    def _looks(self, id: int) -> dict[str, Any]:
        why = self.project.why(id)
        if self.layout == "text":
            text, words = str(self.project.content.at[id, "text"]), why["words"]
            return {"text": _passage(text, [word for word, _ in words]), "words": words}
        if self.layout == "images":
            return {}
        cells = [plain(value) for value in self.project.content.loc[id].iloc[:_COLUMNS_IN_LIST]]
        return {"cells": cells, "unusual": why["unusual"]}

    def _in_state(self, state: str, decisions: Mapping[int, Decision]) -> np.ndarray:
        chosen = np.zeros(len(self._score), bool)
        chosen[
            [
                id
                for id, (action, _) in decisions.items()
                if state in (action, "decided", "undecided")
            ]
        ] = True
        return ~chosen if state == "undecided" else chosen

    def _searched(self, search: str) -> np.ndarray:
        if not search:
            return np.ones(len(self._score), bool)
        return np.fromiter((search in text for text in self._texts), bool, len(self._texts))

    @cached_property
    def _texts(self) -> list[str]:
        """Everything that can be searched in an instance."""
        instances, content = self.project.instances, self.project.content
        columns = [
            instances["source"],
            instances["label"],
            instances["prediction"],
            *(content[name] for name in content.columns),
        ]
        rows = zip(*(column.to_list() for column in columns))
        return ["\n".join(str(value) for value in row if value is not None).lower() for row in rows]

    @cached_property
    def _score(self) -> np.ndarray:
        return self.project.instances["score"].to_numpy(float)

    @cached_property
    def _label(self) -> np.ndarray:
        return self.project.instances["label"].to_numpy(object)

    @cached_property
    def _prediction(self) -> np.ndarray:
        return self.project.instances["prediction"].to_numpy(object)

    @cached_property
    def _mislabel_rank(self) -> np.ndarray:
        return self.project.instances["mislabel_rank"].to_numpy(int)

    @cached_property
    def _by_harm(self) -> np.ndarray:
        return np.argsort(self.project.instances["harm_rank"].to_numpy(int), kind="stable")

    @cached_property
    def _by_mislabel(self) -> np.ndarray:
        return np.argsort(self._mislabel_rank, kind="stable")


def number(value: Any) -> float | None:
    """As JSON knows it: what is not finite is nothing."""
    return float(value) if value is not None and math.isfinite(value) else None


def plain(value: Any) -> str | None:
    return None if value is None or value != value else str(value)


def _bound(text: str | None, default: float) -> float:
    try:
        return float(text) if text else default
    except ValueError:
        raise BadInput(f"{text!r} is not a number. Write a score as 0.001 or -2e-4.") from None


def _passage(text: str, words: list[str]) -> str:
    """The beginning, or from shortly before the first word that matters when that is further down."""
    lower = text.lower()
    found = [place for place in (lower.find(str(word).lower()) for word in words) if place >= 0]
    start = min(found, default=0)
    start = 0 if start < _TEXT_IN_LIST // 2 else start - 60
    passage = text[start : start + _TEXT_IN_LIST]
    return ("… " if start else "") + passage + (" …" if start + _TEXT_IN_LIST < len(text) else "")

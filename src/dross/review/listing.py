"""Which instances a list shows, and how each looks in it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from .._checks import fits
from ..cleaning.chats import CHATS
from ..cleaning.decisions import Decision
from ..cleaning.duplicates import mark_copy
from ..cleaning.explain import UnusualCells, format_cell, name_label
from ..cleaning.findings import is_share
from ..cleaning.plans import KEEP
from ..cleaning.project import Project
from ..cleaning.tables import infer_columns
from ..errors import InvalidInput
from .chats import ChatTokens

TABS = ("plan", "harmful", "mislabelled", "validation", "copies", "all")
MAX_LISTED = 100_000  # browsers cannot scroll much further
_MAX_COLUMNS = 30
_MAX_COLUMN_WIDTH = 26  # characters
_MAX_TEXT = 420  # characters
_SAMPLED_ROWS = 500  # to measure the widths of columns


@dataclass(frozen=True)
class Filter:
    """What a list is to show."""

    tab: str = "harmful"
    label: str = ""
    prediction: str = ""  # "differs" from the label, or "agrees" with it
    state: str = ""  # undecided, decided, keep, remove, relabel
    lowest: float = -math.inf
    highest: float = math.inf
    search: str = ""
    origin: str = ""  # of chats: where an example is from

    @staticmethod
    def from_query(query: Mapping[str, str]) -> "Filter":
        """Read a filter from the parameters of an address."""
        wanted = Filter(
            query.get("tab") or "harmful",
            query.get("class", ""),
            query.get("prediction", ""),
            query.get("state", ""),
            _read_bound(query.get("min"), -math.inf),
            _read_bound(query.get("max"), math.inf),
            query.get("q", "").strip().lower(),
            query.get("origin", ""),
        )
        for value, known in (
            (wanted.tab, TABS),
            (wanted.prediction, ("", "differs", "agrees")),
            (wanted.state, ("", "undecided", "decided", "keep", "remove", "relabel")),
        ):
            if value not in known:
                names = ", ".join(known).strip(", ")
                raise InvalidInput(f"{value[:50]!r} is not a filter; use one of {names}.")
        return wanted


class Listing:
    """The training instances of a project, in order, filtered, and as the page shows them."""

    def __init__(self, project: Project):
        self.project = project

    @cached_property
    def layout(self) -> str:
        """How instances are shown: images, text, table or chats."""
        kind, columns = self.project.about["kind"], list(self.project.content.columns)
        if kind in ("images", "text", "table", CHATS):
            return kind
        if columns == ["text"]:
            return "text"
        return "images" if (self.project.folder / "pictures").is_dir() else "table"

    @cached_property
    def columns(self) -> list[dict[str, Any]]:
        """The name of each column of a table, and how many characters wide it is shown."""
        if self.layout != "table":
            return []
        content = self.project.content
        sample = content.iloc[:: max(1, len(content) // _SAMPLED_ROWS)]
        width = lambda name: max(
            len(str(name)), *(len(format_cell(value) or "missing") for value in sample[name]), 3
        )
        return [
            {"name": str(name), "width": min(width(name), _MAX_COLUMN_WIDTH)}
            for name in content.columns[:_MAX_COLUMNS]
        ]

    @cached_property
    def percent_of_score(self) -> float:
        """What a score is multiplied by to be shown: errors are shown in points."""
        return 100.0 if is_share(self.project.about) else 1.0

    def ids(self, wanted: Filter, decisions: Mapping[int, Decision]) -> list[int]:
        """Return the ids that pass the filter, in the order of its tab."""
        keep = self._matches(wanted.search)
        unit = self.percent_of_score
        keep &= (unit * self._score >= wanted.lowest) & (unit * self._score <= wanted.highest)
        if wanted.label:
            keep &= self._label == wanted.label
        if wanted.origin and self.layout == CHATS:
            keep &= self.project.instances["origin"].to_numpy(object) == wanted.origin
        if wanted.prediction:
            keep &= (self._label == self._prediction) == (wanted.prediction == "agrees")
        if wanted.state:
            keep &= self._is_in_state(wanted.state, decisions)
        if wanted.tab == "harmful":
            keep &= self._score < 0
        if wanted.tab == "mislabelled":
            keep &= self._mislabel_rank >= 0
        if wanted.tab == "plan":
            keep &= self._in_plan
        if wanted.tab == "copies":
            copied = np.array(self.project.copies.ids(), dtype=int)
            return copied[keep[copied]].tolist()
        orders = {"mislabelled": self._by_mislabel_rank, "plan": self._by_confidence}
        order = orders.get(wanted.tab, self._by_harm_rank)
        return order[keep[order]].tolist()

    def item(self, id: int) -> dict[str, Any]:
        """Return what the list shows of an instance, as JSON."""
        row = self.project.instances.loc[id].to_dict()  # cells are looked up ten times faster
        return {
            "id": id,
            "source": str(row["source"]),
            "label": name_label(row["label"], self.project.about),
            "prediction": name_label(row["prediction"], self.project.about),
            "probability": finite_or_none(row["probability"]),
            "effect": finite_or_none(self.percent_of_score * row["score"]),
            "action": str(row["action"]),
            "confidence": finite_or_none(row["confidence"]),
            "wrong": finite_or_none(row["wrong"]),
            "harmful_in": int(row["harmful_in"]),
            "learned_in": int(row["learned_in"]),
            "copy": mark_copy(self.project.copies, id),
        } | self._short_content(id, row)

    @cached_property
    def tokens(self) -> ChatTokens:
        """The tokens of chats."""
        return ChatTokens(self.project)

    def _short_content(self, id: int, row: Any) -> dict[str, Any]:
        if self.layout == CHATS:
            return {"tokens": self.tokens.excerpt(id), "origin": str(row["origin"])}
        return self.short_content(self.project.content.loc[id], self.project.why(id))

    def short_content(self, content: Any, why: Mapping[str, Any]) -> dict[str, Any]:
        """Return what the list shows of the content of an instance of any part, as JSON."""
        if self.layout == "text":
            text, words = str(content["text"]), why["words"]
            return {"text": _excerpt(text, [word for word, _ in words]), "words": words}
        if self.layout == "images":
            return {}
        row = content.to_dict()
        cells = [format_cell(value) for value in list(row.values())[:_MAX_COLUMNS]]
        return {"cells": cells, "unusual": self.unusual(row, why)}

    def unusual(self, content: Mapping[Any, Any], why: Mapping[str, Any]) -> dict[str, str]:
        """Return what is unusual in a row of a table of any part: {column: in words}."""
        return why["unusual"] | self._unusual_cells(content)

    @cached_property
    def _unusual_cells(self) -> UnusualCells:
        """What is usual in each column of the training part, worked out once."""
        said, content = self.project.about.get("columns"), self.project.content
        entries: Any = said if fits(said, list[dict[str, str]]) else []  # earlier versions: none
        kinds = {entry.get("name", ""): entry.get("kind", "") for entry in entries}
        return UnusualCells(content, infer_columns(content, kinds))

    def _is_in_state(self, state: str, decisions: Mapping[int, Decision]) -> np.ndarray:
        """bool [N]"""
        if state in ("decided", "undecided"):
            ids = list(decisions)
        else:
            ids = [id for id, (action, _) in decisions.items() if action == state]
        chosen = np.zeros(len(self._score), bool)
        chosen[ids] = True
        return ~chosen if state == "undecided" else chosen

    def _matches(self, search: str) -> np.ndarray:
        """bool [N]"""
        if not search:
            return np.ones(len(self._score), bool)
        return np.fromiter((search in text for text in self._texts), bool, len(self._texts))

    @cached_property
    def _texts(self) -> list[str]:
        """Everything that can be searched in each instance."""
        instances, content = self.project.instances, self.project.content
        columns = [instances[name] for name in ("source", "label", "prediction")]
        columns += [content[name] for name in content.columns]
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
    def _by_harm_rank(self) -> np.ndarray:
        return np.argsort(self.project.instances["harm_rank"].to_numpy(int), kind="stable")

    @cached_property
    def _in_plan(self) -> np.ndarray:
        return self.project.instances["action"].to_numpy(object) != KEEP

    @cached_property
    def _by_confidence(self) -> np.ndarray:
        """The least sure first: they are what a person should look at."""
        sure = self.project.instances["confidence"].to_numpy(float)[self._by_harm_rank]
        return self._by_harm_rank[np.argsort(sure, kind="stable")]

    @cached_property
    def _by_mislabel_rank(self) -> np.ndarray:
        return np.argsort(self._mislabel_rank, kind="stable")


def finite_or_none(value: Any) -> float | None:
    """Return a number that JSON can hold, or None for one that is missing or not finite."""
    return float(value) if value is not None and math.isfinite(value) else None


def _read_bound(text: str | None, default: float) -> float:
    try:
        bound = float(text) if text else default
    except ValueError:
        bound = math.nan
    if math.isnan(bound):
        raise InvalidInput(f"{str(text)[:50]!r} is not a number. Write a score as 0.001 or -2e-4.")
    return bound


def _excerpt(text: str, words: list[str]) -> str:
    """The beginning, or what surrounds the first word that matters if that is further down."""
    lower = text.lower()
    found = [place for place in (lower.find(str(word).lower()) for word in words) if place >= 0]
    start = min(found, default=0)
    start = 0 if start < _MAX_TEXT // 2 else start - 60
    end = start + _MAX_TEXT
    return ("… " if start else "") + text[start:end] + (" …" if end < len(text) else "")

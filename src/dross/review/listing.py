"""Which instances a list shows, and how each looks in it."""

import io
import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np

from ..cleaning.decisions import Decision
from ..cleaning.duplicates import mark_copy
from ..cleaning.explain import Reasons, UnusualCells, show_cell
from ..cleaning.images import load_image
from ..cleaning.inputs import image_root
from ..cleaning.modality import Frame
from ..cleaning.plans import KEEP
from ..cleaning.project import Project
from ..cleaning.tables import infer_columns
from ..errors import DrossError

MAX_LISTED = 100_000  # browsers cannot scroll much further
_MAX_COLUMNS = 30
_MAX_COLUMN_WIDTH = 26  # characters
_MAX_EXCERPT = 420  # characters, in the list
_MAX_BEFORE = 200  # characters of a chat before its first answer, in the list
_MAX_CHAT = 20_000  # characters, in the panel
_SAMPLED_ROWS = 500  # to measure the widths of columns
_STRONG = 98  # the percentile of the effects of tokens that has the strongest color
_MAX_SIDE = 4096  # pixels of an image; browsers and people see no more at once

Token = tuple[str, float | None]  # its text, and its effect in percent; None: it is not learned


class Filter(msgspec.Struct, frozen=True, kw_only=True):
    """What a list is to show, as the address says it."""

    tab: Literal["plan", "harmful", "mislabeled", "validation", "copies", "all"] = "harmful"
    label: str = msgspec.field(default="", name="class")
    prediction: Literal["", "differs", "agrees"] = ""
    state: Literal["", "undecided", "decided", "keep", "remove", "relabel"] = ""
    lowest: float = msgspec.field(default=-math.inf, name="min")
    highest: float = msgspec.field(default=math.inf, name="max")
    search: str = msgspec.field(default="", name="q")
    origin: str = ""  # of chats: where an example is from


class Searched:
    """A table of instances in which a list can be filtered.

    Arguments:
        table: Has the columns source, label and prediction, and a row for each place.
        content: What the instances look like, in the same order.
    """

    def __init__(self, table: Frame, content: Frame):
        self.table = table
        self.content = content

    def matches(
        self, wanted: Filter, shown: np.ndarray, decisions: Mapping[int, Decision]
    ) -> np.ndarray:
        """Which instances pass the filters that all lists have, bool [N].

        Arguments:
            wanted: The filters.
            shown: What `lowest` and `highest` are about, [N].
            decisions: By the place of the instance.
        """
        keep = (shown >= wanted.lowest) & (shown <= wanted.highest)
        search = wanted.search.strip().lower()
        if search:
            keep &= np.fromiter((search in text for text in self._texts), bool, len(keep))
        label = self.table["label"].to_numpy(object)
        prediction = self.table["prediction"].to_numpy(object)
        if wanted.label:
            keep &= label == wanted.label
        if wanted.prediction:
            keep &= (label == prediction) == (wanted.prediction == "agrees")
            keep &= prediction != ""  # nothing is predicted of what was left out
        if wanted.state:
            undecided = wanted.state == "undecided"
            either = undecided or wanted.state == "decided"
            ids = [id for id, (action, _) in decisions.items() if either or action == wanted.state]
            keep &= np.isin(np.arange(len(keep)), ids) != undecided
        return keep

    @cached_property
    def _texts(self) -> list[str]:
        """Everything that can be searched in each instance."""
        columns = [self.table[name] for name in ("source", "label", "prediction")]
        columns += [self.content[name] for name in self.content.columns]
        rows = zip(*(column.to_list() for column in columns))
        return ["\n".join(str(value) for value in row if value is not None).lower() for row in rows]


class Listing:
    """The training instances of a project, in order, filtered, and as the page shows them."""

    def __init__(self, project: Project):
        self.project = project

    @cached_property
    def layout(self) -> str:
        """How instances are shown: images, text, table or chats."""
        modality = self.project.modality
        return "table" if modality.has_columns else modality.name

    @cached_property
    def columns(self) -> list[dict[str, Any]]:
        """The name of each column of a table, and how many characters wide it is shown."""
        if self.layout != "table":
            return []
        content = self.project.content
        sample = content.iloc[:: max(1, len(content) // _SAMPLED_ROWS)]
        columns = []
        for name in content.columns[:_MAX_COLUMNS]:
            cells = [show_cell(value) or "missing" for value in sample[name]]
            width = max(3, len(str(name)), *map(len, cells))
            columns.append({"name": str(name), "width": min(width, _MAX_COLUMN_WIDTH)})
        return columns

    @cached_property
    def display_factor(self) -> float:
        """What a score is multiplied by to be shown: errors are shown in points."""
        return 100.0 if self.project.info.is_share else 1.0

    def ids(self, wanted: Filter, decisions: Mapping[int, Decision]) -> list[int]:
        """Return the ids that pass the filter, in the order of its tab."""
        rows = self.project.table
        score = rows["score"].to_numpy(float)
        keep = self._searched.matches(wanted, self.display_factor * score, decisions)
        if wanted.origin and self.project.modality.has_tokens:
            keep &= rows["origin"].to_numpy(object) == wanted.origin
        order = np.argsort(rows["harm_rank"].to_numpy(int), kind="stable")
        if wanted.tab == "copies":
            order = np.array(self.project.copies.ids(), dtype=int)
        elif wanted.tab == "harmful":
            keep &= score < 0
        elif wanted.tab == "mislabeled":
            rank = rows["mislabel_rank"].to_numpy(int)
            keep &= rank >= 0
            order = np.argsort(rank, kind="stable")
        elif wanted.tab == "plan":  # the least sure first: a person should look at them
            keep &= rows["action"].to_numpy(object) != KEEP
            order = order[np.argsort(rows["confidence"].to_numpy(float)[order], kind="stable")]
        return order[keep[order]].tolist()

    @cached_property
    def _searched(self) -> Searched:
        return Searched(self.project.table, self.project.content)

    def item(self, id: int) -> dict[str, Any]:
        """Return what the list shows of an instance, as JSON."""
        row = self.project.table.loc[id].to_dict()  # cells are looked up ten times faster
        if self.project.modality.has_tokens:
            content = {"tokens": self.excerpt(id), "origin": str(row["origin"])}
        else:
            content = self.short_content(self.project.content.loc[id], self.project.why(id))
        return {
            "id": id,
            "source": str(row["source"]),
            "label": row["label"],
            "prediction": row["prediction"],
            "probability": float(row["probability"]),
            "effect": self.display_factor * row["score"],
            "action": str(row["action"]),
            "confidence": float(row["confidence"]),
            "wrong": float(row["wrong"]),
            "harmful_in": int(row["harmful_in"]),
            "learned_in": int(row["learned_in"]),
            "copy": mark_copy(self.project.copies, id),
        } | content

    def short_content(self, content: Any, why: Reasons) -> dict[str, Any]:
        """Return what the list shows of the content of an instance of any part, as JSON."""
        if self.layout == "text":
            words = why.words
            return {"text": _excerpt(str(content["text"]), words), "words": words}
        if self.layout == "images":
            return {}
        row = content.to_dict()
        cells = [show_cell(value) for value in list(row.values())[:_MAX_COLUMNS]]
        return {"cells": cells, "unusual": self.unusual(row, why)}

    def unusual(self, content: Mapping[Any, Any], why: Reasons) -> dict[str, str]:
        """Return what is unusual in a row of a table of any part: {column: in words}."""
        return why.unusual | self._unusual_cells(content)

    @cached_property
    def _unusual_cells(self) -> UnusualCells:
        """The usual values of each column of the training set, computed once."""
        content = self.project.content
        training = self.project.info.training
        columns = [] if training is None else training.columns
        kinds = {column.name: column.kind for column in columns}
        return UnusualCells(content, infer_columns(content, kinds))

    # --- chats ------------------------------------------------------------------------------------

    @cached_property
    def token_scale(self) -> float:
        """The effect in percent that has the strongest color; 0 if nothing has tokens."""
        if not self.project.modality.has_tokens:
            return 0.0
        effects = np.concatenate([np.asarray(row, float) for row in self.project.tokens["effects"]])
        sizes = np.abs(100 * effects[~np.isnan(effects)])
        return float(np.percentile(sizes, _STRONG)) if len(sizes) else 0.0

    def excerpt(self, id: int) -> list[Token]:
        """The tokens around the beginning of the first answer of a chat."""
        tokens = self._tokens(id)
        first = next((k for k, (_, effect) in enumerate(tokens) if effect is not None), 0)
        start = first
        letters = 0
        while start and (letters := letters + len(tokens[start - 1][0])) <= _MAX_BEFORE:
            start -= 1
        shown = _cut(tokens[start:], _MAX_EXCERPT)
        head: list[Token] = [("… ", None)] if start else []
        tail: list[Token] = [(" …", None)] if start + len(shown) < len(tokens) else []
        return head + shown + tail

    def whole_chat(self, id: int) -> list[Token]:
        """The tokens of a chat, up to a length that a browser shows at once."""
        return _cut(self._tokens(id), _MAX_CHAT)

    def _tokens(self, id: int) -> list[Token]:
        row = self.project.tokens.loc[id]
        number = lambda effect: None if effect != effect else float(f"{100 * effect:.3g}")
        return [(str(text), number(effect)) for text, effect in zip(row["texts"], row["effects"])]


def _cut(tokens: list[Token], letters: int) -> list[Token]:
    kept = []
    length = 0
    for text, effect in tokens:
        length += len(text)
        if length > letters:
            break
        kept.append((text, effect))
    return kept


def _excerpt(text: str, words: Sequence[tuple[str, float]]) -> str:
    """The beginning, or what surrounds the first word that matters if that is further down."""
    lower = text.lower()
    found = [place for word, _ in words if (place := lower.find(word.lower())) >= 0]
    start = min(found, default=0)
    start = 0 if start < _MAX_EXCERPT // 2 else start - 60
    end = start + _MAX_EXCERPT
    return ("… " if start else "") + text[start:end] + (" …" if end < len(text) else "")


def read_original(project: Project, part: str, id: int) -> bytes | None:
    """Read an image of the input in its own size; the project itself holds small copies only.

    Arguments:
        project: What is reviewed.
        part: train or validation.
        id: The place of the instance in that part.

    Returns:
        The bytes of a PNG file; None if the input was moved.
    """
    table = {"train": project.content, "validation": project.validation}.get(part)
    if not project.modality.has_images or table is None or id not in table.index:
        return None
    try:
        root = image_root(Path(project.request.data))
        image = load_image(root / str(table.at[id, "path"]))
    except DrossError:
        return None  # it was moved, or is damaged by now
    image.thumbnail((_MAX_SIDE, _MAX_SIDE))
    written = io.BytesIO()
    image.save(written, "PNG", compress_level=1)  # quick: it goes to this machine
    return written.getvalue()

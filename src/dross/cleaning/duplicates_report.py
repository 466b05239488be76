"""Groups of copies side by side, for the report."""

import base64
from collections.abc import Callable
from typing import Any

from .cells import format_cell
from .duplicates_groups import Copies
from .duplicates_text import head_group, name_place
from .source import Frame

_GROUPS = 24
_MEMBERS = 4  # of each group
_CELLS = 8
_LETTERS = 300


def show_groups(
    copies: Copies, picture: Callable[[str, int], bytes | None], *, classes: bool
) -> list[dict[str, Any]]:
    """The first groups, as the template copies.html shows them.

    Arguments:
        copies: Of a project.
        picture: `Project.picture`.
        classes: Whether labels are classes.
    """
    numbers = list(dict.fromkeys(copies.table["group"].tolist()))[:_GROUPS]
    return [_show_group(copies, number, picture, classes) for number in numbers]


def _show_group(
    copies: Copies, number: int, picture: Callable[[str, int], bytes | None], classes: bool
) -> dict[str, Any]:
    rows = copies.group(number)
    shown = rows[: _MEMBERS - 1] + rows[-1:] if len(rows) > _MEMBERS else rows  # the last may leak
    content = copies.content.iloc[[row["place"] for row in shown]]
    pictures = [picture(row["part"], row["id"]) for row in shown]
    cells = [] if "text" in content or any(pictures) else _choose_cells(content)
    return {
        "about": head_group(copies, number, classes=classes),
        "more": len(rows) - len(shown),
        "members": [
            {
                "place": name_place(row),
                "part": row["part"],
                "label": row["label"],
                "picture": None if image is None else _inline(image),
                "text": str(item["text"] or "")[:_LETTERS] if "text" in content else None,
                "cells": [(name, _text(item[name]), differs) for name, differs in cells],
            }
            for row, image, (_, item) in zip(shown, pictures, content.iterrows())
        ],
    }


def _choose_cells(content: Frame) -> list[tuple[str, bool]]:
    """[(column, whether the members differ in it), ...]: first those in which they do."""
    texts = {name: {_text(value) for value in content[name]} for name in content.columns}
    differing = [name for name in texts if len(texts[name]) > 1]
    equal = [name for name in texts if len(texts[name]) == 1]
    return [(name, name in differing) for name in [*differing, *equal][:_CELLS]]


def _text(value: Any) -> str:
    return format_cell(value) or "missing"


def _inline(png: bytes) -> str:
    return "data:image/png;base64," + base64.b64encode(png).decode()

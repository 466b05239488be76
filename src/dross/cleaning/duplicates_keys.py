"""What instances are compared by: keys, which are equal for the same content, and columns."""

import hashlib
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from .columns import Column
from .duplicates_chance import MOST_COLUMNS
from .images import load_picture
from .numbers import parse_finite
from .source import Frame
from .split_dataset import PreparedData

FEWEST_WORDS = 6  # shorter texts are equal by nature
Columns = tuple[np.ndarray, np.ndarray]  # float64 [N, C], and which of them are numbers: bool [C]
_WORDS = re.compile(r"\w+")


def same_keys(data: PreparedData, content: Frame, rows: Tensor) -> np.ndarray:
    """int64 [N]: a number for each instance; instances that are the same share it.

    Rows of a table are the same if all learnt columns are equal, texts if they differ only in white
    space, and all others if models learn the same numbers from them.
    """
    if data.source.kind == "text":
        keys = [" ".join(str(text).split()) for text in content["text"].fillna("")]
    elif names := [column.name for column in _learnt(data.columns)]:
        cells = content[names].astype(object).where(content[names].notna(), None)
        keys = [repr(row) for row in cells.itertuples(index=False, name=None)]
    else:
        keys = [row.tobytes() for row in rows.numpy()]
    return number_keys(keys)


def number_keys(keys: Iterable[str | bytes]) -> np.ndarray:
    """int64 [N]: the same number for equal keys, in the order in which they come."""
    known: dict[bytes, int] = {}
    numbers = []
    for key in keys:
        raw = key if isinstance(key, bytes) else key.encode("utf-8", "surrogatepass")
        numbers.append(known.setdefault(hashlib.sha256(raw).digest(), len(known)))
    return np.array(numbers, dtype=np.int64)


def number_pictures(root: Path, paths: Sequence[str]) -> np.ndarray:
    """int64 [N]: the same number for pictures with the same pixels, at their real size."""
    pixels = (np.asarray(load_picture(root / path)) for path in paths)
    return number_keys(f"{array.shape}".encode() + array.tobytes() for array in pixels)


def has_many_words(texts: Iterable[object]) -> np.ndarray:
    """bool [N]: whether a text is too long to be written twice by chance."""
    return np.array([len(set(_WORDS.findall(str(text)))) >= FEWEST_WORDS for text in texts])


def as_columns(data: PreparedData, content: Frame, rows: Tensor) -> Columns | None:
    """The columns of a table as numbers; None for pictures and texts.

    If there are many columns, those with the most values are taken.
    """
    if data.source.kind in ("text", "images"):
        return None
    if columns := _learnt(data.columns):
        read = [_read_column(content[column.name], column) for column in columns]
        is_number = np.array([column.kind != "category" for column in columns])
        table = np.stack(read, axis=1)
    elif data.x["train"].dim() == 2:
        table, is_number = rows.numpy().astype(np.float64), np.ones(rows.shape[1], bool)
    else:
        return None
    values = [len(np.unique(column)) for column in table.T]
    chosen = np.sort(np.argsort(values, kind="stable")[::-1][:MOST_COLUMNS])
    return table[:, chosen], is_number[chosen]


def _learnt(columns: Sequence[Column]) -> list[Column]:
    return [column for column in columns if column.kind in ("number", "category", "date")]


def _read_column(cells: Frame, column: Column) -> np.ndarray:
    """float64 [N]. Each category, each date, and a missing cell has a number of its own."""
    if column.kind == "number":
        return parse_finite(cells).to_numpy(dtype=np.float64)
    return number_keys(map(str, cells)).astype(np.float64)

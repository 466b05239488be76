"""Data sets of other forms as map-style ones of pairs (x, y): dicts of columns, and iterables.

A retrace looks instances up by their ids. So an iterable data set is read once, and each of its
instances is kept under the id that it came with.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.data import IterableDataset

from ..errors import InvalidInput

_LABELS = ("label", "labels", "target", "targets", "y", "cls")
_KEYS = ("__key__", "id")


class DictPairs:
    """A map-style data set of dicts, such as one of Hugging Face `datasets`, as pairs (x, y)."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        """How many instances there are."""
        return len(self.dataset)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """(x, y)."""
        return split_columns(self.dataset[index])


class KeyedPairs:
    """An iterable data set of (id, x, y), read once.

    Whole numbers as ids must be 0..N-1, in any order. Texts are sorted alphabetically and kept in
    `keys`.
    """

    def __init__(self, dataset: Iterable, most_bytes: int):
        found: dict[Any, tuple[Any, Any]] = {}
        size = 0
        for key, x, y in _read(dataset):
            if key in found:
                raise InvalidInput(
                    f"The iterable data set gives the id {key!r} twice. Every instance needs its "
                    "own id, and one pass must give each instance once."
                )
            found[key] = (x, y)
            size += sum(
                t.nbytes for t in tree_leaves((x, y)) if isinstance(t, (Tensor, np.ndarray))
            )
            if size > most_bytes:
                raise InvalidInput(
                    f"The iterable data set holds more than {most_bytes:,} bytes (after "
                    f"{len(found)} instances), and a retrace needs each of them again by its id. "
                    "Pass a map-style data set, which reads them one by one; or allow more: "
                    "keep=dross.Budget(bytes, in_memory=bytes)."
                )
        if not found:
            raise InvalidInput("The data set is empty.")
        texts = any(isinstance(key, str) for key in found)
        if not texts and set(found) != set(range(len(found))):
            raise InvalidInput(
                f"The ids of the iterable data set must be 0 to {len(found) - 1}, each once, or "
                f"texts; found {sorted(found)[-1]} among {len(found)} instances."
            )
        self.keys: list[str] | None = sorted(map(str, found)) if texts else None
        order = self.keys if self.keys is not None else range(len(found))
        self.pairs = [found[key] for key in order]
        self._numbers = {key: k for k, key in enumerate(order)}

    def __len__(self) -> int:
        """How many instances there are."""
        return len(self.pairs)

    def __getitem__(self, index: int) -> tuple[Any, Any]:
        """(x, y)."""
        return self.pairs[index]

    def number(self, keys: Any) -> Any:
        """The numbers of instances that are known by texts; numbers as they are."""
        names = [keys] if isinstance(keys, str) else keys
        if self.keys is None or not all(isinstance(name, str) for name in names):
            return keys
        unknown = [name for name in names if name not in self._numbers]
        if unknown:
            raise InvalidInput(f"The data set has no instance with the id {unknown[0]!r}.")
        return np.array([self._numbers[name] for name in names], dtype=np.int64)


def as_map_style(source: Any, most_bytes: int) -> Any:
    """A data set of dicts or an iterable one as pairs by number; any other as it is.

    Raises:
        InvalidInput: where ids or labels are missing; it says what to write.
    """
    if isinstance(source, IterableDataset):
        return KeyedPairs(source, most_bytes)
    if isinstance(source, (tuple, list, DictPairs, KeyedPairs)) or not hasattr(source, "__len__"):
        return source
    return DictPairs(source) if _gives_dicts(source) else source


def number_keys(source: Any, ids: Any) -> Any:
    """Ids that are texts as the numbers of instances of this data set; any others as they are."""
    return source.number(ids) if isinstance(source, KeyedPairs) else ids


def keys_of(source: Any) -> list[str] | None:
    """The texts by which a data set knows its instances, where it does."""
    return source.keys if isinstance(source, KeyedPairs) else None


def _gives_dicts(source: Any) -> bool:
    if not hasattr(source, "__getitem__") or hasattr(source, "collate"):
        return False
    try:
        return len(source) > 0 and isinstance(source[0], Mapping)
    except Exception:  # it is read again later, and its error is reported there
        return False


def split_columns(row: Mapping[str, Any]) -> tuple[Any, Any]:
    """x and y of a dict: y is the one column that is named like a label, x all others."""
    columns = {name: value for name, value in row.items() if not str(name).startswith("__")}
    labels = [name for name in _LABELS if name in columns]
    if len(labels) != 1 or len(columns) < 2:
        raise InvalidInput(
            f"An instance has the columns {sorted(map(str, columns))}, and it is not clear which "
            f"one is the label: name one of them {_LABELS[0]!r} (rename_column) and keep only "
            "inputs besides it; or pass a data set that gives pairs (x, y)."
        )
    y = _as_tensor(columns.pop(labels[0]))
    inputs = {name: _as_tensor(value) for name, value in columns.items() if name not in _KEYS}
    return (next(iter(inputs.values())) if len(inputs) == 1 else inputs), y


def _as_tensor(value: Any) -> Any:
    """Numbers as a tensor: a list of them would be collated column by column."""
    if not isinstance(value, (list, tuple, np.ndarray, np.generic)):
        return value
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError):
        return value


def _read(dataset: Iterable) -> Iterator[tuple[Any, Any, Any]]:
    """(id, x, y) of every instance."""
    for row in dataset:
        parts: tuple[Any, ...]
        if isinstance(row, Mapping):
            key = next((row[name] for name in _KEYS if name in row), None)
            parts = (key, *split_columns(row)) if key is not None else ()
        else:
            parts = tuple(row) if isinstance(row, (tuple, list)) else ()
        key = parts[0] if len(parts) == 3 else None
        key = key.item() if isinstance(key, (Tensor, np.generic)) and key.ndim == 0 else key
        if isinstance(key, bool) or not isinstance(key, (int, str)):
            shown = sorted(row) if isinstance(row, Mapping) else type(row).__name__
            raise InvalidInput(
                "An iterable data set must give (id, x, y), or dicts with '__key__' or 'id': a "
                f"number from 0 to N-1 or a text that stays the same. Found {shown!r:.80}. Add "
                "an id where the data are read (enumerate), or pass a map-style data set."
            )
        yield key, parts[1], parts[2]

"""Data sets whose batches the user's own function puts together: dicts, padding, any form.

What an instance looks like then depends on the others in its batch, because shorter ones are
padded. So a batch is always collated whole, with the same ids in the same order.
"""

import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import MappingKey, register_pytree_node, tree_leaves

from ..errors import InvalidInput, NotSupported, first_line

Pair = tuple[Any, Any]


class Keywords(dict):
    """A batch that a model takes as keyword arguments: model(**x)."""


def _name_values(x: Any) -> tuple[list[tuple[Any, Any]], Any]:
    return [(MappingKey(name), value) for name, value in x.items()], list(x)


register_pytree_node(
    Keywords,
    lambda x: (list(x.values()), list(x)),
    lambda values, names: Keywords(zip(names, values)),
    flatten_with_keys_fn=_name_values,
    serialized_type_name="dross.data.collated.Keywords",
)


class Collated:
    """A map-style data set with the function that makes batches of its items.

    Arguments:
        dataset: anything with a length that is indexed by id.
        collate: makes a batch from a list of items, like a DataLoader's collate_fn.
        split: takes a batch apart into what the model is called with and what the loss gets
            besides the model's outputs. By default a batch is a pair (x, y).
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list], Any],
        split: Callable[[Any], Pair] | None = None,
    ):
        self.dataset, self.collate_fn = dataset, collate
        self.split = _split_pair if split is None else split

    def __len__(self) -> int:
        """How many instances there are."""
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        """The item, as the data set has it; a dict is a copy, because collators change theirs."""
        item = self.dataset[int(i)]
        return dict(item) if isinstance(item, Mapping) else item

    def items(self, ids: Iterable[int]) -> list[Any]:
        """These items."""
        return [self[i] for i in ids]

    def collate(self, ids: Sequence[int]) -> Pair:
        """x and y of these instances, as one batch.

        Raises:
            InvalidInput: where an item does not exist, or the collator fails.
        """
        return self.collate_items(self.fetch(ids))

    def fetch(self, ids: Sequence[int]) -> list[Any]:
        """These items, or an error that says which one is missing."""
        try:
            return self.items(ids)
        except (LookupError, TypeError) as error:
            raise InvalidInput(
                f"The data set of {len(self)} instances does not give all of {list(ids)!r:.60} "
                f"({type(error).__name__}: {error}). An instance's id is its index, starting at 0."
            ) from error

    def collate_items(self, items: list[Any]) -> Pair:
        """x and y of these items, as one batch."""
        try:
            batch = self.collate_fn(items)
        except Exception as error:  # the collator is the user's code
            raise InvalidInput(
                f"The collator failed on a batch of {len(items)} instances: {first_line(error)}"
            ) from error
        return self.split(batch)

    def check_repeatable(self, ids: Sequence[int]) -> None:
        """Refuse data that look different the second time.

        Raises:
            NotSupported: it says whether the data set or the collator draws random numbers.
        """
        one, other = self.items(ids), self.items(ids)
        if not np.array_equal(hash_items(one), hash_items(other)):
            raise NotSupported(
                "An instance of the data set looks different each time it is read, so the run "
                "could not be replayed. Take random transforms out of the data set, or draw them "
                "once and store the result."
            )
        pairs = zip(*(tree_leaves(self.collate_items(items)) for items in (one, other)))
        if not all(_same(a, b) for a, b in pairs):
            raise NotSupported(
                f"The collator ({_name(self.collate_fn)}) makes a different batch from the same "
                "instances the second time (random masking?), so the run could not be replayed. "
                "Mask the data once, before training, and use a collator that only pads."
            )


def _split_pair(batch: Any) -> Pair:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InvalidInput(
            f"A batch must be a pair (x, y); the collator gives the type {type(batch).__name__}. "
            "Say how to take it apart: split=lambda batch: (x, y)."
        )
    return batch[0], batch[1]


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return one.shape == other.shape and torch.equal(one.nan_to_num(), other.nan_to_num())
    return bool(one == other)


def _name(function: Any) -> str:
    return getattr(function, "__name__", type(function).__name__)


def hash_items(items: list[Any]) -> np.ndarray:
    """A 64-bit hash of each item, whatever it is made of, without padding: int64 [B]."""
    digests = []
    for item in items:
        digest = hashlib.blake2b(digest_size=8)
        _update(digest, item)
        digests.append(digest.digest())
    return np.frombuffer(b"".join(digests), dtype="<i8").astype(np.int64)


def _update(digest: Any, value: Any) -> None:
    """Feed a value to a digest. Dicts go by sorted key: the order of columns does not count."""
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            digest.update(f"{{{key}:".encode())
            _update(digest, value[key])
    elif isinstance(value, Tensor):
        digest.update(str((value.dtype, tuple(value.shape))).encode())
        _update(digest, value.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    elif isinstance(value, np.ndarray):
        digest.update(str((value.dtype, value.shape)).encode() + value.tobytes())
    elif isinstance(value, (list, tuple)) and any(isinstance(v, (Tensor, Mapping)) for v in value):
        for part in value:
            digest.update(b",")
            _update(digest, part)
    else:
        raw = getattr(value, "tobytes", None)  # of a picture
        digest.update(raw() if callable(raw) else repr(value).encode())

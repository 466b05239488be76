"""One number per instance that says what it looked like: noted while recording, compared on replay.

A data set that is held in memory is digested as a whole. Of any other, and of the batches of the
user's own loop, each instance is hashed when it is read, before any augmentation:

    hash_i = sum over leaves of  factor * (start + sum over k of  weight_k * word_ik)   mod 2^64

with word_ik the bits of the instance's row, 32 at a time, fixed odd weights, and a start and a
factor that follow from the leaf's name, type and size. Whole numbers add up to the same in any
order, so a hash does not depend on the device, nor on the batch in which the instance came.
"""

import hashlib
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from ..errors import InputChanged
from .dataset import hash_items

MAX_ID = 1 << 27  # ids from here on are not noted: 9 bytes are held for each id up to the largest
_UNKNOWN, _SEEN, _RECORDED = 0, 1, 2
_MAX_NAMED = 5  # instances in a message


# --- the hash -------------------------------------------------------------------------------------


def hash_instances(pair: tuple[Any, Any] | list[Any]) -> np.ndarray | None:
    """The hash of each instance of a batch, int64 [B].

    Arguments:
        pair: x and y, floating point in the model's type; anything but tensors is left out. Or a
            list of items, where a collator pads them: an item looks the same in every batch.

    Returns:
        None where a tensor does not have one row per instance.
    """
    if isinstance(pair, list):
        return hash_items(pair)
    named = list(_named_tensors(pair))
    if any(t.dim() == 0 for _, t in named) or len({len(t) for _, t in named}) != 1:
        return None
    total, *others = (_hash_rows(name, t.detach()).cpu() for name, t in named)
    for part in others:
        total = total + part
    return total.numpy()


def _named_tensors(pair: tuple[Any, Any]) -> Iterator[tuple[str, Tensor]]:
    x, y = pair
    if isinstance(x, Tensor) and isinstance(y, Tensor):  # nearly always
        yield from (("[0]", x), ("[1]", y))
        return
    for path, leaf in tree_flatten_with_path((x, y))[0]:
        if isinstance(leaf, Tensor):
            yield keystr(path), leaf


def _hash_rows(name: str, t: Tensor) -> Tensor:
    rows = t.reshape(len(t), t.numel() // max(1, len(t))).contiguous()
    size = rows.shape[1] * rows.element_size()  # bytes of an instance
    if rows.element_size() < 4:
        width = max(4, -(-size // 4) * 4)
        padded = torch.zeros(len(rows), width, dtype=torch.uint8, device=t.device)
        padded[:, :size] = rows.view(torch.uint8)
        rows = padded
    words = rows.view(torch.int32)
    # by the size, not the shape: a loop may flatten what the data set has as a picture
    weights, start = _constants(name, t.dtype, size, words.shape[1], t.device)
    # products of 32-bit words and 64-bit weights: if the words were as long as the weights, the
    # highest bits of two of them would cancel, and two changed signs would go unnoticed
    return (words * weights).sum(1) + start


@lru_cache(maxsize=16)
def _constants(
    name: str, dtype: torch.dtype, size: int, words: int, device: torch.device
) -> tuple[Tensor, Tensor]:
    """factor * weight_k for each word, and factor * start."""
    digest = hashlib.sha256(f"{name} {dtype} {size}".encode()).digest()
    start, factor = np.frombuffer(digest[:16], dtype="<i8").copy()
    factor |= np.int64(1)
    fixed = np.concatenate([_odd_numbers(words), [start]]) * factor
    weights = torch.from_numpy(fixed).to(device)
    return weights[:-1], weights[-1]


def _odd_numbers(count: int) -> np.ndarray:
    """Odd numbers without a pattern, by splitmix64: the same everywhere and always."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = (z ^ (z >> np.uint64(31))) | np.uint64(1)
    return z.view(np.int64)


# --- while recording ------------------------------------------------------------------------------


class HashNotes:
    """What the instances of a run looked like when it was recorded.

    An instance is seen when a batch is looked up, and noted once a step with it is recorded: what
    no step of the tape has used may still be corrected. The first note stays, because every step of
    the tape has to be replayed; where a tape forgets its first epochs, the last note counts.
    """

    def __init__(self, noted: tuple[np.ndarray, np.ndarray] | None = None, *, renew: bool = False):
        """Start from what has been noted.

        Arguments:
            noted: ids and hashes of a tape that is continued, in the order of its files.
            renew: whether an instance that has changed is noted again.
        """
        self.renew = renew
        self.values = np.zeros(0, dtype=np.int64)  # by id
        self.known = np.zeros(0, dtype=np.uint8)
        self._order: list[np.ndarray] = []  # ids in the order in which they were noted
        if noted is not None and len(noted[0]):
            ids, values = noted
            self._reserve(ids)
            self.values[ids], self.known[ids] = values, _RECORDED
            self._order = [ids]

    def __len__(self) -> int:
        """How many notes there are; an instance that was noted twice counts twice."""
        return sum(len(ids) for ids in self._order)

    def wants(self, ids: np.ndarray) -> bool:
        """Whether instances with these ids are to be hashed: not all of them are noted."""
        if not len(ids) or ids.max() >= MAX_ID:
            return False
        self._reserve(ids)
        return self.renew or not (self.known[ids] == _RECORDED).all()

    def see(self, ids: np.ndarray, pair: tuple[Any, Any] | list[Any]) -> None:
        """Hash the instances of a batch, unless all of them are noted.

        Arguments:
            ids: of the instances.
            pair: x and y as the data set has them, floating point in the model's type; or the
                items that a collator puts together.
        """
        if not self.wants(ids):
            return
        if (values := hash_instances(pair)) is not None and len(values) == len(ids):
            self._put(ids, values)

    def seen(self, ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The ids and hashes, among these ids, that are seen and not yet noted."""
        ids = np.unique(ids[ids < len(self.known)])
        ids = ids[self.known[ids] == _SEEN]
        return ids, self.values[ids]

    def add_seen(self, ids: np.ndarray, values: np.ndarray) -> None:
        """Take over what another rank has seen."""
        if len(ids):
            self._reserve(ids)
            self._put(ids, values)

    def record(self, ids: np.ndarray) -> None:
        """Note the instances with these ids: a step that used them is recorded."""
        if ids.size and ids.max() >= len(self.known):
            ids = ids[ids < len(self.known)]
        new = ids[self.known[ids] == _SEEN]
        if len(new):
            new = np.unique(new)
            # in this order, Ctrl-C between the two lines may note an id twice, but loses none
            self._order.append(new)
            self.known[new] = _RECORDED

    def since(self, start: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids and hashes from the note of this number on."""
        self._order = [np.concatenate([np.zeros(0, dtype=np.int64), *self._order])]
        ids = self._order[0][start:]
        return ids, self.values[ids]

    def sort(self) -> None:
        """Put the notes in the order of the ids, each instance once."""
        self._order = [np.unique(self.since(0)[0])]

    def _put(self, ids: np.ndarray, values: np.ndarray) -> None:
        open_ = self.known[ids] != _RECORDED
        if self.renew:
            open_ |= self.values[ids] != values
        self.values[ids[open_]], self.known[ids[open_]] = values[open_], _SEEN

    def _reserve(self, ids: np.ndarray) -> None:
        needed, present = int(ids.max()) + 1, len(self.known)
        if needed <= present:
            return
        more = max(needed, 2 * present) - present
        self.values = np.concatenate([self.values, np.zeros(more, dtype=np.int64)])
        self.known = np.concatenate([self.known, np.zeros(more, dtype=np.uint8)])


# --- on replay ------------------------------------------------------------------------------------


class HashCheck:
    """Compares instances with what they looked like when the run was recorded."""

    def __init__(self, ids: np.ndarray, values: np.ndarray):
        """ids and their hashes as they were noted; where an id comes twice, the last one counts."""
        size = int(ids.max()) + 1 if len(ids) else 0
        self.values, self.known = np.zeros(size, dtype=np.int64), np.zeros(size, dtype=bool)
        self.values[ids], self.known[ids] = values, True

    def see(self, ids: np.ndarray, pair: tuple[Any, Any] | list[Any]) -> None:
        """Refuse a batch with an instance that is not what it was.

        Arguments:
            ids: of the instances.
            pair: x and y as the data set has them, floating point in the model's type.

        Raises:
            InputChanged: it names the instances.
        """
        rows = np.flatnonzero(ids < len(self.known))
        rows = rows[self.known[ids[rows]]]
        if not len(rows) or (values := hash_instances(pair)) is None:
            return
        wrong = np.unique(ids[rows][values[rows] != self.values[ids[rows]]])
        if len(wrong):
            raise _other_instances(wrong)


def _other_instances(ids: np.ndarray) -> InputChanged:
    named = ", ".join(str(i) for i in ids[:_MAX_NAMED])
    more = f" and {len(ids) - _MAX_NAMED} more" if len(ids) > _MAX_NAMED else ""
    which = f"Instance {named} has" if len(ids) == 1 else f"Instances {named}{more} have"
    return InputChanged(
        f"{which} other inputs or labels in this data set than when the run was trained. Pass the "
        "same data set, without random transforms of your own: an instance must look the same "
        "every time. The tape is unchanged: restore the data, or record the run again."
    )

"""The training set, seen as instances with ids."""

import hashlib
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.data import Dataset, default_collate

from ..errors import BadInput
from ..step.step import Micro, Step
from .batch import Augment, Batch, BatchSource, LazyBatch
from .prefetch import Prefetcher
from .pytree import in_pair
from .seeds import generator, mixed

_HELD_IN_MEMORY = 2 << 30  # a map-style data set up to this many bytes is read once
_READ_AT_ONCE = 64 << 20
_FINGERPRINT_SAMPLE = 64
_MODEL_STREAM, _AUGMENT_STREAM = 0, 1


class Instances:
    """Any map-style data set of (x, y), or a pair of tensors (X, Y), as batches on a device."""

    def __init__(
        self, source: Any, device: torch.device, dtype: torch.dtype, memory: int | None = None
    ):
        """memory: bytes of data that may be held in memory, or on the device, instead of being read again."""
        self.device, self.dtype = device, dtype
        self.memory = memory
        self.stored = _as_tensors(source)  # (X, Y) where all of it is at hand
        self.source = source
        self.aliased = (
            self.stored is not None
        )  # the tensors are the user's own, who may change them in place
        self.count = len(tree_leaves(self.stored[0])[0]) if self.stored else _length(source)
        if self.count == 0:
            raise BadInput("The data set is empty.")
        if self.stored is None:
            first = self._collated([0])
            if not _same(first, self._collated([0])):
                raise BadInput(
                    "The data set gives instance 0 differently each time it is asked. Take random transforms out of it and pass them as "
                    "augment(x, generator), which is replayed with the same random numbers."
                )
            size = sum(t.numel() * t.element_size() for t in tree_leaves(first)) * self.count
            if size <= self._most_held:
                self.stored = self._collated(range(self.count))
        if self.stored and self._may_be_placed():
            self.stored = self._placed(self.stored)
        self._feeds: dict[int, BatchSource] = {}
        self._equal_weights: dict[int, Tensor] = {}
        self._reader: ThreadPoolExecutor | None = None

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, ids: np.ndarray) -> tuple[Any, Any]:
        """x and y of the given ids, on the device, floating point in the model's type."""
        return self._look_up(torch.as_tensor(np.asarray(ids)))

    def _look_up(self, ids: Tensor) -> tuple[Any, Any]:
        looked_up = (
            in_pair(lambda t: t[ids.to(t.device)], self.stored)
            if self.stored
            else self._collated(ids.tolist())
        )
        return self._placed(looked_up)

    def feed(
        self, steps: Sequence[Step], first: int, seed: int, augment: Augment | None
    ) -> list[list[LazyBatch]]:
        """The batches of each of these steps, the first of which is step number `first`. A batch's random numbers follow from the run's
        seed, its step and its place in it. The ids of all steps go to the device at once; nothing is looked up yet."""
        if id(augment) not in self._feeds:
            nbytes = (
                sum(t.nbytes for t in tree_leaves(self.stored)) // self.count if self.stored else 0
            )
            self._feeds[id(augment)] = BatchSource(
                self._look_up, augment, self.device, self._is_on_device(), nbytes
            )
        feed = self._feeds[id(augment)]
        arrays = [micro.ids for step in steps for micro in step.micros]
        together = torch.from_numpy(np.concatenate([np.zeros(0, dtype=np.int64), *arrays]))
        ids = self._near_data(together).split([len(array) for array in arrays])
        fetches = iter(self._fetched_ahead(ids) if self._must_travel() else [None] * len(ids))
        each = iter(ids)
        return [
            [
                LazyBatch(
                    feed,
                    next(each),
                    self._weights(micro),
                    mixed(seed, t, k, _MODEL_STREAM),
                    mixed(seed, t, k, _AUGMENT_STREAM),
                    fetch=next(fetches),
                )
                for k, micro in enumerate(step.micros)
            ]
            for t, step in enumerate(steps, start=first)
        ]

    def _must_travel(self) -> bool:
        """Whether batches are looked up in the host's memory and sent to the device."""
        return self.device.type == "cuda" and self.stored is not None and not self._is_on_device()

    def _fetched_ahead(self, ids: Sequence[Tensor]) -> list[Callable[[], tuple[Any, Any]]]:
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, "dross-reader")
        look_up = lambda ids: in_pair(lambda t: t[ids], self.stored)  # type: ignore[arg-type]  # stored is there
        ahead = Prefetcher(look_up, ids, self.device, self._reader)
        return [lambda place=place: self._placed(ahead(place)) for place in range(len(ids))]

    def _near_data(self, ids: Tensor) -> Tensor:
        return ids.to(tree_leaves(self.stored)[0].device) if self.stored else ids

    def _weights(self, micro: Micro) -> Tensor:
        if micro.coefficients is not None:
            return torch.as_tensor(micro.coefficients, dtype=self.dtype, device=self.device)
        size = len(micro.ids)
        if size not in self._equal_weights:
            self._equal_weights[size] = torch.as_tensor(
                micro.weights, dtype=self.dtype, device=self.device
            )
        return self._equal_weights[size]

    def fingerprint(self) -> str:
        """Tells data sets apart: everything of a pair of tensors, a sample of any other."""
        digest = hashlib.sha256(str(self.count).encode())
        if self.stored and self.aliased:
            leaves = tree_leaves(self.stored)
        else:
            sample = np.unique(np.linspace(0, self.count - 1, _FINGERPRINT_SAMPLE).astype(np.int64))
            leaves = tree_leaves(self[sample])
        for leaf in leaves:
            for rows in leaf.split(
                max(1, _READ_AT_ONCE // max(1, leaf[0].numel() * leaf.element_size()))
            ):  # it may lie on a disk
                digest.update(checksum_bytes(placed(rows, rows.device, self.dtype)))
        return digest.hexdigest()

    def check(self, ids: np.ndarray, what: str = "Instance ids") -> np.ndarray:
        return check_ids(ids, self.count, what)

    def _collated(self, ids: Sequence[int]) -> tuple[Any, Any]:
        items = [self.source[i] for i in ids]
        if not isinstance(items[0], (tuple, list)) or len(items[0]) != 2:
            raise BadInput(
                f"The data set must give pairs (x, y); item {ids[0]} is a {type(items[0]).__name__}."
            )
        try:
            x, y = default_collate([tuple(item) for item in items])
        except (RuntimeError, TypeError) as error:
            raise BadInput(
                f"The instances of the data set cannot be put into one batch: {error}"
            ) from error
        return x, y

    def _placed(self, batch: tuple[Any, Any]) -> tuple[Any, Any]:
        return in_pair(lambda t: placed(t, self.device, self.dtype), batch)

    def _is_on_device(self) -> bool:
        return self.stored is not None and all(
            t.device == self.device for t in tree_leaves(self.stored)
        )

    @property
    def _most_held(self) -> int:
        return _HELD_IN_MEMORY if self.memory is None else self.memory

    def _may_be_placed(self) -> bool:
        """Whether all of the data go to the device, in the model's type. Otherwise each batch goes when its turn comes."""
        size = sum(
            t.numel() * (self.dtype.itemsize if t.is_floating_point() else t.element_size())
            for t in tree_leaves(self.stored)
        )
        if self.device.type == "cuda":
            return size < torch.cuda.mem_get_info(self.device)[0] // 2 and (
                self.memory is None or size <= self.memory
            )
        return (
            size <= self._most_held
        )  # where nothing has to be changed, nothing is copied either way


def make_batch(
    x: Any,
    y: Any,
    micro: Micro,
    seed: int,
    position: tuple[int, int],
    augment: Augment | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Batch:
    if augment is not None:
        x = augment(x, generator(device, seed, *position, _AUGMENT_STREAM))
    c = torch.as_tensor(micro.weights, dtype=dtype, device=device)
    return Batch(x, y, c, mixed(seed, *position, _MODEL_STREAM))


def _same(one: Any, other: Any) -> bool:
    return all(
        torch.equal(torch.nan_to_num(a), torch.nan_to_num(b))
        for a, b in zip(tree_leaves(one), tree_leaves(other))
    )


def placed(t: Any, device: torch.device, dtype: torch.dtype) -> Any:
    if not isinstance(t, Tensor):
        return t
    return t.to(device, dtype) if t.is_floating_point() else t.to(device)


def checksum_bytes(t: Tensor) -> bytes:
    return t.detach().cpu().contiguous().numpy().tobytes()


def check_ids(ids: Any, count: int, what: str) -> np.ndarray:
    array = np.atleast_1d(np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids))
    if array.size == 0:
        return array.astype(np.int64)
    if array.dtype.kind not in "iu":
        raise BadInput(f"{what} must be whole numbers, not {array.dtype}.")
    if array.min() < 0 or array.max() >= count:
        wrong = array[(array < 0) | (array >= count)][0]
        raise BadInput(f"{what} must lie in 0..{count - 1}; found {wrong}.")
    return array.astype(np.int64)


def _length(source: Any) -> int:
    try:
        if not hasattr(source, "__getitem__"):  # a DataLoader has a length, too
            raise TypeError
        return len(source)
    except TypeError:
        raise BadInput(
            f"A training set must be map-style (have a length and be indexed by id) or a pair of tensors; "
            f"{type(source).__name__} is neither."
        ) from None


def _as_tensors(source: Any) -> tuple[Any, Any] | None:
    if isinstance(source, torch.utils.data.TensorDataset) and len(source.tensors) == 2:
        source = source.tensors
    if (
        not isinstance(source, (tuple, list))
        or len(source) != 2
        or isinstance(source[0], (tuple, list))
    ):
        return None
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore", "The given NumPy array is not writable"
        )  # nor do we write into it
        x, y = (
            tree_map(
                lambda t: torch.as_tensor(t) if isinstance(t, (np.ndarray, Tensor)) else t, part
            )
            for part in source
        )
    leaves = tree_leaves((x, y))
    if not all(isinstance(leaf, Tensor) and leaf.dim() > 0 for leaf in leaves):
        return None
    if len({len(leaf) for leaf in leaves}) != 1:
        raise BadInput(
            f"X and Y must have the same number of instances, not {[len(leaf) for leaf in leaves]}."
        )
    return x, y


class indexed(Dataset):  # a verb where it is used: DataLoader(dross.indexed(train_set))
    """The same data set with each instance's id in front: (id, x, y).

    Ids travel inside the batch because a sampler runs ahead of the training loop when a DataLoader has workers.
    """

    def __init__(self, dataset: Any):
        stored = _as_tensors(dataset)
        self.dataset = (
            torch.utils.data.TensorDataset(*stored)
            if stored and isinstance(stored[0], Tensor)
            else dataset
        )

    def __len__(self) -> int:
        return _length(self.dataset)

    def __getitem__(self, index: int) -> tuple:
        return (index, *self.dataset[index])

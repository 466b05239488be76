"""The training set, seen as instances with ids."""

import hashlib
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import MappingKey, register_pytree_node, tree_leaves, tree_map
from torch.utils.data import Dataset, IterableDataset, default_collate

from ..errors import InvalidInput, NotSupported, first_line
from .augment import MOVE_TO_AUGMENT
from .batch import (
    AUGMENT_STREAM,
    MODEL_STREAM,
    Augment,
    BatchSource,
    LazyBatch,
    MicroBatch,
    Pair,
    Prefetcher,
)
from .fingerprint import to_bytes
from .pytree import map_pair
from .seeds import mix_seeds
from .strides import Orders, put_all_in_order

_MAX_BYTES_HELD = 2 << 30  # a map-style dataset up to this size is read once
_BYTES_READ_AT_ONCE = 64 << 20
_FINGERPRINT_SAMPLE = 64
_READ_TWICE = 8  # instances that are read twice, to notice random transforms
_READS_BETWEEN_CHECKS = 64
EVERYTHING: Final = "everything"  # what a fingerprint is made of
SAMPLE: Final = "sample"
IDS_BEGIN_AT_0: Final = (
    "The id of an instance is its index in the dataset, from 0: subtract 1 from ids that begin at "
    "1, or take them from dross.data.indexed(train_set)."
)
_KINDS_OF_IDS = {"U": "text", "S": "text", "f": "floating-point numbers", "b": "booleans"}


class Instances:
    """Any map-style dataset of (x, y), or a pair of tensors (X, Y), as batches on a device."""

    def __init__(
        self, source: Any, device: torch.device, dtype: torch.dtype, memory: int | None = None
    ):
        """Read the dataset once if it is small, and move it to the device if it fits.

        Arguments:
            source: a map-style dataset of (x, y) or of dicts, a pair of tensors or arrays (X, Y),
                or a `Collated` dataset, whose batches are made by a collator and never held.
            device: where batches are needed.
            dtype: the model's type, to which floating-point data is converted.
            memory: bytes of data that may be held, on the host or the device, after reading.
        """
        self.device = device
        self.dtype = dtype
        self.memory = memory
        self.source = source = as_map_style(source)
        self.stored = _as_tensors(source)  # (X, Y) where all of it is at hand
        self.aliased = self.stored is not None  # the tensors are the user's, who may change them
        self.count = len(tree_leaves(self.stored[0])[0]) if self.stored else _length(source)
        if self.count == 0:
            raise InvalidInput("The dataset is empty.")
        if self.stored is None:
            self.stored = self._read_if_small()
        if self.stored and self._fits_on_device():
            self.stored = self._move(self.stored)
        #: of a batch's tensors in memory; None: as the data has them
        self.orders: Orders | None = None
        self._sources: dict[int, BatchSource] = {}
        self._equal_weights: dict[int, Tensor] = {}
        self._reader: ThreadPoolExecutor | None = None

    def _read_if_small(self) -> Pair | None:
        first = self._collate([0])
        _check_leaves(first)
        if isinstance(self.source, Collated):
            self.source.check_repeatable()
            return None
        for i in _sample(self.count, _READ_TWICE):
            check_same_again(i, self._collate([i]), self._collate([i]))
        size = sum(t.numel() * t.element_size() for t in tree_leaves(first)) * self.count
        return self._collate(range(self.count)) if size <= self._max_bytes_held else None

    def __len__(self) -> int:
        """How many instances there are."""
        return self.count

    def __getitem__(self, ids: np.ndarray) -> Pair:
        """x and y of the given ids, on the device, floating point in the model's type."""
        return self._look_up(torch.as_tensor(np.asarray(ids)))

    def _look_up(self, ids: Tensor) -> Pair:
        if self.stored:
            return self._prepare(map_pair(lambda t: t[ids.to(t.device)], self.stored))
        return self._prepare(self._collate(ids.tolist()))

    def lazy_batches(
        self,
        steps: Sequence[Sequence[MicroBatch]],
        first: int,
        seed: int,
        augment: Augment | None,
    ) -> list[list[LazyBatch]]:
        """The batches of each step. Nothing is looked up yet; all ids go to the device at once.

        Arguments:
            steps: the micro-batches of each step.
            first: the number of the first of these steps. A batch's random numbers follow from
                the run's seed, the step's number and the batch's place in the step.
            seed: the run's seed.
            augment: the run's augmentation.
        """
        sizes = [len(micro.ids) for step in steps for micro in step]
        empty = np.zeros(0, dtype=np.int64)
        together = np.concatenate([empty, *(micro.ids for step in steps for micro in step)])
        all_ids = torch.from_numpy(together)
        if self.stored:
            all_ids = all_ids.to(tree_leaves(self.stored)[0].device)
        ids = all_ids.split(sizes)
        fetches = self._fetch_ahead(ids) if self._is_sent_batch_by_batch() else [None] * len(ids)
        coming = zip(ids, fetches)
        source = self._source(augment)
        batches: list[list[LazyBatch]] = []
        for t, step in enumerate(steps, start=first):
            batches.append([])
            for k, micro in enumerate(step):
                own_ids, fetch = next(coming)
                batch = LazyBatch(
                    source,
                    own_ids,
                    self._weights(micro),
                    seed=mix_seeds(seed, t, k, MODEL_STREAM),
                    augment_seed=mix_seeds(seed, t, k, AUGMENT_STREAM),
                    fetch=fetch,
                )
                batches[-1].append(batch)
        return batches

    def _source(self, augment: Augment | None) -> BatchSource:
        if id(augment) not in self._sources:
            held = sum(t.nbytes for t in tree_leaves(self.stored)) if self.stored else 0
            self._sources[id(augment)] = BatchSource(
                self._look_up,
                augment,
                self.device,
                capturable=self._is_on_device(),
                nbytes=held // self.count,
            )
        return self._sources[id(augment)]

    def _is_sent_batch_by_batch(self) -> bool:
        """Whether batches are looked up in the host's memory and sent to the device."""
        return self.device.type == "cuda" and self.stored is not None and not self._is_on_device()

    def _fetch_ahead(self, ids: Sequence[Tensor]) -> list[Callable[[], Pair]]:
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, "dross-reader")
        stored = self.stored
        assert stored is not None
        look_up = lambda ids: map_pair(lambda t: t[ids], stored)
        ahead = Prefetcher(look_up, ids, self.device, self._reader)
        return [lambda place=place: self._prepare(ahead(place)) for place in range(len(ids))]

    def _weights(self, micro: MicroBatch) -> Tensor:
        on_device = lambda array: torch.as_tensor(array, dtype=self.dtype, device=self.device)
        if micro.coefficients is not None:
            return on_device(micro.coefficients)
        size = len(micro.ids)
        if size not in self._equal_weights:
            self._equal_weights[size] = on_device(micro.weights)
        return self._equal_weights[size]

    @property
    def digest_kind(self) -> Literal["everything", "sample"]:
        """What a fingerprint is made of: everything that is held, a sample of what is not."""
        return EVERYTHING if self.stored else SAMPLE

    def fingerprint(self, kind: str) -> str:
        """A digest of EVERYTHING or of a SAMPLE of 64 instances, which tells datasets apart."""
        digest = hashlib.sha256(str(self.count).encode())
        sample = np.array(_sample(self.count, _FINGERPRINT_SAMPLE))
        if isinstance(self.source, Collated):  # before padding, which differs between batches
            for item in self.source.fetch(sample.tolist()):
                _update(digest, item)
            return digest.hexdigest()
        for rows in self._rows_of_all() if kind == EVERYTHING else tree_leaves(self[sample]):
            digest.update(to_bytes(move_to(rows, rows.device, self.dtype)))
        return digest.hexdigest()

    def _rows_of_all(self) -> Iterator[Tensor]:
        """One leaf after the other, part by part: it may lie on a disk."""
        for k, leaf in enumerate(tree_leaves(self.stored or self[np.arange(1)])):
            size = max(1, _BYTES_READ_AT_ONCE // max(1, leaf[0].numel() * leaf.element_size()))
            for start in range(0, self.count, size):
                stop = min(start + size, self.count)
                if self.stored:
                    yield leaf[start:stop]
                else:
                    yield tree_leaves(self[np.arange(start, stop)])[k]

    def check_ids(self, ids: Any, what: str = "Instance ids") -> np.ndarray:
        """The ids as int64 [n], or an error that calls them `what`."""
        return check_ids(ids, self.count, what)

    def _collate(self, ids: Sequence[int]) -> Pair:
        if isinstance(self.source, Collated):
            return self.source.collate(ids)
        items = [_get(self.source, i) for i in ids]
        if not isinstance(items[0], (tuple, list)) or len(items[0]) != 2:
            kind = type(items[0]).__name__
            raise InvalidInput(
                f"The dataset must return pairs (x, y), but item {ids[0]} has the type {kind}."
            )
        try:
            x, y = default_collate([tuple(item) for item in items])
        except (RuntimeError, TypeError) as error:
            raise InvalidInput(
                f"The instances of the dataset cannot be put into one batch: {error}"
            ) from error
        return x, y

    def _prepare(self, batch: Pair) -> Pair:
        moved = self._move(batch)
        return moved if self.orders is None else put_all_in_order(moved, self.orders)

    def _move(self, batch: Pair) -> Pair:
        return map_pair(lambda t: move_to(t, self.device, self.dtype), batch)

    def _is_on_device(self) -> bool:
        leaves = tree_leaves(self.stored)
        return self.stored is not None and all(t.device == self.device for t in leaves)

    @property
    def _max_bytes_held(self) -> int:
        return _MAX_BYTES_HELD if self.memory is None else self.memory

    def _fits_on_device(self) -> bool:
        """Whether all of the data go to the device, in the model's type.

        Otherwise each batch goes when its turn comes.
        """
        width = lambda t: self.dtype.itemsize if t.is_floating_point() else t.element_size()
        size = sum(t.numel() * width(t) for t in tree_leaves(self.stored))
        if self.device.type == "cuda":
            allowed = self.memory is None or size <= self.memory
            return allowed and size < torch.cuda.mem_get_info(self.device)[0] // 2
        # if nothing has to be changed, nothing is copied either way
        return size <= self._max_bytes_held


def _get(source: Any, i: int) -> Any:
    try:
        return source[i]
    except (LookupError, TypeError) as error:
        raise InvalidInput(
            f"The dataset of {len(source)} instances failed to return instance {i} "
            f"({type(error).__name__}: {error}). An instance's id is its index, starting at 0."
        ) from error


def _check_leaves(pair: Pair) -> None:
    """Refuse what a model or a loss cannot compute with."""
    for part, name in zip(pair, ("x", "y")):
        for leaf in tree_leaves(part):
            if not isinstance(leaf, Tensor):
                raise InvalidInput(
                    f"The {name} of instance 0 in the dataset contains {leaf!r}, of type "
                    f"{type(leaf).__name__}, but dross supports only numeric data. Convert text to "
                    "numbers first: replace each class with its index."
                )


def _sample(count: int, size: int) -> list[int]:
    """At most so many ids, from the first to the last."""
    return np.unique(np.linspace(0, count - 1, size).astype(np.int64)).tolist()


def check_same_again(i: int, item: Any, again: Any) -> None:
    """Refuse a dataset that returns another item the second time: a replay would see others."""
    if _digest(item) != _digest(again):
        raise InvalidInput(
            f"Instance {i} of the dataset is different each time it is read, so the run could not "
            f"be replayed. {MOVE_TO_AUGMENT}"
        )


def _are_same(one: Any, other: Any) -> bool:
    """Whether all tensors are the same, as far as they are numbers."""
    return all(
        torch.equal(a.nan_to_num(), b.nan_to_num()) if isinstance(a, Tensor) else bool(a == b)
        for a, b in zip(tree_leaves(one), tree_leaves(other))
    )


def move_to(t: Any, device: torch.device, dtype: torch.dtype) -> Any:
    """A tensor on the device, floating point in this type; anything else as it is."""
    if not isinstance(t, Tensor):
        return t
    return t.to(device, dtype) if t.is_floating_point() else t.to(device)


def check_ids(ids: Any, count: int, what: str) -> np.ndarray:
    """The ids as int64 [n], or an error that calls them `what` if one is not in 0..count-1."""
    try:
        array = np.atleast_1d(np.asarray(ids.cpu() if isinstance(ids, Tensor) else ids))
    except (ValueError, TypeError):
        raise InvalidInput(
            f"{what} must be a one-dimensional list of integers, not {ids!r:.60}."
        ) from None
    if array.size == 0:
        return array.astype(np.int64)
    if array.ndim > 1:
        raise InvalidInput(
            f"{what} must be a one-dimensional list of integers, not an array of shape "
            f"{array.shape}."
        )
    if array.dtype.kind not in "iu":
        kind = _KINDS_OF_IDS.get(array.dtype.kind, f"of type {array.dtype}")
        raise InvalidInput(
            f"{what} must be integers, not {kind} ({array[0]!s:.40}): the id of an instance is its "
            "index in the dataset."
        )
    if array.min() < 0 or array.max() >= count:
        wrong = array[(array < 0) | (array >= count)][0]
        hint = f" {IDS_BEGIN_AT_0}" if array.min() > 0 and array.max() == count else ""
        raise InvalidInput(f"{what} must be between 0 and {count - 1}; found {wrong}.{hint}")
    return array.astype(np.int64)


def _length(source: Any) -> int:
    try:
        if not hasattr(source, "__getitem__"):  # a DataLoader has a length, too
            raise TypeError
        return len(source)
    except TypeError:
        raise InvalidInput(
            "A training set must be map-style (have a length and be indexed by id) or a pair of "
            f"tensors; {type(source).__name__} is neither."
        ) from None


def _as_tensors(source: Any) -> Pair | None:
    """(X, Y) if the source is such a pair, without copying it."""
    if isinstance(source, torch.utils.data.TensorDataset) and len(source.tensors) == 2:
        source = source.tensors
    is_pair = isinstance(source, (tuple, list)) and len(source) == 2
    if not is_pair or isinstance(source[0], (tuple, list)):
        return None
    convert = lambda t: _as_tensor(t) if isinstance(t, (np.ndarray, Tensor)) else t
    with warnings.catch_warnings():
        # harmless: dross does not write into it
        warnings.filterwarnings("ignore", "The given NumPy array is not writable")
        x, y = (tree_map(convert, part) for part in source)
    leaves = tree_leaves((x, y))
    if not all(isinstance(leaf, Tensor) and leaf.dim() > 0 for leaf in leaves):
        return None
    if len({len(leaf) for leaf in leaves}) != 1:
        raise InvalidInput(
            f"X and Y must have the same number of instances, not {[len(leaf) for leaf in leaves]}."
        )
    return x, y


def _as_tensor(t: np.ndarray | Tensor) -> Tensor:
    try:
        return torch.as_tensor(t)
    except TypeError:
        raise InvalidInput(
            f"An array of type {t.dtype} cannot be used: dross supports only numeric arrays. "
            "Convert text to numbers first: replace each class with its index."
        ) from None


class indexed(Dataset):  # lower case, as it is used like a function: dross.data.indexed(train_set)
    """The same dataset, with each item preceded by its instance's id: (id, x, y).

    Ids travel inside the batch because a sampler runs ahead of the training loop when a DataLoader
    has workers.

    Arguments:
        dataset: a map-style dataset of (x, y), or a pair of tensors or arrays (X, Y).

    Example:
        for ids, x, y in DataLoader(dross.data.indexed(train_set), batch_size=64, shuffle=True):
            with recorder.step(ids, x, y) as losses:
                ...
    """

    def __init__(self, dataset: Any):
        stored = _as_tensors(dataset)
        if stored and isinstance(stored[0], Tensor):
            dataset = torch.utils.data.TensorDataset(*stored)
        _length(dataset)
        self.dataset = as_map_style(dataset)
        self._reads = 0  # in each process that reads it, such as a worker of a loader

    def __len__(self) -> int:
        """How many instances there are."""
        return _length(self.dataset)

    def __getitem__(self, index: int) -> tuple:
        """(index, x, y).

        The first few and one now and then are read twice.

        Raises:
            InvalidInput: where one looks different the second time.
        """
        item = self.dataset[index]
        self._reads += 1
        if self._reads <= _READ_TWICE or self._reads % _READS_BETWEEN_CHECKS == 0:
            check_same_again(index, item, self.dataset[index])
        return (index, *item)


class ModelKwargs(dict):
    """A batch that a model takes as keyword arguments: model(**x)."""


def _name_values(x: Any) -> tuple[list[Pair], Any]:
    return [(MappingKey(name), value) for name, value in x.items()], list(x)


register_pytree_node(
    ModelKwargs,
    lambda x: (list(x.values()), list(x)),
    lambda values, names: ModelKwargs(zip(names, values)),
    flatten_with_keys_fn=_name_values,
    serialized_type_name="dross.data.dataset.ModelKwargs",
)


class Collated:
    """A map-style dataset with the function that collates its items into batches.

    Arguments:
        dataset: anything with a length that is indexed by id.
        collate: makes a batch from a list of items, like a DataLoader's collate_fn.
        split: splits a batch into the inputs of the model and the targets of the loss. By default a
            batch is a pair (x, y).
    """

    def __init__(
        self,
        dataset: Any,
        collate: Callable[[list], Any],
        split: Callable[[Any], Pair] | None = None,
    ):
        self.dataset = dataset
        self.collate_fn = collate
        self.split = _split_pair if split is None else split

    def __len__(self) -> int:
        """How many instances there are."""
        return len(self.dataset)

    def __getitem__(self, i: int) -> Any:
        """The item, as the dataset returns it; a dict is copied, because collators change it."""
        item = self.dataset[int(i)]
        return dict(item) if isinstance(item, Mapping) else item

    def fetch(self, ids: Iterable[int]) -> list[Any]:
        """These items."""
        return [_get(self, i) for i in ids]

    def collate(self, ids: Iterable[int]) -> Pair:
        """x and y of these instances, as one batch.

        Raises:
            InvalidInput: if an item does not exist, or the collator fails.
        """
        items = self.fetch(ids)
        try:
            batch = self.collate_fn(items)
        except Exception as error:  # the collator is the user's code
            raise InvalidInput(
                f"The collator failed on a batch of {len(items)} instances: {first_line(error)}"
            ) from error
        return self.split(batch)

    def check_repeatable(self) -> None:
        """Raise an error if the data differs when it is read again.

        Raises:
            NotSupported: the message names what draws random numbers, the dataset or the collator.
        """
        sample = _sample(len(self), _READ_TWICE)
        digests = {_digest(self.fetch(sample)) for _ in range(2)}
        if len(digests) > 1:
            raise NotSupported(
                "An instance of the dataset is different each time it is read, so the run could "
                "not be replayed. Remove random transforms from the dataset, or apply them once "
                "and store the result."
            )
        if not _are_same(self.collate(sample), self.collate(sample)):
            name = getattr(self.collate_fn, "__name__", type(self.collate_fn).__name__)
            raise NotSupported(
                f"The collator ({name}) makes a different batch from the same "
                "instances the second time (random masking?), so the run could not be replayed. "
                "Mask the data once, before training, and use a collator that only pads."
            )


def _split_pair(batch: Any) -> Pair:
    if not isinstance(batch, (tuple, list)) or len(batch) != 2:
        raise InvalidInput(
            f"A batch must be a pair (x, y); the collator returned an object of "
            f"type {type(batch).__name__}. Specify how to split it: split=lambda batch: (x, y)."
        )
    return batch[0], batch[1]


def _digest(value: Any) -> bytes:
    digest = hashlib.sha256()
    _update(digest, value)
    return digest.digest()


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
    elif isinstance(value, (list, tuple)) and not all(isinstance(v, _PLAIN) for v in value):
        for part in value:
            digest.update(b",")
            _update(digest, part)
    else:
        raw = getattr(value, "tobytes", None)  # of an image
        text = re.sub(" at 0x[0-9a-fA-F]+", "", repr(value))  # where an object lies
        digest.update(raw() if callable(raw) else text.encode())


_PLAIN = (bool, int, float, str, bytes, type(None))


_LABELS = ("label", "labels", "target", "targets", "y", "cls")


class DictPairs:
    """A map-style dataset of dicts, such as one of Hugging Face `datasets`, as pairs (x, y)."""

    def __init__(self, dataset: Any):
        self.dataset = dataset

    def __len__(self) -> int:
        """How many instances there are."""
        return len(self.dataset)

    def __getitem__(self, index: int) -> Pair:
        """(x, y)."""
        return split_columns(self.dataset[index])


def as_map_style(source: Any) -> Any:
    """A map-style dataset of dicts as pairs (x, y); any other source as it is.

    Raises:
        InvalidInput: for an iterable dataset, which cannot return an instance again by its id.
    """
    if isinstance(source, IterableDataset):
        raise InvalidInput(
            "An iterable dataset cannot be used: replaying a run has to read each instance again "
            "by its id. Pass a map-style dataset (with __len__ and __getitem__), such as "
            "list(dataset), whose ids are 0 to N-1."
        )
    if isinstance(source, (tuple, list, DictPairs)) or not hasattr(source, "__len__"):
        return source
    return DictPairs(source) if _gives_dicts(source) else source


def _gives_dicts(source: Any) -> bool:
    if not hasattr(source, "__getitem__") or hasattr(source, "collate"):
        return False
    try:
        return len(source) > 0 and isinstance(source[0], Mapping)
    except Exception:  # it is read again later, and its error is reported there
        return False


def split_columns(row: Mapping[str, Any]) -> Pair:
    """x and y of a dict: y is the one column that is named like a label, x all others."""
    columns = {name: value for name, value in row.items() if not str(name).startswith("__")}
    labels = [name for name in _LABELS if name in columns]
    if len(labels) != 1 or len(columns) < 2:
        raise InvalidInput(
            f"An instance has the columns {sorted(map(str, columns))}, and it is not clear which "
            f"one is the label. Rename that column to {_LABELS[0]!r} (rename_column) and keep only "
            "inputs in the others, or pass a dataset that returns pairs (x, y)."
        )
    y = _numbers_to_tensor(columns.pop(labels[0]))
    inputs = {name: _numbers_to_tensor(value) for name, value in columns.items() if name != "id"}
    return (next(iter(inputs.values())) if len(inputs) == 1 else inputs), y


def _numbers_to_tensor(value: Any) -> Any:
    """Numbers as a tensor: a list of them would be collated column by column."""
    if not isinstance(value, (list, tuple, np.ndarray, np.generic)):
        return value
    try:
        return torch.as_tensor(np.asarray(value))
    except (TypeError, ValueError):
        return value

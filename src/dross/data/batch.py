"""What one forward pass sees, and which instances a step uses."""

from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from .pytree import map_pair

Pair = tuple[Any, Any]  # x and y
Augment = Callable[[Any, torch.Generator], Any]
MODEL_STREAM, AUGMENT_STREAM = 0, 1  # what a micro-batch's random numbers are for


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass of a step: which instances, and how much each loss counts."""

    ids: np.ndarray  # int64 [B]
    coefficients: np.ndarray | None = None  # float64 [B]; None: 1/B each

    @property
    def weights(self) -> np.ndarray:
        """How much each loss counts in the gradient: float64 [B]."""
        if self.coefficients is not None:
            return self.coefficients
        return np.full(len(self.ids), 1 / len(self.ids))

    def simplify(self) -> "MicroBatch":
        """Without coefficients where they are 1/B each, which is what a tape assumes."""
        equal = MicroBatch(self.ids)
        return equal if np.allclose(self.weights, equal.weights, rtol=1e-7, atol=0) else self


@dataclass(frozen=True)
class Batch:
    """The inputs, labels and weights of one forward pass."""

    x: Any
    y: Any
    c: Tensor  # [B]: how much each loss counts, 1/|S_t| in plain training
    seed: int  # of everything random inside the model

    def load(self) -> "Batch":
        """Itself: its data is here."""
        return self

    def scaled(self, factor: float) -> "Batch":
        """The batch with its losses counting `factor` times as much."""
        return self if factor == 1 else replace(self, c=self.c * factor)

    def weighted(self, w: Tensor) -> "Batch":
        """The batch with loss i counting w_i times as much: w [B]."""
        return replace(self, c=self.c * w)

    def rows(self, rows: slice) -> "Batch":
        """A part of the batch, as if it were one."""
        if rows == slice(0, len(self.c)):
            return self
        x, y = cut_rows((self.x, self.y), rows)
        return Batch(x, y, self.c[rows], self.seed)

    def select(self, present: np.ndarray) -> "Batch":
        """The instances where `present` (bool [B]) is true. Their coefficients stay."""
        rows = torch.as_tensor(present, device=self.c.device)
        choose = lambda t: t[rows.to(t.device)] if isinstance(t, Tensor) else t
        x, y = map_pair(choose, (self.x, self.y))
        return Batch(x, y, self.c[rows], self.seed)

    def to_tensors(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], "Batch"], Hashable]:
        """Its tensors, a function that builds a batch from such tensors, and a key for its kind."""
        if isinstance(self.x, Tensor) and isinstance(self.y, Tensor):
            return [self.x, self.y, self.c], lambda t: Batch(t[0], t[1], t[2], self.seed), "a pair"
        leaves, structure = tree_flatten((self.x, self.y))

        def build(tensors: Sequence[Tensor]) -> Batch:
            x, y = tree_unflatten(list(tensors[:-1]), structure)
            return Batch(x, y, tensors[-1], self.seed)

        return [*leaves, self.c], build, str(structure)

    def seed_augmentation(self) -> None:
        """Nothing to do: x has been augmented."""

    def generators(self) -> list[torch.Generator]:
        """The generators that building it draws from: none."""
        return []


def cut_rows(pair: Pair, rows: slice) -> Pair:
    """The same rows of every tensor of (x, y)."""
    return map_pair(lambda t: t[rows] if isinstance(t, Tensor) else t, pair)


_MAX_BYTES_AT_ONCE = 128 << 20  # of the batches of several steps that are looked up together


class BatchSource:
    """Looks up ids where the data is, so that a captured step can do it by itself."""

    def __init__(
        self,
        look_up: Callable[[Tensor], Pair],
        augment: Augment | None,
        device: torch.device,
        capturable: bool,
        nbytes: int = 0,
    ):
        """Where batches come from.

        Arguments:
            look_up: x and y of the instances with these ids.
            augment: the run's augmentation.
            device: where its random numbers are drawn.
            capturable: whether looking up may happen inside a CUDA graph.
            nbytes: the size of one instance, where that is known.
        """
        self.look_up = look_up
        self.augment = augment
        self.device = device
        self.capturable = capturable
        self.nbytes = nbytes
        self._generators: list[torch.Generator] = []

    def apply_augment(self, pair: Pair, place: int = 0) -> Pair:
        """(x, y) with x augmented.

        place: of the step among several captured together; each has its own generator.
        """
        if self.augment is None:
            return pair
        x, y = pair
        return self.augment(x, self.generator(place)), y

    def load_many(self, ids: Tensor) -> list[Pair]:
        """The batches of several steps, ids [steps, B], looked up together."""
        steps, size = ids.shape
        if ids.numel() * self.nbytes > _MAX_BYTES_AT_ONCE:
            pairs = (self.look_up(row) for row in ids)
        else:
            together = self.look_up(ids.reshape(-1))
            pairs = (cut_rows(together, slice(k * size, (k + 1) * size)) for k in range(steps))
        return [self.apply_augment(pair, place) for place, pair in enumerate(pairs)]

    def generator(self, place: int = 0) -> torch.Generator:
        """The generator that the augmentation of the step at this place draws from."""
        while len(self._generators) <= place:
            self._generators.append(torch.Generator(self.device))
        return self._generators[place]


@dataclass(frozen=True)
class LazyBatch:
    """A batch known by its ids."""

    source: BatchSource
    ids: Tensor  # int64 [B]
    c: Tensor  # [B]: how much each loss counts
    seed: int  # of everything random inside the model
    augment_seed: int
    kept: slice | None = None  # the rows that are left after augmenting all of it
    fetch: Callable[[], Pair] | None = None  # gives (x, y), looked up ahead of time

    def load(self) -> Batch:
        """Look it up and augment it."""
        self.seed_augmentation()
        return self._build(self.ids, self.c)

    def _build(self, ids: Tensor, c: Tensor) -> Batch:
        pair = self.source.look_up(ids) if self.fetch is None else self.fetch()
        x, y = self.source.apply_augment(pair)
        if self.kept is not None:
            x, y = cut_rows((x, y), self.kept)
        return Batch(x, y, c, self.seed)

    def scaled(self, factor: float) -> "LazyBatch":
        """The batch with its losses counting `factor` times as much."""
        return self if factor == 1 else replace(self, c=self.c * factor)

    def weighted(self, w: Tensor) -> "LazyBatch":
        """The batch with loss i counting w_i times as much: w [B]."""
        return replace(self, c=self.c * w)

    def rows(self, rows: slice) -> "LazyBatch":
        """A part of the batch. Augmentation still draws random numbers for the whole batch."""
        if rows == slice(0, len(self.c)):
            return self
        if self.source.augment is None:
            return replace(self, ids=self.ids[rows], c=self.c[rows], fetch=None)
        return replace(self, c=self.c[rows], kept=rows)

    def to_tensors(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Batch], Hashable]:
        """As Batch.to_tensors; where the source can be captured, the tensors are its ids and c."""
        if not self.source.capturable:
            return self.load().to_tensors()
        kept = None if self.kept is None else (self.kept.start, self.kept.stop)
        return [self.ids, self.c], lambda t: self._build(t[0], t[1]), (id(self.source), kept)

    def seed_augmentation(self) -> None:
        """Set the generator of its augmentation to where it was in training."""
        self.source.generator().manual_seed(self.augment_seed)

    def generators(self) -> list[torch.Generator]:
        """The generators that building it draws from."""
        return [self.source.generator()]


@dataclass(frozen=True)
class LazyBatches:
    """The batches of several steps, all of one size."""

    batches: tuple[LazyBatch, ...]

    @property
    def c(self) -> Tensor:
        """The weights of the first batch, which are those of all."""
        return self.batches[0].c

    def load(self) -> list[LazyBatch]:
        """The batches themselves: each is looked up by the step that needs it."""
        return list(self.batches)

    def to_tensors(
        self,
    ) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], list[Batch]], Hashable]:
        """As Batch.to_tensors, for all of them together."""
        source = self.batches[0].source

        def build(tensors: Sequence[Tensor]) -> list[Batch]:
            ids, c = tensors
            pairs = source.load_many(ids)
            return [
                Batch(x, y, weights, batch.seed)
                for (x, y), weights, batch in zip(pairs, c, self.batches)
            ]

        ids = torch.stack([batch.ids for batch in self.batches])
        c = torch.stack([batch.c for batch in self.batches])
        return [ids, c], build, (id(source), len(self.batches))

    def seed_augmentation(self) -> None:
        """Set the generator of each batch's augmentation to where it was in training."""
        for k, batch in enumerate(self.batches):
            batch.source.generator(k).manual_seed(batch.augment_seed)

    def generators(self) -> list[torch.Generator]:
        """The generators that building them draws from."""
        return [batch.source.generator(k) for k, batch in enumerate(self.batches)]


AnyBatch = Batch | LazyBatch

_BATCHES_AHEAD = 2


class Prefetcher:
    """The batches of consecutive steps, by their place.

    A caller goes through them forwards (training) or backwards (retracing). Meanwhile another
    thread looks up the next batches in that direction, into memory that a GPU can read by itself.
    """

    def __init__(
        self,
        look_up: Callable[[Tensor], Pair],
        ids: Sequence[Tensor],
        device: torch.device,
        reader: ThreadPoolExecutor,
    ):
        self._look_up = look_up
        self._ids = ids
        self._device = device
        self._reader = reader
        self._jobs: dict[int, Future] = {}
        self._last = -1

    def __call__(self, place: int) -> Pair:
        """The batch at this place, on the device."""
        job = self._jobs.pop(place, None) or self._submit(place)
        towards = -1 if place < self._last else 1
        coming = [place + towards * k for k in range(1, _BATCHES_AHEAD + 1)]
        coming = [k for k in coming if 0 <= k < len(self._ids)]
        self._jobs = {k: self._jobs.get(k) or self._submit(k) for k in coming}
        self._last = place
        pair, arrival = job.result()
        if arrival is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(arrival)
            map_pair(lambda t: t.record_stream(stream) if isinstance(t, Tensor) else t, pair)
        return pair

    def _submit(self, place: int) -> Future:
        return self._reader.submit(self._fetch, place)

    def _fetch(self, place: int) -> tuple[Pair, Any]:
        """The batch, and on a GPU the event after which it is there."""
        pair = self._look_up(self._ids[place])
        if self._device.type != "cuda":
            return pair, None
        with torch.cuda.stream(torch.cuda.Stream(self._device)):
            sent = map_pair(self._send, pair)
            arrival = torch.cuda.current_stream(self._device).record_event()
        return sent, arrival

    def _send(self, t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        return t.pin_memory().to(self._device, non_blocking=True)

"""Batches known by their ids, which are looked up and augmented where they are used.

On a GPU that is inside the captured step.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from .batch import Augment, Batch, SplitAugment, cut_rows

_MAX_BYTES_AT_ONCE = 128 << 20  # of the batches of several steps that are looked up together


class BatchSource:
    """Looks up ids where the data are, so that a captured step can do it by itself."""

    def __init__(
        self,
        look_up: Callable[[Tensor], tuple[Any, Any]],
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
        self.look_up, self.augment, self.device = look_up, augment, device
        self.capturable, self.nbytes = capturable, nbytes
        self._generators: list[torch.Generator] = []

    def load(self, ids: Tensor) -> tuple[Any, Any]:
        """x and y of these ids, augmented."""
        return self.apply_augment(self.look_up(ids))

    def apply_augment(self, pair: tuple[Any, Any], place: int = 0) -> tuple[Any, Any]:
        """(x, y) with x augmented.

        place: of the step among several captured together; each has its own generator.
        """
        x, y = pair
        return (x if self.augment is None else self.augment(x, self.generator(place))), y

    def load_many(self, ids: Tensor) -> list[tuple[Any, Any]]:
        """The batches of several steps, ids [steps, B], looked up and augmented together."""
        steps, size = ids.shape
        if ids.numel() * self.nbytes > _MAX_BYTES_AT_ONCE:
            return [self.apply_augment(self.look_up(row), k) for k, row in enumerate(ids)]
        split = lambda pair: [cut_rows(pair, slice(k * size, (k + 1) * size)) for k in range(steps)]
        together = self.look_up(ids.reshape(-1))
        batches = split(together)
        if not _is_split(self.augment):
            return [self.apply_augment(pair, place) for place, pair in enumerate(batches)]
        assert isinstance(self.augment, SplitAugment)
        drawn = [self.augment.draw(x, self.generator(k)) for k, (x, _) in enumerate(batches)]
        numbers = tuple(torch.cat(parts, dim=-1) for parts in zip(*drawn))
        return split((self.augment.apply(together[0], numbers), together[1]))

    def generator(self, place: int = 0) -> torch.Generator:
        """The generator that the augmentation of the step at this place draws from."""
        while len(self._generators) <= place:
            self._generators.append(torch.Generator(self.device))
        return self._generators[place]


def _is_split(augment: Augment | None) -> bool:
    """Whether it is no more than draw and apply: a subclass may have changed what a call does."""
    return isinstance(augment, SplitAugment) and type(augment).__call__ is SplitAugment.__call__


@dataclass(frozen=True)
class LazyBatch:
    """A batch known by its ids."""

    source: BatchSource
    ids: Tensor  # int64 [B]
    c: Tensor  # [B]: how much each loss counts
    seed: int  # of everything random inside the model
    augment_seed: int
    kept: slice | None = None  # the rows that are left after augmenting all of it
    fetch: Callable[[], tuple[Any, Any]] | None = None  # gives (x, y), looked up ahead of time

    def load(self) -> Batch:
        """Look it up and augment it."""
        self.seed_augmentation()
        return self._build(self.ids, self.c)

    def _build(self, ids: Tensor, c: Tensor) -> Batch:
        source = self.source
        pair = source.load(ids) if self.fetch is None else source.apply_augment(self.fetch())
        return Batch(*(pair if self.kept is None else cut_rows(pair, self.kept)), c, self.seed)

    def scaled(self, factor: float) -> "LazyBatch":
        """The batch with its losses counting `factor` times as much."""
        return self if factor == 1 else replace(self, c=self.c * factor)

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
            return [Batch(*pair, c[k], self.batches[k].seed) for k, pair in enumerate(pairs)]

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

"""What one forward pass sees, at hand or still to be looked up."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from .pytree import in_pair

_AT_ONCE = 128 << 20  # bytes of the batches of several steps that are looked up together
Augment = Callable[[Any, torch.Generator], Any]


class DrawsApart(ABC):
    """An augmentation whose random numbers can be drawn batch by batch and then used for several batches at once."""

    @abstractmethod
    def draw(self, x: Any, generator: torch.Generator) -> tuple[Tensor, ...]:
        """An instance's numbers along the last axis."""

    @abstractmethod
    def apply(self, x: Any, drawn: tuple[Tensor, ...]) -> Any: ...

    def __call__(self, x: Any, generator: torch.Generator) -> Any:
        return self.apply(x, self.draw(x, generator))


@dataclass(frozen=True)
class Batch:
    x: Any
    y: Any
    c: Tensor  # [B]: how much each loss counts, 1/|S_t| in plain training
    seed: int  # of everything random inside the model

    def realized(self) -> "Batch":
        return self

    def rows(self, rows: slice) -> "Batch":
        """A part of the batch, as if it were one."""
        if rows == slice(0, len(self.c)):
            return self
        return Batch(*_cut((self.x, self.y), rows), self.c[rows], self.seed)

    def disassembled(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], "Batch"], Hashable]:
        """The tensors it consists of, how to put such tensors together again, and what tells its kind from others."""
        if isinstance(self.x, Tensor) and isinstance(self.y, Tensor):
            return [self.x, self.y, self.c], lambda t: Batch(t[0], t[1], t[2], self.seed), "a pair"
        leaves, structure = tree_flatten((self.x, self.y))

        def assemble(tensors: Sequence[Tensor]) -> Batch:
            x, y = tree_unflatten(list(tensors[:-1]), structure)
            return Batch(x, y, tensors[-1], self.seed)

        return [*leaves, self.c], assemble, str(structure)

    def seed_augmentation(self) -> None:
        """There is none to come: x has been through it."""

    def generators(self) -> list[torch.Generator]:
        return []


class BatchSource:
    """From ids to x and y on the device where the data lie, so that a captured step can do it by itself."""

    def __init__(
        self,
        look_up: Callable[[Tensor], tuple[Any, Any]],
        augment: Augment | None,
        device: torch.device,
        capturable: bool,
        nbytes: int = 0,
    ):
        """nbytes: of one instance, where that is known."""
        self.look_up, self.augment, self.device, self.capturable, self.nbytes = (
            look_up,
            augment,
            device,
            capturable,
            nbytes,
        )
        self._generators: list[torch.Generator] = []

    def __call__(self, ids: Tensor) -> tuple[Any, Any]:
        return self.augmented(self.look_up(ids))

    def augmented(self, pair: tuple[Any, Any], place: int = 0) -> tuple[Any, Any]:
        """place: of the step among several that are captured together; each has a generator of its own."""
        x, y = pair
        return (x if self.augment is None else self.augment(x, self.generator(place))), y

    def row(self, ids: Tensor) -> list[tuple[Any, Any]]:
        """The batches of several steps, ids [steps, B], looked up and, if that can be, augmented at once."""
        steps, size = ids.shape
        if ids.numel() * self.nbytes > _AT_ONCE:
            return [self.augmented(self.look_up(each), place) for place, each in enumerate(ids)]
        apart = lambda pair: [_cut(pair, slice(k * size, (k + 1) * size)) for k in range(steps)]
        together = self.look_up(ids.reshape(-1))
        batches = apart(together)
        # one that has changed what a call does is called
        if (
            not isinstance(self.augment, DrawsApart)
            or type(self.augment).__call__ is not DrawsApart.__call__
        ):
            return [self.augmented(pair, place) for place, pair in enumerate(batches)]
        drawn = [
            self.augment.draw(x, self.generator(place)) for place, (x, _) in enumerate(batches)
        ]
        x = self.augment.apply(
            together[0], tuple(torch.cat(parts, dim=-1) for parts in zip(*drawn))
        )
        return apart((x, together[1]))

    def generator(self, place: int = 0) -> torch.Generator:
        while len(self._generators) <= place:
            self._generators.append(torch.Generator(self.device))
        return self._generators[place]


@dataclass(frozen=True)
class LazyBatch:
    """A batch known by its ids. It is gathered and augmented where it is used: on a GPU, inside the captured step."""

    feed: BatchSource
    ids: Tensor
    c: Tensor
    seed: int
    augment_seed: int
    kept: slice | None = (
        None  # of an augmented batch, the rows that are left after augmenting all of it
    )
    fetch: Callable[[], tuple[Any, Any]] | None = (
        None  # this batch, looked up ahead of time: the data are not on the device
    )

    def realized(self) -> Batch:
        self.seed_augmentation()
        return self._gathered(self.ids, self.c)

    def _gathered(self, ids: Tensor, c: Tensor) -> Batch:
        found = self.feed(ids) if self.fetch is None else self.feed.augmented(self.fetch())
        return Batch(*(found if self.kept is None else _cut(found, self.kept)), c, self.seed)

    def rows(self, rows: slice) -> "LazyBatch":
        """A part of the batch, as if it were one; augmentation still draws its random numbers for the whole."""
        if rows == slice(0, len(self.c)):
            return self
        if self.feed.augment is None:
            return replace(self, ids=self.ids[rows], c=self.c[rows], fetch=None)
        return replace(self, c=self.c[rows], kept=rows)

    def disassembled(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], Batch], Hashable]:
        if not self.feed.capturable:
            return self.realized().disassembled()
        kept = None if self.kept is None else (self.kept.start, self.kept.stop)
        return [self.ids, self.c], lambda t: self._gathered(t[0], t[1]), (id(self.feed), kept)

    def seed_augmentation(self) -> None:
        self.feed.generator().manual_seed(self.augment_seed)

    def generators(self) -> list[torch.Generator]:
        return [self.feed.generator()]


@dataclass(frozen=True)
class LazyBatches:
    """The batches of several steps, all of one size."""

    batches: tuple[LazyBatch, ...]

    @property
    def c(self) -> Tensor:
        return self.batches[0].c

    def realized(self) -> list:
        return list(self.batches)  # each is looked up by the step that needs it

    def disassembled(self) -> tuple[list[Tensor], Callable[[Sequence[Tensor]], list], Hashable]:
        feed = self.batches[0].feed

        def assemble(tensors: Sequence[Tensor]) -> list:
            ids, c = tensors
            return [
                Batch(*pair, c[k], batch.seed)
                for k, (pair, batch) in enumerate(zip(feed.row(ids), self.batches))
            ]

        stacked = [
            torch.stack([batch.ids for batch in self.batches]),
            torch.stack([batch.c for batch in self.batches]),
        ]
        return stacked, assemble, (id(feed), len(self.batches))

    def seed_augmentation(self) -> None:
        for k, batch in enumerate(self.batches):
            batch.feed.generator(k).manual_seed(batch.augment_seed)

    def generators(self) -> list[torch.Generator]:
        return [batch.feed.generator(k) for k, batch in enumerate(self.batches)]


AnyBatch = Batch | LazyBatch


def _cut(values: tuple[Any, Any], rows: slice) -> tuple[Any, Any]:
    return in_pair(lambda t: t[rows] if isinstance(t, Tensor) else t, values)

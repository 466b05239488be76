"""What one forward pass sees, and which instances a step uses."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

from .pytree import map_pair
from .seeds import make_generator, mix_seeds

Augment = Callable[[Any, torch.Generator], Any]
MODEL_STREAM, AUGMENT_STREAM = 0, 1  # what a micro-batch's random numbers are for


class SplitAugment(ABC):
    """An augmentation in two parts: numbers drawn batch by batch, then applied together."""

    @abstractmethod
    def draw(self, x: Any, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The random numbers of a batch, an instance's numbers along the last axis."""

    @abstractmethod
    def apply(self, x: Any, drawn: tuple[Tensor, ...]) -> Any:
        """The batch, or several batches one after the other, changed by these numbers."""

    def __call__(self, x: Any, generator: torch.Generator) -> Any:
        """The batch, augmented with numbers from this generator."""
        return self.apply(x, self.draw(x, generator))


@dataclass(frozen=True)
class MicroBatch:
    """One forward pass of a step: which instances, and how much each loss counts."""

    ids: np.ndarray  # int64 [B]
    coefficients: np.ndarray | None = None  # float64 [B]; None: 1/B each

    @property
    def weights(self) -> np.ndarray:
        """How much each loss counts in the gradient: float64 [B]."""
        return self._equal_weights if self.coefficients is None else self.coefficients

    @property
    def _equal_weights(self) -> np.ndarray:
        return np.full(len(self.ids), 1 / len(self.ids))

    def simplify(self) -> "MicroBatch":
        """Without coefficients where they are 1/B each, which is what a tape assumes."""
        equal = np.allclose(self.weights, self._equal_weights, rtol=1e-7, atol=0)
        return MicroBatch(self.ids) if equal else self


@dataclass(frozen=True)
class Batch:
    """The inputs, labels and weights of one forward pass."""

    x: Any
    y: Any
    c: Tensor  # [B]: how much each loss counts, 1/|S_t| in plain training
    seed: int  # of everything random inside the model

    def load(self) -> "Batch":
        """Itself: its data are here."""
        return self

    def scaled(self, factor: float) -> "Batch":
        """The batch with its losses counting `factor` times as much."""
        return self if factor == 1 else replace(self, c=self.c * factor)

    def rows(self, rows: slice) -> "Batch":
        """A part of the batch, as if it were one."""
        if rows == slice(0, len(self.c)):
            return self
        return Batch(*cut_rows((self.x, self.y), rows), self.c[rows], self.seed)

    def select(self, present: np.ndarray) -> "Batch":
        """The instances where `present` (bool [B]) is true. Their coefficients stay."""
        rows = torch.as_tensor(present, device=self.c.device)
        choose = lambda t: t[rows.to(t.device)] if isinstance(t, Tensor) else t
        return Batch(*map_pair(choose, (self.x, self.y)), self.c[rows], self.seed)

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


def cut_rows(pair: tuple[Any, Any], rows: slice) -> tuple[Any, Any]:
    """The same rows of every tensor of (x, y)."""
    return map_pair(lambda t: t[rows] if isinstance(t, Tensor) else t, pair)


def make_batch(
    x: Any,
    y: Any,
    micro: MicroBatch,
    seed: int,
    position: tuple[int, int],
    augment: Augment | None,
    device: torch.device,
    dtype: torch.dtype,
) -> Batch:
    """A batch of data that came from outside, as `Instances.lazy_batches` would give it.

    Arguments:
        x: the inputs, on the device.
        y: the labels, on the device.
        micro: which instances they are, and how much each loss counts.
        seed: the run's seed.
        position: the number of the step, and the batch's place in it.
        augment: the run's augmentation.
        device: where the random numbers are drawn.
        dtype: the model's type.
    """
    if augment is not None:
        x = augment(x, make_generator(device, seed, *position, AUGMENT_STREAM))
    wide = torch.promote_types(dtype, torch.float32)
    c = torch.as_tensor(micro.weights, dtype=wide, device=device)
    return Batch(x, y, c, mix_seeds(seed, *position, MODEL_STREAM))

"""A batch whose pass does not fit into memory is cut into parts, and their results are added up.

g = sum_i c_i grad l_i, its adjoint and H a_g are sums over instances. Where each loss depends on
its own instance alone, the parts may be computed one after the other, with the activations of one
part in memory. The sums round differently, and nothing else changes. This is not possible where
instances share something: BatchNorm's statistics, the random numbers of dropout, a loss that looks
at the whole batch.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..data.batch import Batch, cut_rows
from ..support.closeness import ROUNDING, is_close
from .objective import Buffers, Objective

if TYPE_CHECKING:
    from ..data.lazy_batch import AnyBatch

Result = TypeVar("Result")


class BatchCuts:
    """How many rows of a batch a pass takes at once, by the pass and the size of the batch."""

    def __init__(self, objective: Objective):
        self.objective = objective
        self._limits: dict[tuple[str, int], int] = {}
        self.most_rows: int | None = None  # of any batch in a pull, where memory is planned

    def limit(self, name: str, batch: Batch, rows: int) -> None:
        """From now on, the pass takes at most so many rows of batches of this size at once."""
        self._limits[name, _size(batch)] = rows

    def parts(self, name: str, batch: Batch) -> list[Batch]:
        """The batch, or the parts that it is cut into."""
        planned = self.most_rows if name == "pull" else None
        limits = [self._limits.get((name, _size(batch))), planned]
        most = min((limit for limit in limits if limit is not None), default=None)
        counts = None if most is None else self._losses_of_rows(batch)
        if most is None or counts is None or most >= len(counts):
            return [batch]
        pieces = -(-len(counts) // most)  # of about the same length
        ends = [len(counts) * k // pieces for k in range(pieces + 1)]
        return [_cut(batch, counts, a, b) for a, b in pairwise(ends)]

    def rows(self, batch: Batch) -> int:
        """How many rows a batch has; 1 where it cannot be cut."""
        counts = self._losses_of_rows(batch)
        return 1 if counts is None else len(counts)

    def can_cut(self, theta: Tensor, batch: Batch) -> bool:
        """Whether the parts of this batch add up to the whole, as far as its losses tell.

        A model may draw random numbers, as long as they are the same for every part.
        """
        objective, counts = self.objective, self._losses_of_rows(batch)
        if objective.layout.moving_buffers or counts is None or len(counts) < 2:
            return False
        half = len(counts) // 2
        parts = [_cut(batch, counts, 0, half), _cut(batch, counts, half, len(counts))]

        def losses(batch: "AnyBatch", theta: Tensor = theta) -> Tensor:
            with torch.no_grad():
                return objective.losses(theta, {}, batch.load())[0]

        return losses_are_separate(losses, batch, parts)

    def to_json(self) -> list[list]:
        """The limits for a file."""
        return [[name, size, rows] for (name, size), rows in self._limits.items()]

    def load_json(self, saved: list[list]) -> None:
        """Take over the limits of an earlier process."""
        self._limits = {(name, size): rows for name, size, rows in saved}

    def _losses_of_rows(self, batch: Batch) -> list[int] | None:
        """How many losses each row of the batch has, or None where rows cannot be told apart."""
        of_rows: Callable | None = getattr(self.objective.loss, "losses_of_rows", None)
        counts = [1] * len(batch.c) if of_rows is None else of_rows(batch.y).tolist()
        leaves = [t for t in tree_leaves((batch.x, batch.y)) if isinstance(t, Tensor)]
        whole = all(t.dim() > 0 and len(t) == len(counts) for t in leaves)
        return counts if whole and sum(counts) == len(batch.c) else None


def losses_are_separate(
    losses: "Callable[[AnyBatch], Tensor]", whole: "AnyBatch", parts: "Sequence[AnyBatch]"
) -> bool:
    """Whether each loss is the same in a part of a batch as in the whole."""
    together = losses(whole)
    try:
        apart = torch.cat([losses(part) for part in parts])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError):  # normalising over a single instance
        return False
    return is_close(apart, together, ROUNDING)


def join_gradients(parts: list[tuple[Tensor, Tensor, Buffers]]) -> tuple[Tensor, Tensor, Buffers]:
    """What `Objective.gradient` gives for the whole batch."""
    g, losses, buffers = zip(*parts)
    return _add(g), torch.cat(losses), buffers[-1]


def join_pulls(parts: list[tuple[Tensor, Tensor, Buffers]]) -> tuple[Tensor, Tensor, Buffers]:
    """What a pull gives for the whole batch. Buffers do not move where batches are cut."""
    terms, a_theta, buffers = zip(*parts)
    return torch.cat(terms, dim=1), _add(a_theta), buffers[-1]


def _add(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for other in tensors[1:]:
        total = total + other
    return total


def _cut(batch: Batch, counts: list[int], first: int, stop: int) -> Batch:
    start, end = sum(counts[:first]), sum(counts[:stop])
    return Batch(*cut_rows((batch.x, batch.y), slice(first, stop)), batch.c[start:end], batch.seed)


def _size(batch: Batch) -> int:
    return len(batch.c).bit_length()

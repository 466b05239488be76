"""The ranks of a sharded retrace: what each computes, and what they send each other.

Each rank runs its own instances through the whole model. A parameter is gathered from the shards
where the model reads it, and its cotangent is added up and scattered back:

    W   = all-gather of the shards                     every rank has the whole of it for a moment
    g_r = reduce-scatter of each rank's d loss / d W   rank r has its shard of the sum over ranks

Each is the adjoint of the other, so gradients and Hessian-vector products come out as shards of
the sums over all ranks, and no sum over theta is left to do. The order of these messages must be
the same on every rank. So all ranks make the same number of passes: one without instances of its
own computes a batch of weight 0.
"""

from collections.abc import Callable, Sequence
from copy import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..data.lazy_batch import AnyBatch
from ..engine.state import Layout
from .ranks import RankReducer
from .reducer import Piece, all_rows
from .shard_layout import ShardLayout


class ShardReducer(RankReducer):
    """One rank of a group whose ranks each hold a shard of every state."""

    def __init__(
        self,
        group: Any,
        device: torch.device,
        whole: Layout,
        *,
        by_rows: bool = False,
        cuts_batches: bool = True,
    ):
        """Join the group.

        Arguments:
            group, device, cuts_batches: as for RankReducer.
            whole: the layout of theta.
            by_rows: cut parameters between rows, as `fully_shard` does.
        """
        super().__init__(group, device, cuts_batches=cuts_batches)
        self.layout = ShardLayout(whole, self.size, by_rows)
        self.received = {"gathered": 0, "scattered": 0}  # bytes from other ranks so far

    def without_cutting(self) -> "ShardReducer":
        """The same ranks, sharing whole micro-batches only."""
        other = copy(self)
        other.cuts_batches = False
        return other

    # --- sharing the work -------------------------------------------------------------------------

    def own_part(self, batches: Sequence[AnyBatch]) -> list[Piece]:
        """This rank's part of a step: as many pieces as every other rank has."""
        count = len(batches)
        if not self.cuts_batches or count % self.size == 0:
            turns = range(self.rank, -(-count // self.size) * self.size, self.size)
            whole = [(min(k, count - 1), k < count) for k in turns]
            return [
                (k, all_rows(batches[k]), batches[k]) if real else _idle(k, batches[k])
                for k, real in whole
            ]
        pieces = []
        for k, batch in enumerate(batches):
            rows = self._rows(k, len(batch.c))
            own = rows.start < rows.stop
            pieces.append((k, rows, batch.rows(rows)) if own else _idle(k, batch.rows(slice(0, 1))))
        return pieces

    def merge_terms(
        self, found: Sequence[tuple[Piece, Tensor]], batches: Sequence[AnyBatch], like: Tensor
    ) -> Tensor:
        """The terms of this rank's pieces at their places in the step, 0 elsewhere."""
        columns = [like.new_zeros(len(like), len(batch.c)) for batch in batches]
        for (k, rows, _), terms in found:
            columns[k][:, rows] = terms[:, : rows.stop - rows.start]
        return torch.cat(columns, dim=1) if columns else like.new_zeros(len(like), 0)

    # --- messages ---------------------------------------------------------------------------------

    def sum_over_theta(self, vector: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """The vector as it is, because it is this rank's shard of the sum; the others summed."""
        return (vector, *self.sum(*others)) if others else (vector,)

    def largest(self, value: int) -> int:
        """The largest of the ranks' values: shards differ in length, and plans must not."""
        return max(self.gather(value))

    def all_gather(self, own: Tensor) -> Tensor:
        """Every rank's tensor of this shape: [...] -> [R, ...]."""
        own = own.contiguous()
        found = own.new_empty(self.size, *own.shape)
        with self._name_lost_ranks():
            gather = _named("all_gather_single", "all_gather_into_tensor")
            gather(found.view(-1), own.view(-1), group=self.group)
        self.received["gathered"] += found.nbytes - own.nbytes
        return found

    def reduce_scatter(self, parts: Tensor) -> Tensor:
        """The sum over the ranks of what each has for this one: [R, ...] -> [...]."""
        parts = parts.contiguous()
        found = parts.new_empty(parts.shape[1:])
        with self._name_lost_ranks():
            scatter = _named("reduce_scatter_single", "reduce_scatter_tensor")
            scatter(found.view(-1), parts.view(-1), group=self.group)
        self.received["scattered"] += parts.nbytes - found.nbytes
        return found


def _named(name: str, until_2_12: str) -> Callable[..., Any]:
    """A function of torch.distributed, which torch 2.13 has renamed."""
    return getattr(dist, name, None) or getattr(dist, until_2_12)


def _idle(k: int, batch: AnyBatch) -> Piece:
    """A batch that counts for nothing, so that a rank takes part in the others' messages."""
    return k, slice(0, 0), batch.scaled(0.0)

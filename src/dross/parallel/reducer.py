"""Who does which part of a step, and how the parts are added up.

A `Reducer` with one member does everything itself. `parallel/ranks.py` has the one whose members
are the processes of a torch.distributed group.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ..data.lazy_batch import AnyBatch

Value = TypeVar("Value")
Piece = tuple[int, slice, AnyBatch]  # of which micro-batch, which rows of it, and these rows


class Reducer:
    """One member that does everything itself."""

    rank = 0
    size = 1

    def share(self, batches: Sequence[AnyBatch]) -> list[Piece]:
        """This member's part of a step."""
        return [(k, all_rows(batch), batch) for k, batch in enumerate(batches)]

    def sum(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Each of them summed over the members. All members get the same bits."""
        return parts

    def merge_terms(
        self, found: Sequence[tuple[Piece, Tensor]], batches: Sequence[AnyBatch], like: Tensor
    ) -> Tensor:
        """The terms [Q, b] of this member's pieces at their places in the step: [Q, |S_t|].

        0 where another member knows better. like: [Q, ...], for their type and number.
        """
        columns = [terms for _, terms in found]
        return torch.cat(columns, dim=1) if columns else like.new_zeros(len(like), 0)

    def from_first(self, value: Value) -> Value:
        """The first member's value, at every member."""
        return value

    def gather(self, value: Value) -> list[Value]:
        """Every member's value, in their order."""
        return [value]

    def on_first(self, action: Callable[[], Value]) -> Value:
        """What the action returns, or raises, at the first member, at every member."""
        return action()


ALONE = Reducer()


def all_rows(batch: AnyBatch) -> slice:
    """The rows of a whole batch."""
    return slice(0, len(batch.c))

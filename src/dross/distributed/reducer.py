"""How the work of a step is divided among members, and how their parts are added up.

A `Reducer` has one member, which does everything itself. Those of `ranks.py` have a member
per process of a torch.distributed group.
"""

from collections.abc import Callable, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from ..data.lazy_batch import AnyBatch

Value = TypeVar("Value")
Piece = tuple[int, slice, AnyBatch]  # the micro-batch's number, the rows, and their instances


class Reducer:
    """One member that does everything itself."""

    rank = 0
    size = 1

    def own_part(self, batches: Sequence[AnyBatch]) -> list[Piece]:
        """This member's part of a step."""
        return [(k, all_rows(batch), batch) for k, batch in enumerate(batches)]

    def sum(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Each of them summed over the members. All members get the same bits."""
        return parts

    def sum_over_theta(self, vector: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """A vector over theta and others, each summed over the members.

        Where the members hold shards of theta, passes have summed the vector already.
        """
        return self.sum(vector, *others)

    def largest(self, value: int) -> int:
        """The largest of the members' values, where they may differ."""
        return value

    def merge_terms(
        self, found: Sequence[tuple[Piece, Tensor]], batches: Sequence[AnyBatch], like: Tensor
    ) -> Tensor:
        """The terms of this member's pieces at their places in the step: [Q, |S_t|].

        Arguments:
            found: this member's pieces and the terms [Q, b] of each.
            batches: the micro-batches of the step.
            like: [Q, ...], for the number of queries and the type.

        Returns:
            [Q, |S_t|], with 0 at the instances of other members.
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
        """The result of the first member's `action()`, or its error, at every member."""
        return action()


ALONE = Reducer()


def all_rows(batch: AnyBatch) -> slice:
    """The rows of a whole batch."""
    return slice(0, len(batch.c))

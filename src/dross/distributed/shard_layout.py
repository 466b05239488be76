"""Which numbers of theta each rank holds, and how they come together again.

Every parameter is cut into as many chunks as there are ranks, all of one length but the last ones,
which may be shorter or empty. A rank's shard is a flat vector: its chunk of each parameter, in the
order of theta. So updates, clips and adjoints, which treat every number alike, work on a shard as
they do on theta, and slots are cut as theta is.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import torch
from torch import Tensor

from ..engine.state import Layout


@dataclass(frozen=True)
class Span:
    """Numbers that lie one after the other in a whole vector, in one shard and in another."""

    whole: int  # where they begin in theta
    own: int  # where they begin in the shard
    length: int


@dataclass(frozen=True)
class ShardLayout:
    """The shards of a layout. p = len(theta), p_r = the length of rank r's shard.

    by_rows: chunks are whole rows, as torch's `fully_shard` cuts them (Shard(0)). Otherwise a
    parameter is cut between any two numbers, so that ranks have the same, up to one number each.
    """

    layout: Layout
    ranks: int
    by_rows: bool = False

    @cached_property
    def chunks(self) -> list[int]:
        """The length of each parameter's chunks, padding included."""
        lengths = []
        for shape, size in zip(self.layout.shapes, self.layout.sizes):
            rows = shape[0] if self.by_rows and shape else size
            of_row = size // rows if rows else 0
            lengths.append(-(-rows // self.ranks) * of_row)
        return lengths

    def bounds(self, rank: int) -> list[tuple[int, int]]:
        """Where this rank's chunk of each parameter begins and ends in the flat parameter."""
        cut = lambda chunk, size, at: min(chunk * at, size)
        pairs = list(zip(self.chunks, self.layout.sizes))
        return [(cut(c, n, rank), cut(c, n, rank + 1)) for c, n in pairs]

    def sizes(self, rank: int) -> list[int]:
        """How many numbers of each parameter this rank holds."""
        return [stop - start for start, stop in self.bounds(rank)]

    def length(self, rank: int) -> int:
        """p_r."""
        return sum(self.sizes(rank))

    @property
    def longest(self) -> int:
        """The length of the longest shard: the first rank has a chunk of everything."""
        return self.length(0)

    def group_sizes(self, rank: int) -> tuple[int, ...]:
        """How many numbers of each parameter group this rank holds."""
        totals = [0] * len(self.layout.group_sizes)
        for group, size in zip(self.layout.group_of, self.sizes(rank)):
            totals[group] += size
        return tuple(totals)

    # --- whole vectors and shards -----------------------------------------------------------------

    def spans(self, rank: int) -> Iterator[Span]:
        """The parts of theta that make up a shard, in order."""
        whole = own = 0
        for size, (start, stop) in zip(self.layout.sizes, self.bounds(rank)):
            if stop > start:
                yield Span(whole + start, own, stop - start)
            whole, own = whole + size, own + stop - start

    def cut(self, whole: Tensor, rank: int) -> Tensor:
        """The shard of a vector over theta: [..., p] -> [..., p_r]."""
        parts = [whole.narrow(-1, span.whole, span.length) for span in self.spans(rank)]
        return torch.cat(parts, -1) if parts else whole[..., :0].clone()

    def join(self, shards: Sequence[Tensor]) -> Tensor:
        """The vector over theta of which these are the shards: [..., p_r] each -> [..., p]."""
        total = sum(self.layout.sizes)
        whole = shards[0].new_empty(*shards[0].shape[:-1], total)
        for rank, shard in enumerate(shards):
            for span in self.spans(rank):
                whole[..., span.whole : span.whole + span.length] = shard.narrow(
                    -1, span.own, span.length
                )
        return whole

    def overlaps(self, rank: int, held: "ShardLayout") -> Iterator[tuple[int, Span]]:
        """Where this rank's numbers lie in shards that were cut for another number of ranks.

        Yields:
            The rank of `held`, and a span: `whole` is the place in that rank's shard, `own` the
            place in this one.
        """
        at = [self._starts(rank), *(held._starts(other) for other in range(held.ranks))]
        for k, (start, stop) in enumerate(self.bounds(rank)):
            chunk = max(1, held.chunks[k])
            for other in range(start // chunk, -(-stop // chunk) if stop > start else 0):
                first, last = max(start, chunk * other), min(stop, chunk * (other + 1))
                there = at[1 + other][k] + first - chunk * other
                yield other, Span(there, at[0][k] + first - start, last - first)

    def _starts(self, rank: int) -> list[int]:
        """Where each parameter begins in a rank's shard."""
        return [0, *accumulate(self.sizes(rank))]

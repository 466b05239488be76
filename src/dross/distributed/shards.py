"""Which numbers of theta each rank holds, and how they come together again.

Every parameter is cut between its rows into as many chunks as there are ranks, as torch's
`fully_shard` cuts it: all of one length but the last ones, which may be shorter or empty. A rank's
shard is a flat vector: its chunk of each parameter, in the order of theta. So updates, clips and
adjoints, which treat every number alike, work on a shard as they do on theta, and slots are cut as
theta is. On a tape, `Manifest.shards` ranks have written their shards; whoever opens it puts them
together, or takes the numbers of its own shard out of them, whatever the number of ranks is then.

Each rank runs its own instances through the whole model. A parameter is gathered from the shards
where the model reads it, and its cotangent is added up and scattered back:

    W   = all-gather of the shards                     every rank has the whole of it for a moment
    g_r = reduce-scatter of each rank's d loss / d W   rank r has its shard of the sum over ranks

Each is the adjoint of the other, so gradients and Hessian-vector products come out as shards of
the sums over all ranks, and no sum over theta is left to do. The order of these messages must be
the same on every rank. So all ranks make the same number of passes: one without instances of its
own computes a batch of weight 0.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor

from .._text import say_count
from ..data.batch import AnyBatch
from ..engine.objective import Objective
from ..engine.state import Derivative, Layout, Place, State
from ..engine.step import Clip, ClipNorm
from ..errors import InputChanged, NotSupported
from .ranks import Piece, Question, RankReducer, all_rows

if TYPE_CHECKING:
    from ..tape.format import Manifest


@dataclass(frozen=True)
class ShardLayout:
    """The shards of a layout. p = len(theta), p_r = the length of rank r's shard."""

    layout: Layout
    ranks: int

    @cached_property
    def chunks(self) -> list[int]:
        """The length of each parameter's chunks, padding included."""
        lengths = []
        for shape, size in zip(self.layout.shapes, self.layout.sizes):
            rows = shape[0] if shape else 1
            of_row = size // rows if rows else 0
            lengths.append(-(-rows // self.ranks) * of_row)
        return lengths

    def bounds(self, rank: int) -> list[tuple[int, int]]:
        """Where this rank's chunk of each parameter begins and ends in the flat parameter."""
        return [
            (min(chunk * rank, size), min(chunk * (rank + 1), size))
            for chunk, size in zip(self.chunks, self.layout.sizes)
        ]

    def sizes(self, rank: int) -> list[int]:
        """How many numbers of each parameter this rank holds."""
        return [stop - start for start, stop in self.bounds(rank)]

    def length(self, rank: int) -> int:
        """p_r."""
        return sum(self.sizes(rank))

    def group_sizes(self, rank: int) -> tuple[int, ...]:
        """How many numbers of each parameter group this rank holds."""
        totals = [0] * len(self.layout.group_sizes)
        for group, size in zip(self.layout.group_of, self.sizes(rank)):
            totals[group] += size
        return tuple(totals)

    def join(self, shards: Sequence[Tensor]) -> Tensor:
        """The vector over theta of which these are the shards: [..., p_r] each -> [..., p]."""
        parts = ShardLayout(self.layout, 1).parts_of(self, 0)
        return torch.cat([shards[other][..., part] for other, part in parts], -1)

    def parts_of(self, held: "ShardLayout", rank: int) -> Iterator[tuple[int, slice]]:
        """Where the numbers of a rank lie in shards that were cut for another number of ranks.

        Arguments:
            held: how they were cut.
            rank: the rank, as this layout has it.

        Yields:
            A rank of `held` and a part of its shard. The parts, one after the other, are the shard
            of this rank.
        """
        starts = [[0, *accumulate(held.sizes(other))] for other in range(held.ranks)]
        for k, (start, stop) in enumerate(self.bounds(rank)):
            chunk = max(1, held.chunks[k])
            for other in range(start // chunk, -(-stop // chunk) if stop > start else 0):
                first = max(start - chunk * other, 0)
                last = min(stop - chunk * other, chunk)
                yield other, slice(starts[other][k] + first, starts[other][k] + last)


_STATE = "state."  # in a segment; the end of a tape has the bare names


def explain_other_ranks(folder: str | os.PathLike, shards: int, ranks: int) -> InputChanged:
    """The error where other ranks would continue a tape than those that began it."""
    return InputChanged(
        f"The tape at {folder} has shards from {say_count(shards, 'rank')}, but you are "
        f"continuing it with {say_count(ranks, 'rank')}. Start {say_count(shards, 'rank')}, or "
        "record the run again in another folder. Retracing works with any number of ranks."
    )


def written_layout(manifest: "Manifest") -> ShardLayout:
    """How the states of a tape were cut when it was written."""
    return ShardLayout(manifest.layout, manifest.shards)


def is_cut(name: str) -> bool:
    """Whether a tensor of a tape's file is a vector over theta."""
    name = name.removeprefix(_STATE)
    return name == "theta" or name.startswith("slot.")


def join_shards(shards: Sequence[dict[str, Tensor]], manifest: "Manifest") -> dict[str, Tensor]:
    """The tensors of an entry, put together from the files of all ranks, the first one's first.

    Raises:
        ValueError: where the files do not fit together.
    """
    layout = written_layout(manifest)
    if len(shards) != layout.ranks:
        raise ValueError(f"it has {len(shards)} shards, but the tape has {layout.ranks}")
    whole = dict(shards[0])
    for name in filter(is_cut, shards[0]):
        parts = [shard[name] for shard in shards]
        for rank, part in enumerate(parts):
            if part.shape != (*parts[0].shape[:-1], layout.length(rank)):
                raise ValueError(f"{name} of shard {rank} has shape {tuple(part.shape)}")
        whole[name] = layout.join(parts)
    return whole


def refuse_with_shards(**options: Any) -> None:
    """Refuse options that do not work where ranks hold shards.

    Raises:
        NotSupported: it names the option.
    """
    for name, value in options.items():
        if value:
            raise NotSupported(
                f"{name} is not supported with sharded states yet. Leave it out, or use ranks "
                "that hold unsharded states (docs/scale.md)."
            )


class ShardReducer(RankReducer):
    """One rank of a group whose ranks each hold a shard of every state."""

    def __init__(self, group: Any, device: torch.device, whole: Layout):
        """Join the group.

        Arguments:
            group, device: as for RankReducer.
            whole: the layout of theta.
        """
        super().__init__(group, device)
        self.layout = ShardLayout(whole, self.size)

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

    # --- of a retrace -----------------------------------------------------------------------------

    def clip(self, clip: Clip | None) -> Clip | None:
        """The same clip for shards. Clamping treats every number alike, and stays as it is."""
        return ShardedClipNorm(clip.max_norm, ranks=self) if isinstance(clip, ClipNorm) else clip

    def lengths(self, vectors: Tensor) -> Tensor:
        """The norm of each vector over theta, of which this rank has a shard: [Q, p_r] -> [Q]."""
        (squares,) = self.sum(vectors.square().sum(1))
        return squares.sqrt()

    def query_adjoint(
        self, query: Question, objective: Objective, state: State
    ) -> tuple[Derivative, Tensor]:
        """This rank's shard of the query's derivative, and the query's value."""
        self.check_same_query(query, objective, state)
        return query.derivative(objective, state)

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
        gathered = own.new_empty(self.size, *own.shape)
        with self._name_lost_ranks():
            gather = _named("all_gather_single", "all_gather_into_tensor")
            gather(gathered.view(-1), own.view(-1), group=self.group)
        return gathered

    def reduce_scatter(self, parts: Tensor) -> Tensor:
        """The sum over the ranks of what each has for this one: [R, ...] -> [...]."""
        parts = parts.contiguous()
        total = parts.new_empty(parts.shape[1:])
        with self._name_lost_ranks():
            scatter = _named("reduce_scatter_single", "reduce_scatter_tensor")
            scatter(total.view(-1), parts.view(-1), group=self.group)
        return total


def _named(name: str, until_2_12: str) -> Callable[..., Any]:
    """A function of torch.distributed, which torch 2.13 has renamed."""
    return getattr(dist, name, None) or getattr(dist, until_2_12)


def _idle(k: int, batch: AnyBatch) -> Piece:
    """A batch that counts for nothing, so that a rank takes part in the others' messages."""
    return k, slice(0, 0), batch.scaled(0.0)


@dataclass(frozen=True)
class ShardedClipNorm(ClipNorm):
    """`ClipNorm` of the whole gradient, applied to this rank's shard of it."""

    ranks: ShardReducer = field(kw_only=True)

    def norms(self, g: Tensor, slices: Sequence[Place] = ()) -> Tensor:
        """|g| over all shards: [..., p_r] -> [..., 1]."""
        (squares,) = self.ranks.sum(g.square().sum(-1, keepdim=True))
        return squares.sqrt()

    def norm_and_products(self, g: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """|g| and <v, g> over all shards, in one message."""
        square, products = self.ranks.sum(g @ g, v @ g)
        return square.sqrt(), products

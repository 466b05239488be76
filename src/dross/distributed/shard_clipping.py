"""Clipping by the norm of a gradient whose shards are on several ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from ..engine.step import Clip, ClipNorm
from .shard_ranks import ShardReducer


@dataclass(frozen=True)
class ShardedClipNorm(ClipNorm):
    """`ClipNorm` of the whole gradient, applied to this rank's shard of it."""

    ranks: ShardReducer = field(kw_only=True)

    def norms(self, g: Tensor, slices: Sequence[slice] = ()) -> Tensor:
        """|g| over all shards: [..., p_r] -> [..., 1]."""
        (squares,) = self.ranks.sum(g.square().sum(-1, keepdim=True))
        return squares.sqrt()

    def norm_and_products(self, g: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """|g| and <v, g> over all shards, in one message."""
        square, products = self.ranks.sum(g @ g, v @ g)
        return square.sqrt(), products


def shard_clip(clip: Clip | None, ranks: ShardReducer) -> Clip | None:
    """The same clip for shards. Clamping treats every number alike, and stays as it is."""
    return ShardedClipNorm(clip.max_norm, ranks=ranks) if isinstance(clip, ClipNorm) else clip

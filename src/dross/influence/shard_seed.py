"""The seed of a retrace whose ranks hold shards, and what the ranks have to agree on first."""

from typing import Any

import torch

from ..distributed.shards import ShardReducer
from ..engine.state import Derivative, State
from ..engine.tolerance import ROUNDING_OF_LENGTH, is_close
from ..errors import InvalidInput, NotSupported
from ..replay.recording import Recording, check_of
from .query import Query, project, sampled_every


def check_can_be_asked(resume: Any, of: str) -> None:
    """Refuse what a sharded retrace does not do.

    Raises:
        NotSupported: for progress files and for averaged weights.
    """
    if resume is not None:
        raise NotSupported(
            "A sharded retrace keeps no progress yet, because no rank has the whole adjoint. Leave "
            "resume out."
        )
    if check_of(of):
        raise NotSupported("The average is not held in shards yet. Retrace without sharded=True.")


def check_same_values(query: Query, recording: Recording, state: State) -> None:
    """Refuse ranks whose queries differ: every rank contributes to the others' derivatives.

    Raises:
        InvalidInput: it names the rank.
    """
    ranks, objective = recording.reducer, recording.objective
    sizes = ranks.gather([size for size, _ in query.parts(objective)])
    odd = [rank for rank, other in enumerate(sizes) if other != sizes[0]]
    if not odd:
        values = ranks.gather(query.evaluate(objective, state).cpu())
        same = lambda other: (
            other.shape == values[0].shape
            and (
                is_close(other, values[0], ROUNDING_OF_LENGTH)
                or not bool(torch.isfinite(values[0]).all())  # which the derivative refuses
            )
        )
        odd = [rank for rank, other in enumerate(values) if not same(other)]
    if odd:
        raise InvalidInput(
            f"The query on rank {odd[0]} has a different value than on rank 0: every rank must ask "
            "the same query of the same data."
        )


def sketch_shards(seed: Derivative, ranks: ShardReducer) -> list[float]:
    """`sketch_derivative` of a derivative whose shards are on several ranks, [Q, p_r]."""
    layout, theta = ranks.layout, seed.theta.detach()
    p = sum(layout.layout.sizes)
    step = sampled_every(len(theta) * p)
    sample = theta.new_zeros(-(-len(theta) * p // step), dtype=torch.float64)
    for q, row in enumerate(theta):
        for span in layout.spans(ranks.rank):
            skipped = -(q * p + span.whole) % step
            own = row[span.own : span.own + span.length][skipped::step].double()
            begin = (q * p + span.whole + skipped) // step
            sample[begin : begin + len(own)] = own
    square = torch.linalg.vector_norm(theta, dtype=torch.float64) ** 2
    square, sample = ranks.sum(square, sample)
    return project(float(square.sqrt()), sample.cpu())

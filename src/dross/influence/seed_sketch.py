"""A digest of what a query asks, which survives rounding.

All that a retrace uses of a query is its derivative at the model. Its length and a few projections
tell two queries apart, and are the same on another machine up to rounding, where a digest of the
bits would not be.
"""

import numpy as np
import torch

from ..step.state import Derivative

_DIRECTIONS = 4
_MAX_COORDINATES = 1 << 20  # that are projected: a large derivative is sampled
_TOLERANCE = 1e-3  # of the derivative's length, in float32 on another device


def sketch(seed: Derivative) -> list[float]:
    """The length of a derivative [Q, p], and projections of it on fixed random directions."""
    flat = seed.theta.detach().reshape(-1)
    length = float(torch.linalg.vector_norm(flat, dtype=torch.float64))
    sample = flat[:: 1 + len(flat) // _MAX_COORDINATES].double().cpu()
    generator = torch.Generator().manual_seed(0)
    shape = (_DIRECTIONS, len(sample))
    directions = torch.randn(shape, generator=generator, dtype=torch.float64)
    return [length, *(directions @ sample).tolist()]


def same_question(one: list[float], other: list[float]) -> bool:
    """Whether two sketches are of the same query."""
    length = max(one[0], other[0])
    return bool(np.allclose(one, other, rtol=0, atol=_TOLERANCE * length))

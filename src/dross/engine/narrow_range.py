"""Derivatives in float16 that neither vanish nor overflow.

A number of float16 lies between 6e-8 and 65504. A loop's GradScaler keeps its gradients in there. A
pull has another cotangent, the adjoint, of any size. It is linear in that, so it is computed for an
adjoint of length about 1 and scaled back. Where it overflows nevertheless, the losses count less,
as a GradScaler would have it. All factors are powers of two, which round nothing.
"""

from collections.abc import Callable

import torch
from torch import Tensor

from ..data.batch import AnyBatch
from .autodiff import times, unit_factor
from .objective import Buffers, Pulled

_SHRINKS = (1.0, 2.0**-8, 2.0**-16)


def pull_in_range(
    pull: Callable[[AnyBatch, Tensor, Buffers], Pulled],
    batch: AnyBatch,
    a_g: Tensor,
    a_buffers: Buffers,
) -> Pulled:
    """pull(batch, a_g, a_buffers), which is linear in the last two and in the batch's weights.

    Arguments:
        pull: the pass.
        batch: of b instances.
        a_g: the adjoint of the gradient [Q, p].
        a_buffers: the adjoint of the buffers, each [Q, ...].
    """
    factor = unit_factor(a_g)
    found = None
    for shrink in _SHRINKS:
        moved = {name: times(a, factor * shrink) for name, a in a_buffers.items()}
        terms, product, before = pull(batch.scaled(shrink), times(a_g, factor), moved)
        back = 1 / (factor * shrink)
        found = (
            times(terms.to(a_g.dtype), back),
            times(product, back),
            {name: times(a, back) for name, a in before.items()},
        )
        if bool(torch.isfinite(terms).all() & torch.isfinite(product).all()):
            break
    assert found is not None
    return found

"""Whether two results are the same up to rounding: one test, and a name for each tolerance."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Tolerance:
    """|value - expected| <= factor * eps**power * |expected|, eps being the type's machine epsilon.

    order: the norm. inf compares the largest numbers, 2 compares lengths.
    """

    factor: float
    power: float
    order: float = float("inf")

    def relative(self, dtype: torch.dtype) -> float:
        """The relative difference that it admits in this type, a tenth at most."""
        return min(0.1, self.factor * torch.finfo(dtype).eps ** self.power)


#: the same kernels in the same order, perhaps fused
SAME_KERNELS = Tolerance(1, 0.75)
#: the losses of a pass that someone else's loop computed: few sums, and no derivative
LOSSES = Tolerance(4, 0.75)
#: the same step computed by another loop, another number of ranks or another machine
ROUNDING = Tolerance(1, 0.5)
ROUNDING_OF_LENGTH = Tolerance(1, 0.5, order=2)
#: a step taken in another way (inside vmap, by someone else's loop): its sums have another order
OTHER_ORDER = Tolerance(100, 0.5)
#: another derivation of the same derivative. Deep float32 networks round to 1e-3, and kernels
#: differ where a ReLU has its kink; a wrong rule is off by 5 % and more
OTHER_KERNELS = Tolerance(30, 0.5, order=2)
#: whether a result depends on something at all
ONE_PERCENT = Tolerance(0.01, 0)


def is_close(
    value: Tensor, expected: Tensor, tolerance: Tolerance, *, scale: float | None = None
) -> bool:
    """Whether `value` is `expected` up to rounding. What is not finite is close to nothing.

    Arguments:
        value: a tensor of any shape.
        expected: a tensor of the same shape. Whole numbers must be equal.
        tolerance: one of the tolerances of this module.
        scale: the size that the difference is compared with; by default that of `expected`.
    """
    if value.numel() == 0 or not value.is_floating_point():
        return torch.equal(value, expected)
    limit = size(expected, tolerance) if scale is None else scale
    if not math.isfinite(limit):
        return False
    return size(value - expected, tolerance) <= tolerance.relative(value.dtype) * limit


def size(t: Tensor, tolerance: Tolerance) -> float:
    """The norm of a tensor, as this tolerance measures it; 0 if it is empty."""
    if not t.numel():
        return 0.0
    return float(t.abs().max() if tolerance.order == float("inf") else t.norm())

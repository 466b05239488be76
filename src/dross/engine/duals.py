"""Tensors with a tangent, taken apart."""

from typing import Any

from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.autograd import forward_ad


def unpack_dual(t: Any) -> tuple[Any, Any]:
    """Itself and its tangent, or None where there is none."""
    if t is None:
        return None, None
    dual = forward_ad.unpack_dual(t)
    return dual.primal, dual.tangent


def primal(t: Tensor) -> Tensor:
    """The tensor without its tangent, where it can be taken apart."""
    return t if is_batchedtensor(t) else unpack_dual(t)[0]


def sum_tensors(parts: list[Tensor]) -> Tensor:
    """Their sum, in their order."""
    return sum(parts[1:], parts[0])

"""In which order the numbers of a tensor lie in memory, such as channels last.

Indexing a tensor keeps its order, collating does not, and a file has none. Kernels round differently
for different orders, so a run records the order and a replay restores it.
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

Order = tuple[int, ...]  # the dimensions from the outermost to the innermost; (): as they are
Orders = tuple[Order, ...]  # of the tensors of a batch; (): all as they are


def memory_order(t: Tensor) -> Order:
    """The order of a tensor; () also for one with gaps, which no order describes."""
    # among equal strides, a dimension of one number lies innermost: it is never stepped along
    order = sorted(range(t.dim()), key=lambda d: (-t.stride(d), t.shape[d] == 1))
    plain = order == list(range(t.dim()))
    return () if plain or strides_of(t.shape, order) != t.stride() else tuple(order)


def strides_of(shape: Sequence[int], order: Sequence[int]) -> Order:
    """The strides of a tensor of this shape whose numbers lie in this order."""
    strides = [0] * len(shape)
    step = 1
    for d in reversed(order):
        strides[d] = step
        step *= max(1, shape[d])
    return tuple(strides)


def put_in_order(t: Tensor, order: Order) -> Tensor:
    """The tensor itself where it lies in this order already, or else a copy that does.

    The order is that of the last dimensions; any before them stay outermost.
    """
    lead = t.dim() - len(order)
    full = (*range(lead), *(lead + d for d in order))
    if t.stride() == strides_of(t.shape, full):
        return t
    inverse = [full.index(d) for d in range(t.dim())]
    return t.permute(full).clone(memory_format=torch.contiguous_format).permute(inverse)


def _is_plain(t: Any) -> bool:
    return isinstance(t, Tensor) and t.is_contiguous() and 1 not in t.shape


def orders_of(values: Any) -> Orders:
    """The orders of all tensors in a batch."""
    orders = tuple(memory_order(t) if isinstance(t, Tensor) else () for t in tree_leaves(values))
    return orders if any(orders) else ()


def put_all_in_order(values: Any, orders: Orders) -> Any:
    """A batch with its tensors in these orders."""
    if not orders and all(_is_plain(t) for t in values):
        return values  # nearly always, and then a step need not wait for the general walk
    left = iter(orders)

    def put(t: Any) -> Any:
        order = next(left, ())
        return (
            put_in_order(t, order if len(order) == t.dim() else ()) if isinstance(t, Tensor) else t
        )

    return tree_map(put, values)

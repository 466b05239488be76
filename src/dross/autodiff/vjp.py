"""Reverse-mode products, for one cotangent or for many at once."""

import torch
from torch import Tensor

_ROWS_AT_ONCE = 64


def vjp(outputs, inputs, cotangents, batched: bool = False):
    """autograd.grad that keeps the graph and says 0 where an output does not depend on an input."""
    kept = [(o, a) for o, a in zip(outputs, cotangents) if o.requires_grad]
    found: list[Tensor | None] = [None] * len(inputs)
    if kept:
        live_outputs, live_cotangents = zip(*kept)
        found = list(
            torch.autograd.grad(
                live_outputs,
                inputs,
                live_cotangents,
                create_graph=not batched,
                retain_graph=True,
                allow_unused=True,
                is_grads_batched=batched,
            )
        )
    rows = (len(cotangents[0]),) if batched else ()
    return [
        torch.zeros(*rows, *i.shape, dtype=i.dtype, device=i.device) if f is None else f
        for f, i in zip(found, inputs)
    ]


def batched_vjp(outputs, inputs, cotangents):
    """vjps for a leading axis of cotangents; one plain pass where there is only one."""
    rows = len(cotangents[0])
    alone = lambda k: [
        row.detach()[None] for row in vjp(outputs, inputs, [a[k] for a in cotangents])
    ]
    if rows == 1:
        return alone(0)
    try:
        chunks = [
            [a[k : k + _ROWS_AT_ONCE] for a in cotangents] for k in range(0, rows, _ROWS_AT_ONCE)
        ]
        parts = [vjp(outputs, inputs, chunk, batched=True) for chunk in chunks]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # an operator that cannot be pulled back for many cotangents at once
        parts = [alone(k) for k in range(rows)]
    return [torch.cat(column) for column in zip(*parts)]

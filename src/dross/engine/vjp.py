"""Reverse-mode products, for one cotangent or for many at once, and forward ones."""

import warnings
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

_ROWS_AT_ONCE = 64


def vjp(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    *,
    batched: bool = False,
    create_graph: bool = False,
) -> list[Tensor]:
    """torch.autograd.grad that keeps the graph, and gives 0 where nothing depends on an input.

    batched: cotangents carry a leading axis, and so do the results.
    """
    live = [(output, a) for output, a in zip(outputs, cotangents) if output.requires_grad]
    found: Sequence[Tensor | None] = [None] * len(inputs)
    if live:
        found = torch.autograd.grad(
            [output for output, _ in live],
            inputs,
            [a for _, a in live],
            create_graph=create_graph,
            retain_graph=True,
            allow_unused=True,
            is_grads_batched=batched,
        )
    rows = (len(cotangents[0]),) if batched else ()
    return [
        torch.zeros(*rows, *i.shape, dtype=i.dtype, device=i.device) if f is None else f
        for f, i in zip(found, inputs)
    ]


def batched_vjp(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    rows_at_once: int = _ROWS_AT_ONCE,
) -> list[Tensor]:
    """vjps for a leading axis of cotangents; one plain pass where there is only one."""
    rows = len(cotangents[0])

    def single(k: int) -> list[Tensor]:
        return [row.detach()[None] for row in vjp(outputs, inputs, [a[k] for a in cotangents])]

    if rows == 1:
        return single(0)
    try:
        starts = range(0, rows, rows_at_once)
        chunks = [[a[k : k + rows_at_once] for a in cotangents] for k in starts]
        parts = [vjp(outputs, inputs, chunk, batched=True) for chunk in chunks]
    except torch.OutOfMemoryError:
        raise
    except RuntimeError:  # an operator without a batching rule
        parts = [single(k) for k in range(rows)]
    return [torch.cat(column).detach() for column in zip(*parts)]


def batched_jvp(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], tangents: Sequence[Tensor]
) -> list[Tensor]:
    """How outputs move when inputs move, for a leading axis of tangents, by reverse mode twice.

    vjp(r) is linear in r, and the derivative of <vjp(r), tangent> in r is the forward product.
    """
    with torch.enable_grad():
        r = [torch.zeros_like(output, requires_grad=True) for output in outputs]
        back = vjp(outputs, inputs, r, create_graph=True)
    return batched_vjp(back, r, tangents)


def jvp(
    function: Callable[..., Any], primals: tuple, tangents: tuple, *, has_aux: bool = False
) -> Any:
    """torch.func.jvp, without warnings of torch about its own rules."""
    _load_forward_rules()
    return torch.func.jvp(function, primals, tangents, has_aux=has_aux)


@cache
def _load_forward_rules() -> None:
    """Let torch load what it loads with its first dual number, which warns of torch.jit."""
    with warnings.catch_warnings(), forward_ad.dual_level():
        warnings.simplefilter("ignore")
        forward_ad.make_dual(torch.zeros(1), torch.zeros(1))


def unit_factor(rows: Tensor) -> Tensor:
    """The power of two for each row of [Q, p] that makes its length about 1; 1 for zeros: [Q]."""
    length = rows.norm(dim=1)
    factor = torch.exp2(-torch.log2(length).round().clamp(-120, 120))
    return torch.where(length > 0, factor, 1.0)


def times(rows: Tensor, factor: Tensor) -> Tensor:
    """Each row of [Q, ...] times its factor [Q]."""
    return rows * factor.reshape([-1] + [1] * (rows.dim() - 1))


def probe_direction(theta: Tensor) -> Tensor:
    """A direction to try a pull with: [1, p], the same every time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, theta.numel(), generator=generator, dtype=torch.float32).to(theta)

"""Reverse-mode products, for one cotangent or for many at once, and forward ones."""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch._C._functorch import is_batchedtensor
from torch.autograd import forward_ad
from torch.func import functional_call

from ..data.dataset import ModelKwargs
from ..errors import InvalidInput

NARROW = (torch.bfloat16, torch.float16)
_ROWS_AT_ONCE = 64


def refuse_inference_mode() -> None:
    """Raise InvalidInput inside torch.inference_mode(), which no derivative can leave."""
    if torch.is_inference_mode_enabled():
        raise InvalidInput(
            "Gradients cannot be computed inside torch.inference_mode(). Move this call out of it."
        )


def vjp(
    outputs: Sequence[Tensor],
    inputs: Sequence[Tensor],
    cotangents: Sequence[Tensor],
    *,
    batched: bool = False,
    create_graph: bool = False,
) -> list[Tensor]:
    """torch.autograd.grad that keeps the graph, and returns 0 where nothing depends on an input.

    batched: cotangents carry a leading axis, and so do the results.
    """
    live = [(output, a) for output, a in zip(outputs, cotangents) if output.requires_grad]
    products: Sequence[Tensor | None] = [None] * len(inputs)
    if live:
        products = torch.autograd.grad(
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
        torch.zeros(*rows, *i.shape, dtype=i.dtype, device=i.device) if product is None else product
        for product, i in zip(products, inputs)
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
    """How outputs change when inputs change, for a leading axis of tangents, by reverse mode twice.

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
    """A direction to try a vjp with: [1, p], the same every time."""
    generator = torch.Generator().manual_seed(0)
    return torch.randn(1, theta.numel(), generator=generator, dtype=torch.float32).to(theta)


# --- tensors with a tangent, and tensors of 16 bits -----------------------------------------------


def unpack_dual(t: Any) -> tuple[Any, Any]:
    """Itself and its tangent, or None if there is none."""
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


def widen(t: Any) -> Any:
    """A tensor of 16 bits as float32, in which torch's own kernels compute; others as they are."""
    narrow = isinstance(t, Tensor) and t.dtype in NARROW
    return t.float() if narrow else t


# --- models as functions --------------------------------------------------------------------------

# A model as a pure function: called with other tensors, in a given mode.
#
# `torch.func.functional_call` exchanges a model's tensors, tied weights included. It fails where one
# module is in two places of a model: it exchanges the tensors once per place, mistakes the first ones
# for the module's own the second time, and leaves them behind (torch 2.11 and 2.13). So ties are
# listed here, one name for each module that has the tensor.


def apply_model(model: Callable[..., Any], x: Any) -> Any:
    """model(x), or model(**x) where x is a batch of keywords."""
    return model(**x) if isinstance(x, ModelKwargs) else model(x)


def call_model(model: nn.Module, named: dict[str, Tensor], x: Any) -> Any:
    """`apply_model` with these parameters and buffers.

    What the pass assigns to them is in `named` afterwards.
    """
    every = dict(named)
    for name, other in _ties(model):
        if name in named and other in named:
            raise ValueError(
                f"'{name}' and '{other}' are the same tensor, once as a parameter and once as a "
                "buffer."
            )
        if name in named:
            every[other] = named[name]
    args, kwargs = ((), dict(x)) if isinstance(x, ModelKwargs) else ((x,), None)
    outputs = functional_call(model, every, args, kwargs, tie_weights=False)
    named.update((name, every[name]) for name in named)
    return outputs


def _ties(model: nn.Module) -> Iterator[tuple[str, str]]:
    """The name of a tensor in named_parameters or named_buffers, and each name elsewhere."""
    names: dict[int, str] = {}
    for place, module in model.named_modules():  # each module once, wherever it is
        for kind in (module._parameters, module._buffers):
            for leaf, tensor in kind.items():
                if tensor is not None:
                    name = f"{place}.{leaf}" if place else leaf
                    if (first := names.setdefault(id(tensor), name)) is not name:
                        yield first, name


@contextmanager
def use_modes(wanted: dict[nn.Module, bool]) -> Iterator[None]:
    """Inside, each module trains (True) or evaluates (False) as wanted."""
    before = [(module, module.training) for module in wanted]
    for module, training in wanted.items():
        module.training = training
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def has_hooks(model: nn.Module) -> bool:
    """Whether a module has hooks, which must be called in every pass."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind, None) for module in model.modules() for kind in kinds)

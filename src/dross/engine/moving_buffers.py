"""Buffers that the user's code moves in a forward pass, as differentiable state.

Such code hides from autograd: it runs under no_grad, or detaches what it averages. Training must
not look through that, but the derivative of a whole run must: with other parameters, the averages
would have been different. So each hidden value passes a gate here. The gates are shut while the
training gradient is computed, and open while it and the moved buffers are differentiated.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

_open = False  # one for all threads: a GPU's backward pass runs in a thread of its own


@contextmanager
def open_gates() -> Iterator[None]:
    """Inside, derivatives pass through what training holds constant."""
    global _open
    before, _open = _open, True
    try:
        yield
    finally:
        _open = before


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        return grads[0] if _open else None


class Gates(TorchFunctionMode):
    """Inside: run one forward pass. What it detaches or computes under no_grad is behind gates."""

    def __init__(self, buffers: Iterable[Tensor]):
        """buffers: those that the pass moves. They may be written to in place."""
        super().__init__()
        self.buffers = {id(buffer) for buffer in buffers}

    def __torch_function__(
        self, func: Any, types: Any, args: tuple = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _DETACHING:
            return args[0] if id(args[0]) in self.buffers else _shut(args[0])
        if torch.is_grad_enabled():
            return func(*args, **kwargs)
        if func in _SWITCHES:
            return func(*args, **kwargs)
        written = 1 if _writes_into_first(func) else 0
        rest, named = tree_map(_shut, (args[written:], kwargs))
        with torch.enable_grad():
            return func(*args[:written], *rest, **named)


_DATA: Any = torch.Tensor.data
_DETACHING = {torch.Tensor.detach, torch.detach, _DATA.__get__}
_SWITCHES = {torch.set_grad_enabled, torch._C._set_grad_enabled}


def _shut(t: Any) -> Any:
    if not isinstance(t, Tensor) or not t.requires_grad:
        return t
    with torch.enable_grad():
        return _Gate.apply(t)


def _writes_into_first(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    if name in ("__setitem__", "__set__") or (name.startswith("__i") and name.endswith("__")):
        return True
    return name.endswith("_") and not name.endswith("__")

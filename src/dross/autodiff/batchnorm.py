"""BatchNorm's running statistics as differentiable state.

torch moves them as a side effect that autograd does not see, and reads them in eval mode as constants. A query in eval mode
depends on them, so the adjoint has to pass through both doors; these contexts open them without touching the model's code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from . import pixels
from .forward_rules import primal

Buffers = dict[str, Tensor]


def tracking(model: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers that keep running statistics, by name."""
    return {
        n: m
        for n, m in model.named_modules()
        if isinstance(m, _BatchNorm) and m.running_mean is not None
    }


def statistics_of(model: nn.Module) -> set[str]:
    """The names of all buffers that belong to BatchNorm."""
    kinds = ("running_mean", "running_var", "num_batches_tracked")
    return {f"{name}.{kind}" if name else kind for name in tracking(model) for kind in kinds}


@contextmanager
def watched(model: nn.Module) -> Iterator[Callable[[Buffers], Buffers]]:
    """Inside: run one forward pass in train mode. The yielded function then tells the buffers after it, differentiably."""
    inputs: list[tuple[str, _BatchNorm, Tensor]] = []
    layers = {name: layer for name, layer in tracking(model).items() if layer.training}

    def noting(name: str, layer: _BatchNorm):
        return lambda _module, args: inputs.append(
            (name, layer, primal(args[0]))
        )  # nobody asks for the tangent of the statistics

    hooks = [layer.register_forward_pre_hook(noting(name, layer)) for name, layer in layers.items()]

    def moved(buffers: Buffers) -> Buffers:
        buffers = dict(buffers)
        for name, layer, x in inputs:
            prefix = f"{name}." if name else ""
            seen = prefix + "num_batches_tracked"
            buffers[seen] = buffers[seen] + 1
            rate = layer.momentum if layer.momentum is not None else 1.0 / buffers[seen].to(x.dtype)
            across = [axis for axis in range(x.dim()) if axis != 1]
            batch = {
                "running_mean": pixels.mean(x, across).flatten(),
                "running_var": x.var(across, correction=1),
            }
            for kind, value in batch.items():
                buffers[prefix + kind] = (1 - rate) * buffers[prefix + kind] + rate * value
        return buffers

    try:
        yield moved
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def readable(model: nn.Module) -> Iterator[None]:
    """Inside: BatchNorm in eval mode is differentiable in its running statistics, which torch's own kernel refuses."""

    def normalized(layer: _BatchNorm, x: Tensor) -> Tensor:
        if layer.training:
            return type(layer).forward(layer, x)
        shape = [1, -1] + [1] * (x.dim() - 2)
        assert layer.running_mean is not None and layer.running_var is not None
        scaled = (x - layer.running_mean.view(shape)) * torch.rsqrt(
            layer.running_var + layer.eps
        ).view(shape)
        return (
            scaled
            if layer.weight is None
            else scaled * layer.weight.view(shape) + layer.bias.view(shape)
        )

    layers = list(tracking(model).values())
    for layer in layers:
        layer.__dict__["forward"] = MethodType(normalized, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]

"""BatchNorm's running statistics as differentiable state.

torch moves them as a side effect that autograd does not see, and reads them in eval mode as
constants. A query in eval mode depends on them, so the adjoint has to pass through both. These
contexts make both differentiable without touching the model's code.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType

from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from . import channel_sums
from .casting import widen
from .duals import primal
from .norms import apply_statistics, batch_axes, update_running

Buffers = dict[str, Tensor]
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def batchnorm_layers(model: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers that keep running statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


def statistics_of(model: nn.Module, *, training: bool = False) -> list[str]:
    """The names of all buffers that belong to BatchNorm; `training`: of layers that move them."""
    layers = batchnorm_layers(model).items()
    names = [name for name, layer in layers if layer.training or not training]
    return [f"{name}.{kind}" if name else kind for name in names for kind in STATISTICS]


@contextmanager
def watch_statistics(model: nn.Module) -> Iterator[Callable[[Buffers], Buffers]]:
    """Inside: run one forward pass in train mode.

    The yielded function then gives the buffers after the pass, as a differentiable function of the
    buffers before it.
    """
    inputs: list[tuple[str, _BatchNorm, Tensor]] = []
    layers = {name: layer for name, layer in batchnorm_layers(model).items() if layer.training}

    def note(name: str, layer: _BatchNorm):
        # without its tangent: the statistics need none
        return lambda _module, args: inputs.append((name, layer, primal(args[0])))

    hooks = [layer.register_forward_pre_hook(note(name, layer)) for name, layer in layers.items()]

    def move(buffers: Buffers) -> Buffers:
        buffers = dict(buffers)
        for name, layer, x in inputs:
            prefix = f"{name}." if name else ""
            seen = prefix + "num_batches_tracked"
            buffers[seen], x = buffers[seen] + 1, widen(x)
            rate = layer.momentum if layer.momentum is not None else 1.0 / buffers[seen].to(x.dtype)
            across = batch_axes(x)
            mean, var = channel_sums.mean(x, across).flatten(), x.var(across, correction=1)
            for kind, value in (("running_mean", mean), ("running_var", var)):
                buffers[prefix + kind] = update_running(buffers[prefix + kind], value, rate)
        return buffers

    try:
        yield move
    finally:
        for hook in hooks:
            hook.remove()


@contextmanager
def differentiable_statistics(model: nn.Module) -> Iterator[None]:
    """Inside: BatchNorm in eval mode is differentiable in its running statistics.

    torch's own kernel refuses that.
    """

    def forward(layer: _BatchNorm, x: Tensor) -> Tensor:
        if layer.training:
            return type(layer).forward(layer, x)
        assert layer.running_mean is not None and layer.running_var is not None
        centred = x - layer.running_mean.view([1, -1] + [1] * (x.dim() - 2))
        given = (layer.running_var, layer.eps, layer.weight, layer.bias)
        return apply_statistics(centred, *given).to(x.dtype)

    layers = list(batchnorm_layers(model).values())
    for layer in layers:
        layer.__dict__["forward"] = MethodType(forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]

"""Batch, layer and group norm in elementary operations, and BatchNorm's running statistics.

torch's own forward rules of the norms treat the saved mean and deviation as constants, so the
derivative of their jvp is silently wrong (torch 2.11 and 2.13). Written out, they are right.

16-bit numbers are normalized in float32, as torch's kernels do, and returned in the type that torch
returns.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from .autodiff import primal, sum_tensors, unpack_dual, widen
from .state import Buffers

Rate = float | Tensor


class ElementaryNorms(TorchFunctionMode):
    """Inside, batch, layer and group norm are written out in elementary operations."""

    def __torch_function__(self, func: Any, types, args=(), kwargs=None):
        rule: Any = NORM_RULES.get(func, func)
        return rule(*args, **(kwargs or {}))


class PresentRows(TorchFunctionMode):
    """Inside, batch norm in training sees the rows where `present` [B] is 1, and no others.

    A weight of 0 takes an instance out of the loss but leaves it in the batch that BatchNorm sees.
    With this, K runs that each lack other instances can share one vmap.
    """

    def __init__(self, present: Tensor):
        super().__init__()
        self.present = present

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.batch_norm:
            return _batch_norm(*args, **(kwargs or {}), present=self.present)
        return func(*args, **(kwargs or {}))


# --- the formulas ---------------------------------------------------------------------------------


def normalize(
    x: Tensor,
    across: list[int],
    eps: float,
    weight: Tensor | None,
    bias: Tensor | None,
    shape: list[int],
    dtype: torch.dtype,
) -> Tensor:
    """(x - mean) / deviation * weight + bias, and its tangent where x, weight or bias have one.

    Both are written with few sums over the batch, which are what a norm costs: factors of the
    whole batch are multiplied together first.

    Arguments:
        x: what is normalized.
        across: the axes that mean and deviation are taken over.
        eps: what is added to the variance.
        weight: the scale, or None for 1.
        bias: the shift, or None for 0.
        shape: the shape in which weight and bias meet x.
        dtype: of the result.
    """
    x, x_dot = map(widen, unpack_dual(x))
    shaped = lambda t: [v if v is None else widen(v).reshape(shape) for v in unpack_dual(t)]
    (weight, weight_dot), (bias, bias_dot) = shaped(weight), shaped(bias)
    mean = lambda t: channel_mean(t, across)
    like = lambda v: expand_channels(v, x)
    centered = x - like(mean(x))
    scale = torch.rsqrt(mean(centered * centered) + eps)
    gain = scale if weight is None else scale * weight
    out, tangents, slopes = centered * like(gain), [], []
    if x_dot is not None:
        moved = x_dot - like(mean(x_dot))
        tangents.append(moved * like(gain))
        slopes.append(-gain * scale * scale * mean(centered * moved))
    if weight_dot is not None:
        slopes.append(scale * weight_dot)
    tangents += [centered * like(sum_tensors(slopes))] if slopes else []
    tangents += [] if bias_dot is None else [bias_dot.expand_as(out)]
    out = (out if bias is None else out + like(bias)).to(dtype)
    return forward_ad.make_dual(out, sum_tensors(tangents).to(dtype)) if tangents else out


def apply_statistics(
    centered: Tensor, var: Tensor, eps: float, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """Batch norm of what is centered already, with this variance [C]: centered [B, C, ...]."""
    shape = [1, -1] + [1] * (centered.dim() - 2)
    scaled = centered * torch.rsqrt(var + eps).reshape(shape)
    scaled = scaled if weight is None else scaled * weight.reshape(shape)
    return scaled if bias is None else scaled + bias.reshape(shape)


def update_running(running: Tensor, batch: Tensor, rate: Rate) -> Tensor:
    """A running statistic after a batch with this statistic."""
    return (1 - rate) * running + rate * batch


# Sums over the pixels of a batch in two steps: torch adds up the 65,536 values of each of 32 channels
# in one kernel that occupies a corner of a GPU (20 us on an H200). Adding up the instances first and
# the pixels of what is left takes 8 us.


def channel_mean(t: Tensor, across: list[int]) -> Tensor:
    """t.mean(across, keepdim=True)."""
    if across[0] != 0 or len(across) == 1:
        return t.mean(across, keepdim=True)
    return t.mean(0, keepdim=True).mean(across[1:], keepdim=True)


def expand_channels(v: Tensor, t: Tensor) -> Tensor:
    """v [1, C, 1, ...] in a size to be combined with t [B, C, ...]; other shapes as they are."""
    return v.expand(1, *t.shape[1:]) if v.dim() == t.dim() > 2 and len(v) == 1 else v


# --- the norms of torch.nn.functional -------------------------------------------------------------


def _batch_norm(
    input,
    running_mean,
    running_var,
    weight=None,
    bias=None,
    training=False,
    momentum=0.1,
    eps=1e-5,
    *,
    present=None,
):
    """Batch norm over the rows where `present` [B] is 1; None: over all of them.

    Running statistics are updated here only with `present`. In a plain pass torch's kernel updates
    them, and in one that is differentiated twice `watch_statistics` does, outside of this formula.
    """
    if not training and running_mean is not None:  # linear in its input: torch's rule is right
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    if present is None:
        shape = [1, -1] + [1] * (input.dim() - 2)
        return normalize(input, batch_axes(input), eps, weight, bias, shape, input.dtype)
    centered, mean, var, unbiased = _statistics_of_present(widen(input), present)
    if running_mean is not None:
        running_mean.copy_(update_running(running_mean, mean.detach(), momentum))
        running_var.copy_(update_running(running_var, unbiased.detach(), momentum))
    return apply_statistics(centered, var, eps, weight, bias).to(input.dtype)


def _statistics_of_present(x: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x - mean, the mean, the variance and the unbiased variance [C] of the rows that are there."""
    across, shape = batch_axes(x), [1, -1] + [1] * (x.dim() - 2)
    rows = present.reshape([-1] + [1] * (x.dim() - 1))
    count = present.sum() * (x[0, 0].numel())
    mean = (x * rows).sum(across) / count
    centered = x - mean.reshape(shape)
    var = (centered.square() * rows).sum(across) / count
    return centered, mean, var, var * (count / (count - 1))


def _layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    across = list(range(-len(normalized_shape), 0))
    dtype = _cast_type(input)
    return normalize(input, across, eps, weight, bias, list(normalized_shape), dtype)


def _group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    grouped, across = input.unflatten(1, (num_groups, -1)), list(range(2, input.dim() + 1))
    shape = [num_groups, -1] + [1] * (input.dim() - 2)
    return normalize(grouped, across, eps, weight, bias, shape, _cast_type(input)).flatten(1, 2)


def _cast_type(x: Tensor) -> torch.dtype:
    """The type of torch's layer and group norm of x: autocast on a GPU makes it float32."""
    cast = x.is_cuda and torch.is_autocast_enabled("cuda")
    return torch.float32 if cast else x.dtype


def batch_axes(x: Tensor) -> list[int]:
    """The axes that batch norm averages over: all but the channels."""
    return [axis for axis in range(x.dim()) if axis != 1]


NORM_RULES: dict[Callable, Callable] = {
    F.batch_norm: _batch_norm,
    F.layer_norm: _layer_norm,
    F.group_norm: _group_norm,
}


# --- BatchNorm's running statistics as differentiable state ---------------------------------------

# torch updates them as a side effect that autograd does not see, and reads them in eval mode as
# constants. A query in eval mode depends on them, so the adjoint has to pass through both. These
# contexts make both differentiable without touching the model's code.

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


def batchnorm_layers(model: nn.Module) -> dict[str, _BatchNorm]:
    """The BatchNorm layers that keep running statistics, by name."""
    return {
        name: module
        for name, module in model.named_modules()
        if isinstance(module, _BatchNorm) and module.running_mean is not None
    }


def statistics_of(model: nn.Module, *, training: bool = False) -> list[str]:
    """The names of all buffers that belong to BatchNorm; `training`: of layers that update them."""
    layers = batchnorm_layers(model).items()
    names = [name for name, layer in layers if layer.training or not training]
    return [f"{name}.{kind}" if name else kind for name in names for kind in STATISTICS]


@contextmanager
def watch_statistics(model: nn.Module) -> Iterator[Callable[[Buffers], Buffers]]:
    """Inside: run one forward pass in train mode.

    The yielded function then returns the buffers after the pass, as a differentiable function of
    the buffers before it.
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
            count = prefix + "num_batches_tracked"
            buffers[count] = buffers[count] + 1
            x = widen(x)
            rate = layer.momentum
            if rate is None:
                rate = 1.0 / buffers[count].to(x.dtype)
            across = batch_axes(x)
            statistics = {
                "running_mean": channel_mean(x, across).flatten(),
                "running_var": x.var(across, correction=1),
            }
            for kind, value in statistics.items():
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
        centered = x - layer.running_mean.view([1, -1] + [1] * (x.dim() - 2))
        out = apply_statistics(centered, layer.running_var, layer.eps, layer.weight, layer.bias)
        return out.to(x.dtype)

    layers = list(batchnorm_layers(model).values())
    for layer in layers:
        layer.__dict__["forward"] = MethodType(forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]

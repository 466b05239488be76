"""Forward-mode rules where torch's own are slow or, differentiated once more, wrong.

A retrace differentiates the directional losses `jvp(losses)` in reverse. For that torch's forward rules fall short twice:

- batch norm and layer norm take the saved mean and deviation for constants, so the derivative of their jvp is silently wrong
  (torch 2.11 and 2.13). Written out in elementary operations, they are right.
- a convolution or a linear layer whose input is plain data is convolved once more with a tangent of zeros.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode


class ElementaryNorms(TorchFunctionMode):
    """Inside, batch, layer and group norm are written out in elementary operations."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        return _NORMS.get(func, func)(*args, **(kwargs or {}))


class ForwardRules(TorchFunctionMode):
    """Inside, all the rules of this file hold. Only for use within `torch.func.jvp`."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func in _BILINEAR and len(args) > 1 and _is_plain_data(args[0]):
            return _with_constant_input(func, args, kwargs)
        return _NORMS.get(func, func)(*args, **kwargs)


def _is_plain_data(x: Tensor) -> bool:
    return isinstance(x, Tensor) and not is_functorch_wrapped_tensor(x)


def _with_constant_input(func, args, kwargs):
    """func(x, weight, bias) is linear in (weight, bias): its tangent is itself at their tangents."""
    x, weight, *rest = args
    bias, rest = (rest[0], rest[1:]) if rest else (kwargs.pop("bias", None), [])
    primal, tangent = forward_ad.unpack_dual(weight)
    if tangent is None:
        return func(x, weight, bias, *rest, **kwargs)
    bias_primal, bias_tangent = (None, None) if bias is None else forward_ad.unpack_dual(bias)
    return forward_ad.make_dual(func(x, primal, bias_primal, *rest, **kwargs), func(x, tangent, bias_tangent, *rest, **kwargs))


def _batch_norm(input, running_mean, running_var, weight=None, bias=None, training=False, momentum=0.1, eps=1e-5):
    if not training and running_mean is not None:  # linear in its input: torch's own rule is right
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    across = [axis for axis in range(input.dim()) if axis != 1]
    return _affine(_standardized(input, across, eps), weight, bias, [1, -1] + [1] * (input.dim() - 2))


def _layer_norm(input, normalized_shape, weight=None, bias=None, eps=1e-5):
    return _affine(_standardized(input, list(range(-len(normalized_shape), 0)), eps), weight, bias, list(normalized_shape))


def _group_norm(input, num_groups, weight=None, bias=None, eps=1e-5):
    grouped = _standardized(input.unflatten(1, (num_groups, -1)), list(range(2, input.dim() + 1)), eps)
    return _affine(grouped.flatten(1, 2), weight, bias, [1, -1] + [1] * (input.dim() - 2))


def _standardized(x: Tensor, across: list[int], eps: float) -> Tensor:
    var, mean = torch.var_mean(x, across, correction=0, keepdim=True)
    return (x - mean) * torch.rsqrt(var + eps)


def _affine(x: Tensor, weight: Tensor | None, bias: Tensor | None, shape: list[int]) -> Tensor:
    x = x if weight is None else x * weight.reshape(shape)
    return x if bias is None else x + bias.reshape(shape)


_NORMS = {F.batch_norm: _batch_norm, F.layer_norm: _layer_norm, F.group_norm: _group_norm}
_BILINEAR = {F.conv1d, F.conv2d, F.conv3d, F.linear}

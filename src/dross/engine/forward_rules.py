"""Forward-mode rules where torch's own are slow or, differentiated once more, wrong.

A retrace differentiates the directional losses `jvp(losses)` in reverse. There torch's forward
rules fall short in five places:

- Batch norm and layer norm treat the saved mean and deviation as constants, so the derivative of
  their jvp is silently wrong (torch 2.11 and 2.13). norms.py writes them out.
- A convolution or a linear layer whose input is plain data is applied once more to a tangent of
  zeros.
- Cross entropy goes through the derivative of a maximum, which cancels: forty small operations
  where a dozen are enough.
- Where a ReLU is on does not change with its input, but torch goes back as far as the second layer
  to find a derivative of 0.
- What goes backwards through the tangents is the same for all directions, until torch's rule for
  the likelihood makes a copy for each of them. From there on every layer is gone through once per
  direction instead of once.
"""

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.autograd import forward_ad
from torch.overrides import TorchFunctionMode

from .autodiff import sum_tensors, unpack_dual, widen
from .conv import spread_channels
from .norms import NORM_RULES


class ForwardRules(TorchFunctionMode):
    """Inside, all the rules of this file hold. Only for use within `torch.func.jvp`."""

    def __init__(self, joined: bool = False, several: bool = False):
        """Choose the rules.

        Arguments:
            joined: a layer's input and its tangent go through the layer as one batch. Only for a
                single direction: with several, the input would go along with each.
            several: the rules are for several directions at once.
        """
        super().__init__()
        self.joined, self.rules = joined, _RULES | (_RULES_FOR_SEVERAL if several else {})

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if any(isinstance(t, Tensor) and is_batchedtensor(t) for t in args):
            # a model with its own vmap: there a tensor cannot be taken apart
            return func(*args, **kwargs)
        if func in _PIXEL_AXES and len(args) > 1:
            return _bilinear(func, self.joined, args, kwargs)
        return self.rules.get(func, func)(*args, **kwargs)


def _bilinear(func, joined: bool, args, kwargs):
    """func(x, weight, bias) is linear in x, and in (weight, bias)."""
    x, weight, *rest = args
    bias, rest = (rest[0], rest[1:]) if rest else (kwargs.pop("bias", None), [])
    (x, x_dot), (weight, weight_dot), (bias, bias_dot) = map(unpack_dual, (x, weight, bias))
    apply = lambda x, weight, bias=None: func(x, weight, bias, *rest, **kwargs)
    tangents = []
    axes = _PIXEL_AXES[func]
    if x_dot is not None and joined and x.dim() >= axes + 2:
        out, through_x = apply(torch.cat([x, x_dot]), weight).chunk(2)
        out = out if bias is None else out + spread_channels(bias, out, axes)
        tangents.append(through_x)
    else:
        out = apply(x, weight, bias)
        tangents += [] if x_dot is None else [apply(x_dot, weight)]
    if weight_dot is not None:
        tangents.append(apply(x, weight_dot, bias_dot))
    elif bias_dot is not None:
        tangents.append(spread_channels(bias_dot, out, axes).expand_as(out))
    return forward_ad.make_dual(out, sum_tensors(tangents)) if tangents else out


def _cross_entropy(
    input,
    target,
    weight=None,
    size_average=None,
    ignore_index=-100,
    reduce=None,
    reduction="mean",
    label_smoothing=0.0,
    *,
    likelihood=F.nll_loss,
):
    """Log softmax, then the likelihood: without torch's derivative of the maximum."""
    if target.is_floating_point() or label_smoothing:
        return F.cross_entropy(
            input, target, weight, size_average, ignore_index, reduce, reduction, label_smoothing
        )
    classes = 1 if input.dim() > 1 else 0
    dtype = torch.float32 if _is_cast(input) else input.dtype
    likely = _log_softmax(widen(input), classes)  # in 32 bits, as torch computes it
    losses = likelihood(likely, target, weight, size_average, ignore_index, reduce, reduction)
    return losses.to(dtype)


def _relu(input, inplace=False):
    """Its mask is read from the detached output, so that it is not differentiated."""
    x, x_dot = unpack_dual(input)
    if x_dot is None or inplace:
        return F.relu(input, inplace)
    out = F.relu(x)
    return forward_ad.make_dual(out, torch.ops.aten.threshold_backward(x_dot, out.detach(), 0))


def _nll_loss(
    input, target, weight=None, size_average=None, ignore_index=-100, reduce=None, reduction="mean"
):
    """By a gather, whose derivative is the same for all directions."""
    if reduction != "none" or size_average is not None or reduce is not None:
        return F.nll_loss(input, target, weight, size_average, ignore_index, reduce, reduction)
    input = widen(input) if _is_cast(input) else input
    classes = 1 if input.dim() > 1 else 0
    ignored = target == ignore_index
    label = target.masked_fill(ignored, 0).long()
    losses = -input.gather(classes, label.unsqueeze(classes)).squeeze(classes)
    return (losses if weight is None else losses * weight[label]).masked_fill(ignored, 0)


def _log_softmax(input, dim=None, _stacklevel=3, dtype=None):
    """Its tangent is x_dot - sum(softmax x_dot)."""
    x, x_dot = unpack_dual(input)
    if x_dot is None or dim is None or dtype is not None:
        return F.log_softmax(input, dim, _stacklevel, dtype)
    out = F.log_softmax(x, dim)
    x_dot, share = widen(x_dot), widen(out).exp()
    tangent = x_dot - (share * x_dot).sum(dim, keepdim=True)
    return forward_ad.make_dual(out, tangent.to(out.dtype))


def _is_cast(t: Tensor) -> bool:
    """Whether autocast is on where this tensor is: torch computes losses in float32 there."""
    return torch.is_autocast_enabled(t.device.type)


_RULES = {
    **NORM_RULES,
    F.relu: _relu,
    torch.relu: _relu,
    Tensor.relu: _relu,
    F.cross_entropy: _cross_entropy,
    F.log_softmax: _log_softmax,
}
_RULES_FOR_SEVERAL = {
    F.nll_loss: _nll_loss,
    F.cross_entropy: partial(_cross_entropy, likelihood=_nll_loss),
}
# The bilinear layers, and how many axes of pixels follow the channels
_PIXEL_AXES = {F.linear: 0, F.conv1d: 1, F.conv2d: 2, F.conv3d: 3}

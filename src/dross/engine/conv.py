"""Two-dimensional convolutions as matrix products, on a GPU.

For many models at once, and for layers of few channels, cuDNN's strict float32 kernels leave most
of a GPU idle, above all in the gradients of the filters. There the same sum is one matrix product
of the filters with the shifted images. Its derivatives of every order are matrix products again.

For one model and one direction cuDNN is faster from a handful of channels on, if its kernels are
chosen well. By default torch asks cuDNN for a quick guess; the command line asks for a careful
choice (_environment.py). On an H200 that took a training step of the paper's
CIFAR10 network from 1.52 to 1.27 ms and a reverse step of its MNIST network from 0.46 to 0.37 ms.

Several directions share the model's filters and images, so theirs are more channels or more images
of one convolution. As shifted images they would be copied nine times each.
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

_MAX_BYTES = 128 << 20  # of the shifted images of one layer; beyond, cuDNN fills the GPU
WIDE = 8  # channels from which on cuDNN is faster
WIDE_FOR_SEVERAL = 32  # the same for several directions


def convolutions(
    device: torch.device, *, many: bool = False, wide: int | None = None
) -> AbstractContextManager:
    """A context in which a pass on this device convolves; on a CPU as torch does.

    Arguments:
        device: where the pass runs.
        many, wide: as for `ConvAsMatmul`.
    """
    return ConvAsMatmul(many, wide) if device.type == "cuda" else nullcontext()


class ConvAsMatmul(TorchFunctionMode):
    """Inside, convolutions whose shifted images have a moderate size are matrix products."""

    def __init__(self, many: bool = False, wide: int | None = None):
        """Choose the products.

        Arguments:
            many: for many models at once. The gradients of their filters are sums over all pixels
                of all instances: a few long products, which use a corner of the GPU. One product
                per instance, added up afterwards, fills it.
            wide: layers with at least this many channels are left to cuDNN.
        """
        super().__init__()
        self.many, self.wide = many, wide

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.conv2d or kwargs or args[0].dim() != 4:
            return func(*args, **(kwargs or {}))
        x, weight, *rest = args
        bias, rest = (rest[0], rest[1:]) if rest else (None, [])
        for_cudnn = self.wide is not None and x.shape[1] >= self.wide
        out = None if for_cudnn else _product(self.many, x, weight, *rest)
        out = func(x, weight, None, *rest) if out is None else out
        return out if bias is None else out + spread_channels(bias, out, axes=2)


def _product(
    many: bool, x: Tensor, weight: Tensor, stride=1, padding=0, dilation=1, groups=1
) -> Tensor | None:
    """The convolution without its bias, or None if it is left to cuDNN."""
    if groups != 1 or isinstance(padding, str) or _pair(dilation) != (1, 1):
        return None
    (down, right), (pad_rows, pad_columns) = _pair(stride), _pair(padding)
    out_channels, channels, height, width = weight.shape
    pads = [pad_columns, pad_columns, pad_rows, pad_rows]
    padded = F.pad(x, pads) if pad_rows or pad_columns else x
    # [B, C, rows, columns, height, width]
    shifted = _windows(_windows(padded, -2, height, down), -2, width, right)
    if shifted.numel() * x.element_size() > _MAX_BYTES:
        return None
    count, _, rows, columns, _, _ = shifted.shape
    filters, inner = weight.reshape(out_channels, -1), channels * height * width
    # otherwise the filters, repeated for every instance, would be as large as the images
    if many and 4 * out_channels <= rows * columns:
        images = shifted.permute(0, 1, 4, 5, 2, 3).reshape(count, inner, rows * columns)
        products = torch.bmm(filters.expand(count, *filters.shape), images)
        return products.reshape(count, out_channels, rows, columns)
    images = shifted.permute(1, 4, 5, 0, 2, 3).reshape(inner, count * rows * columns)
    return (filters @ images).reshape(out_channels, count, rows, columns).transpose(0, 1)


def spread_channels(v: Tensor, out: Tensor, axes: int) -> Tensor:
    """A layer's bias v [C] for its outputs [B, C, ...] or [C, ...] with `axes` axes of pixels.

    In the outputs' type: autocast decided it for the layer.
    """
    return v.to(out.dtype).reshape([-1] + [1] * axes).expand(out.shape[out.dim() - axes - 1 :])


def _windows(x: Tensor, axis: int, size: int, step: int) -> Tensor:
    """x.unfold(axis, size, step), a view."""
    return _Windows.apply(x, axis, size, step)  # type: ignore[return-value]


class _Windows(torch.autograd.Function):
    """x.unfold with its derivatives, and a rule for vmap.

    The derivatives of torch's own unfold have no such rule and would be computed one by one. The
    axis is counted from the end, so that one more axis in front changes nothing.
    """

    @staticmethod
    def forward(x: Tensor, axis: int, size: int, step: int) -> Tensor:
        return x.unfold(axis, size, step)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, *ctx.how = inputs
        ctx.length = x.shape[ctx.how[0]]

    @staticmethod
    def backward(ctx, g):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _SumOfWindows.apply(g, ctx.length, *ctx.how), None, None, None

    @staticmethod
    def vmap(info, in_dims, x, axis, size, step):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Windows.apply(x.movedim(in_dims[0], 0), axis, size, step), 0


class _SumOfWindows(torch.autograd.Function):
    """The transpose of `_Windows`: a pixel of several windows gets their sum."""

    @staticmethod
    def forward(g: Tensor, length: int, axis: int, size: int, step: int) -> Tensor:
        shape = list(g.shape[:-1])
        shape[axis] = length
        return torch.ops.aten.unfold_backward(g, shape, axis % len(shape), size, step)

    @staticmethod
    def setup_context(ctx, inputs, output):
        _, _, *ctx.how = inputs

    @staticmethod
    def backward(ctx, g):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Windows.apply(g, *ctx.how), None, None, None, None

    @staticmethod
    def vmap(info, in_dims, g, length, axis, size, step):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _SumOfWindows.apply(g.movedim(in_dims[0], 0), length, axis, size, step), 0


def _pair(value: int | tuple[int, ...]) -> tuple[int, int]:
    one, *rest = value if isinstance(value, tuple) else (value,)
    return one, rest[0] if rest else one

"""Two-dimensional convolutions as matrix products, on a GPU.

For many models at once, and for the few channels of the data, cuDNN's strict float32 kernels leave most of a GPU idle (its weight gradients
above all). There the same sum is one matrix product of the filters with the shifted pictures, whose derivatives of every order are matrix products again.
For one model and one direction cuDNN is the quicker one from a handful of channels on, if its kernels are well chosen: torch asks it for the guess that is
made in an instant, and `import dross` for the careful one, unless the environment says otherwise. On an H200 that took a training step of the paper's
CIFAR10 network from 1.52 to 1.27 ms and a reverse step of its MNIST network from 0.46 to 0.37. Several directions share the model's filters and its pictures, so that theirs
are channels or pictures more of one convolution; shifted, they would be copied nine times each (benchmarks/results/).
"""

from contextlib import AbstractContextManager, nullcontext

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.overrides import TorchFunctionMode

from ..autodiff import channel_sums

_MAX_BYTES = 128 << 20  # of the shifted pictures of one layer; beyond, cuDNN has enough to do
WIDE = 8  # channels from which on cuDNN is the quicker one
WIDE_FOR_SEVERAL = 32  # for several directions


def convolutions(
    device: torch.device, *, many: bool = False, wide: int | None = None
) -> AbstractContextManager:
    """How a pass on this device convolves; on a CPU as torch does. Arguments: ConvAsMatmul's."""
    return ConvAsMatmul(many, wide) if device.type == "cuda" else nullcontext()


class ConvAsMatmul(TorchFunctionMode):
    """Inside, convolutions whose shifted pictures are of moderate size are matrix products.

    many: for many models at once. Their filters' gradients are sums over all pixels of all instances, a few long products that occupy a corner of
    the GPU; with a product per instance, added up afterwards, they fill it.
    wide: layers of so many channels or more are left to cuDNN."""

    def __init__(self, many: bool = False, wide: int | None = None):
        super().__init__()
        self.many, self.wide = many, wide

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.conv2d or kwargs or args[0].dim() != 4:
            return func(*args, **(kwargs or {}))
        x, weight, *rest = args
        bias, rest = (rest[0], rest[1:]) if rest else (None, [])
        out = (
            None
            if self.wide is not None and x.shape[1] >= self.wide
            else _product(self.many, x, weight, *rest)
        )
        out = func(x, weight, None, *rest) if out is None else out
        return out if bias is None else out + channel_sums.of_channels(bias, out, axes=2)


def _product(
    many: bool, x: Tensor, weight: Tensor, stride=1, padding=0, dilation=1, groups=1
) -> Tensor | None:
    if groups != 1 or isinstance(padding, str) or _pair(dilation) != (1, 1):
        return None
    (down, right), (high, wide) = _pair(stride), _pair(padding)
    out_channels, channels, height, width = weight.shape
    padded = F.pad(x, [wide, wide, high, high]) if high or wide else x
    shifted = _windows(
        _windows(padded, -2, height, down), -2, width, right
    )  # [B, C, H, W, height, width]
    if shifted.numel() * x.element_size() > _MAX_BYTES:
        return None
    count, _, rows, columns, _, _ = shifted.shape
    filters = weight.reshape(out_channels, -1)
    if (
        many and 4 * out_channels <= rows * columns
    ):  # else the filters, once per instance, would be as large as the pictures
        pictures = shifted.permute(0, 1, 4, 5, 2, 3).reshape(
            count, channels * height * width, rows * columns
        )
        return torch.bmm(filters.expand(count, *filters.shape), pictures).reshape(
            count, out_channels, rows, columns
        )
    pictures = shifted.permute(1, 4, 5, 0, 2, 3).reshape(
        channels * height * width, count * rows * columns
    )
    return (filters @ pictures).reshape(out_channels, count, rows, columns).transpose(0, 1)


def _windows(x: Tensor, axis: int, size: int, step: int) -> Tensor:
    """x.unfold, which is a view. While a pass is traced to be compiled, as a stack of slices: the compiler adds up their gradients in a fixed
    order, those of unfold in the order in which they arrive."""
    if get_proxy_mode() is None:
        return _Windows.apply(x, axis, size, step)  # type: ignore[return-value]
    count = (x.shape[axis] - size) // step + 1
    along = x.movedim(axis, 0)
    return torch.stack(
        [along[k : k + (count - 1) * step + 1 : step].movedim(0, axis) for k in range(size)], dim=-1
    )


class _Windows(torch.autograd.Function):
    """x.unfold, with the same derivatives and a rule for many at once, which torch's own lack: they would be computed one by one.
    The axis is counted from the end, so that another one in front changes nothing."""

    @staticmethod
    def forward(x: Tensor, axis: int, size: int, step: int) -> Tensor:
        return x.unfold(axis, size, step)

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, *ctx.how = inputs
        ctx.length = x.shape[ctx.how[0]]

    @staticmethod
    def backward(ctx, g):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Gathered.apply(g, ctx.length, *ctx.how), None, None, None

    @staticmethod
    def vmap(info, in_dims, x, axis, size, step):  # pyright: ignore[reportIncompatibleMethodOverride]
        return _Windows.apply(x.movedim(in_dims[0], 0), axis, size, step), 0


class _Gathered(torch.autograd.Function):
    """The transpose of it: what lies in several windows is added up."""

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
        return _Gathered.apply(g.movedim(in_dims[0], 0), length, axis, size, step), 0


def _pair(given: int | tuple[int, ...]) -> tuple[int, int]:
    one, *rest = given if isinstance(given, tuple) else (given,)
    return one, rest[0] if rest else one

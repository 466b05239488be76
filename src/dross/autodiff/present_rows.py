"""Many models side by side, each with instances of its own missing from the batch.

A weight of 0 takes an instance out of the loss but leaves it in the batch that BatchNorm sees. Here its statistics are those of the rows
that are present, so K cleansed runs can share one `vmap`, each as if its batch had been cut.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode


class PresentOnly(TorchFunctionMode):
    """Inside, batch norm in training looks at the rows where `present` [B] is 1, and at no others."""

    def __init__(self, present: Tensor):
        super().__init__()
        self.present = present

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is F.batch_norm:
            return _batch_norm(self.present, *args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _batch_norm(
    present,
    input,
    running_mean,
    running_var,
    weight=None,
    bias=None,
    training=False,
    momentum=0.1,
    eps=1e-5,
) -> Tensor:
    if not training:
        return F.batch_norm(input, running_mean, running_var, weight, bias, training, momentum, eps)
    across = [axis for axis in range(input.dim()) if axis != 1]
    shape = [1, -1] + [1] * (input.dim() - 2)
    rows = present.reshape([-1] + [1] * (input.dim() - 1))
    count = present.sum() * (input[0, 0].numel())
    mean = (input * rows).sum(across) / count
    centred = input - mean.reshape(shape)
    var = (centred.square() * rows).sum(across) / count
    if running_mean is not None:
        running_mean.mul_(1 - momentum).add_(momentum * mean.detach())
        running_var.mul_(1 - momentum).add_(momentum * var.detach() * (count / (count - 1)))
    scaled = centred * torch.rsqrt(var + eps).reshape(shape)
    scaled = scaled if weight is None else scaled * weight.reshape(shape)
    return scaled if bias is None else scaled + bias.reshape(shape)

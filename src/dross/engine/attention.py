"""Which of torch's attention kernels a pass uses.

Training keeps the kernels that the loop chose: a replay must give the same bits. The fused ones
have no second derivative, so a pass that is differentiated twice takes the math kernel, the same
formula in elementary operations, at the recorded states.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

_cuda = torch.backends.cuda
_KERNELS = {  # the names that a tape keeps
    "flash": (SDPBackend.FLASH_ATTENTION, _cuda.flash_sdp_enabled),
    "efficient": (SDPBackend.EFFICIENT_ATTENTION, _cuda.mem_efficient_sdp_enabled),
    "math": (SDPBackend.MATH, _cuda.math_sdp_enabled),
    "cudnn": (SDPBackend.CUDNN_ATTENTION, _cuda.cudnn_sdp_enabled),
}
MATH = ("math",)


def allowed_kernels() -> tuple[str, ...]:
    """The kernels that torch may choose from now, by their names on a tape."""
    return tuple(name for name, (_, is_enabled) in _KERNELS.items() if is_enabled())


def are_kernels(value: object) -> bool:
    """Whether this is a list of names of kernels."""
    return isinstance(value, list) and all(name in list(_KERNELS) for name in value)


@contextmanager
def use_kernels(names: Sequence[str]) -> Iterator[None]:
    """Inside, torch chooses among these kernels."""
    with sdpa_kernel([_KERNELS[name][0] for name in names] or [SDPBackend.MATH]):
        yield


class AttentionCalls(TorchFunctionMode):
    """Counts how often attention is called inside."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func is F.scaled_dot_product_attention
        return func(*args, **(kwargs or {}))


class MathAttention(TorchFunctionMode):
    """Inside, attention uses the math kernel, even where a model itself asks for another."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        with sdpa_kernel(SDPBackend.MATH):
            return func(*args, **(kwargs or {}))

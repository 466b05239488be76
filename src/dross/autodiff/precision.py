"""How exactly a run computes: strict float32 unless something quicker was asked for by name.

strict   every product in the type of the parameters, sums in a fixed order
tf32     products of float32 on a GPU with 10 bits of mantissa, sums in float32
bf16     the forward pass in bfloat16 where torch's autocast finds that safe; losses, gradients of
         the parameters and updates in float32

A run is retraced as it was recorded: its arithmetic is written on the tape. What the quick ones do
to the scores is measured by benchmarks/arithmetic.py.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from ..errors import BadInput
from ..support.name_hints import check_name

KINDS = ("strict", "tf32", "bf16")


def check_arithmetic(kind: str, device: torch.device, dtype: torch.dtype) -> str:
    """The kind itself, or an error where parameters of this type on this device cannot have it."""
    check_name("arithmetic", kind, KINDS)
    if kind == "tf32" and device.type != "cuda":
        raise BadInput(
            "arithmetic='tf32' is something that NVIDIA GPUs do; on a CPU there is 'strict' and "
            "'bf16'."
        )
    if kind != "strict" and dtype != torch.float32:
        own = str(dtype).removeprefix("torch.")
        raise BadInput(f"arithmetic='{kind}' is for float32 models; this one is {own}.")
    return kind


@contextmanager
def use_arithmetic(model: nn.Module, kind: str = "strict") -> Iterator[None]:
    """Inside, a model computes in this arithmetic, the same way every time, and differentiably.

    Fused attention has no second derivative, TF32 is not float32, and some convolutions add up in a
    random order.
    """
    mha = torch.backends.mha.get_fastpath_enabled()
    switches = _gpu_switches(kind) if any(p.is_cuda for p in model.parameters()) else []
    before = [(holder, name, getattr(holder, name)) for holder, name, _ in switches]
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for holder, name, value in switches:
            setattr(holder, name, value)
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(mha)
        for holder, name, value in before:
            setattr(holder, name, value)


def autocast(kind: str, device: torch.device) -> AbstractContextManager:
    """The context that a forward pass in this arithmetic needs."""
    return torch.autocast(device.type, torch.bfloat16) if kind == "bf16" else nullcontext()


def widen(outputs: Any) -> Any:
    """A model's outputs for its loss, which needs more digits than bfloat16 has."""
    narrow = isinstance(outputs, Tensor) and outputs.dtype == torch.bfloat16
    return outputs.float() if narrow else outputs


def _gpu_switches(kind: str) -> list[tuple[Any, str, Any]]:
    """Holder, name and value of each. torch 2.9 renamed them and refuses to mix the names."""
    cudnn: Any = torch.backends.cudnn
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        precision = "tf32" if kind == "tf32" else "ieee"
        holders = (matmul, cudnn.conv, cudnn.rnn)
        switches = [(holder, "fp32_precision", precision) for holder in holders]
    else:
        switches = [(matmul, "allow_tf32", kind == "tf32"), (cudnn, "allow_tf32", kind == "tf32")]
    return [*switches, (cudnn, "deterministic", True)]

"""How precisely a run computes: strict float32 unless something quicker was asked for.

strict   every product in the type of the parameters, sums in a fixed order
tf32     products of float32 on a GPU with 10 bits of mantissa, sums in float32
bf16     the forward pass in bfloat16 where torch's autocast finds that safe; losses, gradients of
         the parameters and updates in float32

A loop that runs under autocast says so by itself (casting.py). A run is retraced as it was
recorded: all of this is written on the tape. What the quick ones do to the scores is measured by
benchmarks/arithmetic.py and benchmarks/mixed_precision.py.
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InvalidInput
from ..support.name_hints import check_name
from .attention import MATH, MathAttention, use_kernels
from .casting import NARROW_NAMES, Autocast, no_autocast
from .norms import ElementaryNorms
from .without_checkpointing import plain_passes

KINDS = ("strict", "tf32", "bf16")


@dataclass(frozen=True)
class Precision:
    """The types and kernels that the passes of a run are computed with."""

    arithmetic: str = "strict"
    autocast: Autocast | None = None  # around the passes of the loop
    inner_cast: torch.dtype | None = None  # what the model casts to inside its own forward
    kernels: tuple[str, ...] = MATH  # that attention may use in training

    @property
    def narrow(self) -> torch.dtype | None:
        """The type of 16 bits that passes compute in, where they do."""
        return self.autocast.dtype if self.autocast else self.inner_cast

    def cast(self, part: str) -> AbstractContextManager:
        """The context that the "model", the "loss" or the "backward" pass is computed in."""
        return nullcontext() if self.autocast is None else self.autocast.around(part)

    def cast_in_evaluation(self) -> AbstractContextManager:
        """The context for evaluating a model: arithmetic="bf16" is for training only."""
        return self.cast("model") if self.arithmetic == "strict" else nullcontext()

    @contextmanager
    def twice_differentiable(self, rows: int = 1) -> Iterator[None]:
        """Inside, every layer has a correct second derivative, for `rows` directions at once.

        Fused attention has none. Many vjps at once through torch's norms fail or are wrong, and
        their second derivatives cancel in 16 bits; written out, they are right.
        """
        norms = ElementaryNorms() if rows > 1 or self.narrow else nullcontext()
        with norms, self.math_attention():
            yield

    @contextmanager
    def math_attention(self) -> Iterator[None]:
        """Inside, attention is the kernel that has a second derivative, and a rule for vmap."""
        if self.kernels == MATH:
            yield
            return
        with use_kernels(MATH), MathAttention():
            yield

    def own_leaves(self, named: dict[str, Tensor]) -> dict[str, Tensor] | None:
        """The parameters as leaves, where autocast keeps what it has cast; None where it does not.

        It does so for leaves only. A weight that is used twice is then cast once, and its gradients
        are added in the narrow type: other bits than those of two casts.
        """
        kept = self.autocast.cache if self.autocast else self.inner_cast is not None
        if not kept:
            return None
        return {name: part.detach().clone().requires_grad_() for name, part in named.items()}

    def to_json(self) -> dict:
        """What a tape keeps of it."""
        inner = self.inner_cast
        return {
            "arithmetic": self.arithmetic,
            "autocast": None if self.autocast is None else self.autocast.to_json(),
            "inner_cast": None if inner is None else str(inner).removeprefix("torch."),
            "kernels": list(self.kernels),
        }

    @staticmethod
    def from_json(saved: dict, device: torch.device, dtype: torch.dtype) -> "Precision":
        """What a manifest says, for parameters of this type on this device."""
        arithmetic = check_arithmetic(saved.get("arithmetic", "strict"), device, dtype)
        cast = Autocast.from_json(saved.get("autocast")) or cast_of(arithmetic, device)
        cast = cast if cast is None else replace(cast, device=device.type)
        inner = NARROW_NAMES.get(saved.get("inner_cast") or "")
        return Precision(arithmetic, cast, inner, tuple(saved.get("kernels", MATH)))


STRICT = Precision()


def check_arithmetic(kind: str, device: torch.device, dtype: torch.dtype) -> str:
    """The kind itself, or an error where parameters of this type on this device cannot have it."""
    check_name("arithmetic", kind, KINDS)
    if kind == "tf32" and device.type != "cuda":
        raise InvalidInput(
            "arithmetic='tf32' needs an NVIDIA GPU. Elsewhere, use 'strict' or 'bf16'."
        )
    if kind != "strict" and dtype != torch.float32:
        own = str(dtype).removeprefix("torch.")
        raise InvalidInput(f"arithmetic='{kind}' is for float32 models; this one is {own}.")
    return kind


def cast_of(kind: str, device: torch.device) -> Autocast | None:
    """The autocast that this arithmetic means: the loss needs more digits than bfloat16 has."""
    if kind != "bf16":
        return None
    return Autocast(device.type, torch.bfloat16, cache=False, loss=False)


@contextmanager
def use_arithmetic(
    model: nn.Module, kind: str = "strict", kernels: Sequence[str] = MATH
) -> Iterator[None]:
    """Inside, a model computes in this arithmetic, the same way every time, and differentiably.

    TF32 is not float32, and some convolutions add up in a random order. No autocast is on but those
    that a pass asks for.

    Arguments:
        model: what computes.
        kind: one of KINDS.
        kernels: those that attention may use; only "math" has a second derivative.
    """
    mha = torch.backends.mha.get_fastpath_enabled()
    devices = {p.device.type for p in model.parameters()}
    if "meta" in devices:  # a model without weights computes on the default device
        devices = (devices - {"meta"}) | {torch.get_default_device().type}
    switches = _gpu_switches(kind) if "cuda" in devices else []
    before = [(holder, name, getattr(holder, name)) for holder, name, _ in switches]
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for holder, name, value in switches:
            setattr(holder, name, value)
        with no_autocast(*devices), plain_passes(), use_kernels(kernels):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(mha)
        for holder, name, value in before:
            setattr(holder, name, value)


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

"""Autocast as a part of what a run computes: seen, written down, and applied again.

    around    the loop computes its forward pass inside `torch.autocast`: `Autocast` says how
    inside    the model does so in its own forward (accelerate wraps it so): part of the model

A cast rounds. Its derivative is taken to be 1, as autograd takes it, so the derivative of a cast
pass is that of the same operations in the same types (docs/derivations.md).
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils import checkpoint

from ..errors import InvalidInput
from .autodiff import NARROW
from .norms import ElementaryNorms


@dataclass(frozen=True)
class Autocast:
    """How a loop's passes are cast."""

    device: str  # "cpu", "cuda"
    dtype: torch.dtype
    cache: bool = True  # a weight is cast once per pass, however often it is used
    loss: bool = True  # the loss is computed inside, too
    backward: bool = False  # backward() runs inside, too

    def around(self, part: str) -> AbstractContextManager:
        """The context of the "model", the "loss" or the "backward" pass."""
        inside = {"model": True, "loss": self.loss, "backward": self.backward}[part]
        if not inside:
            return nullcontext()
        return torch.autocast(self.device, self.dtype, cache_enabled=self.cache)

    def __str__(self) -> str:
        where = [part for part, on in (("loss", self.loss), ("backward", self.backward)) if on]
        name = str(self.dtype).removeprefix("torch.")
        cache = "" if self.cache else ", without its cache"
        return f"{name} on {self.device}, around the {' and '.join(['forward', *where])}{cache}"


def check_autocast(
    autocast: Any, device: torch.device, dtype: torch.dtype = torch.float32
) -> Autocast | None:
    """The `autocast=` argument of a run whose parameters are of this type on this device."""
    if autocast is None:
        return None
    if autocast not in NARROW:
        raise InvalidInput(
            f"autocast must be torch.bfloat16 or torch.float16, the type that forward passes are "
            f"cast to, not {autocast!r}."
        )
    if dtype != torch.float32:
        name = str(dtype).removeprefix("torch.")
        raise InvalidInput(f"autocast= is for float32 models; this one is {name}.")
    return Autocast(device.type, autocast)


def observe_autocast(device: torch.device) -> Autocast | None:
    """The autocast that is on around the caller for this kind of device, if any."""
    if not torch.is_autocast_enabled(device.type):
        return None
    dtype = torch.get_autocast_dtype(device.type)
    if dtype not in NARROW:  # torch treats other types as off, with a warning
        return None
    return Autocast(device.type, dtype, torch.is_autocast_cache_enabled())


@contextmanager
def no_autocast(*devices: str) -> Iterator[None]:
    """Inside, no autocast of the caller's is on for these kinds of devices and for the CPU."""
    with ExitStack() as stack:
        for device in {"cpu", *devices}:
            if torch.is_autocast_enabled(device):
                stack.enter_context(torch.autocast(device, enabled=False))
        yield


_ATTENTION = (F.scaled_dot_product_attention, F.multi_head_attention_forward)


class PassNotes(TorchFunctionMode):
    """Notes what a model does inside its forward pass and cannot be seen from outside."""

    def __init__(self, device: torch.device):
        super().__init__()
        self.device = device.type
        self.cast: torch.dtype | None = None  # what the model casts to in its own forward
        self.attention_calls = 0  # how often it calls torch's attention

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if torch.is_autocast_enabled(self.device):
            self.cast = torch.get_autocast_dtype(self.device)
        self.attention_calls += func in _ATTENTION
        return func(*args, **(kwargs or {}))


# --- attention kernels ----------------------------------------------------------------------------

# Training keeps the kernels that the loop chose: a replay must give the same bits. The fused ones
# have no second derivative, so a pass that is differentiated twice takes the math kernel, the same
# formula in elementary operations, at the recorded states.

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


@contextmanager
def use_kernels(names: Sequence[str]) -> Iterator[None]:
    """Inside, torch chooses among these kernels."""
    with sdpa_kernel([_KERNELS[name][0] for name in names] or [SDPBackend.MATH]):
        yield


class MathAttention(TorchFunctionMode):
    """Inside, attention uses the math kernel, even where a model itself asks for another."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func is not F.scaled_dot_product_attention:
            return func(*args, **(kwargs or {}))
        with sdpa_kernel(SDPBackend.MATH):
            return func(*args, **(kwargs or {}))


# --- the precision of a run -----------------------------------------------------------------------

# How precisely a run computes: every product in the type of the parameters and sums in a fixed order,
# except where autocast is on. A run is retraced as it was recorded: all of this is on the tape.


@dataclass(frozen=True)
class Precision:
    """The types and kernels that the passes of a run are computed with."""

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
        """The parameters as leaves, where autocast keeps what it has cast; None if it does not.

        It does so for leaves only. A weight that is used twice is then cast once, and its gradients
        are added in the narrow type: other bits than those of two casts.
        """
        kept = self.autocast.cache if self.autocast else self.inner_cast is not None
        if not kept:
            return None
        return {name: part.detach().clone().requires_grad_() for name, part in named.items()}

    def on_device(self, device: torch.device) -> "Precision":
        """The same on a device of this kind."""
        if self.autocast is None:
            return self
        return replace(self, autocast=replace(self.autocast, device=device.type))


STRICT = Precision()


@contextmanager
def use_arithmetic(model: nn.Module, kernels: Sequence[str] = MATH) -> Iterator[None]:
    """Inside, a model computes in strict float32, the same way every time, and differentiably.

    TF32 is not float32, and some convolutions add up in a random order. No autocast is on but those
    that a pass asks for.

    Arguments:
        model: what computes.
        kernels: those that attention may use; only "math" has a second derivative.
    """
    mha = torch.backends.mha.get_fastpath_enabled()
    devices = {p.device.type for p in model.parameters()}
    if "meta" in devices:  # a model without weights computes on the default device
        devices = (devices - {"meta"}) | {torch.get_default_device().type}
    switches = _gpu_switches() if "cuda" in devices else []
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


def _gpu_switches() -> list[tuple[Any, str, Any]]:
    """Holder, name and value of each. torch 2.9 renamed them and refuses to mix the names."""
    cudnn: Any = torch.backends.cudnn
    matmul = torch.backends.cuda.matmul
    if hasattr(matmul, "fp32_precision"):
        holders = (matmul, cudnn.conv, cudnn.rnn)
        switches = [(holder, "fp32_precision", "ieee") for holder in holders]
    else:
        switches = [(matmul, "allow_tf32", False), (cudnn, "allow_tf32", False)]
    return [*switches, (cudnn, "deterministic", True)]


# --- passes without gradient checkpointing and compiled functions ---------------------------------

# Gradient checkpointing recomputes a block in the backward pass: with the model's own weights, not
# with those of a functional call, and not at all under `torch.autograd.grad` (the reentrant kind). A
# compiled function has no second derivative. Neither changes what is computed, so dross's own passes
# do without both.

# All code that has imported `torch.utils.checkpoint.checkpoint`, under whatever name, calls one of
# these through the module: the reentrant kind, or the other, which torch 2.15 has renamed.
_REENTRANT, _OTHER = "CheckpointFunction", "_checkpoint_without_reentrant_generator"
_OTHERS = [name for name in (_OTHER, f"{_OTHER}_impl") if hasattr(checkpoint, name)]


class _CallAsItStands:
    @staticmethod
    def apply(function: Callable, preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


def _do_nothing_around(*args: Any, **kwargs: Any) -> Iterator[None]:
    """What runs before and after a checkpointed block: torch calls the block at the yield."""
    yield


@contextmanager
def plain_passes() -> Iterator[None]:
    """Inside, checkpointed blocks keep their activations, and compiled functions run as written."""
    stands_in = {_REENTRANT: _CallAsItStands} | dict.fromkeys(_OTHERS, _do_nothing_around)
    before = {name: getattr(checkpoint, name) for name in stands_in}
    try:
        for name, plain in stands_in.items():
            setattr(checkpoint, name, plain)
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for name, original in before.items():
            setattr(checkpoint, name, original)

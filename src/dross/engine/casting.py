"""Autocast as a part of what a run computes: seen, written down, and applied again.

    around    the loop computes its forward pass inside `torch.autocast`: `Autocast` says how
    inside    the model does so in its own forward (accelerate wraps it so): part of the model

A cast rounds. Its derivative is taken to be 1, as autograd takes it, so the derivative of a cast
pass is that of the same operations in the same types (docs/derivations.md).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode

from ..errors import InvalidInput

NARROW = (torch.bfloat16, torch.float16)
NARROW_NAMES = {str(dtype).removeprefix("torch."): dtype for dtype in NARROW}


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

    def to_json(self) -> dict:
        """What a tape keeps of it."""
        name = str(self.dtype).removeprefix("torch.")
        return {
            "device": self.device,
            "dtype": name,
            "cache": self.cache,
            "loss": self.loss,
            "backward": self.backward,
        }

    @staticmethod
    def from_json(saved: dict | None) -> "Autocast | None":
        """The autocast that `to_json` described; None for a run without one."""
        if saved is None:
            return None
        keys = ("cache", "loss", "backward")
        dtype = NARROW_NAMES[saved["dtype"]]
        return Autocast(saved["device"], dtype, **{key: saved[key] for key in keys})


def is_saved_autocast(value: Any) -> bool:
    """Whether this is what `to_json` writes."""
    if not isinstance(value, dict) or set(value) != {
        "device",
        "dtype",
        "cache",
        "loss",
        "backward",
    }:
        return False
    flags = all(isinstance(value[key], bool) for key in ("cache", "loss", "backward"))
    return flags and isinstance(value["device"], str) and value["dtype"] in list(NARROW_NAMES)


def check_autocast(
    given: Any, device: torch.device, dtype: torch.dtype = torch.float32
) -> Autocast | None:
    """The `autocast=` argument of a run whose parameters are of this type on this device."""
    if given is None:
        return None
    if given not in NARROW:
        raise InvalidInput(
            f"autocast must be torch.bfloat16 or torch.float16, the type passes are cast to, not "
            f"{given!r}."
        )
    if dtype != torch.float32:
        own = str(dtype).removeprefix("torch.")
        raise InvalidInput(f"autocast= is for float32 models; this one is {own}.")
    return Autocast(device.type, given)


def observe(device: torch.device) -> Autocast | None:
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


def widen(t: Any) -> Any:
    """A tensor of 16 bits as float32, in which torch's own kernels compute; others as they are."""
    narrow = isinstance(t, Tensor) and t.dtype in NARROW
    return t.float() if narrow else t


class PassNotes(TorchFunctionMode):
    """Notes what a model does inside its forward pass and cannot be seen from outside."""

    def __init__(self, parameter: Tensor):
        super().__init__()
        self.device = parameter.device.type
        self.narrow = parameter.dtype if parameter.dtype in NARROW else None
        self.cast: torch.dtype | None = None  # what the model casts to in its own forward
        self.attends = False  # it calls torch's attention

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if torch.is_autocast_enabled(self.device):
            self.cast = torch.get_autocast_dtype(self.device)
        if func in (F.scaled_dot_product_attention, F.multi_head_attention_forward):
            self.attends = True
        return func(*args, **(kwargs or {}))

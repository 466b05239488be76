"""What the host does while a GPU computes.

A GPU works off what it has been asked for in one row, and a host that wants to see a number waits for the whole row. These two let it see what is there
already while the GPU goes on. On a CPU, where nothing is ever under way, they do nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor


class HostCopy:
    """Tensors on their way to the host. Waiting for them is not waiting for anything that was asked for later."""

    def __init__(self, tensors: dict[str, Tensor]):
        self._there = None
        if on_gpu := [t.device for t in tensors.values() if t.is_cuda]:
            self._tensors = {name: _copying(t.detach()) for name, t in tensors.items()}
            self._there = torch.cuda.current_stream(on_gpu[0]).record_event()
        else:
            self._tensors = {name: t.detach().cpu() for name, t in tensors.items()}

    def wait(self) -> dict[str, Tensor]:
        if self._there is not None:
            self._there.synchronize()
        return self._tensors


def _copying(t: Tensor) -> Tensor:
    return torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True)


@contextmanager
def side_stream(device: torch.device) -> Iterator["torch.cuda.Stream | None"]:
    """Inside, the GPU is used beside what it was asked for before, so nothing may be touched that is still being computed. What is made inside is there at
    the end; to use it outside, keep it from being reused too early: t.record_stream(the stream that this gives)."""
    if device.type != "cuda":
        yield None
        return
    outside, stream = torch.cuda.current_stream(device), _second_stream(device)
    with torch.cuda.stream(stream):
        yield outside
    stream.synchronize()


@cache
def _second_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)

"""Let the host read results while a GPU goes on computing.

A GPU works through its queue in order, and a host that reads a number waits for the whole queue.
With these two it reads what is finished while the GPU works on the rest. On a CPU, where nothing is
ever in flight, they do nothing.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

import torch
from torch import Tensor


class HostCopy:
    """Tensors being copied to the host.

    Waiting for them does not wait for work that was queued later.
    """

    def __init__(self, tensors: dict[str, Tensor]):
        self._arrival = None
        if on_gpu := [t.device for t in tensors.values() if t.is_cuda]:
            self._tensors = {name: _start_copy(t.detach()) for name, t in tensors.items()}
            self._arrival = torch.cuda.current_stream(on_gpu[0]).record_event()
        else:
            self._tensors = {name: t.detach().cpu() for name, t in tensors.items()}

    def wait(self) -> dict[str, Tensor]:
        """The tensors, once they have arrived."""
        if self._arrival is not None:
            self._arrival.synchronize()
        return self._tensors


def _start_copy(t: Tensor) -> Tensor:
    return torch.empty(t.shape, dtype=t.dtype, pin_memory=True).copy_(t, non_blocking=True)


@contextmanager
def side_stream(device: torch.device) -> Iterator["torch.cuda.Stream | None"]:
    """Inside, work goes into a second queue of the GPU, beside the main one.

    Inside, use nothing that the main queue is still computing. What is computed inside is finished
    at the end. A tensor that is used outside must not be freed too early: call t.record_stream(s)
    with the stream s that this yields (None on a CPU).
    """
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

"""How much memory a pass takes on top of what was held before it.

On a GPU torch's allocator knows. On a CPU the tensors that the pass makes are counted, from the
operation that makes each until it is freed: what a processor's libraries take for themselves is not
seen.
"""

import os
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

Result = TypeVar("Result")


def measure_peak(pass_: Callable[[], Result], device: torch.device) -> tuple[Result, int]:
    """The result of a pass, and the most bytes that it held at a time, its result included.

    Arguments:
        pass_: runs it.
        device: where it runs. Anywhere but on a GPU it runs under a dispatch mode, which costs
            time.
    """
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        result = pass_()
        torch.cuda.synchronize(device)
        return result, torch.cuda.max_memory_allocated(device) - before
    with _LiveBytes() as counted:
        result = pass_()
    return result, counted.peak


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that operations make, and that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._live = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        given = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if _is_counted(t)}
        result = function(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            if not _is_counted(t):
                continue
            storage = t.untyped_storage()
            if id(storage) not in given and storage not in self._seen:
                self._seen.add(storage)
                self._live += storage.nbytes()
                weakref.finalize(storage, self._free, storage.nbytes())
        self.peak = max(self.peak, self._live)
        return result

    def _free(self, nbytes: int) -> None:
        self._live -= nbytes


def _is_counted(t: Any) -> bool:
    return isinstance(t, Tensor) and t.layout is torch.strided


def available_memory(device: torch.device) -> int:
    """Bytes that are free on a GPU, or in the machine."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    try:
        with open("/proc/meminfo", encoding="utf-8") as lines:
            line = next(line for line in lines if line.startswith("MemAvailable"))
            return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        if not hasattr(os, "sysconf"):  # Windows: assume little
            return 2 << 30
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2

"""The device that computes: which one, and its memory, queues and threads."""

import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from .._environment import free_memory
from ..errors import InvalidInput, first_line

Result = TypeVar("Result")

_FEWEST_PASSES = 3  # that are timed,
_MEASURED_SECONDS = 0.1  # or as many as take so long


def find_device(device: str | torch.device, otherwise: str) -> torch.device:
    """The device of this name, after a check that it can hold a tensor.

    Arguments:
        device: Its name, such as `cpu`, `cuda`, `cuda:1` or `mps`.
        otherwise: What to do where it is not available: a sentence.

    Raises:
        InvalidInput: there is no such device here.
    """
    try:
        wanted = torch.device(device)
        torch.zeros(1, device=wanted)
    except (RuntimeError, AssertionError, NotImplementedError, TypeError) as error:
        why = first_line(error)
        if why.startswith("Expected one of"):  # all devices that torch was ever built for
            raise InvalidInput(f"There is no device '{device}'. {otherwise}") from None
        raise InvalidInput(f"The device '{device}' is not available ({why}). {otherwise}") from None
    return wanted


def choose_device(device: str | None) -> torch.device:
    """The device of this name, or by default a GPU if torch can use one, and else the CPU.

    Raises:
        InvalidInput: there is no such device here.
    """
    if device is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    otherwise = "Use cpu, cuda or mps, or leave it out for the best one available."
    wanted = find_device(device, otherwise)
    if wanted.type not in ("cpu", "cuda", "mps"):
        raise InvalidInput(f"The device '{device}' does not support training. {otherwise}")
    return wanted


# --- memory ---------------------------------------------------------------------------------------

# How much memory a pass takes on top of what was held before it.
#
# On a GPU torch's allocator knows. On a CPU the tensors that the pass makes are counted, from the
# operation that makes each until it is freed: what a processor's libraries take for themselves is not
# seen.


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


def measure_seconds(pass_: Callable[[], object], device: torch.device) -> float:
    """How long a pass takes."""
    start = time.perf_counter()
    pass_()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter() - start


def mean_seconds(pass_: Callable[[], object], device: torch.device) -> float:
    """How long a pass takes on average: on a busy machine one of them alone says little."""
    seconds: list[float] = []
    while len(seconds) < _FEWEST_PASSES or sum(seconds) < _MEASURED_SECONDS:
        seconds.append(measure_seconds(pass_, device))
    return sum(seconds) / len(seconds)


class _LiveBytes(TorchDispatchMode):
    """Counts the bytes of the storages that operations make, and that are still alive."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = self._live = 0
        self._seen: weakref.WeakSet[Any] = weakref.WeakSet()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None):
        inputs = {id(t.untyped_storage()) for t in tree_leaves((args, kwargs)) if _is_counted(t)}
        result = function(*args, **(kwargs or {}))
        for t in tree_leaves(result):
            if not _is_counted(t):
                continue
            storage = t.untyped_storage()
            if id(storage) not in inputs and storage not in self._seen:
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
    return free_memory()


# --- streams --------------------------------------------------------------------------------------

# Let the host read results while a GPU computes the next ones.
#
# A GPU works through its queue in order, and a host that reads a number waits for the whole queue.
# With these two it reads what is finished while the GPU works on the rest. On a CPU, where nothing is
# ever in flight, they do nothing.


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


# --- threads --------------------------------------------------------------------------------------

# How many CPU threads a pass runs on.
#
# torch divides every operation between all threads. For a small model this saves nothing. And when
# another program keeps one core busy, every operation waits for the thread on that core: on two
# cores, one of them busy, the demo took eight minutes instead of half a minute. So a small pass runs
# on one thread. Its size is counted, not timed: the same pass gets the same number of threads every
# time, and rounds the same way.

# operations of the forward passes; from about here on, two threads are a fifth faster than one
_MIN_OPERATIONS_FOR_ALL_THREADS = 2**23

_depth = 0  # how many manage_threads() are open
_allowed = 1  # the number of threads outside them


@contextmanager
def manage_threads() -> Iterator[None]:
    """Inside, passes set the number of threads. At the end it is what it was before."""
    global _depth, _allowed
    if _depth == 0:
        _allowed = torch.get_num_threads()
    _depth += 1
    try:
        yield
    finally:
        _depth -= 1
        if _depth == 0:
            _set(_allowed)


def set_threads(count: int) -> None:
    """Compute on this number of threads, within `manage_threads`."""
    if _depth:
        _set(count)


def set_threads_for(operations: float) -> None:
    """Choose the number of threads for a pass of this many operations."""
    set_threads(_allowed if operations >= _MIN_OPERATIONS_FOR_ALL_THREADS else 1)


def _set(count: int) -> None:
    if torch.get_num_threads() != count:
        torch.set_num_threads(count)

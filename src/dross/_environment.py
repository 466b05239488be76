"""What the command line sets in its process, before torch is imported, so that torch is fast."""

import ctypes
import os
import sys

_VARIABLES = {
    # torch's idle CPU threads spin while they wait for the next operation. By default they spin
    # thirty times longer than this, and take cores from each other and from other programs.
    "GOMP_SPINCOUNT": "10000",
    # cuDNN has two heuristics that choose a convolution kernel. torch uses the one that answers
    # faster by default, and its kernels take up to four times as long on a GPU.
    "TORCH_CUDNN_USE_HEURISTIC_MODE_B": "1",
}

_KEPT_BYTES = 1 << 30  # freed memory that the process keeps for its next allocations
_MAPPED_BYTES = 32 << 20  # larger blocks are mapped one by one; the C library allows no more
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # from malloc.h


def prepare_environment() -> None:
    """Set what makes torch fast here, except what the user has set."""
    for name, value in _VARIABLES.items():
        os.environ.setdefault(name, value)
    keep_freed_memory()


def keep_freed_memory() -> None:
    """Let the C library keep up to 1 GiB of freed memory, if it is glibc.

    By default glibc returns freed memory to the system as soon as it lies at the end of the heap.
    Whether a model's activations lie there is chance. Where they do, every pass over the model pays
    for tens of thousands of page faults, about a tenth of its time.

    Nothing is set where the user has set a MALLOC_ variable of glibc.
    """
    if not sys.platform.startswith("linux") or any(v.startswith("MALLOC_") for v in os.environ):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)  # other C libraries lack it
    if mallopt is not None:
        mallopt(_M_MMAP_THRESHOLD, _MAPPED_BYTES)
        mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES)


def free_memory() -> int:
    """Bytes of memory that are free in the machine."""
    try:
        with open("/proc/meminfo", encoding="utf-8") as lines:
            line = next(line for line in lines if line.startswith("MemAvailable"))
            return int(line.split()[1]) * 1024
    except (OSError, StopIteration):
        if not hasattr(os, "sysconf"):  # Windows: assume little
            return 2 << 30
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2

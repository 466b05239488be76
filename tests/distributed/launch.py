"""Real processes on this machine that talk through torch.distributed."""

import multiprocessing
import os
import signal
import socket
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

# torch is imported once, and no thread of pytest is forked
_CONTEXT = multiprocessing.get_context("forkserver")
# DDP would import the latter in each process anew
_CONTEXT.set_forkserver_preload(["tests.distributed.rank_jobs", "torch._dynamo"])


def free_port() -> int:
    """A port that no process uses at the moment."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def launched(size: int, job: Callable, folder: Path, *args: Any, timeout: float = 120) -> list[Any]:
    """job(rank, *args) on every rank, each in a process of its own.

    Returns what each rank returned, or what it died of: an exception, or minus a signal's number.
    """
    folder.mkdir(exist_ok=True)
    port, results = free_port(), [folder / f"rank-{rank}" for rank in range(size)]
    processes = [
        _CONTEXT.Process(target=_rank, args=(rank, size, port, results[rank], job, args))
        for rank in range(size)
    ]
    for process in processes:
        process.start()
    for process in processes:
        process.join(timeout)
        if process.exitcode is None:
            process.kill()
            process.join()
    return [
        torch.load(result, weights_only=False) if result.exists() else process.exitcode
        for process, result in zip(processes, results)
    ]


def _rank(rank: int, size: int, port: int, result: Path, job: Callable, args: tuple) -> None:
    torch.set_num_threads(1)
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    options = {"rank": rank, "world_size": size, "timeout": timedelta(seconds=60)}
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", **options)
    try:
        found = job(rank, *args)
    except Exception as error:
        traceback.print_exc()
        found = error
    torch.save(found, result.with_suffix(".tmp"))
    result.with_suffix(".tmp").rename(result)
    if not isinstance(found, Exception):
        dist.destroy_process_group()


def die() -> None:
    """Kill this process, as an operating system does."""
    os.kill(os.getpid(), signal.SIGKILL)

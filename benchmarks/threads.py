"""Small passes on one thread and on two, alone and beside a program that keeps one core busy.

    PYTHONPATH=src python benchmarks/threads.py

It shows why `dross.engine.device` does what it does. GOMP_SPINCOUNT=300000 shows what torch's
idle threads do by default. Reverse steps are timed, one after the other.
"""

import dross._environment  # isort: skip

dross._environment.prepare_environment()  # before torch is imported

# ruff: noqa: E402
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from tables import make_parser, print_head, print_row
from torch import nn

SECONDS = 1.0
SIZES = ((64, 64, nn.GELU, 32), (784, 256, nn.ReLU, 64), (784, 1024, nn.ReLU, 256))


def keep_busy() -> None:
    """Use one core for ever."""
    while True:
        sum(range(10_000))


@contextmanager
def beside_a_busy_core() -> Iterator[None]:
    """Run the block while another process uses one core."""
    process = multiprocessing.get_context("spawn").Process(target=keep_busy, daemon=True)
    process.start()
    time.sleep(3)  # until it runs
    try:
        yield
    finally:
        process.terminate()
        process.join()


def microseconds(function: Callable[[], object]) -> float:
    """The mean time of a call."""
    for _ in range(10):
        function()
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        function()
        calls += 1
    return (time.perf_counter() - start) / calls * 1e6


def prepare_reverse_step(
    model: nn.Module, width: int, batch_size: int, folder: str
) -> tuple[dross.Run, Callable[[], object]]:
    """A recorded run, and a function that takes one of its steps backwards."""
    x, y = torch.randn(4 * batch_size, width), torch.randint(0, 10, (4 * batch_size,))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = dross.train(
        model,
        (x, y),
        "cross_entropy",
        optimizer,
        path=folder,
        epochs=1,
        batch_size=batch_size,
        progress=False,
    )
    recording = run.recording
    state = recording.state_at(0)
    (batch,), *_ = recording.batches(0, recording.segment(0).steps[:1])
    direction, executor = torch.ones(1, len(state.theta)), recording.executor
    batch = batch.load()
    arguments = (batch, state.theta, state.buffers, direction, {}, True)
    # The choice of threads, which this benchmark is about, lies above this call.
    return run, lambda: executor.run("reverse step", executor.plain_pull, *arguments)


def main() -> None:
    """Print one line per model."""
    make_parser(__doc__).parse_args()
    spin = f"GOMP_SPINCOUNT={os.environ['GOMP_SPINCOUNT']}"
    print(f"torch {torch.__version__}, {os.cpu_count()} cores, {spin}; us per reverse step\n")
    alone = ("1 thread, alone", "2, alone")
    print_head("model", *alone, "1, beside a busy core", "2, beside it")
    for width, hidden, activation, batch_size in SIZES:
        with tempfile.TemporaryDirectory() as folder:
            torch.manual_seed(0)
            model = nn.Sequential(nn.Linear(width, hidden), activation(), nn.Linear(hidden, 10))
            run, step = prepare_reverse_step(model, width, batch_size, f"{folder}/tape")
            found = []
            with run.recording.executor.training():
                for company in (nullcontext(), beside_a_busy_core()):
                    with company:
                        for threads in (1, 2):
                            torch.set_num_threads(threads)
                            found.append(f"{microseconds(step):.0f}")
        print_row(f"MLP {width}-{hidden}-10, batch {batch_size}", *found)


if __name__ == "__main__":
    main()

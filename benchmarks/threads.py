"""Small passes on one thread and on two, alone and beside a program that keeps one core busy: why threads.py does what it does.

    PYTHONPATH=src python benchmarks/threads.py        GOMP_SPINCOUNT=300000 for what torch's idle threads do by default

What is timed is a reverse step, back to back.
"""

import dross  # before torch: it sets GOMP_SPINCOUNT where that is not set  # isort: skip

import argparse
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import nn

SECONDS = 1.0
MODELS = {
    "MLP 64-64-10, batch 32": (
        lambda: nn.Sequential(nn.Linear(64, 64), nn.GELU(), nn.Linear(64, 10)),
        64,
        32,
    ),
    "MLP 784-256-10, batch 64": (
        lambda: nn.Sequential(nn.Linear(784, 256), nn.ReLU(), nn.Linear(256, 10)),
        784,
        64,
    ),
    "MLP 784-1024-10, batch 256": (
        lambda: nn.Sequential(nn.Linear(784, 1024), nn.ReLU(), nn.Linear(1024, 10)),
        784,
        256,
    ),
}


def busy() -> None:
    while True:
        sum(range(10_000))


@contextmanager
def beside_a_busy_core() -> Iterator[None]:
    process = multiprocessing.get_context("spawn").Process(target=busy, daemon=True)
    process.start()
    time.sleep(3)  # until it is on its feet
    try:
        yield
    finally:
        process.terminate()
        process.join()


def timed(function: Callable[[], object]) -> float:
    """Microseconds per call."""
    for _ in range(10):
        function()
    calls, start = 0, time.perf_counter()
    while time.perf_counter() - start < SECONDS:
        function()
        calls += 1
    return (time.perf_counter() - start) / calls * 1e6


def reverse_step(
    make: Callable[[], nn.Module], width: int, batch_size: int, folder: str
) -> tuple[dross.Run, Callable[[], object]]:
    torch.manual_seed(0)
    model, x, y = (
        make(),
        torch.randn(4 * batch_size, width),
        torch.randint(0, 10, (4 * batch_size,)),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    run = dross.train(
        model,
        (x, y),
        "cross_entropy",
        optimizer,
        tape=folder,
        epochs=1,
        batch_size=batch_size,
        progress=False,
    )
    recording = run.recording
    state, ((batch,), *_) = (
        recording.state_at(0),
        recording.batches(0, recording.segment(0).steps[:1]),
    )
    direction, graphs = torch.ones(1, len(state.theta)), recording.objective.graphs
    batch = batch.realized()
    # below the choice of threads, which is what is looked at here
    return run, lambda: graphs.run(
        "reverse step",
        recording.objective._pull,
        batch,
        state.theta,
        state.buffers,
        direction,
        {},
        True,
    )


def main() -> None:
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    print(
        f"torch {torch.__version__}, {os.cpu_count()} cores, GOMP_SPINCOUNT={os.environ['GOMP_SPINCOUNT']}; us per reverse step\n"
    )
    print(
        "| model | 1 thread, alone | 2, alone | 1, beside a busy core | 2, beside it |\n| --- | --- | --- | --- | --- |",
        flush=True,
    )
    for name, (make, width, batch_size) in MODELS.items():
        with tempfile.TemporaryDirectory() as folder:
            run, step = reverse_step(make, width, batch_size, f"{folder}/tape")
            found = []
            with run.recording.objective.training():
                for company in (nullcontext(), beside_a_busy_core()):
                    with company:
                        for threads in (1, 2):
                            torch.set_num_threads(threads)
                            found.append(f"{timed(step):.0f}")
        print(f"| {name} | {' | '.join(found)} |", flush=True)


if __name__ == "__main__":
    main()

"""Memory and cost of a retrace as a run gets longer and its data set larger.

    PYTHONPATH=src python benchmarks/bounded.py [--quick] [--only large_states] [--device cuda]

Memory: the peak of a process that opens a tape of T steps and retraces it (torch alone takes most
of it). Cost: microseconds per step and per instance as T, and then N, grow a hundredfold. Budget:
the same run with smaller and smaller budgets for its states, on the disk and in memory; a model
whose states are large; a table on the disk ten times as large as what may be held of it. Each
figure is measured in a process of its own.
"""

import argparse
import importlib
import json
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from tables import make_parser, print_head, print_row

import dross

FEATURES, CLASSES, BATCH = 500, 20, 32
STATE = 4 * (FEATURES + 1) * CLASSES  # bytes: 40 KB


def problem(
    count: int,
    features: int = FEATURES,
    classes: int = CLASSES,
    table: str = "",
    device: str = "cpu",
):
    """A linear model, its data (in memory, or the table on the disk), and the random numbers."""
    rng = np.random.default_rng(0)
    if table:
        X = np.memmap(table, np.float32, "r", shape=(count, features))
    else:
        X = rng.standard_normal((count, features), np.float32)
    torch.manual_seed(0)
    return torch.nn.Linear(features, classes).to(device), (X, X[:, :classes].argmax(1)), rng


def write_table(path: Path, count: int, features: int) -> None:
    """Write a table of normal numbers, a part at a time."""
    rng = np.random.default_rng(0)
    table = np.memmap(path, np.float32, "w+", shape=(count, features))
    for first in range(0, count, 10_000):
        rows = min(10_000, count - first)
        table[first : first + rows] = rng.standard_normal((rows, features), np.float32)
    table.flush()


@contextmanager
def watch_memory() -> Iterator[dict]:
    """Find the largest amount of memory of our own; on a GPU, of the GPU's.

    Pages of files, which the system may take back at any time, do not count.
    """
    seen, done = {"own": 0}, threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            lines = Path("/proc/self/status").read_text().splitlines()
            line = next(line for line in lines if line.startswith("RssAnon"))
            seen["own"] = max(seen["own"], int(line.split()[1]) * 1024)

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield seen
    finally:
        done.set()
        watcher.join()
        if torch.cuda.is_initialized():
            seen["own"] = torch.cuda.max_memory_allocated()


def record(folder: str, steps: int, count: int, keep: str, **form) -> dict:
    """Record a run; seconds, bytes on disk and memory."""
    model, data, rng = problem(count, **form)
    batches = [rng.choice(count, BATCH, replace=False) for _ in range(steps)]
    with watch_memory() as seen:
        start = time.perf_counter()
        dross.train(
            model,
            data,
            "cross_entropy",
            torch.optim.SGD(model.parameters(), lr=0.1),
            path=folder,
            batches=batches,
            keep=eval(keep, dict(vars(dross))),
            progress=False,
        )
        seconds = time.perf_counter() - start
    return {
        "record": seconds,
        "disk": sum(file.stat().st_size for file in Path(folder).iterdir()),
        "record own": seen["own"],
    }


def retrace(folder: str, steps: int, count: int, keep: str, **form) -> dict:
    """Retrace the run in the folder; seconds, memory, and the sum of the scores' sizes."""
    model, data, _ = problem(count, **form)
    run = dross.load(folder, model, data, "cross_entropy")
    query = dross.mean_loss((torch.from_numpy(data[0][:200].copy()), data[1][:200]))
    with watch_memory() as seen:
        start = time.perf_counter()
        scores = run.influence(query)
        seconds = time.perf_counter() - start
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {
        "retrace": seconds,
        "memory": highest,
        "own": seen["own"],
        "sum": float(np.abs(scores.values).sum()),
    }


def measure(**what) -> dict:
    """Record in one process and retrace in another, so that the peak is the retrace's."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in ("record", "retrace"):
            work = json.dumps([part, {"folder": f"{folder}/tape", **what}])
            command = [sys.executable, __file__, "--one", work]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found |= json.loads(done.stdout)
    return found


def main() -> None:
    """Print the chosen tables."""
    parser = make_parser(__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument(
        "--only",
        choices=["longer_runs", "larger_sets", "smaller_budgets", "large_states", "large_table"],
    )
    parser.add_argument("--device", default="cpu", help="where the large states are")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        # torch imports it with the first optimizer, which takes seconds that belong to no step.
        importlib.import_module("torch._dynamo")
        torch.set_num_threads(1)
        part, what = json.loads(options.one)
        print(json.dumps({"record": record, "retrace": retrace}[part](**what)))
        return
    scale = 0.1 if options.quick else 1.0
    model = f"a linear model of {STATE // 4:,} parameters, batches of {BATCH}"
    print(f"torch {torch.__version__}, one thread, {model}")
    parts = {
        "longer_runs": lambda: longer_runs(scale),
        "larger_sets": larger_sets,
        "smaller_budgets": lambda: smaller_budgets(int(10_000 * scale)),
        "large_states": lambda: large_states(options.device),
        "large_table": lambda: large_table(int(500_000 * scale)),
    }
    for part in [options.only] if options.only else parts:
        parts[part]()


def begin_table(*columns: str) -> None:
    """Print the head of a table below an empty line."""
    print()
    print_head(*columns)


def longer_runs(scale: float) -> None:
    """Runs of T steps, T growing a hundredfold."""
    begin_table(
        "T",
        "states kept",
        "recorded, us a step",
        "retraced, us a step",
        "peak, MB",
        "disk, MB",
        "disk by the formula, MB",
    )
    for keep in ("Checkpoints(every=100)", "Checkpoints()", "EveryStep()"):
        for steps in (1_000, 10_000, 100_000):
            steps = int(steps * scale)
            if keep == "EveryStep()" and steps > 10_000:
                continue
            found = measure(steps=steps, count=2000, keep=keep)
            states = {
                "Checkpoints(every=100)": steps // 100,
                "Checkpoints()": round(steps**0.5),
                "EveryStep()": steps,
            }[keep] + 1
            print_row(
                f"{steps:,}",
                keep,
                f"{found['record'] / steps * 1e6:.0f}",
                f"{found['retrace'] / steps * 1e6:.0f}",
                f"{found['memory'] / 1e6:.1f}",
                f"{found['disk'] / 1e6:.1f}",
                f"{(states * STATE + 4 * BATCH * steps) / 1e6:.1f}",
            )


def larger_sets() -> None:
    """One epoch over N instances, N growing a hundredfold."""
    begin_table("N", "retraced in one epoch, us an instance", "peak, MB")
    for count in (1_000, 10_000, 100_000):
        found = measure(steps=count // BATCH, count=count, keep="Checkpoints()")
        print_row(
            f"{count:,}", f"{found['retrace'] / count * 1e6:.1f}", f"{found['memory'] / 1e6:.1f}"
        )


def smaller_budgets(steps: int) -> None:
    """One run with smaller and smaller budgets."""
    begin_table(
        "budget on disk and in memory, KB",
        "retraced, times every step",
        "peak, MB",
        "disk, MB",
        "the same scores",
    )
    whole = measure(steps=steps, count=2000, keep="EveryStep()")
    least = 2 * 45_000 + steps * (16 + 4 * BATCH)
    for extra in (1_000_000_000, 40_000_000, 4_000_000, 400_000, 160_000):
        keep = f"Budget({least + extra}, in_memory={extra})"
        found = measure(steps=steps, count=2000, keep=keep)
        print_row(
            f"{(least + extra) / 1e3:,.0f}, {extra / 1e3:,.0f}",
            f"{found['retrace'] / whole['retrace']:.1f}",
            f"{found['memory'] / 1e6:.1f}",
            f"{found['disk'] / 1e6:.1f}",
            found["sum"] == whole["sum"],
        )


def large_states(device: str) -> None:
    """64 steps of 50 MB each."""
    form = {"steps": 64, "count": 500, "features": 12_500, "classes": 1_000, "device": device}
    begin_table(
        "64 states of 50 MB each",
        "retraced, s",
        "peak of our own memory, MB",
        "disk, MB",
        "the same scores",
    )
    every = measure(keep="EveryStep()", **form)
    for keep in (
        "EveryStep()",
        "Checkpoints()",
        "Budget(500_000_000, in_memory=200_000_000)",
        "Budget(160_000_000, in_memory=110_000_000)",
    ):
        found = every if keep == "EveryStep()" else measure(keep=keep, **form)
        print_row(
            keep,
            f"{found['retrace']:.1f}",
            f"{found['own'] / 1e6:.0f}",
            f"{found['disk'] / 1e6:.0f}",
            found["sum"] == every["sum"],
        )


def large_table(count: int) -> None:
    """One epoch over a table on the disk.

    The memory is our own, without what the system keeps of the file while it has memory to spare.
    """
    held = count * 1000 * 4 // 10
    begin_table(
        f"{count:,} x 1,000 numbers, {held / 1e8:.1f} GB on the disk",
        "recorded, s",
        "retraced, s",
        "own memory: recording, retracing, MB",
    )
    with tempfile.TemporaryDirectory() as folder:
        table = Path(folder) / "table"
        write_table(table, count, 1000)
        keep = f"Budget({held}, in_memory={held})"
        form = {"features": 1000, "table": str(table)}
        found = measure(steps=count // BATCH, count=count, keep=keep, **form)
    memory = f"{found['record own'] / 1e6:.0f}, {found['own'] / 1e6:.0f}"
    print_row(
        f"Budget, {held / 1e6:.0f} MB in memory",
        f"{found['record']:.0f}",
        f"{found['retrace']:.0f}",
        memory,
    )


if __name__ == "__main__":
    main()

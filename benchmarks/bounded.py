"""Memory and cost of a retrace as a run gets longer and its data set larger. Each figure is a process of its own.

    PYTHONPATH=src python benchmarks/bounded.py [--quick]

Memory: the peak of a process that opens a tape of T steps and retraces it (torch alone takes most of it). Cost: microseconds per step and per instance
as T, and then N, grow a hundredfold. Budget: the same run with less and less room for its states, on the disk and in memory.
"""

import argparse
import importlib
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import torch

import dross

FEATURES, CLASSES, BATCH = 500, 20, 32  # a state of 40 KB


def problem(count: int):
    rng = np.random.default_rng(0)
    X = torch.from_numpy(rng.standard_normal((count, FEATURES), dtype=np.float32))
    torch.manual_seed(0)
    return torch.nn.Linear(FEATURES, CLASSES), (X, X[:, :CLASSES].argmax(1)), rng


def record(folder: str, steps: int, count: int, keep: str) -> dict:
    model, data, rng = problem(count)
    batches = [rng.choice(count, BATCH, replace=False) for _ in range(steps)]
    start = time.perf_counter()
    dross.train(
        model, data, "cross_entropy", torch.optim.SGD(model.parameters(), lr=0.1), tape=folder, batches=batches, keep=eval(keep, dict(vars(dross))),
        progress=False,
    )  # fmt: skip
    return {"record": time.perf_counter() - start, "disk": sum(file.stat().st_size for file in Path(folder).iterdir())}


def retrace(folder: str, steps: int, count: int, keep: str) -> dict:
    model, data, _ = problem(count)
    run = dross.Run.open(folder, model, data, "cross_entropy")
    query = dross.mean_loss((data[0][:200], data[1][:200]))
    start = time.perf_counter()
    scores = run.influence(query)
    seconds = time.perf_counter() - start
    highest = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return {"retrace": seconds, "memory": highest, "sum": float(np.abs(scores.values).sum())}


def measured(**what) -> dict:
    """Recorded by one process and retraced by another, so that the peak is the retrace's."""
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        for part in ("record", "retrace"):
            command = [sys.executable, __file__, "--one", json.dumps([part, {"folder": f"{folder}/tape", **what}])]
            found |= json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        importlib.import_module("torch._dynamo")  # which torch imports with the first optimizer: seconds that belong to no step
        torch.set_num_threads(1)
        part, what = json.loads(given.one)
        print(json.dumps({"record": record, "retrace": retrace}[part](**what)))
        return
    scale = 0.1 if given.quick else 1.0
    print(
        f"torch {torch.__version__}, one thread, a linear model of {FEATURES * CLASSES + CLASSES:,} parameters, batches of {BATCH}\n"
    )
    print(
        "| T | states kept | recorded, us a step | retraced, us a step | peak, MB | disk, MB |\n| --- | --- | --- | --- | --- | --- |"
    )
    for keep in ("Checkpoints(every=100)", "Checkpoints()", "EveryStep()"):
        for steps in (1_000, 10_000, 100_000):
            steps = int(steps * scale)
            if keep == "EveryStep()" and steps > 10_000:
                continue
            found = measured(steps=steps, count=2000, keep=keep)
            print(
                f"| {steps:,} | {keep} | {found['record'] / steps * 1e6:.0f} | {found['retrace'] / steps * 1e6:.0f} "
                f"| {found['memory'] / 1e6:.1f} | {found['disk'] / 1e6:.1f} |",
                flush=True,
            )
    print("\n| N | retraced in one epoch, us an instance | peak, MB |\n| --- | --- | --- |")
    for count in (1_000, 10_000, 100_000):
        found = measured(steps=count // BATCH, count=count, keep="Checkpoints()")
        print(f"| {count:,} | {found['retrace'] / count * 1e6:.1f} | {found['memory'] / 1e6:.1f} |", flush=True)
    print(
        "\n| budget on disk and in memory, KB | retraced, times every step | peak, MB | disk, MB | the same scores |\n| --- | --- | --- | --- | --- |"
    )
    steps = int(10_000 * scale)
    whole = measured(steps=steps, count=2000, keep="EveryStep()")
    least = 2 * 45_000 + steps * (16 + 4 * BATCH)
    for room in (1_000_000_000, 40_000_000, 4_000_000, 400_000, 90_000):
        keep = f"Budget({least + room}, in_memory={room})"
        found = measured(steps=steps, count=2000, keep=keep)
        print(
            f"| {(least + room) / 1e3:,.0f}, {room / 1e3:,.0f} | {found['retrace'] / whole['retrace']:.1f} | {found['memory'] / 1e6:.1f} "
            f"| {found['disk'] / 1e6:.1f} | {found['sum'] == whole['sum']} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

"""What the engine costs on one GPU, in seconds: recording, retracing and counterfactual runs of the paper's networks at full size.

    PYTHONPATH=src python benchmarks/gpu.py [--only mnist] [--epochs 20] [--parts checkpoints,queries]

Data are random numbers of the right shapes: the cost does not hang on their values. DROSS_CUDA_GRAPHS=0 shows the same without graphs, DROSS_COMPILE=1
with compiled passes; the compiler's time, which is spent once, is then in the first line of each kind.
"""

import argparse
import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

import dross
from dross.reproduce.cleansing import TASKS

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}


@contextlib.contextmanager
def timed(what: str) -> Iterator[None]:
    torch.cuda.synchronize()
    start = time.perf_counter()
    yield
    torch.cuda.synchronize()
    print(f"| {what} | {time.perf_counter() - start:.2f} s |", flush=True)


def pair(shape: tuple[int, ...], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(count, *shape, generator=generator, device="cuda")
    return x, torch.randint(0, 10, (count,), generator=generator, device="cuda")


def recorded(name: str, data, epochs: int, folder: Path, keep) -> dross.Run:
    task = TASKS[name]
    torch.manual_seed(0)
    model = task.model()
    return dross.train(
        model,
        data,
        "cross_entropy",
        torch.optim.SGD(model.parameters(), lr=0.01),
        tape=folder,
        epochs=epochs,
        batch_size=64,
        augment=task.augment,
        device="cuda",
        keep=keep,
        progress=False,
        overwrite=True,
    )


KEEPS = {"every-step": dross.EveryStep(), "checkpoints": dross.Checkpoints()}
PARTS = [*KEEPS, "again", "no-hessian", "counterfactuals", "queries"]


def full_size(name: str, epochs: int, folder: Path, parts: list[str]) -> None:
    data, validation = pair(SHAPES[name], TASKS[name].train), pair(SHAPES[name], 10_000)
    query = dross.mean_loss(validation)
    recorded(name, data, 1, folder / "warm", dross.Checkpoints())
    for label in [part for part in KEEPS if part in parts]:
        with timed(f"{name}: record, {label}"):
            run = recorded(name, data, epochs, folder / "tape", KEEPS[label])
        with timed(f"{name}: retrace, {label}"):
            run.influence(query)
        if "again" in parts:
            with timed(f"{name}: retrace again, {label}"):
                run.influence(query)
    if "no-hessian" in parts:
        with timed(f"{name}: without the Hessian term"):
            dross.estimators.without_hessian(run, query)
    if "counterfactuals" in parts:
        counterfactuals(name, run, len(data[0]))
    if "queries" in parts:
        with timed(f"{name}: last epoch, 1 query"):
            run.influence(query, epochs=1)
        with timed(f"{name}: last epoch, 64 queries"):
            run.influence(dross.losses((validation[0][:64], validation[1][:64])), epochs=1)


def counterfactuals(name: str, run: dross.Run, instances: int) -> None:
    rng = np.random.default_rng(0)
    groups = [rng.choice(instances, 100, replace=False) for _ in range(127)]
    with timed(f"{name}: 128 last-epoch counterfactuals"):
        run.counterfactual(groups, epochs=1)
    if TASKS[name].absent == "batch":
        with timed(f"{name}: 128 last-epoch counterfactuals, gone from BatchNorm's batch"):
            run.counterfactual(groups, epochs=1, absent="batch")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", choices=list(SHAPES))
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument(
        "--parts",
        type=lambda given: given.split(","),
        default=PARTS,
        help=f"some of {', '.join(PARTS)}; the first two record the run",
    )
    given = parser.parse_args()
    print(
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, {given.epochs} epochs\n\n| what | time |\n| --- | --- |"
    )
    for name in [given.only] if given.only else SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            full_size(name, given.epochs, Path(folder), given.parts)


if __name__ == "__main__":
    main()

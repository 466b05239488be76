"""What the engine costs on one GPU, in seconds, with the paper's networks at full size.

    PYTHONPATH=src python benchmarks/gpu.py [--only mnist] [--epochs 20] [--parts queries,again]

Recording, retracing and counterfactual runs are timed. The data are random numbers of the right
shapes: the cost does not depend on their values. DROSS_CUDA_GRAPHS=0 shows the same without graphs,
DROSS_COMPILE=1 with compiled passes; the compiler's time, which is spent once, is then in the first
line of each kind.
"""

import contextlib
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from dross.reproduce.cleansing_settings import TASKS
from tables import make_parser, print_head, print_row

import dross

SHAPES = {"mnist": (1, 28, 28), "cifar10": (3, 32, 32)}


@contextlib.contextmanager
def print_time(what: str) -> Iterator[None]:
    """Print a line with the seconds that the block takes."""
    torch.cuda.synchronize()
    start = time.perf_counter()
    yield
    torch.cuda.synchronize()
    print_row(what, f"{time.perf_counter() - start:.2f} s")


def make_data(shape: tuple[int, ...], count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random inputs and labels of ten classes, on the GPU."""
    generator = torch.Generator("cuda").manual_seed(0)
    x = torch.randn(count, *shape, generator=generator, device="cuda")
    return x, torch.randint(0, 10, (count,), generator=generator, device="cuda")


def record(name: str, data, epochs: int, folder: Path, keep) -> dross.Run:
    """Record a run of one of the paper's networks."""
    task = TASKS[name]
    torch.manual_seed(0)
    model = task.model()
    return dross.train(
        model,
        data,
        "cross_entropy",
        torch.optim.SGD(model.parameters(), lr=0.01),
        path=folder,
        epochs=epochs,
        batch_size=64,
        augment=task.augment,
        device="cuda",
        keep=keep,
        progress=False,
        overwrite=True,
    )


KEEPS = {"every-step": dross.tape.EveryStep(), "checkpoints": dross.tape.Checkpoints()}
PARTS = [*KEEPS, "again", "no-hessian", "counterfactuals", "queries"]


def time_full_size(name: str, epochs: int, folder: Path, parts: list[str]) -> None:
    """Time the chosen parts for one of the paper's networks."""
    data = make_data(SHAPES[name], TASKS[name].train)
    validation = make_data(SHAPES[name], 10_000)
    query = dross.mean_loss(validation)
    record(name, data, 1, folder / "warm", dross.tape.Checkpoints())
    for label in [part for part in KEEPS if part in parts]:
        with print_time(f"{name}: record, {label}"):
            run = record(name, data, epochs, folder / "tape", KEEPS[label])
        with print_time(f"{name}: retrace, {label}"):
            run.influence(query)
        if "again" in parts:
            with print_time(f"{name}: retrace again, {label}"):
                run.influence(query)
    if "no-hessian" in parts:
        with print_time(f"{name}: without the Hessian term"):
            dross.estimators.without_hessian(run, query)
    if "counterfactuals" in parts:
        time_counterfactuals(name, run, len(data[0]))
    if "queries" in parts:
        with print_time(f"{name}: last epoch, 1 query"):
            run.influence(query, epochs=1)
        with print_time(f"{name}: last epoch, 64 queries"):
            run.influence(dross.losses((validation[0][:64], validation[1][:64])), epochs=1)


def time_counterfactuals(name: str, run: dross.Run, instances: int) -> None:
    """Time 128 runs without random groups of instances."""
    rng = np.random.default_rng(0)
    groups = [rng.choice(instances, 100, replace=False) for _ in range(127)]
    with print_time(f"{name}: 128 last-epoch counterfactuals"):
        run.counterfactual(groups, epochs=1)
    if TASKS[name].absent == "batch":
        with print_time(f"{name}: 128 last-epoch counterfactuals, gone from BatchNorm's batch"):
            run.counterfactual(groups, epochs=1, absent="batch")


def main() -> None:
    """Print one line per timing."""
    parser = make_parser(__doc__)
    parser.add_argument("--only", choices=list(SHAPES))
    parser.add_argument("--epochs", type=int, default=20)
    about_parts = f"some of {', '.join(PARTS)}; the first two record the run"
    split = lambda text: text.split(",")
    parser.add_argument("--parts", type=split, default=PARTS, help=about_parts)
    options = parser.parse_args()
    where = f"{torch.cuda.get_device_name()}, torch {torch.__version__}"
    print(f"{where}, {options.epochs} epochs\n")
    print_head("what", "time")
    for name in [options.only] if options.only else SHAPES:
        with tempfile.TemporaryDirectory() as folder:
            time_full_size(name, options.epochs, Path(folder), options.parts)


if __name__ == "__main__":
    main()

"""What quicker arithmetic does to the scores.

    PYTHONPATH=src python benchmarks/arithmetic.py [--data mnist] [--device cuda] [--count 5000]

The same run is recorded and retraced in float64, strict float32, TF32 and bfloat16. All runs have
the same seeds, batches and pictures; the scores of each are compared with those of float64.
Rounding also makes the models drift apart while they train, and that is part of the comparison:
a user who asks for the quicker arithmetic gets it, too.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr
from tables import make_parser, print_head, print_row

import dross
from dross.datasets import load
from dross.reproduce.cleansing_settings import TASKS

LOWEST = 100


def read_options() -> argparse.Namespace:
    """The options of the command line."""
    parser = make_parser(__doc__)
    parser.add_argument("--data", choices=list(TASKS), default="mnist")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=5)
    return parser.parse_args()


def score(options: argparse.Namespace, kind: str, folder: Path) -> tuple[np.ndarray, float, float]:
    """The scores, the validation loss, and the seconds of recording and retracing."""
    task, data = TASKS[options.data], load(options.data)
    dtype = torch.float64 if kind == "float64" else torch.float32
    order = np.random.default_rng(0).permutation(len(data.train[1]))
    parts = [order[: options.count], order[options.count : options.count + 2000]]
    train, validation = (
        (task.prepare(data.train[0][ids]).to(dtype), torch.from_numpy(data.train[1][ids]))
        for ids in parts
    )
    torch.manual_seed(0)
    model = task.model().to(dtype)
    start = time.perf_counter()
    run = dross.train(
        model,
        train,
        "cross_entropy",
        torch.optim.SGD(model.parameters(), lr=0.05),
        tape=folder,
        epochs=options.epochs,
        batch_size=64,
        augment=task.augment,
        device=options.device,
        progress=False,
        arithmetic="strict" if kind == "float64" else kind,
    )
    query = dross.mean_loss(validation)
    values = run.influence(query).values
    return values, float(run.evaluate(query)), time.perf_counter() - start


def main() -> None:
    """Print one line per arithmetic."""
    options = read_options()
    on_gpu = options.device.startswith("cuda")
    where = torch.cuda.get_device_name() if on_gpu else "CPU"
    what = f"{options.data}, {options.count} instances, {options.epochs} epochs"
    print(f"{where}, torch {torch.__version__}, {what}\n")
    harmful = f"of its {LOWEST} most harmful"
    print_head("arithmetic", "Spearman with float64", harmful, "validation loss", "seconds")
    exact: np.ndarray | None = None
    for kind in ("float64", "strict", *(["tf32"] if on_gpu else []), "bf16"):
        with tempfile.TemporaryDirectory() as folder:
            values, loss, seconds = score(options, kind, Path(folder) / "tape")
        exact = values if exact is None else exact
        shared = len(set(np.argsort(values)[:LOWEST]) & set(np.argsort(exact)[:LOWEST]))
        name = "strict float32" if kind == "strict" else kind
        agreement = f"{spearmanr(values, exact)[0]:.4f}"
        print_row(name, agreement, shared, f"{loss:.4f}", f"{seconds:.1f}")


if __name__ == "__main__":
    main()

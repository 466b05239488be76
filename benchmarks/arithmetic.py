"""What quicker arithmetic does to the scores: the same run recorded and retraced in float64, strict float32, TF32 and bfloat16.

    PYTHONPATH=src python benchmarks/arithmetic.py [--data mnist] [--device cuda] [--count 5000] [--epochs 5]

All runs have the same seeds, batches and pictures; the scores of each are compared with those of float64. Rounding also makes the models drift
apart while they train, and that is part of the comparison: it is what somebody gets who asks for the quicker one.
"""

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import torch
from scipy.stats import spearmanr

import dross
from dross.datasets import load
from dross.reproduce.cleansing import TASKS

LOWEST = 100


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", choices=list(TASKS), default="mnist")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--count", type=int, default=5000)
    parser.add_argument("--epochs", type=int, default=5)
    return parser.parse_args()


def scored(given: argparse.Namespace, kind: str, folder: Path) -> tuple[np.ndarray, float, float]:
    """The scores, the validation loss, and the seconds of recording and retracing."""
    task, data = TASKS[given.data], load(given.data)
    dtype = torch.float64 if kind == "float64" else torch.float32
    order = np.random.default_rng(0).permutation(len(data.train[1]))
    parts = [order[: given.count], order[given.count : given.count + 2000]]
    train, validation = (
        (task.prepared(data.train[0][ids]).to(dtype), torch.from_numpy(data.train[1][ids]))
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
        epochs=given.epochs,
        batch_size=64,
        augment=task.augment,
        device=given.device,
        progress=False,
        arithmetic="strict" if kind == "float64" else kind,
    )
    query = dross.mean_loss(validation)
    values = run.influence(query).values
    return values, float(run.evaluate(query)), time.perf_counter() - start


def main() -> None:
    given = arguments()
    where = torch.cuda.get_device_name() if given.device.startswith("cuda") else "CPU"
    print(
        f"{where}, torch {torch.__version__}, {given.data}, {given.count} instances, {given.epochs} epochs\n"
    )
    print(
        f"| arithmetic | Spearman with float64 | of its {LOWEST} most harmful | validation loss | seconds |\n| --- | --- | --- | --- | --- |"
    )
    exact: np.ndarray | None = None
    for kind in (
        "float64",
        "strict",
        *(["tf32"] if given.device.startswith("cuda") else []),
        "bf16",
    ):
        with tempfile.TemporaryDirectory() as folder:
            values, loss, seconds = scored(given, kind, Path(folder) / "tape")
        exact = values if exact is None else exact
        shared = len(set(np.argsort(values)[:LOWEST]) & set(np.argsort(exact)[:LOWEST]))
        name = "strict float32" if kind == "strict" else kind
        print(
            f"| {name} | {spearmanr(values, exact)[0]:.4f} | {shared} | {loss:.4f} | {seconds:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()

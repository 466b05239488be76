"""Section 7.2 of the paper: does removing what a method finds harmful make the model better?

One draw holds out validation data at random, trains the paper's network, scores every training
instance by each method, removes the m lowest-scored for a grid of m, trains again and measures the
test part. There are three ways to train again:

    last    the recorded run up to its last epoch, the last epoch without the removed instances
    all     the recorded run from the start without them
    fresh   a new run with new seeds, with and without them: what a user would do next

Every result is compared with a model from which nothing was removed, computed in the same way and
in the same batch of models. Draws are written as they finish, so that a long experiment can run in
pieces and on several machines: put their files into one folder.

    python -m experiments.cleansing --data mnist --draws 0:3 --quick
    python -m experiments.cleansing --data mnist --draws 0:30 --retrain last --device cuda --jobs 6

Full size is 20 epochs on 50,000 images per draw: a task for a GPU. Small networks leave most of it
idle; `nvidia-cuda-mps-control -d` lets the processes of --jobs share it instead of taking turns.
"""

import argparse
import datetime
import platform
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dross import estimators
from dross._version import __version__
from dross.distributed.jobs import sweep
from dross.engine.objective import Buffers, Objective
from dross.errors import CorruptFile, InputChanged
from dross.estimators import Estimator
from dross.influence.counterfactual import Removal
from dross.influence.query import Query, mean_loss, mean_over
from dross.influence.run import Run
from dross.influence.scores import Scores
from dross.record.train import train
from dross.tape.format import MANIFEST

from .augment import ShiftAndFlip
from .baselines import Autoencoder, IsolationForest
from .datasets import load
from .networks import cifar10_cnn, mnist_cnn
from .results import load_result, save_result

IMAGES_PER_METHOD = 20  # of the most harmful, in the contact sheets
REMOVED_COUNTS = (1, 3, 6, 10, 30, 60, 100, 300, 600, 1000, 3000, 6000, 10_000)
RETRAIN_WAYS = ("last", "all", "fresh")
_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)
_CIFAR_BLACK = tuple(-mean / std for mean, std in zip(_CIFAR_MEAN, _CIFAR_STD))


@dataclass(frozen=True)
class Settings:
    """Everything that decides a result. Results of different settings are never merged."""

    data: str = "mnist"
    train: int = 50_000
    validation: int = 10_000
    test: int = 10_000
    epochs: int = 20
    batch_size: int = 64
    rate: float = 0.05
    removed: tuple[int, ...] = REMOVED_COUNTS
    version: int = 2

    @staticmethod
    def of(data: str, quick: bool) -> "Settings":
        """The paper's settings for a dataset, or a small version of them."""
        if quick:
            return Settings(data, 1500, 500, 1000, 4, 64, 0.05, (1, 3, 10, 30, 100, 300))
        return Settings(data, train=TASKS[data].train)


@dataclass(frozen=True)
class Task:
    """What the paper does with one dataset."""

    model: Callable[[], nn.Module]
    augment: ShiftAndFlip
    damping: float  # of K&L, in the paper's public code
    train: int
    removal: Removal  # with BatchNorm, removal means gone from the batch and its statistics

    def prepare(self, images: np.ndarray) -> Tensor:
        """uint8 [N, H, W] or [N, H, W, 3] -> float32 [N, C, H, W], scaled as in the paper."""
        x = torch.from_numpy(np.ascontiguousarray(images)).float() / 255
        if x.dim() == 3:
            return (x[:, None] - 0.5) / 0.5
        mean, std = (torch.tensor(value)[:, None, None] for value in (_CIFAR_MEAN, _CIFAR_STD))
        return (x.permute(0, 3, 1, 2) - mean) / std


_SHIFT = ShiftAndFlip(2, fill=-1.0)
_SHIFT_AND_FLIP = ShiftAndFlip(4, flip=True, fill=_CIFAR_BLACK)
TASKS = {
    "mnist": Task(mnist_cnn, _SHIFT, 0.1, 50_000, "loss"),
    "fashion-mnist": Task(mnist_cnn, _SHIFT, 0.1, 50_000, "loss"),
    "cifar10": Task(cifar10_cnn, _SHIFT_AND_FLIP, 10.0, 40_000, "data"),
}


def build_methods(settings: Settings, draw: int) -> dict[str, Estimator]:
    """The paper's methods and the others, with the paper's settings, by name."""
    steps = max(1, 2 * settings.train // 1000)  # two epochs of batches of 1,000
    solver = estimators.MomentumSGD(steps, 0.005, 0.9, min(1000, settings.train))
    return {
        "retrace": estimators.Retrace(),
        "last-epoch": estimators.Retrace(epochs=1),
        "no-hessian": estimators.WithoutHessian(),
        "k&l": estimators.InfluenceFunction(solver, TASKS[settings.data].damping, seed=draw),
        "autoencoder": Autoencoder(epochs=settings.epochs, seed=draw),
        "isolation-forest": IsolationForest(seed=draw),
        "loss": estimators.TrainingLoss(),
        "random": estimators.Random(seed=draw),
    }


METHODS = tuple(build_methods(Settings(), 0))


def split_positions(
    settings: Settings, number: int, available: int
) -> tuple[np.ndarray, np.ndarray]:
    """Where a draw's validation and training instances stand in the set's own training part."""
    order = np.random.default_rng([7, number]).permutation(available)
    return order[: settings.validation], order[settings.validation :][: settings.train]


@dataclass(frozen=True)
class Draw:
    """The data of one draw, prepared for training."""

    settings: Settings
    number: int
    train: tuple[Tensor, Tensor]
    validation: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor]

    @staticmethod
    def of(settings: Settings, number: int) -> "Draw":
        """Load the dataset and split it."""
        task, data = TASKS[settings.data], load(settings.data)
        assert data.test is not None
        held_out, used = split_positions(settings, number, len(data.train[1]))
        parts = [(data.train, held_out), (data.train, used), (data.test, np.arange(settings.test))]
        validation, training, test = (
            (task.prepare(x[ids]), torch.from_numpy(y[ids])) for (x, y), ids in parts
        )
        return Draw(settings, number, training, validation, test)

    def record(self, folder: Path, seed: int, device: str | None, progress: bool) -> Run:
        """Train the paper's network and record it; a run that was stopped continues."""
        task, settings = TASKS[self.settings.data], self.settings

        def begin(resume: bool) -> Run:
            torch.manual_seed(seed)
            model = task.model()
            return train(
                model,
                self.train,
                "cross_entropy",
                torch.optim.SGD(model.parameters(), lr=settings.rate),
                path=folder,
                epochs=settings.epochs,
                batch_size=settings.batch_size,
                augment=task.augment,
                seed=seed,
                device=device,
                progress=progress,
                resume=resume,
                overwrite=not resume,
            )

        if (folder / MANIFEST).exists():
            # A tape of other settings, or a damaged one, is recorded again.
            with suppress(InputChanged, CorruptFile):
                return begin(resume=True)
        return begin(resume=False)

    def measure(self, run: Run, removed: dict[tuple[str, int], np.ndarray], way: str) -> list[dict]:
        """Train without the removed instances and measure the test part.

        Returns one row per method and m: test error and loss, and those of the model that kept
        everything.
        """
        epochs = 1 if way == "last" else None
        without = run.counterfactual(
            list(removed.values()), epochs=epochs, removal=TASKS[self.settings.data].removal
        )
        rows = [{"method": method, "m": m, "retrain": way} for method, m in removed]
        for name, query in (("error", error_rate(self.test)), ("loss", mean_loss(self.test))):
            values, changes = without.evaluate(query), without.changes(query)
            for row, value, change in zip(rows, values, changes):
                row |= {name: float(value), f"{name}_kept": float(value - change)}
        return rows


def error_rate(data: Any) -> Query:
    """The share of a dataset that the model's largest output gets wrong. Its derivative is 0."""

    def wrong(objective: Objective, theta: Tensor, buffers: Buffers, x: Any, y: Any) -> Tensor:
        return (objective.predict(theta, buffers, x).argmax(-1) != y).double()

    return mean_over("error_rate", data, wrong)


def compute(
    number: int,
    settings: Settings,
    methods: list[str],
    ways: list[str],
    folder: Path,
    device: str | None = None,
    progress: bool = True,
) -> dict:
    """Compute one draw: train, score, remove, train again, measure.

    Each part is written before the next one begins, and what is there already is not computed
    again.

    Arguments:
        number: of the draw.
        settings: of the experiment.
        methods: names of methods.
        ways: ways to train again.
        folder: where the draw's results, runs and scores are kept.
        device: where the network is trained.
        progress: whether progress is shown.

    Returns:
        The result of the draw as it is written: rows, seconds, agreement of the methods.
    """
    path = folder / f"{settings.data}-{number:03d}.json"
    result = load_result(path, asdict(settings))
    if result is None:
        result = {
            "settings": asdict(settings),
            "draw": number,
            "rows": [],
            "harmful": {},
            "agreement": {},
            "seconds": {},
            "made_on": _describe_machine(device),
        }
    done = {(row["method"], row["retrain"]) for row in result["rows"]}
    missing = {way: [name for name in methods if (name, way) not in done] for way in ways}
    if not any(missing.values()):
        return result
    draw = Draw.of(settings, number)
    run_folder = folder / "runs" / path.stem
    with _time(result, "training"):
        run = draw.record(run_folder, number, device, progress)
    wanted = [name for name in METHODS if any(name in names for names in missing.values())]
    order = _rank_instances(draw, run, wanted, result, folder / "scores" / path.stem)
    sizes = [m for m in settings.removed if m < settings.train]
    for way, names in missing.items():
        if not names:
            continue
        with _time(result, f"retrain {way}"):
            again = run
            if way == "fresh":
                fresh_folder = run_folder.with_name(run_folder.name + "-fresh")
                again = draw.record(fresh_folder, 10_000 + number, device, progress)
            removed = {(name, m): order[name][:m] for name in names for m in sizes}
            result["rows"] += draw.measure(again, removed, way)
        save_result(path, result)
    return result


def _rank_instances(
    draw: Draw, run: Run, wanted: list[str], result: dict, folder: Path
) -> dict[str, np.ndarray]:
    """Each method's order of the instances, the most harmful first.

    How far the methods agree, and the first instances of each, go into the result.
    """
    values = _score_instances(draw, run, wanted, result, folder)
    order = {name: np.argsort(values[name], kind="stable") for name in wanted}
    result["harmful"] |= {name: order[name][:IMAGES_PER_METHOD].tolist() for name in wanted}
    result["agreement"] |= {
        f"{a} ~ {b}": _rank_correlation(values[a], values[b]) for a, b in combinations(wanted, 2)
    }
    return order


def _score_instances(
    draw: Draw, run: Run, wanted: list[str], result: dict, folder: Path
) -> dict[str, np.ndarray]:
    """The scores of each method.

    They are kept with the id of their run, so a draw that is stopped goes on from there.
    """
    available, query = build_methods(draw.settings, draw.number), mean_loss(draw.validation)
    values = {}
    for name in wanted:
        path = folder / f"{run.recording.tape.manifest.id}-{name}.safetensors"
        whole = path.with_name(path.name.replace("last-epoch", "retrace"))
        with _time(result, name):
            if path.exists():
                scores = Scores.load(path)
            elif name == "last-epoch" and whole.exists():
                # The same numbers: a retrace goes through the last epoch first.
                scores = Scores.load(whole).last_epochs(1)
            else:
                scores = available[name].score(run, query)
                scores.save(path)
        values[name] = scores.values
    return values


def _describe_machine(device: str | None) -> str:
    on_gpu = device is not None and device.startswith("cuda") and torch.cuda.is_available()
    parts = [
        torch.cuda.get_device_name() if on_gpu else platform.machine(),
        f"torch {torch.__version__}",
        f"Python {platform.python_version()}",
        f"dross {__version__}",
        str(datetime.date.today()),
    ]
    return ", ".join(parts)


@contextmanager
def _time(result: dict, what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    result["seconds"][what] = round(time.perf_counter() - start, 2)


def _rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return round(float(spearmanr(one, other)[0]), 4)  # type: ignore[arg-type]


def load_results(folder: Path, settings: Settings) -> list[dict]:
    """The results of all draws that are in the folder."""
    paths = sorted(folder.glob(f"{settings.data}-*.json"))
    return [result for path in paths if (result := load_result(path, asdict(settings)))]


def summarize(rows: list[dict]) -> list[dict]:
    """One row per way, method and m.

    It has the mean error, that of the models that kept everything, the p-value of their paired
    difference, and in how many draws the model improved.
    """
    from scipy.stats import ttest_rel

    table = []
    for key in dict.fromkeys((row["retrain"], row["method"], row["m"]) for row in rows):
        chosen = [row for row in rows if (row["retrain"], row["method"], row["m"]) == key]
        error, whole = (np.array([row[name] for row in chosen]) for name in ("error", "error_kept"))
        differences = len(set(np.round(error - whole, 12)))  # a test needs differences that differ
        p = float(ttest_rel(error, whole)[1]) if differences > 1 else float("nan")  # type: ignore[arg-type]
        table.append(
            {
                "retrain": key[0],
                "method": key[1],
                "m": key[2],
                "draws": len(chosen),
                "error": float(error.mean()),
                "error_std": float(error.std()),
                "error_kept": float(whole.mean()),
                "error_kept_std": float(whole.std()),
                "p": p,
                "improved": int((error < whole).sum()),
            }
        )
    return table


def parse_draws(draws: str) -> range:
    """The numbers that "0:30" or "7" stands for."""
    first, colon, last = draws.partition(":")
    return range(int(first), int(last) if colon else int(first) + 1)


def main() -> None:
    """Compute the draws, and write the report beside their results."""
    from .cleansing_report import findings, write_report

    parser = argparse.ArgumentParser(description="Section 7.2 of the paper.")
    parser.add_argument("--data", choices=list(TASKS), default="mnist")
    parser.add_argument("--draws", type=parse_draws, default="0:3", help="0:30: the first thirty")
    parser.add_argument("--retrain", nargs="+", choices=RETRAIN_WAYS, default=["last"])
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--quick", action="store_true", help="a small subset: minutes on a CPU")
    parser.add_argument("--out", type=Path, default=Path("runs/cleansing"))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--jobs", type=int, default=1, help="how many draws at once")
    options = parser.parse_args()
    settings = Settings.of(options.data, options.quick)
    work = partial(
        compute,
        settings=settings,
        methods=options.methods,
        ways=options.retrain,
        folder=options.out.absolute(),
        device=options.device,
    )
    for k, result in sweep(work, options.draws, what="draws", n_jobs=options.jobs):
        print(f"Draw {options.draws[k]} is done: {result['seconds']}", flush=True)
    results = load_results(options.out, settings)
    for path in write_report(options.out, results, settings):
        print("Written:", path)
    for sentence in findings(summarize([row for result in results for row in result["rows"]])):
        print(sentence)


if __name__ == "__main__":
    main()

"""Section 7.2 of the paper: does removing what a method finds harmful make the model better?

One draw holds out validation data at random, trains the paper's network, scores every training instance by each method, removes the m
lowest-scored for a grid of m, trains again and measures the test part. Three ways to train again:

    last    the recorded run up to its last epoch, the last epoch without the removed instances
    all     the recorded run from the start without them
    fresh   a new run with new seeds, with and without them: what a user would do next

Every result is compared with a model from which nothing was removed, computed in the same way and in the same batch of models.
Draws are written as they finish and merged later, so a long experiment can run in pieces and on different machines.
"""

import datetime
import platform
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import torch
from torch import nn

from .. import estimators
from .._version import __version__
from ..datasets import load
from ..datasets.augment import ShiftAndFlip
from ..datasets.models import cifar10_cnn, mnist_cnn
from ..errors import BadInput, TapeDamaged, TapeMismatch
from ..estimators import Estimator
from ..influence.query import Query, error_rate, mean_loss
from ..influence.run import Run
from ..influence.scores import Scores
from ..parallel import result_store
from ..parallel.job_pool import sweep
from ..record.train import train
from ..support.atomic_files import write_json
from ..support.name_hints import check_name
from ..tape.reader import MANIFEST

SHOWN = 20  # of the most harmful of each method, in the contact sheets
REMOVED = (1, 3, 6, 10, 30, 60, 100, 300, 600, 1000, 3000, 6000, 10_000)
RETRAINED = ("last", "all", "fresh")
_CIFAR_MEAN, _CIFAR_STD = (0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)


@dataclass(frozen=True)
class Settings:
    """Everything that a result hangs on. Results of different settings are never merged."""

    data: str = "mnist"
    train: int = 50_000
    validation: int = 10_000
    test: int = 10_000
    epochs: int = 20
    batch_size: int = 64
    rate: float = 0.05
    removed: tuple[int, ...] = REMOVED
    version: int = 2

    @staticmethod
    def of(data: str, quick: bool) -> "Settings":
        check_name("cleansing experiment", data, TASKS)
        if quick:
            return Settings(data, 1500, 500, 1000, 4, 64, 0.05, (1, 3, 10, 30, 100, 300))
        return Settings(data, train=TASKS[data].train)


@dataclass(frozen=True)
class Task:
    model: Callable[[], nn.Module]
    augment: ShiftAndFlip
    damping: float  # of K&L, in the paper's public code
    train: int
    absent: str  # with BatchNorm, removal means gone from the batch and its statistics

    def prepared(self, images: np.ndarray) -> torch.Tensor:
        """uint8 [N, H, W] or [N, H, W, 3] -> float32 [N, C, H, W], scaled as in the paper."""
        x = torch.from_numpy(np.ascontiguousarray(images)).float() / 255
        if x.dim() == 3:
            return (x[:, None] - 0.5) / 0.5
        return (x.permute(0, 3, 1, 2) - torch.tensor(_CIFAR_MEAN)[:, None, None]) / torch.tensor(
            _CIFAR_STD
        )[:, None, None]


_BLACK = tuple(-mean / std for mean, std in zip(_CIFAR_MEAN, _CIFAR_STD))
TASKS = {
    "mnist": Task(mnist_cnn, ShiftAndFlip(2, fill=-1.0), 0.1, 50_000, "weight"),
    "fashion-mnist": Task(mnist_cnn, ShiftAndFlip(2, fill=-1.0), 0.1, 50_000, "weight"),
    "cifar10": Task(cifar10_cnn, ShiftAndFlip(4, flip=True, fill=_BLACK), 10.0, 40_000, "batch"),
}


def methods(settings: Settings, draw: int) -> dict[str, Estimator]:
    """The paper's methods and the others, with the paper's settings. The lowest scores are removed first."""
    steps = max(1, 2 * settings.train // 1000)  # two epochs of batches of 1,000
    solver = estimators.MomentumSGD(steps, 0.005, 0.9, min(1000, settings.train))
    return {
        "retrace": estimators.Retrace(),
        "last-epoch": estimators.Retrace(epochs=1),
        "no-hessian": estimators.WithoutHessian(),
        "k&l": estimators.InfluenceFunction(solver, TASKS[settings.data].damping, seed=draw),
        "autoencoder": estimators.Autoencoder(epochs=settings.epochs, seed=draw),
        "isolation-forest": estimators.IsolationForest(seed=draw),
        "loss": estimators.TrainingLoss(),
        "random": estimators.Random(seed=draw),
    }


METHODS = tuple(methods(Settings(), 0))


def check(kind: str, names: Iterable[str], known: Iterable[str]) -> list[str]:
    return [check_name(kind, name, known) for name in names]


def numbers(draws: str) -> range:
    """ "0:30" or "7"."""
    first, colon, last = draws.partition(":")
    try:
        found = range(int(first or 0), int(last)) if colon else range(int(first), int(first) + 1)
    except ValueError:
        raise BadInput(f"draws are given as 0:30 or as one number, not '{draws}'.") from None
    if not len(found) or found[0] < 0:
        raise BadInput(f"'{draws}' names no draw.")
    return found


def positions(settings: Settings, number: int, available: int) -> tuple[np.ndarray, np.ndarray]:
    """Where the validation and the training instances of a draw stand in the set's own training part."""
    if settings.train + settings.validation > available:
        raise BadInput(
            f"{settings.data} has {available} training instances, not {settings.train + settings.validation}."
        )
    order = np.random.default_rng([7, number]).permutation(available)
    return order[: settings.validation], order[settings.validation :][: settings.train]


# --- one draw ------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Draw:
    settings: Settings
    number: int
    train: tuple[torch.Tensor, torch.Tensor]
    validation: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]

    @staticmethod
    def of(settings: Settings, number: int) -> "Draw":
        task, data = TASKS[settings.data], load(settings.data)
        assert data.test is not None
        held_out, used = positions(settings, number, len(data.train[1]))
        parts = [(data.train, held_out), (data.train, used), (data.test, np.arange(settings.test))]
        validation, training, test = (
            (task.prepared(x[ids]), torch.from_numpy(y[ids])) for (x, y), ids in parts
        )
        return Draw(settings, number, training, validation, test)

    def trained(self, folder: Path, seed: int, device: str | None, progress: bool) -> Run:
        task, settings = TASKS[self.settings.data], self.settings

        def begin(resume: bool) -> Run:
            torch.manual_seed(seed)
            model = task.model()
            return train(
                model,
                self.train,
                "cross_entropy",
                torch.optim.SGD(model.parameters(), lr=settings.rate),
                tape=folder,
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
            with suppress(
                TapeMismatch, TapeDamaged
            ):  # a tape of other settings, or damaged: it is recorded again
                return begin(resume=True)
        return begin(resume=False)

    def measured(
        self, run: Run, removed: dict[tuple[str, int], np.ndarray], retrain: str
    ) -> list[dict]:
        """One row per method and m: test error and loss, and those of the model that kept everything."""
        epochs = 1 if retrain == "last" else None
        without = run.counterfactual(
            list(removed.values()), epochs=epochs, absent=TASKS[self.settings.data].absent
        )
        rows = [{"method": method, "m": m, "retrain": retrain} for method, m in removed]
        for name, query in (("error", error_rate(self.test)), ("loss", mean_loss(self.test))):
            values, changes = without.evaluate(query), without.changes(query)
            for row, value, change in zip(rows, values, changes):
                row |= {name: float(value), f"{name}_kept": float(value - change)}
        return rows


def compute(
    settings: Settings,
    number: int,
    chosen: list[str],
    retrain: list[str],
    folder: Path,
    *,
    device: str | None = None,
    progress: bool = True,
) -> dict:
    """Train, score, remove, train again, measure. What is computed is written before the next part begins."""
    path = folder / f"{settings.data}-{number:03d}.json"
    fresh = {
        "settings": asdict(settings),
        "draw": number,
        "rows": [],
        "harmful": {},
        "agreement": {},
        "seconds": {},
        "made_on": _here(device),
    }
    result = result_store.load(path, asdict(settings)) or fresh
    done = {(row["method"], row["retrain"]) for row in result["rows"]}
    missing = {way: [name for name in chosen if (name, way) not in done] for way in retrain}
    if not any(missing.values()):
        return result
    draw = Draw.of(settings, number)
    tape = folder / "tapes" / f"{settings.data}-{number:03d}"
    with _timed(result, "training"):
        run = draw.trained(tape, number, device, progress)
    wanted = [name for name in METHODS if any(name in names for names in missing.values())]
    values = _scored(
        run,
        mean_loss(draw.validation),
        methods(settings, number),
        wanted,
        result,
        folder / "scores" / path.stem,
    )
    order = {name: np.argsort(values[name], kind="stable") for name in wanted}
    result["harmful"] |= {name: order[name][:SHOWN].tolist() for name in wanted}
    result["agreement"] |= {
        f"{a} ~ {b}": _rank_correlation(values[a], values[b]) for a, b in combinations(wanted, 2)
    }
    sizes = [m for m in settings.removed if m < settings.train]
    for way, names in missing.items():
        if not names:
            continue
        with _timed(result, f"retrain {way}"):
            again = (
                draw.trained(
                    tape.with_name(tape.name + "-fresh"), 10_000 + number, device, progress
                )
                if way == "fresh"
                else run
            )
            removed = {(name, m): order[name][:m] for name in names for m in sizes}
            result["rows"] += draw.measured(again, removed, way)
        write_json(path, result)
    return result


def _scored(
    run: Run,
    query: Query,
    available: dict[str, Estimator],
    wanted: list[str],
    result: dict,
    folder: Path,
) -> dict[str, np.ndarray]:
    """The scores of each method. They are kept with the id of the run that they are of, so a draw that is stopped goes on from there."""
    values = {}
    for name in wanted:
        path = folder / f"{run.recording.tape.manifest['id']}-{name}.safetensors"
        whole = path.with_name(path.name.replace("last-epoch", "retrace"))
        with _timed(result, name):
            if path.exists():
                scores = Scores.load(path)
            elif name == "last-epoch" and whole.exists():
                scores = Scores.load(whole).last_epochs(
                    1
                )  # the same numbers: a retrace goes through the last epoch first
            else:
                scores = available[name].score(run, query)
                scores.save(path)
        values[name] = scores.values
    return values


def _here(device: str | None) -> str:
    on = (
        torch.cuda.get_device_name()
        if device is not None and device.startswith("cuda") and torch.cuda.is_available()
        else platform.machine()
    )
    return f"{on}, torch {torch.__version__}, Python {platform.python_version()}, dross {__version__}, {datetime.date.today()}"


@contextmanager
def _timed(result: dict, what: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    result["seconds"][what] = round(time.perf_counter() - start, 2)


def _rank_correlation(one: np.ndarray, other: np.ndarray) -> float:
    from scipy.stats import spearmanr

    return round(float(spearmanr(one, other)[0]), 4)  # type: ignore[arg-type]


# --- many draws -----------------------------------------------------------------------------------------------------------------------


def compute_all(
    settings: Settings,
    draws: Sequence[int],
    chosen: list[str],
    retrain: list[str],
    folder: Path,
    *,
    device: str | None = None,
    n_jobs: int | None = None,
    progress: bool = True,
) -> Iterator[int]:
    """The draws, side by side where there are workers; the numbers of those that are done, as they are done. Each keeps its own results."""
    work = partial(_draw, settings, chosen, retrain, folder.absolute(), device, progress)
    for place, _ in sweep(work, draws, what="draws", n_jobs=n_jobs, progress=progress):
        yield draws[place]


def _draw(
    settings: Settings,
    chosen: list[str],
    retrain: list[str],
    folder: Path,
    device: str | None,
    progress: bool,
    number: int,
) -> None:
    compute(settings, number, chosen, retrain, folder, device=device, progress=progress)


def merged(folder: Path, settings: Settings) -> list[dict]:
    """The results of all draws that are in the folder."""
    results = [
        result_store.load(path, asdict(settings))
        for path in sorted(folder.glob(f"{settings.data}-*.json"))
    ]
    return [result for result in results if result is not None and result["rows"]]


def summarized(rows: list[dict]) -> list[dict]:
    """Per method, way and m: mean error, the paired difference to the models that kept everything, its p-value, and how many improved."""
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

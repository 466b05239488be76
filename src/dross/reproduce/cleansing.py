"""Section 7.2 of the paper: does removing what a method finds harmful make the model better?

One draw holds out validation data at random, trains the paper's network, scores every training
instance by each method, removes the m lowest-scored for a grid of m, trains again and measures the
test part. There are three ways to train again:

    last    the recorded run up to its last epoch, the last epoch without the removed instances
    all     the recorded run from the start without them
    fresh   a new run with new seeds, with and without them: what a user would do next

Every result is compared with a model from which nothing was removed, computed in the same way and
in the same batch of models. Draws are written as they finish and merged later, so a long experiment
can run in pieces and on different machines.
"""

import datetime
import platform
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import combinations
from pathlib import Path

import numpy as np
import torch

from .._io import write_json
from .._version import __version__
from ..datasets import load
from ..distributed import jobs
from ..distributed.jobs import sweep
from ..errors import CorruptFile, InputChanged
from ..influence.query import error_rate, mean_loss
from ..influence.run import Run
from ..influence.scores import Scores
from ..record.train import train
from ..tape.format import MANIFEST
from .cleansing_settings import METHODS, TASKS, Settings, build_methods, split_positions

PICTURES_PER_METHOD = 20  # of the most harmful, in the contact sheets


@dataclass(frozen=True)
class Draw:
    """The data of one draw, prepared for training."""

    settings: Settings
    number: int
    train: tuple[torch.Tensor, torch.Tensor]
    validation: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]

    @staticmethod
    def of(settings: Settings, number: int) -> "Draw":
        """Load the data set and split it; raises InvalidInput."""
        task, data = TASKS[settings.data], load(settings.data)
        assert data.test is not None
        held_out, used = split_positions(settings, number, len(data.train[1]))
        parts = [(data.train, held_out), (data.train, used), (data.test, np.arange(settings.test))]
        validation, training, test = (
            (task.prepare(x[ids]), torch.from_numpy(y[ids])) for (x, y), ids in parts
        )
        return Draw(settings, number, training, validation, test)

    def record(self, folder: Path, seed: int, device: str | None, progress: bool) -> Run:
        """Train the paper's network and record it; a run that was stopped goes on."""
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
            list(removed.values()), epochs=epochs, absent=TASKS[self.settings.data].absent
        )
        rows = [{"method": method, "m": m, "retrain": way} for method, m in removed]
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
    """Compute one draw: train, score, remove, train again, measure.

    Each part is written before the next one begins, and what is there already is not computed
    again.

    Arguments:
        settings: of the experiment.
        number: of the draw.
        chosen: names of methods.
        retrain: ways to train again.
        folder: where the draw's results, tapes and scores are kept.
        device: where the network is trained.
        progress: whether progress is shown.

    Returns:
        The result of the draw as it is written: rows, seconds, agreement of the methods.

    Raises:
        InputChanged: the folder holds a result of other settings.
        InvalidInput: the data set is not on this machine and cannot be fetched.
    """
    path = folder / f"{settings.data}-{number:03d}.json"
    fresh = {
        "settings": asdict(settings),
        "draw": number,
        "rows": [],
        "harmful": {},
        "agreement": {},
        "seconds": {},
        "made_on": _describe_machine(device),
    }
    result = jobs.load(path, asdict(settings)) or fresh
    done = {(row["method"], row["retrain"]) for row in result["rows"]}
    missing = {way: [name for name in chosen if (name, way) not in done] for way in retrain}
    if not any(missing.values()):
        return result
    draw = Draw.of(settings, number)
    tape = folder / "tapes" / path.stem
    with _time(result, "training"):
        run = draw.record(tape, number, device, progress)
    wanted = [name for name in METHODS if any(name in names for names in missing.values())]
    order = _rank_instances(draw, run, wanted, result, folder / "scores" / path.stem)
    sizes = [m for m in settings.removed if m < settings.train]
    for way, names in missing.items():
        if not names:
            continue
        with _time(result, f"retrain {way}"):
            again = run
            if way == "fresh":
                other = tape.with_name(tape.name + "-fresh")
                again = draw.record(other, 10_000 + number, device, progress)
            removed = {(name, m): order[name][:m] for name in names for m in sizes}
            result["rows"] += draw.measure(again, removed, way)
        write_json(path, result)
    return result


def _rank_instances(
    draw: Draw, run: Run, wanted: list[str], result: dict, folder: Path
) -> dict[str, np.ndarray]:
    """Each method's order of the instances, the most harmful first.

    How far the methods agree, and the first instances of each, go into the result.
    """
    values = _score_instances(draw, run, wanted, result, folder)
    order = {name: np.argsort(values[name], kind="stable") for name in wanted}
    result["harmful"] |= {name: order[name][:PICTURES_PER_METHOD].tolist() for name in wanted}
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
        path = folder / f"{run.recording.tape.manifest['id']}-{name}.safetensors"
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


# --- many draws ---


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
    """Compute many draws, side by side where there are workers, and yield each that is done.

    The arguments are those of `compute`, and `n_jobs` is the number of workers.
    """
    work = partial(
        compute,
        settings,
        chosen=chosen,
        retrain=retrain,
        folder=folder.absolute(),
        device=device,
        progress=progress,
    )
    for place, _ in sweep(work, draws, what="draws", n_jobs=n_jobs, progress=progress):
        yield draws[place]


def load_results(folder: Path, settings: Settings) -> list[dict]:
    """The results of all draws that are in the folder.

    Raises:
        InputChanged: one of them was computed with other settings.
    """
    results = [
        jobs.load(path, asdict(settings)) for path in sorted(folder.glob(f"{settings.data}-*.json"))
    ]
    return [result for result in results if result is not None and result["rows"]]


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

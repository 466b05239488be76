"""`dross judge`: does it help? New models with and without the edits, compared on the test part.

Nothing before the verdict has looked at the test part. For each seed three models start from the
same weights: one learns everything, one learns the edited data, and one, the control, learns data
with as many edits at random. The verdict rests on the differences between them, seed by seed. The
interval covers both kinds of chance: the seeds, and which instances are in the test part.
"""

import hashlib
import json
import os
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..data.seeds import mix_seeds
from ..errors import BadInput, StorageFailed
from ..execution.devices import choose_device
from ..influence.query import error_rate, mean_loss
from ..parallel.job_pool import sweep, uses_workers
from ..parallel.result_store import ResultStore
from ..support.arguments import check_count
from ..support.atomic_files import staged_file, write_json
from .edits import Edits, choose_edits
from .inputs.numbers import read_learnable
from .inputs.prepared import PreparedData
from .learning.recipe import Recipe
from .learning.score import record_run
from .learning.train_many import ModelSpec, train_many
from .project import Project
from .project_files import delete_stale_files, delete_written, write_sealed
from .reopen import reopen_inputs
from .report import write_report
from .verdict import (
    Comparison,
    Verdict,
    advise,
    compare_metric,
    decide_verdict,
    describe_verdict,
    warn_of_reuse,
)

QUICK_SEEDS, SEEDS = 6, 10  # with fewer than 6 the sign-flip test cannot be sure of anything
_MAX_SEEDS = 1000
_FRESH = 1_000_003  # the stream of seeds that nothing before the verdict has used
_CONTROL = 7  # the stream within it that draws the control's edits
_SEEDS_SIDE_BY_SIDE = 5
_STATUS = "judging.json"


def judge(
    folder: str | Path,
    *,
    remove: int | None = None,
    relabel: int | None = None,
    decisions: bool = False,
    seeds: int | None = None,
    quick: bool = False,
    progress: bool = True,
    n_jobs: int | None = None,
    trust_code: Sequence[str] = (),
    device: str | None = None,
) -> Verdict:
    """Retrain with fresh seeds, with and without the edits, and compare on the test part.

    By default the edits are the decisions made on the page; where there are none, the suggested
    number of removals. Models that are trained are kept until the verdict and the report are
    written: a judgement that was stopped goes on when it is asked for again.

    Arguments:
        folder: a folder that `dross.clean` made.
        remove: judge the removal of the N most harmful instances.
        relabel: judge giving the N most probably mislabelled the label that the models predict.
        decisions: judge what was decided on the page, and nothing else.
        seeds: how many seeds to train with; 10 by default, 6 with `quick`.
        quick: a first look: fewer seeds, and the recorded run is not retrained.
        progress: show progress bars where stderr is a terminal.
        n_jobs: how many processes to train in. A joblib.parallel_config around the call spreads
            the seeds over a cluster instead.
        trust_code: the `module:function`s that the project was made with and that may be run. A
            project never causes code to be imported that this call does not name.
        device: where models are trained: `cpu`, `cuda` or `mps`. By default a GPU of CUDA if there
            is one, and else the CPU.

    Returns:
        The verdict. It is also written to the folder, and the report is written again.

    Raises:
        BadInput: there is nothing to judge, a number is out of range, or the project needs code
            that `trust_code` does not name.
        TapeMismatch: the data or the model's module have changed since `dross.clean`.
        TapeDamaged: the folder is not a finished project, or a file is damaged.
        StorageFailed: the folder cannot be written.

    Example:
        verdict = dross.judge("runs/people", remove=50)
        print(verdict.verdict, verdict.sentence)
    """
    project = Project.open(folder)
    edits = choose_edits(project, remove, relabel, decisions)
    count = seeds if seeds is not None else QUICK_SEEDS if quick else SEEDS
    check_seeds(count)
    here = choose_device(device)
    uses_workers(n_jobs)  # or it says that there cannot be as many
    _check_writable(project.folder)
    delete_stale_files(project.folder)
    prepared, recipe = reopen_inputs(project, trust_code)
    recipe = replace(recipe, device=str(here))
    judgement = _Judgement(project, prepared, recipe, edits, count, progress, n_jobs)
    verdict = judgement.run(skip_recorded=quick)
    write_sealed(_new_verdict_file(project.folder / "verdicts"), verdict.to_json())
    write_report(project)
    judgement.delete_results()
    return verdict


def check_seeds(count: int) -> None:
    """Refuse, with BadInput, too few seeds for a comparison, and more than anybody needs."""
    if count < 2:
        raise BadInput("A comparison needs at least 2 seeds; 10 are a good number.")
    why = "each trains three models; 10 are a good number"
    check_count(count, "seeds", at_most=_MAX_SEEDS, because=why)


def _check_writable(folder: Path) -> None:
    """Better now than after an hour of training; raises StorageFailed."""
    try:
        with staged_file(folder / _STATUS, b""):
            pass
    except OSError as error:
        raise StorageFailed(
            f"{folder} cannot be written ({error.strerror or error}), and the verdict goes there. "
            "Copy the folder to a place of your own, and judge it there."
        ) from error


def _new_verdict_file(folder: Path) -> Path:
    """A name for now that no other process takes at the same time."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    taken = len(list(folder.glob(f"{stamp}*.json")))
    return folder / f"{stamp}-{taken:02d}-{os.getpid()}.json"


@dataclass(frozen=True)
class _EncodedEdits:
    """Edits of the training part, with labels as a model learns them."""

    removed: np.ndarray  # ids
    relabelled: np.ndarray  # ids
    labels: Tensor | None  # one for each of `relabelled`

    def describe_model(self, seed: int, rate: float, y: Tensor) -> ModelSpec:
        """The training of one model on the edited data."""
        left = np.setdiff1d(np.arange(len(y)), self.removed)
        if self.labels is None:
            return ModelSpec(seed, left, rate)
        y = y.clone()
        y[self.relabelled] = self.labels
        return ModelSpec(seed, left, rate, y)

    def to_bytes(self) -> bytes:
        """The same for the same edits."""
        labels = b"" if self.labels is None else self.labels.contiguous().numpy().tobytes()
        return b"/".join([self.removed.tobytes(), self.relabelled.tobytes(), labels])


class _Seed(NamedTuple):
    number: int
    seed: int
    control: _EncodedEdits


@dataclass(frozen=True)
class _TrainSeeds:
    """Trains, in any process, the three models of some seeds: everything, edited, control."""

    recipe: Recipe
    x: Tensor
    y: Tensor
    test: Tensor
    edits: _EncodedEdits
    seeds: int
    progress: bool

    def __call__(self, piece: Sequence[_Seed]) -> dict[str, Tensor]:
        """What the models say of the test part: [seeds, 3, test, outputs]."""
        rate, models = self.recipe.rate, []
        for _, seed, control in piece:
            models += [
                ModelSpec(seed, np.arange(len(self.y)), rate),
                self.edits.describe_model(seed, rate, self.y),
                control.describe_model(seed, rate, self.y),
            ]
        what = f"seeds {piece[0].number + 1} to {piece[-1].number + 1} of {self.seeds}"
        trained = train_many(self.recipe, self.x, self.y, models, what=what, progress=self.progress)
        outputs = trained.outputs(self.test)
        return {"outputs": outputs.reshape(len(piece), 3, *outputs.shape[1:])}


@dataclass(frozen=True)
class _Judgement:
    project: Project
    prepared: PreparedData
    recipe: Recipe
    edits: Edits
    seeds: int
    progress: bool
    n_jobs: int | None

    def run(self, skip_recorded: bool) -> Verdict:
        """Train, compare, decide. The page reads from judging.json how far it is."""
        status = self.project.folder / _STATUS
        _ = self._results  # encodes every label: an unknown one is refused before this writes
        try:
            outputs = self._train(status)
            self._write_status(status, self.seeds, "retraining the recorded run")
            recorded_run = {} if skip_recorded else self._replay_recorded_run()
        finally:
            with suppress(OSError):
                status.unlink(missing_ok=True)
        return self._verdict(outputs, recorded_run)

    def delete_results(self) -> None:
        """Delete the trained models' outputs, which a verdict and its report do not need."""
        with suppress(StorageFailed):
            delete_written(self.project.folder, f"judging/{self._results.folder.name}")
        with suppress(OSError):  # another judgement waits there to go on
            self._results.folder.parent.rmdir()

    # --- training ---

    def _train(self, status: Path) -> Tensor:
        """What the models say of the test part: [seeds, 3, test, outputs]."""
        work, pieces, done = self._work, self._pieces, 0
        outputs: dict[int, Tensor] = {}
        options = {"n_jobs": self.n_jobs, "store": self._results, "progress": self.progress}
        self._write_status(status, done, "training with and without them")
        for number, result in sweep(work, pieces, what="training", **options):
            outputs[number] = result["outputs"]
            done += len(pieces[number])
            self._write_status(status, done, "training with and without them")
        return torch.cat([outputs[number] for number in range(len(pieces))])

    def _write_status(self, path: Path, done: int, stage: str) -> None:
        write_json(path, {"done": done, "of": self.seeds, "stage": stage})

    @cached_property
    def _pieces(self) -> list[list[_Seed]]:
        """Seeds that are trained together, one job each."""
        size = _SEEDS_SIDE_BY_SIDE if self.recipe.model in ("linear", "mlp") else 1
        count = self.prepared.source.labels.size
        seeds = [
            _Seed(number, mix_seeds(_FRESH, count, number), self._draw_control(number))
            for number in range(self.seeds)
        ]
        return [seeds[start : start + size] for start in range(0, self.seeds, size)]

    @cached_property
    def _work(self) -> _TrainSeeds:
        x, y = self.prepared.pair("train")
        edits = self._encode(self.edits.removed, self.edits.relabelled)
        test = self.prepared.x["test"]
        return _TrainSeeds(self.recipe, x, y, test, edits, self.seeds, self.progress)

    @cached_property
    def _results(self) -> ResultStore:
        """Where the outputs are kept: one folder for each judgement that could be asked for."""
        about = self.project.about
        edits = hashlib.sha256(self._work.edits.to_bytes())
        for piece in self._pieces:
            for seed in piece:
                edits.update(seed.control.to_bytes())
        settings = {
            "data": about["digest"],
            "recipe": self.recipe.to_json(),
            "make": about["options"]["make"],
            "seeds": self.seeds,
            "altered": edits.hexdigest(),
        }
        name = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        return ResultStore((self.project.folder / "judging" / name).absolute(), settings)

    def _draw_control(self, number: int) -> _EncodedEdits:
        """As many removed, and as many given the label that the models predict, at random."""
        rng = np.random.default_rng(mix_seeds(_FRESH, _CONTROL, number))
        order = rng.permutation(len(self.prepared.y["train"]))
        removed = order[: len(self.edits.removed)]
        others = order[len(removed) :][: len(self.edits.relabelled)]
        predictions = self.project.instances["prediction"]
        return self._encode(removed, {int(id): str(predictions.loc[id]) for id in others})

    def _encode(self, removed: np.ndarray, relabelled: dict[int, str]) -> _EncodedEdits:
        ids = np.array(list(relabelled), dtype=np.int64)
        if not relabelled:
            return _EncodedEdits(removed, ids, None)
        labels = list(relabelled.values())
        if self._is_classification:
            unknown = set(labels) - set(self.prepared.source.classes)
            values = np.array(labels, dtype=object)
        else:
            read = {label: read_learnable(label) for label in labels}
            unknown = {label for label, number in read.items() if number is None}
            values = np.array([read[label] for label in labels], dtype=np.float64)
        if unknown:
            what = "one of the classes" if self._is_classification else "a number to learn"
            raise BadInput(
                f"Some instances were relabelled as '{min(unknown)}', which is not {what}."
            )
        return _EncodedEdits(removed, ids, self.prepared.targets(values))

    def _replay_recorded_run(self) -> dict[str, dict[str, float]]:
        """Retrain All and Retrain Last: the first recorded run without the removed instances."""
        about, removed = self.project.about, self.edits.removed
        if self.edits.relabelled or about["rounds"] > 1 or not len(removed):
            return {}
        folder, seed = self.project.folder / "runs" / "round-1" / "run-0", about["request"]["seed"]
        data, test = self.prepared.pair("train"), self.prepared.pair("test")
        run = record_run(self.recipe, data, 0, folder, seed=seed, progress=False)
        queries = {"loss": mean_loss(test)}
        if self._is_classification:
            queries["error"] = error_rate(test)
        units = {"loss": self._loss_unit, "error": 1.0}
        found = {}
        for way, epochs in (("all", None), ("last", 1)):
            without = run.counterfactual([removed], epochs=epochs)
            changes = {
                f"{name}_change": units[name] * float(without.changes(query)[0])
                for name, query in queries.items()
            }
            after = {
                f"{name}_after": units[name] * float(without.evaluate(query)[0])
                for name, query in queries.items()
            }
            found[way] = changes | after
        return found

    # --- comparing ---

    @property
    def _is_classification(self) -> bool:
        return self.prepared.source.task == "classification"

    @property
    def _loss_unit(self) -> float:
        """A regression learns labels of mean 0 and spread 1; verdicts are in the label's units."""
        return 1.0 if self._is_classification else self.prepared.scale[1] ** 2

    def _verdict(self, outputs: Tensor, recorded_run: dict) -> Verdict:
        """outputs: [seeds, 3, test, outputs]."""
        tested = len(self.prepared.y["test"])
        off = self._measure(self.recipe.errors, outputs)
        loss = compare_metric(self._loss_unit * self._measure(self.recipe.losses, outputs))
        metrics: dict[str, Comparison]
        if self._is_classification:
            metrics = {"error": compare_metric(off), "loss": loss}
        else:
            metrics = {"absolute error": compare_metric(self.prepared.scale[1] * off), "loss": loss}
        verdict = decide_verdict(metrics)
        advice = advise(verdict, metrics, self.seeds, tested)
        warning = warn_of_reuse(len(self.project.verdicts()))
        return Verdict(
            made=time.strftime("%Y-%m-%d %H:%M"),
            what=self.edits.what,
            removed=len(self.edits.removed),
            relabelled=len(self.edits.relabelled),
            seeds=self.seeds,
            metrics=metrics,
            per_class=self._compare_classes(off) if self._is_classification else [],
            recorded=recorded_run,
            verdict=verdict,
            sentence=describe_verdict(verdict, metrics, self.edits, self.seeds),
            settle=" ".join(filter(None, [advice, warning])),
        )

    def _measure(self, metric: Callable[..., Tensor], outputs: Tensor) -> np.ndarray:
        """float64 [seeds, 3, test]; metric: of the recipe."""
        y, flat = self.prepared.y["test"], outputs.reshape(-1, *outputs.shape[2:])
        return metric(flat, y).double().numpy().reshape(self.seeds, 3, len(y))

    def _compare_classes(self, off: np.ndarray) -> list[dict[str, Any]]:
        """off: float64 [seeds, 3, test]: 1 where a prediction is wrong."""
        y, rows = self.prepared.y["test"], []
        for place, name in enumerate(self.prepared.source.classes):
            members = (y == place).numpy()
            if members.any():
                before, after = (float(off[:, k][:, members].mean()) for k in (0, 1))
                count = int(members.sum())
                rows.append({"class": name, "count": count, "before": before, "after": after})
        return rows

"""`dross judge`: does it help? New models with and without the removed instances, on the test part, which nothing has looked at before.

For each seed three models start from the same weights: one learns everything, one without the removed (or with the corrected) instances, one without as
many others chosen at random. The differences between them, seed by seed, are what is judged. The interval covers both kinds of chance: that of
the seeds, and that of which instances happen to be in the test part.
"""

import hashlib
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.seeds import mixed
from ..errors import BadInput, TapeMismatch
from ..influence.query import error_rate, mean_loss
from ..parallel.job_pool import sweep
from ..parallel.result_store import ResultStore
from ..support.atomic_files import write_json
from .edits import Change, chosen
from .inputs.load import Request, prepare
from .inputs.prepared import PreparedData, data_digest
from .inputs.user_code import import_function, source_digest
from .project import Project
from .recipe import Recipe
from .score import record_run
from .train_many import ModelSpec, train_many
from .verdict import Verdict, decided, looked, measured, sentence, settle

QUICK_SEEDS, SEEDS = 6, 10  # with fewer than 6 the sign-flip test cannot be sure of anything
_FRESH = 1_000_003  # the stream of seeds that nothing before the verdict has used


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
) -> Verdict:
    """Retrain with fresh seeds, with and without what is removed or relabelled, and compare on the test part.

    remove: the so many most harmful. relabel: give the so many most probably mislabelled the label that the models predict. decisions: what
    was decided on the page. By default the decisions, if there are any, else the suggested number of removals.

    n_jobs, or a joblib.parallel_config around the call, spreads the seeds over processes or a cluster. What is trained is kept until the verdict
    is written: a judgement that was stopped goes on when it is asked for again.
    """
    project = Project.open(folder)
    change = chosen(project, remove, relabel, decisions)
    count = seeds if seeds is not None else QUICK_SEEDS if quick else SEEDS
    if count < 2:
        raise BadInput("A comparison needs at least 2 seeds; 10 are a good number.")
    prepared, recipe = reopened(project)
    judging = _Judging(project, prepared, recipe, change, count, progress, n_jobs)
    found = judging.run(skip_recorded=quick)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    taken = len(list((project.folder / "verdicts").glob(f"{stamp}*.json")))
    write_json(project.folder / "verdicts" / f"{stamp}-{taken:02d}.json", found.to_json())
    judging.forget()
    from . import report

    report.write(project)
    return found


def reopened(project: Project) -> tuple[PreparedData, Recipe]:
    """The data and the recipe of a project, read again from the input."""
    about = project.about
    prepared = prepare(Request(**about["request"]))
    if data_digest(prepared) != about["digest"]:
        raise TapeMismatch(
            f"{about['request']['data']} has changed since dross clean read it. Put it back as it was, or run dross clean again."
        )
    make = about["options"]["make"]
    if make is not None and source_digest(make) != about["model_source"]:
        raise TapeMismatch(
            f"The module of {make} has changed since dross clean used it. Put it back as it was, or run dross clean again."
        )
    saved = about["recipe"] | {"inputs": tuple(about["recipe"]["inputs"])}
    return prepared, Recipe(
        **saved, make=None if make is None else import_function(make, "--model")
    )


@dataclass(frozen=True)
class _Altered:
    """In what the data of one model differ: these removed, those with other labels."""

    removed: np.ndarray
    ids: np.ndarray
    labels: Tensor | None  # as the model learns them, one for each of ids

    def fit(self, seed: int, rate: float, y: Tensor) -> ModelSpec:
        left = np.setdiff1d(np.arange(len(y)), self.removed)
        if self.labels is None:
            return ModelSpec(seed, left, rate)
        y = y.clone()
        y[self.ids] = self.labels
        return ModelSpec(seed, left, rate, y)

    def bytes(self) -> bytes:
        labels = b"" if self.labels is None else self.labels.contiguous().numpy().tobytes()
        return b"/".join([self.removed.tobytes(), self.ids.tobytes(), labels])


@dataclass(frozen=True)
class _Fresh:
    """New models, wherever they are trained: for every seed one with everything, one with the change that is judged, one with the control."""

    recipe: Recipe
    x: Tensor
    y: Tensor
    test: Tensor
    change: _Altered
    seeds: int
    progress: bool

    def __call__(self, piece: Sequence[tuple[int, int, _Altered]]) -> dict[str, Tensor]:
        """piece: (number, seed, control) of each seed. The outputs on the test part: [seeds, 3, test, outputs]."""
        rate, fits = self.recipe.rate, []
        for _, seed, control in piece:
            fits += [
                ModelSpec(seed, np.arange(len(self.y)), rate),
                self.change.fit(seed, rate, self.y),
                control.fit(seed, rate, self.y),
            ]
        what = f"seeds {piece[0][0] + 1} to {piece[-1][0] + 1} of {self.seeds}"
        said = train_many(
            self.recipe, self.x, self.y, fits, what=what, progress=self.progress
        ).outputs(self.test)
        return {"outputs": said.reshape(len(piece), 3, *said.shape[1:])}


@dataclass
class _Judging:
    project: Project
    prepared: PreparedData
    recipe: Recipe
    change: Change
    seeds: int
    progress: bool
    n_jobs: int | None

    def run(self, skip_recorded: bool) -> Verdict:
        told = self.project.folder / "judging.json"
        size = _at_a_time(self.recipe)
        numbered = [
            (k, mixed(_FRESH, self.prepared.source.labels.size, k), self._at_random(k))
            for k in range(self.seeds)
        ]
        pieces = [numbered[start : start + size] for start in range(0, self.seeds, size)]
        work = _Fresh(
            self.recipe,
            *self.prepared.pair("train"),
            self.prepared.x["test"],
            self._altered(self.change.removed, self.change.relabelled),
            self.seeds,
            self.progress,
        )
        self.kept = self._kept(work, pieces)
        outputs: dict[int, Tensor] = {}
        done = 0
        try:
            write_json(
                told, {"done": done, "of": self.seeds, "stage": "training with and without them"}
            )
            for number, result in sweep(
                work,
                pieces,
                what="training",
                n_jobs=self.n_jobs,
                store=self.kept,
                progress=self.progress,
            ):
                outputs[number] = result["outputs"]
                done += len(pieces[number])
                write_json(
                    told,
                    {"done": done, "of": self.seeds, "stage": "training with and without them"},
                )
            write_json(
                told, {"done": self.seeds, "of": self.seeds, "stage": "retraining the recorded run"}
            )
            recorded_run = {} if skip_recorded else self._on_the_recorded_run()
        finally:
            told.unlink(missing_ok=True)
        said = torch.cat(
            [outputs[number] for number in range(len(pieces))]
        )  # [seeds, 3, test, outputs]
        return self._verdict(said, recorded_run)

    def forget(self) -> None:
        """The verdict is written: what it was computed from is not needed any more."""
        shutil.rmtree(self.kept.folder, ignore_errors=True)
        with suppress(OSError):
            self.kept.folder.parent.rmdir()  # unless another judgement waits there to go on

    def _kept(self, work: _Fresh, pieces: list) -> ResultStore:
        about = self.project.about
        altered = hashlib.sha256(
            b"".join(
                [
                    work.change.bytes(),
                    *(control.bytes() for piece in pieces for *_, control in piece),
                ]
            )
        )
        settings = {
            "data": about["digest"],
            "recipe": self.recipe.to_json(),
            "make": about["options"]["make"],
            "seeds": self.seeds,
            "altered": altered.hexdigest(),
        }
        name = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        return ResultStore((self.project.folder / "judging" / name).absolute(), settings)

    def _at_random(self, number: int) -> _Altered:
        """The control: as many removed, and as many given the label that the models predict, but any."""
        order = np.random.default_rng(mixed(_FRESH, 7, number)).permutation(
            len(self.prepared.y["train"])
        )
        removed = order[: len(self.change.removed)]
        others = order[len(removed) :][: len(self.change.relabelled)]
        return self._altered(
            removed, {int(k): str(self.project.instances["prediction"].loc[k]) for k in others}
        )

    def _altered(self, removed: np.ndarray, names: dict[int, str]) -> _Altered:
        ids = np.array(list(names), dtype=np.int64)
        if not names:
            return _Altered(removed, ids, None)
        labels: Any = list(names.values())
        if self.prepared.source.task == "classification":
            unknown = sorted(set(labels) - set(self.prepared.source.classes))
            if unknown:
                raise BadInput(
                    f"Some instances were relabelled as '{unknown[0]}', which is not one of the classes."
                )
        else:
            labels = [float(label) for label in labels]
        kind = object if self.prepared.source.task == "classification" else np.float64
        return _Altered(removed, ids, self.prepared.targets(np.array(labels, dtype=kind)))

    def _on_the_recorded_run(self) -> dict[str, dict[str, float]]:
        """Retrain All and Retrain Last: the first recorded run, replayed without the removed instances."""
        if (
            self.change.relabelled
            or self.project.about["rounds"] > 1
            or not len(self.change.removed)
        ):
            return {}
        folder = self.project.folder / "runs" / "round-1" / "run-0"
        run = record_run(
            self.recipe,
            self.prepared.pair("train"),
            0,
            folder,
            seed=self.project.about["request"]["seed"],
            progress=False,
        )
        found = {}
        for way, epochs in (("all", None), ("last", 1)):
            without = run.counterfactual([self.change.removed], epochs=epochs)
            measures = {"loss": mean_loss(self.prepared.pair("test"))}
            if self.prepared.source.task == "classification":
                measures["error"] = error_rate(self.prepared.pair("test"))
            unit = {"loss": self._loss_unit, "error": 1.0}
            found[way] = {
                f"{name}_change": unit[name] * float(without.changes(query)[0])
                for name, query in measures.items()
            }
            found[way] |= {
                f"{name}_after": unit[name] * float(without.evaluate(query)[0])
                for name, query in measures.items()
            }
        return found

    @property
    def _loss_unit(self) -> float:
        """A regression learns labels of mean 0 and spread 1; people are told the loss in the units of the label, squared."""
        return self.prepared.scale[1] ** 2 if self.prepared.source.task == "regression" else 1.0

    def _verdict(self, said: Tensor, recorded_run: dict) -> Verdict:
        y, flat = self.prepared.y["test"], said.reshape(-1, *said.shape[2:])
        shape = (self.seeds, 3, len(y))
        loss = self.recipe.losses(flat, y).double().numpy().reshape(shape)
        off = self.recipe.errors(flat, y).double().numpy().reshape(shape)
        measures = {"loss": measured(self._loss_unit * loss)}
        per_class: list[dict[str, Any]] = []
        if self.prepared.source.task == "classification":
            measures = {"error": measured(off), **measures}
            for place, name in enumerate(self.prepared.source.classes):
                rows = (y == place).numpy()
                if rows.any():
                    before, after = (float(off[:, k][:, rows].mean()) for k in (0, 1))
                    per_class.append(
                        {"class": name, "count": int(rows.sum()), "before": before, "after": after}
                    )
        else:
            measures = {"absolute error": measured(self.prepared.scale[1] * off), **measures}
        verdict = decided(measures)
        return Verdict(
            time.strftime("%Y-%m-%d %H:%M"),
            self.change.what,
            len(self.change.removed),
            len(self.change.relabelled),
            self.seeds,
            measures,
            per_class,
            recorded_run,
            verdict,
            sentence(verdict, measures, self.change, self.seeds),
            " ".join(
                filter(
                    None,
                    [
                        settle(verdict, measures, self.seeds, len(y)),
                        looked(len(self.project.verdicts())),
                    ],
                )
            ),
        )


def _at_a_time(recipe: Recipe) -> int:
    """Seeds trained side by side before the next word about progress."""
    return 5 if recipe.model in ("linear", "mlp") else 1

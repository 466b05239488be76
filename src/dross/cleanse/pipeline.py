"""`dross clean`: read, split, search, train and record, score, verify, suggest, report. Whatever stops it, it goes on from there."""

import json
import os
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from .. import __version__
from ..errors import BadInput, NotFinite, TapeDamaged
from ..influence.run import Run
from ..support.atomic_files import write_json
from ..support.name_hints import check_name
from ..support.png import encode_png
from . import report
from .inputs.frames import library
from .inputs.images import shown
from .inputs.load import Prepared, Request, digest, loaded, prepare, source_of
from .plan import Curve, curve
from .project import ABOUT, FORMAT, Project, read_json
from .reasons import explained
from .score import Checked, Scored, outliers, score, table, verify
from .train_many import MODELS, SEARCHED, Recipe, Searched, default_batch, search

Say = Callable[[str], None]
_BEGUN = "begun.json"  # what a folder without project.json was going to be
_LOOKED_AT = 400  # instances for which reasons are worked out


@dataclass(frozen=True)
class Options:
    """How it is done. Part of what decides the outcome."""

    model: str | None = None
    make: str | None = None  # module:function that builds a model of the user's own
    runs: int = 4
    rounds: int = 1
    rate: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    verified: int = 16

    def __post_init__(self):
        for name in ("runs", "rounds"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise BadInput(f"A rate must be above 0, not {self.rate}.")
        if self.model is not None:
            check_name("model", self.model, MODELS)


def clean(
    data: str | os.PathLike,
    label: str | None = None,
    *,
    out: str | os.PathLike | None = None,
    text: str | None = None,
    images: str | None = None,
    validation: str | None = None,
    test: str | None = None,
    task: str | None = None,
    columns: dict[str, str] | None = None,
    model: str | None = None,
    make: str | None = None,
    runs: int = 4,
    rounds: int = 1,
    rate: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    verified: int = 16,
    seed: int = 0,
    overwrite: bool = False,
    progress: bool = True,
    say: Say | None = None,
) -> Project:
    """Find the training instances that make a model worse.

    data        a CSV, TSV or Parquet file, a folder of pictures with one folder per class, or module:function
    label       the column to be learnt; text / images: the column that holds the text, or the paths of pictures
    out         the folder for everything that is found; by default runs/NAME
    runs        how many independent runs the scores are averaged over
    rounds      2 and more: remove what is suggested, train and score again

    The input is never touched. Returns the project; `dross review`, `dross judge` and `dross export` go on from it.
    """
    validation, test = (None if given is None else _absolute(given) for given in (validation, test))
    request = Request(
        _absolute(data), label, text, images, validation, test, task, dict(columns or {}), seed
    )
    options = Options(model, make, runs, rounds, rate, epochs, batch_size, verified)
    folder = (
        Path(out)
        if out is not None
        else Path("runs") / (Path(str(data).partition(":")[0]).stem or "data")
    )
    say = say or (lambda _: None)
    prepared = prepare(request)
    _introduce(prepared, say)
    began = {
        "request": asdict(request),
        "options": asdict(options),
        "digest": digest(prepared),
        "format": FORMAT,
    }
    if make is not None:
        began["model_source"] = source_of(make)
    if _is_done(folder, began, overwrite):
        say(f"Everything is there already, in {folder}.")
        return Project.open(folder)
    write_json(folder / _BEGUN, began)
    return _Cleaning(prepared, options, folder, request, began["digest"], progress, say).run()


def _absolute(given: str | os.PathLike) -> str:
    """A project is opened from other folders as well; module:function is left as it is."""
    return str(Path(given).resolve()) if Path(given).exists() else str(given)


def _introduce(prepared: Prepared, say: Say) -> None:
    source, parts = prepared.source, prepared.parts
    what = (
        f"{len(source.classes)} classes of '{source.label}'"
        if source.classes
        else f"the number '{source.label}'"
    )
    say(
        f"{len(source):,} instances ({source.kind}), {what}: {', '.join(f'{len(ids):,} for {part}' for part, ids in parts.items())}."
    )
    for note in prepared.notes:
        say(note)


def _is_done(folder: Path, began: dict, overwrite: bool) -> bool:
    """Whether the folder holds exactly this; refuses a folder that holds something else."""
    if not folder.exists() or not any(folder.iterdir()):
        return False
    ours = next((folder / name for name in (_BEGUN, ABOUT) if (folder / name).exists()), None)
    if ours is None:
        raise BadInput(f"{folder} exists and was not made by dross. Choose another folder: --out.")
    try:
        before = read_json(folder / _BEGUN)
    except (TapeDamaged, OSError):
        before = None
    if before == _plain(began):
        return (folder / ABOUT).exists()
    if not overwrite and {path.name for path in folder.iterdir()} == {_BEGUN}:
        return False  # an attempt that failed before anything was done
    if not overwrite:
        raise BadInput(
            f"{folder} holds a run on other data or with other settings. Choose another folder with --out, or replace it with --overwrite "
            "(decisions that were made there are set aside, not deleted)."
        )
    _set_decisions_aside(folder)
    for path in folder.iterdir():
        if not path.name.startswith("decisions-"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    return False


def _set_decisions_aside(folder: Path) -> None:
    for path in folder.glob("decisions.sqlite*"):
        path.rename(
            folder
            / f"decisions-{time.strftime('%Y%m%d-%H%M%S')}{path.name.removeprefix('decisions')}"
        )


def _plain(value: Any) -> Any:
    return json.loads(json.dumps(value))


@dataclass
class _Cleaning:
    prepared: Prepared
    options: Options
    folder: Path
    request: Request
    digest: str
    progress: bool
    say: Say

    def run(self) -> Project:
        started = time.monotonic()
        searched = self._searched()
        recipe, everyone = searched.recipe, np.arange(len(self.prepared.y["train"]))
        active, removed, tables, reasons = everyone, np.zeros(0, dtype=np.int64), [], []
        number = 0
        while True:
            recipe, runs, scored = self._scored(recipe, active, number)
            part = table(
                scored,
                self._labels(active),
                self._names(active),
                self.prepared.source.classes,
                self.prepared.scale,
                outliers(runs[0]),
            )
            checked = self._verified(runs[0], scored)
            found = self._curve(recipe, active, scored, number)
            part.loc[checked.verification.instances, "verified"] = checked.verification.actual
            part.index = active
            tables.append(part.assign(round=number + 1))
            reasons.append(
                found.reason if self.options.rounds == 1 else f"round {number + 1}: {found.reason}"
            )
            if number + 1 == self.options.rounds or found.m == 0:
                break
            harmful = active[np.argsort(scored.scores, kind="stable")[: found.m]]
            self.say(
                f"Round {number + 1}: {found.m} are set aside; the next round scores the other {len(active) - found.m:,}."
            )
            tables[-1] = tables[-1].loc[harmful]  # what is set aside keeps the scores it had then
            removed, active, number = (
                np.concatenate([removed, harmful]),
                np.setdiff1d(active, harmful),
                number + 1,
            )
        instances = self._merged(tables, removed)
        why = self._explained(instances, runs[0], recipe, checked, active)
        return self._written(
            searched,
            recipe,
            instances,
            why,
            checked,
            active,
            found,
            len(removed),
            "; ".join(reasons),
            time.monotonic() - started,
        )

    # --- the parts --------------------------------------------------------------------------------------------------------------------

    def _searched(self) -> Searched:
        kept, given = self.folder / "search.json", self.options
        base = self._recipe()
        if kept.exists():
            saved = read_json(kept)
            return Searched(
                replace(base, rate=saved["rate"], epochs=saved["epochs"]),
                {float(k): v for k, v in saved["curves"].items()},
            )
        rates = None if given.rate is None else (given.rate,)
        started = time.monotonic()
        found = search(
            base,
            *self.prepared.pair("train"),
            self.prepared.pair("validation"),
            rates=rates,
            epochs=given.epochs,
            seed=self.request.seed,
            progress=self.progress,
        )
        took = time.monotonic() - started
        recipe = found.recipe
        write_json(kept, {"rate": recipe.rate, "epochs": recipe.epochs, "curves": found.curves})
        self.say(
            f"Model: {recipe.model}, rate {recipe.rate:g}, {recipe.epochs} epochs in batches of {recipe.batch_size} "
            f"({', '.join(self._origins())})."
        )
        steps = recipe.epochs * recipe.steps_per_epoch(len(self.prepared.y["train"]))
        share = recipe.epochs / (
            len(found.curves) * max(len(curve) for curve in found.curves.values())
        )
        share *= max(
            1.0, len(self.prepared.y["train"]) / SEARCHED
        )  # an epoch of all of it is longer than one of the part that was searched
        # a retrace is five trainings or so; the rest (about 70 models) is trained side by side, or one by one at a third of the speed
        seconds = took * share * (15 * given.runs + 75)
        parameters = sum(p.numel() for p in recipe.build(0).parameters())
        disk = given.runs * (2 * np.sqrt(steps) * 8 * parameters + 4 * steps * recipe.batch_size)
        self.say(f"Expected: about {_duration(seconds)} and {disk / 1e6:,.0f} MB in {self.folder}.")
        return found

    def _origins(self) -> list[str]:
        """Which of the numbers were found by the search, and which were given."""
        kinds = {
            "--rate": self.options.rate,
            "--epochs": self.options.epochs,
            "--batch-size": self.options.batch_size,
        }
        chosen = [name for name, value in kinds.items() if value is None]
        return ([f"chosen; change with {', '.join(chosen)}"] if chosen else []) + (
            ["the rest as given"] if 0 < len(chosen) < 3 else [] if chosen else ["as given"]
        )

    def _recipe(self) -> Recipe:
        prepared, given = self.prepared, self.options
        loss = "cross_entropy" if prepared.source.task == "classification" else "squared_error"
        kind = given.model or {"images": "cnn", "text": "linear"}.get(prepared.source.kind, "mlp")
        make = None if given.make is None else loaded(given.make, "--model")
        size = given.batch_size or default_batch(len(prepared.y["train"]))
        return Recipe(
            "custom" if make else kind,
            prepared.shape,
            prepared.outputs,
            loss,
            batch_size=size,
            make=make,
        )

    def _scored(
        self, recipe: Recipe, active: np.ndarray, number: int
    ) -> tuple[Recipe, list[Run], Scored]:
        x, y = self.prepared.pair("train")
        folder = self.folder / "runs" / f"round-{number + 1}"
        self.say(f"Training {self.options.runs} runs and retracing each ...")
        for attempt in (recipe, replace(recipe, rate=recipe.rate / 3)):
            try:
                runs, scored = score(
                    attempt,
                    (x[active], y[active]),
                    self.prepared.pair("validation"),
                    self.options.runs,
                    folder,
                    seed=self.request.seed + number,
                    progress=self.progress,
                )
                return attempt, runs, scored
            except NotFinite as error:
                if attempt is not recipe:
                    raise NotFinite(
                        f"Training or retracing diverged even at a third of the rate. {error}",
                        error.step,
                    ) from None
                self.say(
                    f"At rate {recipe.rate:g} the run diverges; trying once more at {recipe.rate / 3:g}."
                )
                shutil.rmtree(folder, ignore_errors=True)
                kept = read_json(self.folder / "search.json")
                write_json(
                    self.folder / "search.json", kept | {"rate": recipe.rate / 3}
                )  # whoever goes on later begins with this one
        raise AssertionError("unreachable")

    def _verified(self, run: Run, scored: Scored) -> Checked:
        first = np.argsort(scored.scores, kind="stable")[: self.options.verified]
        own = scored.by_run[0]
        checked = verify(
            run,
            own,
            self.prepared.pair("validation"),
            first,
            at_random=self.options.verified,
            seed=self.request.seed,
            progress=self.progress,
        )
        self.say(
            f"Checked {len(checked.verification.instances)} of them by retraining without each: the estimates agree with the truth with Kendall's tau "
            f"{checked.verification.tau:.2f}."
        )
        return checked

    def _curve(self, recipe: Recipe, active: np.ndarray, scored: Scored, number: int) -> Curve:
        kept = self.folder / f"curve-{number + 1}.json"
        if kept.exists():
            return Curve(**read_json(kept))
        x, y = self.prepared.pair("train")
        found = curve(
            recipe,
            (x[active], y[active]),
            self.prepared.pair("validation"),
            scored,
            seeds=4,
            seed=self.request.seed + number,
            progress=self.progress,
        )
        write_json(kept, found.to_json())
        self.say(f"Suggested: remove {found.m}; {found.reason}.")
        return found

    def _merged(self, tables: list, removed: np.ndarray) -> Any:
        """Rounds one after the other: what an earlier round set aside comes first, with the scores it had then."""
        last = tables[-1]
        merged = library().concat(tables).sort_index(kind="stable")
        suspects = (
            merged[merged["mislabel_rank"] >= 0]
            .sort_values("loss", ascending=False, kind="stable")
            .index
        )
        merged.loc[suspects, "mislabel_rank"] = np.arange(len(suspects))
        order = [*removed.tolist(), *last.sort_values("score", kind="stable").index]
        merged.loc[order, "harm_rank"] = np.arange(len(order))
        merged.index.name = "id"
        return merged

    def _explained(
        self, instances: Any, run: Run, recipe: Recipe, checked: Checked, active: np.ndarray
    ) -> dict:
        ranked = instances.sort_values("harm_rank").index.to_numpy()
        suspects = (
            instances[instances["mislabel_rank"] >= 0].sort_values("mislabel_rank").index.to_numpy()
        )
        first = np.unique(np.concatenate([ranked[:_LOOKED_AT], suspects[: _LOOKED_AT // 2]]))
        same = len(active) == len(
            instances
        )  # in a later round the checked ids are places among those that are left
        return explained(self.prepared, run, recipe, checked if same else None, first)

    def _labels(self, ids: np.ndarray) -> np.ndarray:
        return self.prepared.part("train").labels[ids]

    def _names(self, ids: np.ndarray) -> list[str]:
        names = self.prepared.part("train").names
        return [names[k] for k in ids]

    # --- what is left behind ------------------------------------------------------------------------------------------------------------

    def _written(
        self,
        searched: Searched,
        recipe: Recipe,
        instances: Any,
        why: dict,
        checked: Checked,
        active: np.ndarray,
        found: Curve,
        before: int,
        reason: str,
        took: float,
    ) -> Project:
        prepared, folder = self.prepared, self.folder
        instances.to_parquet(folder / "instances.parquet")
        prepared.part("train").content.reset_index(drop=True).astype(object).to_parquet(
            folder / "content.parquet"
        )
        validation = prepared.part("validation")
        content = validation.content.reset_index(drop=True).astype(object)
        content[" source"], content[" label"] = (
            validation.names,
            [str(label) for label in validation.labels],
        )
        content.to_parquet(folder / "validation.parquet")
        self._pictures(why)
        write_json(folder / "why.json", why)
        source, check = prepared.source, checked.verification
        write_json(
            folder / ABOUT,
            {
                "made_by": "dross",
                "format": FORMAT,
                "dross": __version__,
                "name": folder.name,
                "kind": source.kind,
                "task": source.task,
                "label": source.label,
                "classes": source.classes,
                "counts": {part: len(ids) for part, ids in prepared.parts.items()},
                "runs": self.options.runs,
                "rounds": self.options.rounds,
                "request": asdict(self.request),
                "options": asdict(self.options),
                "digest": self.digest,
                "model_source": None if self.options.make is None else source_of(self.options.make),
                "recipe": recipe.to_json(),
                "notes": prepared.notes,
                "scale": prepared.scale,
                "columns": [asdict(column) for column in prepared.columns],
                "search": {str(rate): curve for rate, curve in searched.curves.items()},
                "suggested": {"m": before + found.m, "reason": reason},
                "curve": found.to_json(),
                "verification": {
                    "ids": active[check.instances].tolist(),
                    "estimated": check.estimated.tolist(),
                    "actual": check.actual.tolist(),
                    "tau": check.tau,
                    "spearman": check.spearman,
                },
                "seconds": round(took, 1),
                "made": time.strftime("%Y-%m-%d %H:%M"),
            },
        )
        scores = instances.reset_index()
        scores.to_parquet(folder / "scores.parquet")
        scores.to_csv(folder / "scores.csv", index=False)
        project = Project.open(folder)
        report.write(project)
        return project

    def _pictures(self, why: dict) -> None:
        """Small copies of every training picture, and of the validation pictures that reasons point at."""
        if self.prepared.root is None:
            return
        wanted = {
            "train": range(len(self.prepared.parts["train"])),
            "validation": {hurt[0] for entry in why.values() for hurt in entry.get("hurts", [])},
        }
        folder = self.folder / "pictures"
        folder.mkdir(exist_ok=True)
        for part, ids in wanted.items():
            names = self.prepared.part(part).names if self.prepared.source.kind == "images" else []
            content = self.prepared.part(part).content["path"].tolist() if names else []
            for k in ids:
                (folder / f"{part}-{k:06d}.png").write_bytes(
                    encode_png(shown(self.prepared.root / content[k]))
                )


def _duration(seconds: float) -> str:
    return f"{max(1, round(seconds))} seconds" if seconds < 90 else f"{seconds / 60:.0f} minutes"

"""`dross judge`: does it help? New models with and without the removed instances, on the test part, which nothing has looked at before.

For each seed three models start from the same weights: one learns everything, one without the removed (or with the corrected) instances, one without as
many others chosen at random. The differences between them, seed by seed, are what is judged. The interval covers both kinds of chance: that of
the seeds, and that of which instances happen to be in the test part.
"""

import hashlib
import itertools
import json
import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..errors import BadInput, TapeMismatch
from ..files import write_json
from ..kept import Pieces
from ..queries import error_rate, mean_loss
from ..randomness import mixed
from ..sweeps import sweep
from .learn import Fit, Recipe, fit, losses, wrong
from .project import Project
from .reading import Prepared, Request, digest, loaded, prepare, source_of
from .scoring import recorded
from .source import FEWEST

QUICK_SEEDS, SEEDS = 6, 10  # with fewer than 6 the sign-flip test cannot be sure of anything
_FRESH = 1_000_003  # the stream of seeds that nothing before the verdict has used
_SURE = 0.05


@dataclass(frozen=True)
class Change:
    """What is different in the training data that is judged."""

    what: str
    removed: np.ndarray
    relabelled: dict[int, str]

    def __len__(self) -> int:
        return len(self.removed) + len(self.relabelled)


@dataclass(frozen=True)
class Measured:
    """One measure, seed by seed."""

    before: list[float]
    after: list[float]
    random: list[float]
    difference: float
    interval: tuple[float, float]
    p_t: float
    p_signs: float
    random_difference: float
    random_interval: tuple[float, float]
    seeds_error: float  # standard error from the seeds
    test_error: float  # standard error from the choice of the test part

    @property
    def sure(self) -> bool:
        return self.p_t < _SURE and self.p_signs < _SURE and (self.interval[0] > 0 or self.interval[1] < 0)


@dataclass(frozen=True)
class Verdict:
    made: str
    what: str
    removed: int
    relabelled: int
    seeds: int
    metrics: dict[str, Measured]
    per_class: list[dict[str, Any]]
    recorded: dict[str, dict[str, float]]
    verdict: str
    sentence: str
    settle: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def __repr__(self) -> str:
        return f"<Verdict: {self.verdict}. {self.sentence}>"

    def _repr_html_(self) -> str:
        from ..pages import render

        return render("verdict.html", verdict=self.to_json())


def judge(
    folder: str | Path, *, remove: int | None = None, relabel: int | None = None, decisions: bool = False, seeds: int | None = None, quick: bool = False,
    progress: bool = True, n_jobs: int | None = None,
) -> Verdict:  # fmt: skip
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


def reopened(project: Project) -> tuple[Prepared, Recipe]:
    """The data and the recipe of a project, read again from the input."""
    about = project.about
    prepared = prepare(Request(**about["request"]))
    if digest(prepared) != about["digest"]:
        raise TapeMismatch(
            f"{about['request']['data']} has changed since dross clean read it. Put it back as it was, or run dross clean again."
        )
    make = about["options"]["make"]
    if make is not None and source_of(make) != about["model_source"]:
        raise TapeMismatch(
            f"The module of {make} has changed since dross clean used it. Put it back as it was, or run dross clean again."
        )
    saved = about["recipe"] | {"inputs": tuple(about["recipe"]["inputs"])}
    return prepared, Recipe(**saved, make=None if make is None else loaded(make, "--model"))


def chosen(project: Project, remove: int | None, relabel: int | None, decisions: bool) -> Change:
    instances, count = project.instances, len(project.instances)
    for what, value in (("remove", remove), ("relabel", relabel)):
        if value is not None and not 0 < value < count:
            raise BadInput(f"--{what} must lie between 1 and {count - 1}, not {value}.")
    if relabel is not None or remove is not None:
        suspects = instances[instances["mislabel_rank"] >= 0].sort_values("mislabel_rank").head(relabel or 0)
        renamed = {int(k): str(label) for k, label in suspects["prediction"].items()}
        harmful = instances.sort_values("harm_rank").index.to_numpy()[: remove or 0]
        both = np.isin(harmful, list(renamed))
        words = [f"{len(harmful)} most harmful removed"] * bool(remove) + [
            f"{len(renamed)} most probably mislabelled relabelled"
        ] * bool(relabel)
        if both.any():
            words.append(f"{int(both.sum())} that are in both lists only relabelled")
        return Change(", ".join(words), harmful[~both], renamed)
    made = project.decisions.current()
    removed = np.array([k for k, (action, _) in made.items() if action == "remove"], dtype=np.int64)
    renamed = {k: str(label) for k, (action, label) in made.items() if action == "relabel"}
    if len(removed) > count - FEWEST // 2:
        raise BadInput(f"{len(removed)} of {count} training instances are removed: too few are left to train on. Undo some of it.")
    if len(removed) or renamed:
        return Change("decisions", removed, renamed)
    if decisions:
        raise BadInput(
            f"Nothing has been removed or relabelled on the page yet. Decide with dross review {project.folder}, or pass --remove and a number."
        )
    m = project.about["suggested"]["m"]
    if m == 0:
        raise BadInput(
            f"Nothing has been decided, and nothing is suggested: {project.about['suggested']['reason']}. To do it anyway, pass --remove and a number."
        )
    return Change(f"the suggested {m} removed", instances.sort_values("harm_rank").index.to_numpy()[:m], {})


@dataclass(frozen=True)
class _Altered:
    """In what the data of one model differ: these removed, those with other labels."""

    removed: np.ndarray
    ids: np.ndarray
    labels: Tensor | None  # as the model learns them, one for each of ids

    def fit(self, seed: int, rate: float, y: Tensor) -> Fit:
        left = np.setdiff1d(np.arange(len(y)), self.removed)
        if self.labels is None:
            return Fit(seed, left, rate)
        y = y.clone()
        y[self.ids] = self.labels
        return Fit(seed, left, rate, y)

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
                Fit(seed, np.arange(len(self.y)), rate),
                self.change.fit(seed, rate, self.y),
                control.fit(seed, rate, self.y),
            ]
        what = f"seeds {piece[0][0] + 1} to {piece[-1][0] + 1} of {self.seeds}"
        said = fit(self.recipe, self.x, self.y, fits, what=what, progress=self.progress).outputs(self.test)
        return {"outputs": said.reshape(len(piece), 3, *said.shape[1:])}


@dataclass
class _Judging:
    project: Project
    prepared: Prepared
    recipe: Recipe
    change: Change
    seeds: int
    progress: bool
    n_jobs: int | None

    def run(self, skip_recorded: bool) -> Verdict:
        told = self.project.folder / "judging.json"
        size = _at_a_time(self.recipe)
        numbered = [(k, mixed(_FRESH, self.prepared.source.labels.size, k), self._at_random(k)) for k in range(self.seeds)]
        pieces = [numbered[start : start + size] for start in range(0, self.seeds, size)]
        work = _Fresh(
            self.recipe, *self.prepared.pair("train"), self.prepared.x["test"],
            self._altered(self.change.removed, self.change.relabelled), self.seeds, self.progress,
        )  # fmt: skip
        self.kept = self._kept(work, pieces)
        outputs: dict[int, Tensor] = {}
        done = 0
        try:
            write_json(told, {"done": done, "of": self.seeds, "stage": "training with and without them"})
            for number, result in sweep(work, pieces, what="training", n_jobs=self.n_jobs, kept=self.kept, progress=self.progress):
                outputs[number] = result["outputs"]
                done += len(pieces[number])
                write_json(told, {"done": done, "of": self.seeds, "stage": "training with and without them"})
            write_json(told, {"done": self.seeds, "of": self.seeds, "stage": "retraining the recorded run"})
            recorded_run = {} if skip_recorded else self._on_the_recorded_run()
        finally:
            told.unlink(missing_ok=True)
        said = torch.cat([outputs[number] for number in range(len(pieces))])  # [seeds, 3, test, outputs]
        return self._verdict(said, recorded_run)

    def forget(self) -> None:
        """The verdict is written: what it was computed from is not needed any more."""
        shutil.rmtree(self.kept.folder, ignore_errors=True)
        with suppress(OSError):
            self.kept.folder.parent.rmdir()  # unless another judgement waits there to go on

    def _kept(self, work: _Fresh, pieces: list) -> Pieces:
        about = self.project.about
        altered = hashlib.sha256(b"".join([work.change.bytes(), *(control.bytes() for piece in pieces for *_, control in piece)]))
        settings = {"data": about["digest"], "recipe": self.recipe.to_json(), "make": about["options"]["make"], "seeds": self.seeds,
                    "altered": altered.hexdigest()}  # fmt: skip
        name = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        return Pieces((self.project.folder / "judging" / name).absolute(), settings)

    def _at_random(self, number: int) -> _Altered:
        """The control: as many removed, and as many given the label that the models predict, but any."""
        order = np.random.default_rng(mixed(_FRESH, 7, number)).permutation(len(self.prepared.y["train"]))
        removed = order[: len(self.change.removed)]
        others = order[len(removed) :][: len(self.change.relabelled)]
        return self._altered(removed, {int(k): str(self.project.instances["prediction"].loc[k]) for k in others})

    def _altered(self, removed: np.ndarray, names: dict[int, str]) -> _Altered:
        ids = np.array(list(names), dtype=np.int64)
        if not names:
            return _Altered(removed, ids, None)
        labels: Any = list(names.values())
        if self.prepared.source.task == "classification":
            unknown = sorted(set(labels) - set(self.prepared.source.classes))
            if unknown:
                raise BadInput(f"Some instances were relabelled as '{unknown[0]}', which is not one of the classes.")
        else:
            labels = [float(label) for label in labels]
        kind = object if self.prepared.source.task == "classification" else np.float64
        return _Altered(removed, ids, self.prepared.targets(np.array(labels, dtype=kind)))

    def _on_the_recorded_run(self) -> dict[str, dict[str, float]]:
        """Retrain All and Retrain Last: the first recorded run, replayed without the removed instances."""
        if self.change.relabelled or self.project.about["rounds"] > 1 or not len(self.change.removed):
            return {}
        folder = self.project.folder / "runs" / "round-1" / "run-0"
        run = recorded(
            self.recipe, self.prepared.pair("train"), 0, folder, seed=self.project.about["request"]["seed"], progress=False
        )
        found = {}
        for way, epochs in (("all", None), ("last", 1)):
            without = run.counterfactual([self.change.removed], epochs=epochs)
            measures = {"loss": mean_loss(self.prepared.pair("test"))}
            if self.prepared.source.task == "classification":
                measures["error"] = error_rate(self.prepared.pair("test"))
            unit = {"loss": self._loss_unit, "error": 1.0}
            found[way] = {f"{name}_change": unit[name] * float(without.changes(query)[0]) for name, query in measures.items()}
            found[way] |= {f"{name}_after": unit[name] * float(without.evaluate(query)[0]) for name, query in measures.items()}
        return found

    @property
    def _loss_unit(self) -> float:
        """A regression learns labels of mean 0 and spread 1; people are told the loss in the units of the label, squared."""
        return self.prepared.scale[1] ** 2 if self.prepared.source.task == "regression" else 1.0

    def _verdict(self, said: Tensor, recorded_run: dict) -> Verdict:
        y, flat = self.prepared.y["test"], said.reshape(-1, *said.shape[2:])
        shape = (self.seeds, 3, len(y))
        loss = losses(self.recipe, flat, y).double().numpy().reshape(shape)
        measures = {"loss": measured(self._loss_unit * loss)}
        per_class: list[dict[str, Any]] = []
        if self.prepared.source.task == "classification":
            error = wrong(flat, y).double().numpy().reshape(shape)
            measures = {"error": measured(error), **measures}
            for place, name in enumerate(self.prepared.source.classes):
                rows = (y == place).numpy()
                if rows.any():
                    before, after = (float(error[:, k][:, rows].mean()) for k in (0, 1))
                    per_class.append({"class": name, "count": int(rows.sum()), "before": before, "after": after})
        else:
            off = (flat.squeeze(-1) - y.reshape(-1)).abs().double().numpy().reshape(shape)
            measures = {"absolute error": measured(self.prepared.scale[1] * off), **measures}
        verdict = decided(measures)
        return Verdict(
            time.strftime("%Y-%m-%d %H:%M"), self.change.what, len(self.change.removed), len(self.change.relabelled), self.seeds, measures, per_class,
            recorded_run, verdict, sentence(verdict, measures, self.change, self.seeds),
            " ".join(filter(None, [settle(verdict, measures, self.seeds, len(y)), looked(len(self.project.verdicts()))])),
        )  # fmt: skip


def _at_a_time(recipe: Recipe) -> int:
    """Seeds trained side by side before the next word about progress."""
    return 5 if recipe.model in ("linear", "mlp") else 1


# --- statistics ------------------------------------------------------------------------------------------------------------------------


def measured(values: np.ndarray) -> Measured:
    """values: [seeds, 3 (before, after, random), test instances]"""
    from scipy.stats import t, ttest_1samp

    before, after, control = (values[:, k].mean(1) for k in range(3))

    def compared(place: int) -> tuple[float, tuple[float, float], float, float]:
        by_instance = (values[:, place] - values[:, 0]).mean(0)
        by_seed = (values[:, place] - values[:, 0]).mean(1)
        seeds_error = float(by_seed.std(ddof=1) / np.sqrt(len(by_seed)))
        test_error = float(by_instance.std(ddof=1) / np.sqrt(len(by_instance)))
        reach = np.hypot(float(t.ppf(0.975, len(by_seed) - 1)) * seeds_error, 1.96 * test_error)
        middle = float(by_seed.mean())
        return middle, (middle - float(reach), middle + float(reach)), seeds_error, test_error

    difference, interval, seeds_error, test_error = compared(1)
    random_difference, random_interval, _, _ = compared(2)
    by_seed = after - before
    same = bool(np.allclose(by_seed, by_seed[0]))
    p_t = float(ttest_1samp(by_seed, 0.0)[1]) if not same else (1.0 if abs(by_seed[0]) < 1e-15 else 0.0)  # type: ignore[arg-type]
    return Measured(before.tolist(), after.tolist(), control.tolist(), difference, interval, p_t, sign_flips(by_seed), random_difference,
                    random_interval, seeds_error, test_error)  # fmt: skip


def sign_flips(differences: np.ndarray) -> float:
    """If removal did nothing, each seed's difference could as well have the other sign: how often would their mean be as far from 0?"""
    count = len(differences)
    if count <= 12:
        signs = np.array(list(itertools.product((-1, 1), repeat=count)))
    else:
        signs = np.random.default_rng(0).choice((-1, 1), size=(20_000, count))
        signs[0] = 1
    means = np.abs(signs @ differences)
    return float((means >= abs(differences.sum()) * (1 - 1e-12)).mean())


def decided(measures: dict[str, Measured]) -> str:
    """Improved: some measure is surely better and none surely worse. Worse: the other way round. Everything else cannot be told."""
    better = any(m.sure and m.difference < 0 for m in measures.values())
    worse = any(m.sure and m.difference > 0 for m in measures.values())
    return "improved" if better and not worse else "worse" if worse and not better else "cannot tell"


def sentence(verdict: str, measures: dict[str, Measured], change: Change, seeds: int) -> str:
    done = " and ".join(
        [f"{len(change.removed)} instances removed"] * bool(len(change.removed))
        + [f"{len(change.relabelled)} relabelled"] * bool(change.relabelled)
    )
    parts = []
    for name, m in measures.items():
        digits = (lambda v: f"{100 * v:.2f} %") if name == "error" else (lambda v: f"{v:.4g}")
        parts.append(
            f"the test {name} went from {digits(np.mean(m.before))} to {digits(np.mean(m.after))} (as many at random: {digits(np.mean(m.random))})"
        )
    opening = {
        "improved": "The model improved",
        "worse": "The model got worse",
        "cannot tell": "It cannot be told whether the model changed",
    }[verdict]
    return f"{opening}: with {done}, over {seeds} fresh seeds, {' and '.join(parts)}."


def settle(verdict: str, measures: dict[str, Measured], seeds: int, tested: int) -> str:
    """What it would take to know, if the change that was seen is the true one."""
    if verdict != "cannot tell":
        return ""
    name, m = min(
        measures.items(), key=lambda item: np.hypot(item[1].seeds_error, item[1].test_error) / max(abs(item[1].difference), 1e-12)
    )
    reach = (m.interval[1] - m.interval[0]) / 2
    if m.p_t < _SURE and m.p_signs < _SURE:
        agree = f"The seeds agree about the {name} (p = {m.p_t:.2g}), but the interval, which also counts the luck of having these {tested:,} test instances, includes 0. "
    else:
        agree = ""
    if abs(m.difference) < reach / 4:
        limit = f"{100 * reach:.2f} points" if name == "error" else f"{reach:.4g}"
        return f"{agree}If there is a change of the {name} at all, it is probably smaller than {limit}. More seeds and a larger test part narrow that."
    wanted, seen = abs(m.difference) / 2.3, f"{100 * m.difference:+.2f} points" if name == "error" else f"{m.difference:+.3g}"
    by_test = m.test_error / wanted
    by_seeds = m.seeds_error / wanted
    if by_test > 0.9:
        return f"{agree}If the {name} really changes by {seen}, it takes about {_round(tested * max(by_test, 1.0) ** 2 * 1.3)} test instances to show it (there are {tested:,})."
    more = seeds * by_seeds**2 / max(1 - by_test**2, 0.05)
    return f"{agree}If the {name} really changes by {seen}, about {_round(max(more, seeds + 2))} seeds would show it (--seeds)."


def looked(times: int) -> str:
    """Every look at the same test part makes the next one worth less."""
    if times < 3:
        return ""
    return f"This is verdict number {times + 1} on the same test part: what is chosen by its verdicts is no longer judged by it. Keep fresh test data for the last word."


def _round(value: float) -> str:
    size = 10 ** max(0, int(np.log10(max(value, 1))) - 1)
    return f"{int(np.ceil(value / size) * size):,}"

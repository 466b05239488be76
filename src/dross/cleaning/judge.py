"""`dross judge`: does it help? New models with and without the edits, compared on held-out rows.

Each pass trains three models from the same weights: before (on everything), after (on the edited
data), and the control (on data with as many random edits). Nothing is decided on labels that the
changed model helped to choose:

- With a test file, the models are measured on the test rows, which nothing else has looked at.
- Without one, all rows are divided into folds, and each fold is measured by models that did not see
  it. If the edits follow a rule, the whole procedure (label noise, rule, edits) is repeated without
  the fold. If they are a fixed list, those in the fold have no effect on the models that measure
  it, and the verdict says that the list was chosen with its labels in sight.

The measured labels may be wrong themselves. The label noise is estimated, and the log loss passes
predictions through it before it compares them with the given labels; verdict.py decides.
"""

import hashlib
import json
import os
import random
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from .._checks import check_count
from .._io import staged_file, write_json
from .._progress import progress_bar
from ..data.seeds import mix_seeds
from ..distributed.jobs import ResultStore, sweep, uses_workers
from ..engine.device import choose_device
from ..errors import DrossError, InvalidInput, first_line
from . import plans
from .checked_labels import project_rows
from .edits import Edits, choose_edits
from .estimators import JudgingModel, find_model
from .label_noise import (
    PRIORS,
    LabelNoise,
    Rows,
    assign_folds,
    estimate_label_noise,
    principal_components,
)
from .modality import PreparedData
from .project import Project
from .project_files import delete_stale_files, delete_written, write_sealed
from .registered import judge_of
from .reopen import reopen_inputs
from .report import write_report
from .task import read_learnable
from .tracking import report_verdict
from .training import NO_EDITS, EncodedEdits, Recipe, train_many
from .verdict import (
    ABSOLUTE_ERROR,
    BRIER,
    ERROR,
    IMPROVED,
    INCONCLUSIVE,
    LOG_LOSS,
    NO_PROBABILITIES,
    SQUARED_ERROR,
    Verdict,
    advise,
    best_reading,
    compare_metric,
    decide_verdict,
    describe_plain,
    describe_verdict,
    warn_of_reuse,
    warn_of_sight,
    warn_of_vanished,
)

QUICK_SEEDS, SEEDS = 6, 10
FOLDS = 5
_MAX_SEEDS = 1000
_ASSIGNMENTS, _QUICK_ASSIGNMENTS = 2, 1  # of rows to folds
_SEEDS_SIDE_BY_SIDE = 5
_STATUS = "judging.json"

_FRESH = 1_000_003  # the stream of seeds that nothing before the verdict has used
_CONTROL = 7  # the stream within it that draws the control's edits
_FOLDED = 9  # and the one that assigns rows to folds
_BOOTSTRAP = 11  # the stream of a seed that draws samples

_MAX_SEED = 1 << 32  # numpy's generators take no larger ones
_SAME = 1e-3  # probabilities, or deviations of the label, by which two seeds may differ by rounding
_RATES = "rates"  # the estimated share of wrong labels, of each row
_PLAIN = "plain "  # before the names of measures that count every given label as right


def judge(
    folder: str | Path,
    *,
    remove: int | None = None,
    relabel: int | None = None,
    decisions: bool = False,
    plan: str | None = None,
    seeds: int | None = None,
    quick: bool = False,
    progress: bool = True,
    n_jobs: int | None = None,
    trust_code: Sequence[str] = (),
    estimator: Any = None,
    device: str | None = None,
) -> Verdict:
    """Retrain with fresh seeds, with and without the edits, and compare on rows held out.

    These are the rows of the test file. Without a test file, all rows are divided into five folds,
    and each fold is measured by models, and after edits, that did not see it.

    By default the edits are the decisions made on the page; where there are none, the recommended
    plan. Results are kept until the verdict and the report are written: to go on with a judgement
    that was stopped, call it again.

    Arguments:
        folder: a folder that `dross.clean` made.
        remove: judge the removal of the N most harmful instances.
        relabel: judge giving the N most probably mislabelled the label that the models predict.
        decisions: judge what was decided on the page, and nothing else.
        plan: judge a plan other than the recommended one: a name in `Project.plans`.
        seeds: how many times every row is measured, each time by three newly trained models; 10 by
            default, 6 with `quick` and for chats. Without a test file each of these passes trains
            three models per fold.
        quick: a first look: fewer seeds, and without a test file one assignment of rows to folds
            instead of two.
        progress: show progress bars where stderr is a terminal.
        n_jobs: how many processes to train in. A joblib.parallel_config around the call spreads
            the work over a cluster instead.
        trust_code: the `module:function`s that the project was made with and that may be run. A
            project never causes code to be imported that this call does not name.
        estimator: the model that judges, instead of the project's own: an estimator with the
            methods of scikit-learn; the name of one, `sklearn:HistGradientBoostingClassifier`; or
            `module:function`, which returns one. It is fitted on the same inputs, as [N, features],
            with the same seeds and edits. Classes are numbered in the order of `project.classes`.
            Every `random_state` is set from the seed; where that changes nothing, each seed draws a
            bootstrap sample of the training rows instead. Without `predict_proba` only the error is
            compared.
        device: where models are trained: `cpu`, `cuda` or `mps`. By default a CUDA GPU if there is
            one, otherwise the CPU.

    Returns:
        The verdict. It is also written to the folder, and the report is written again.

    Raises:
        InvalidInput: there is nothing to judge, a number is out of range, the project needs code
            that `trust_code` does not name, or `estimator` cannot be found or fitted.
        InputChanged: the data or the model's module have changed since `dross.clean`.
        CorruptFile: the folder is not a finished project, or a file is damaged.
        DrossError: the folder cannot be written.

    Example:
        verdict = dross.judge("runs/people", remove=50)
        print(verdict.verdict, verdict.sentence)
        dross.judge("runs/people", estimator=RandomForestClassifier(300))
    """
    project = Project.open(folder)
    edits = choose_edits(project, remove, relabel, decisions, plan)
    count = seeds if seeds is not None else QUICK_SEEDS if quick else SEEDS
    check_seeds(count)
    here = choose_device(device)
    uses_workers(n_jobs)  # raises if there cannot be that many
    check_writable(project.folder)
    delete_stale_files(project.folder)
    if (train := judge_of(project.about["kind"])) is not None:
        if estimator is not None:
            raise InvalidInput(
                "Chats are judged by the model that is fine-tuned: leave out `estimator`."
            )
        count = QUICK_SEEDS if seeds is None else seeds
        return _judge_otherwise(train, project, edits, count, device=here, progress=progress)
    model = None if estimator is None else find_model(estimator, project.about["task"])
    prepared, recipe = reopen_inputs(project, trust_code, needs_model=model is None)
    judgement = Judgement(
        prepared=prepared,
        rows=project_rows(project, prepared),
        recipe=replace(recipe, device=str(here)),
        edits=edits,
        labels=project.about["labels"],
        seeds=count,
        assignments=_QUICK_ASSIGNMENTS if quick else _ASSIGNMENTS,
        model=model,
        progress=progress,
        n_jobs=n_jobs,
    )
    settings = {
        "data": project.about["digest"],
        "recipe": recipe.to_json(),
        "make": project.about["options"]["make"],
    }
    store = judgement.keep_in(project.folder / "judging", settings)
    with show_progress(project.folder, judgement.models) as tell:
        verdict = judgement.run(store, tell, earlier=len(project.verdicts()))
    _keep_verdict(project, verdict, store.folder)
    return verdict


def _judge_otherwise(train: Any, project: Project, edits: Edits, seeds: int, **how: Any) -> Verdict:
    """Judge a project whose models are trained by a package above this one; see registered.py."""
    with show_progress(project.folder, seeds) as tell:
        verdict, store = train(project, edits, seeds, tell, **how)
    _keep_verdict(project, verdict, store.folder)
    return verdict


def check_seeds(count: int) -> None:
    """Refuse, with InvalidInput, too few seeds for a comparison, and more than anybody needs."""
    if count < 2:
        raise InvalidInput("A comparison needs at least 2 seeds; 10 are a good number.")
    why = "each trains three models; 10 are a good number"
    check_count(count, "seeds", at_most=_MAX_SEEDS, because=why)


# --- files ----------------------------------------------------------------------------------------


@contextmanager
def show_progress(folder: Path, of: int) -> Iterator[Callable[..., None]]:
    """Inside, judging.json shows the page how far the judgement is."""
    status = folder / _STATUS

    def tell(done: int, stage: str = "training with and without the edits") -> None:
        write_json(status, {"done": done, "of": of, "stage": stage})

    try:
        tell(0)
        yield tell
    finally:
        with suppress(OSError):
            status.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Fail now rather than after an hour of training; raises DrossError."""
    try:
        with staged_file(folder / _STATUS, b""):
            pass
    except OSError as error:
        raise DrossError(
            f"{folder} cannot be written ({error.strerror or error}), and the verdict goes there. "
            "Copy the folder to a place that you may write to, and judge it there."
        ) from error


def _new_verdict_file(folder: Path) -> Path:
    """A name with the current time, which no other process uses."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    taken = len(list(folder.glob(f"{stamp}*.json")))
    return folder / f"{stamp}-{taken:02d}-{os.getpid()}.json"


def _keep_verdict(project: Project, verdict: Verdict, results: Path) -> None:
    """Write the verdict and the report; then delete the results that they rest on."""
    write_sealed(_new_verdict_file(project.folder / "verdicts"), verdict.to_json())
    report_verdict(verdict, len(project.verdicts()))
    write_report(project)
    with suppress(DrossError):
        delete_written(project.folder, f"judging/{results.name}")
    with suppress(OSError):  # another judgement waits there to go on
        results.parent.rmdir()


# --- models ---------------------------------------------------------------------------------------


class ToTrain(NamedTuple):
    """One model: its seed, and the edits of the rows that it learns."""

    seed: int
    edits: EncodedEdits


@dataclass(frozen=True)
class Networks:
    """Trains the project's own models."""

    recipe: Recipe

    def predict(
        self, x: Tensor, y: Tensor, models: Sequence[ToTrain], asked: Tensor
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Train models on x [N, ...] and y [N, ...], and predict the inputs `asked`.

        Yields:
            For each model its probabilities [asked, classes] and predicted classes [asked]; of
            numbers the predictions [asked, 1] as the model learns them, twice.
        """
        specs = [edits.specify(seed, y, self.recipe.rate) for seed, edits in models]
        outputs = train_many(self.recipe, x, y, specs).outputs(asked)
        for found in outputs:
            if self.recipe.loss == "cross_entropy":
                probabilities = torch.softmax(found.double(), 1).numpy()
                yield probabilities, probabilities.argmax(1)
            else:
                yield found.double().numpy(), found.double().numpy()


@dataclass(frozen=True)
class Estimators:
    """Fits an estimator of the user's own.

    Where the seeds make no difference to what it learns, each seed draws a bootstrap sample of the
    rows instead, the same one for all three fits: a comparison needs a spread.
    """

    model: JudgingModel
    classes: int  # 0 where labels are numbers
    scale: tuple[float, float]
    resample: bool = False

    def predict(
        self, x: Tensor, y: Tensor, models: Sequence[ToTrain], asked: Tensor
    ) -> Iterator[tuple[np.ndarray | None, np.ndarray]]:
        """As `Networks.predict`; without `predict_proba` there are no probabilities."""
        inputs = x.flatten(1).numpy()
        for seed, edits in models:
            rows = np.arange(len(y))
            if self.resample:
                rows = draw_sample(y.numpy() if self.classes else None, len(y), seed)
            rows = rows[~np.isin(rows, edits.removed)]
            labels = edits.relabel(y)[rows]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # `try_seeds` has shown them once
                yield self.fit_and_predict(inputs[rows], labels, seed, asked.flatten(1).numpy())

    def fit_and_predict(
        self, x: np.ndarray, y: Tensor, seed: int, asked: np.ndarray
    ) -> tuple[np.ndarray | None, np.ndarray]:
        """Fit one estimator. Raises InvalidInput if it fails."""
        present, labels = None, y.numpy()
        if self.classes:
            present, labels = np.unique(labels, return_inverse=True)  # some insist on no gaps
        else:
            labels = labels[:, 0].astype(np.float64) * self.scale[1] + self.scale[0]
        step = "fit"
        try:
            with _seeded(seed):
                estimator = _prepare(self.model.estimator, seed)
                estimator.fit(x, labels)
                step = "predict"
                if present is None:
                    found = self._predict_numbers(estimator, asked)
                    return found, found
                return self._predict_classes(estimator, asked, present)
        except InvalidInput:
            raise
        except Exception as error:  # somebody else's code can fail in any way
            raise InvalidInput(
                f"{self.model.name} fails to {step} ({type(error).__name__}: {first_line(error)}). "
                "No verdict was written, and the project is unchanged."
            ) from error

    def _predict_numbers(self, estimator: Any, asked: np.ndarray) -> np.ndarray:
        numbers = np.asarray(estimator.predict(asked), dtype=np.float64).reshape(-1, 1)
        _check_finite(numbers, "predict")
        return (numbers - self.scale[0]) / self.scale[1]

    def _predict_classes(
        self, estimator: Any, asked: np.ndarray, present: np.ndarray
    ) -> tuple[np.ndarray | None, np.ndarray]:
        """present: the classes that it has learned; the others have probability 0."""
        places = np.asarray(estimator.predict(asked)).reshape(len(asked)).astype(np.int64)
        predicted = present[places]
        if not self.model.is_probabilistic:
            return None, predicted
        given = np.asarray(estimator.predict_proba(asked), dtype=np.float64)
        _check_finite(given, "predict_proba")
        default = np.arange(len(present))
        learned = np.asarray(getattr(estimator, "classes_", default)).astype(np.int64)
        probabilities = np.zeros((len(asked), self.classes))
        probabilities[:, present[learned]] = given
        return probabilities, predicted


def draw_sample(y: np.ndarray | None, count: int, seed: int) -> np.ndarray:
    """The ids of a bootstrap sample, of `count`; with classes y [count], each keeps its size."""
    rng = np.random.default_rng([seed % _MAX_SEED, _BOOTSTRAP])
    groups = [np.arange(count)] if y is None else [np.flatnonzero(y == c) for c in np.unique(y)]
    return np.sort(np.concatenate([rng.choice(group, len(group)) for group in groups]))


def _prepare(estimator: Any, seed: int) -> Any:
    """An unfitted copy with every `random_state`, also those of its steps, set from the seed."""
    copy: Any = clone(estimator, safe=False)
    if hasattr(copy, "get_params") and hasattr(copy, "set_params"):
        names = [name for name in copy.get_params() if name.split("__")[-1] == "random_state"]
        if names:
            copy.set_params(**dict.fromkeys(names, seed % _MAX_SEED))
    return copy


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Inside, Python's, numpy's and torch's own random numbers are those of the seed."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            random.seed(seed)
            np.random.seed(seed % _MAX_SEED)
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _check_finite(numbers: np.ndarray, method: str) -> None:
    if not np.isfinite(numbers).all():
        raise ValueError(f"{method} returned numbers that are not finite")


# --- measures -------------------------------------------------------------------------------------


def measure_classes(
    probabilities: np.ndarray | None,
    predicted: np.ndarray,
    y: np.ndarray,
    noise: LabelNoise,
    rates: np.ndarray,
) -> dict[str, np.ndarray]:
    """The measures of one model for n rows, each [n].

    Arguments:
        probabilities: Of the classes, [n, classes], or None.
        predicted: The predicted classes, [n].
        y: The given labels, [n].
        noise: The estimated label noise.
        rates: The flip rates of the rows, [n, classes].
    """
    found = {ERROR: (predicted != y).astype(np.float64)}
    if probabilities is None:
        return found
    plain = plans.held_out_losses(probabilities, y)
    found[LOG_LOSS] = plans.held_out_losses(probabilities, y, noise, rates)["log loss"]
    found[_PLAIN + LOG_LOSS] = plain["log loss"]
    found[_PLAIN + BRIER] = plain["brier"]
    return found


def measure_numbers(
    predicted: np.ndarray, y: np.ndarray, noise: LabelNoise, rates: np.ndarray
) -> dict[str, np.ndarray]:
    """The measures of one model for n rows, each [n].

    Arguments:
        predicted: In the units of the label, [n].
        y: The given labels, [n].
        noise: The estimated label noise.
        rates: How often the labels of the rows are wrong, [n].
    """
    plain = plans.held_out_losses(predicted, y)
    return {
        ABSOLUTE_ERROR: plain["absolute error"],
        SQUARED_ERROR: plans.held_out_losses(predicted, y, noise, rates)["squared error"],
        _PLAIN + SQUARED_ERROR: plain["squared error"],
    }


# --- pieces of work -------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Models that are trained by one job: those of some passes, for one fold.

    In each pass every row is measured once. `fold` is bool [rows]: which rows are measured.
    """

    passes: tuple[int, ...]
    fold: np.ndarray


@dataclass(frozen=True)
class Work:
    """Trains and measures, in any process, the models of a piece: before, after, control."""

    trainer: Networks | Estimators
    rows: Rows  # training rows, validation rows, test rows; with labels that measure
    x: Tensor  # their inputs
    y: Tensor  # the given labels of the training rows, as models learn them
    scale: tuple[float, float]
    edits: plans.Edits  # in places of training rows
    rule: str | None  # repeat it for each fold, instead of `edits`
    labels: str  # annotated or observed
    noise: LabelNoise | None  # of the test file, if there is one
    z: np.ndarray  # the principal components of the rows

    def __call__(self, piece: Piece) -> dict[str, Tensor]:
        """Each measure of each measured row, float64 [passes, 3, measured]."""
        measured = np.flatnonzero(piece.fold)
        inside = np.flatnonzero(~piece.fold)
        edits, noise = self._edit_without(piece.fold, inside)
        learned = inside[inside < len(self.y)]
        usual = (noise.clean.argmax(1) if self.rows.classes else noise.other)[: len(learned)]
        rates = noise.flip_rates(
            self.z[measured], self.rows.validation[measured], self.rows.checked[measured]
        )
        models = []
        for number in piece.passes:
            seed = mix_seeds(_FRESH, len(self.y), number)
            control = draw_control(number, learned, len(self.y), edits, usual)
            models += [ToTrain(seed, NO_EDITS)]
            models += [ToTrain(seed, self._encode(one, learned)) for one in (edits, control)]
        inside = torch.from_numpy(learned)
        asked = self.x[torch.from_numpy(measured)]
        said = self.trainer.predict(self.x[inside], self.y[inside], models, asked)
        y = self.rows.y[measured]
        each = []
        for probabilities, predicted in said:
            if self.rows.classes:
                each.append(measure_classes(probabilities, predicted, y, noise, rates))
            else:
                numbers = predicted[:, 0] * self.scale[1] + self.scale[0]
                each.append(measure_numbers(numbers, y, noise, rates))
        found = {name: np.stack([one[name] for one in each]) for name in each[0]}
        shape = (len(piece.passes), 3, len(measured))
        found = {name: torch.from_numpy(values.reshape(shape)) for name, values in found.items()}
        wrong = rates if not self.rows.classes else rates.mean(1)
        return found | {_RATES: torch.from_numpy(np.ascontiguousarray(wrong))}

    def _edit_without(self, fold: np.ndarray, inside: np.ndarray) -> tuple[plans.Edits, LabelNoise]:
        """What happens to the training rows outside of a fold, and the label noise there."""
        if self.noise is not None:
            return self.edits, self.noise
        if self.rule is not None:
            edits, noise = plans.edits_without(self.rows, fold, self.rule, self.labels)
            return edits, noise
        kept = self.rows.take(inside)
        noise = estimate_label_noise(kept, PRIORS[self.labels], z=self.z[inside])
        return self.edits, noise

    def _encode(self, edits: plans.Edits, learned: np.ndarray) -> EncodedEdits:
        """Edits in places of the rows that are learned, with labels as a model learns them."""
        place = np.full(len(self.rows), -1)
        place[learned] = np.arange(len(learned))
        removed, relabelled = place[edits.removed], place[edits.relabelled]
        here = relabelled >= 0
        removed, labels = removed[removed >= 0], edits.labels[here]
        if not here.any():
            return EncodedEdits(removed, relabelled[here])
        if self.rows.classes:
            return EncodedEdits(
                removed, relabelled[here], torch.from_numpy(labels.astype(np.int64))
            )
        scaled = (labels.astype(np.float64) - self.scale[0]) / self.scale[1]
        scaled = torch.from_numpy(scaled.astype(np.float32))[:, None]
        return EncodedEdits(removed, relabelled[here], scaled)


def draw_control(
    number: int, learned: np.ndarray, count: int, edits: plans.Edits, usual: np.ndarray
) -> plans.Edits:
    """As many random edits of the rows that are learned; a pass takes the same in every fold.

    Arguments:
        number: Of the pass.
        learned: The places of the rows that are learned.
        count: How many training rows there are.
        edits: Those that are judged.
        usual: What is predicted for each row that is learned: its label where it is relabelled.
    """
    order = np.random.default_rng(mix_seeds(_FRESH, _CONTROL, number)).permutation(count)
    place = np.full(count, -1)
    place[learned] = np.arange(len(learned))
    order = order[place[order] >= 0]
    removed, relabelled = (
        int(np.isin(ids, learned).sum()) for ids in (edits.removed, edits.relabelled)
    )
    others = order[removed : removed + relabelled]
    return plans.Edits(order[:removed], others, usual[place[others]])


# --- the judgement --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Judgement:
    """What is judged, by which models, on which rows."""

    prepared: PreparedData
    rows: Rows  # training rows, then validation rows, with labels that a person corrected
    recipe: Recipe
    edits: Edits
    labels: str  # annotated or observed
    seeds: int
    assignments: int
    model: JudgingModel | None = None
    progress: bool = False
    n_jobs: int | None = None

    def keep_in(self, folder: Path, settings: dict[str, Any]) -> ResultStore:
        """Where results are kept: one folder for each judgement that could be asked for."""
        digest = hashlib.sha256()
        for values in (self.fixed.removed, self.fixed.relabelled, self.fixed.labels):
            digest.update(np.ascontiguousarray(values).tobytes())
        for values in (self.rows.y, self.rows.checked):
            digest.update(np.ascontiguousarray(values).tobytes())
        settings = settings | {
            "seeds": self.seeds,
            "assignments": self.assignments if self.nested else 0,
            "rule": self.rule,
            "labels": self.labels,
            "digest": digest.hexdigest(),
        }
        if self.model is not None:
            settings["with"] = self.model.describe() | {"resampled": self.resampled}
        name = hashlib.sha256(json.dumps(settings).encode()).hexdigest()[:16]
        return ResultStore((folder / name).absolute(), settings)

    @property
    def nested(self) -> bool:
        """Whether there is no test file."""
        return len(self.prepared.parts["test"]) == 0

    @property
    def rule(self) -> str | None:
        """The rule that is repeated without each fold."""
        return self.edits.rule if self.nested else None

    @property
    def models(self) -> int:
        """How many are trained."""
        return 3 * self.seeds * (FOLDS if self.nested else 1)

    @property
    def resampled(self) -> bool:
        """Whether each pass draws a bootstrap sample."""
        return self.model is not None and not self._tried[0]

    def run(
        self,
        store: ResultStore | None = None,
        tell: Callable[[int], None] = lambda done: None,
        *,
        earlier: int = 0,
    ) -> Verdict:
        """Train, measure, decide; earlier: how many verdicts there are already."""
        values, rates = self.measure(store, tell)
        return self._decide(values, float(rates.mean()), earlier)

    def measure(
        self, store: ResultStore | None = None, tell: Callable[[int], None] = lambda done: None
    ) -> tuple[dict[str, np.ndarray], np.ndarray]:
        """Each measure [passes, 3, measured rows], and the estimated noise of each row."""
        pieces, work, done = self._pieces, self._work, 0
        measured = np.flatnonzero(self._measured)
        place = np.full(len(work.rows), -1)
        place[measured] = np.arange(len(measured))
        values: dict[str, np.ndarray] = {}
        rates = np.zeros(len(measured))
        options = {"n_jobs": self.n_jobs, "store": store, "progress": False}
        shown = progress_bar("judging", self.models, show=self.progress, unit="models")
        with shown as advance:
            for number, found in sweep(work, pieces, what="judging", **options):
                piece = pieces[number]
                here = place[piece.fold]
                rates[here] = found.pop(_RATES).numpy()
                for name, each in found.items():
                    empty = np.zeros((self.seeds, 3, len(measured)))
                    whole = values.setdefault(name, empty)
                    whole[np.ix_(list(piece.passes), [0, 1, 2], here.tolist())] = each.numpy()
                done += 3 * len(piece.passes)
                advance(3 * len(piece.passes))
                tell(done)
        return values, rates

    @cached_property
    def _all_rows(self) -> Rows:
        """All rows that are learned or measured.

        The rows of a test file count as validation rows: how often their labels are wrong, compared
        with the others, is estimated, and is not assumed.
        """
        if self.nested:
            return self.rows
        test, classes = self.prepared.part("test"), self.rows.classes
        y = self.prepared.y["test"].numpy() if classes else test.labels.astype(np.float64)
        trained, tested = len(self.rows), len(y)
        x = self.prepared.x["test"].flatten(1).numpy()
        return Rows.of(
            np.concatenate([self.rows.x, x]),
            np.concatenate([self.rows.y, y]),
            classes,
            groups=np.concatenate([self.rows.groups, len(self.rows) + np.arange(tested)]),
            validation=np.arange(trained + tested) >= trained,
            checked=np.concatenate([self.rows.checked, np.zeros(tested, dtype=bool)]),
        )

    @cached_property
    def _measured(self) -> np.ndarray:
        rows = self._all_rows
        return np.ones(len(rows), dtype=bool) if self.nested else rows.validation

    @cached_property
    def _pieces(self) -> list[Piece]:
        if not self.nested:
            is_small = self.model is None and self.recipe.model in ("linear", "mlp")
            size = _SEEDS_SIDE_BY_SIDE if is_small else 1
            numbers = range(self.seeds)
            starts = range(0, self.seeds, size)
            return [Piece(tuple(numbers[k : k + size]), self._measured) for k in starts]
        pieces = []
        for assignment in range(min(self.assignments, self.seeds)):
            fold = assign_folds(self._all_rows, FOLDS, mix_seeds(_FRESH, _FOLDED, assignment))
            passes = tuple(range(assignment, self.seeds, self.assignments))
            pieces += [Piece(passes, fold == number) for number in range(FOLDS)]
        return pieces

    @cached_property
    def _work(self) -> Work:
        rows, trained = self._all_rows, self.prepared.x["train"]
        z = principal_components(rows.x)
        noise = None
        if not self.nested:
            noise = estimate_label_noise(rows, PRIORS[self.labels], z=z)
        return Work(
            trainer=self._trainer,
            rows=rows,
            x=torch.from_numpy(rows.x).reshape(-1, *trained.shape[1:]).to(trained.dtype),
            y=self.prepared.y["train"],
            scale=self.prepared.scale,
            edits=self.fixed,
            rule=self.rule,
            labels=self.labels,
            noise=noise,
            z=z,
        )

    @cached_property
    def _trainer(self) -> Networks | Estimators:
        if self.model is None:
            return Networks(self.recipe)
        return replace(self._estimators, resample=self.resampled)

    @property
    def _estimators(self) -> Estimators:
        assert self.model is not None
        return Estimators(self.model, self.rows.classes, self.prepared.scale)

    @cached_property
    def _tried(self) -> tuple[bool, list[str]]:
        """Whether seeds make a difference to the user's own model, and what it warns of."""
        if self.model is None:
            return True, []
        classes = set(self.prepared.y["train"].flatten().tolist())
        if self.rows.classes and len(self._vanished) >= len(classes) - 1 > 0:
            raise InvalidInput(
                "Only one class has instances in training after these edits: there is nothing left "
                f"to tell apart, and {self.model.name} cannot learn it. Remove fewer."
            )
        fold = self._pieces[0].fold
        trained = len(self.prepared.y["train"])
        learned = torch.from_numpy(np.flatnonzero(~fold[:trained]))
        asked = self._all_rows.x[fold]
        y = self.prepared.y["train"][learned]
        seeds = [mix_seeds(_FRESH, trained, number) for number in (0, 1)]
        x = self.prepared.x["train"][learned].flatten(1).numpy()
        return try_seeds(self._estimators, x, y, asked, seeds)

    @cached_property
    def fixed(self) -> plans.Edits:
        """The edits in places of training rows, with labels as `rows` has them."""
        relabelled = self.edits.relabelled
        ids = np.array(list(relabelled), dtype=np.int64)
        labels = list(relabelled.values())
        classes = self.prepared.source.classes
        if self.rows.classes:
            place = {name: number for number, name in enumerate(classes)}
            read = {label: place.get(label) for label in labels}
        else:
            read = {label: read_learnable(label) for label in labels}
        unknown = [label for label, value in read.items() if value is None]
        if unknown:
            what = "one of the classes" if self.rows.classes else "a number to learn"
            raise InvalidInput(
                f"Some instances were relabelled as '{min(unknown)}', which is not {what}."
            )
        kind = np.int64 if self.rows.classes else np.float64
        values = np.array([read[label] for label in labels], dtype=kind)
        return plans.Edits(np.asarray(self.edits.removed, dtype=np.int64), ids, values)

    @cached_property
    def _vanished(self) -> list[str]:
        """The classes that no training row has after the edits."""
        if not self.rows.classes:
            return []
        before = self.prepared.y["train"].numpy()
        left, after = self.fixed.apply(before, np.arange(len(before)))
        gone = np.setdiff1d(before, after[left])
        return [self.prepared.source.classes[int(place)] for place in gone]

    # --- deciding ---

    def _decide(self, values: dict[str, np.ndarray], noise: float, earlier: int) -> Verdict:
        """values: as `measure` returns them."""
        rows, measured = self._all_rows, self._measured
        groups, count = rows.groups[measured], int(measured.sum())
        compared = {name: compare_metric(each, groups) for name, each in values.items()}
        plain = {
            name.removeprefix(_PLAIN): each
            for name, each in compared.items()
            if name.startswith(_PLAIN)
        }
        metrics = {name: each for name, each in compared.items() if not name.startswith(_PLAIN)}
        read = None
        if LOG_LOSS in plain:
            read = compare_metric(best_reading(values[LOG_LOSS], values[_PLAIN + LOG_LOSS]), groups)
        verdict = decide_verdict(metrics, read)
        if verdict == IMPROVED and self.nested and self.edits.ranked:
            verdict = INCONCLUSIVE  # the models that measure helped to choose the list
        judge = None if self.model is None else self.model.name
        names = np.array([*self.prepared.source.classes, ""], dtype=object)
        labels = names[rows.y[measured]] if rows.classes else rows.y[measured]
        notes = [
            advise(verdict, metrics, self.seeds, count),
            describe_plain(plain, metrics),
            warn_of_vanished(self._vanished, labels),
            *[f"The model warns: {line}" for line in self._tried[1][:1]],
            f"{judge} has no predict_proba: {NO_PROBABILITIES}." if set(metrics) == {ERROR} else "",
            warn_of_sight(self.edits) if self.nested else warn_of_reuse(earlier),
        ]
        about = {"resampled": self.resampled, "nested": self.nested, "rows": count, "noise": noise}
        return Verdict(
            made=time.strftime("%Y-%m-%d %H:%M"),
            what=self.edits.what,
            removed=len(self.edits.removed),
            relabelled=len(self.edits.relabelled),
            seeds=self.seeds,
            metrics=metrics,
            plain=plain,
            per_class=self._compare_classes(values[ERROR]) if rows.classes else [],
            verdict=verdict,
            sentence=describe_verdict(verdict, metrics, self.edits, self.seeds, judge, **about),
            settle=" ".join(filter(None, notes)),
            model=judge or self.recipe.model,
            **about,
        )

    def _compare_classes(self, off: np.ndarray) -> list[dict[str, Any]]:
        """off: float64 [passes, 3, measured]: 1 where a prediction is not the given label."""
        y, found = self._all_rows.y[self._measured], []
        for place, name in enumerate(self.prepared.source.classes):
            members = y == place
            if members.any():
                before, after = (float(off[:, k][:, members].mean()) for k in (0, 1))
                count = int(members.sum())
                found.append({"class": name, "count": count, "before": before, "after": after})
        return found


def try_seeds(
    estimators: Estimators, x: np.ndarray, y: Tensor, asked: np.ndarray, seeds: Sequence[int]
) -> tuple[bool, list[str]]:
    """Fit everything with two seeds, and compare what they predict.

    Returns:
        Whether they differ, and the first lines of their warnings.

    Raises:
        InvalidInput: it cannot be fitted.
    """
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        one, other = (estimators.fit_and_predict(x, y, seed, asked) for seed in seeds)
    lines = list(dict.fromkeys(first_line(each.message) for each in caught))  # type: ignore[arg-type]
    differ = False
    for first, second in zip(one, other):
        if first is not None and second is not None:
            differ = differ or bool(np.abs(first - second).max() > _SAME)
    return differ, lines

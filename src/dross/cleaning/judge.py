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
import importlib
import os
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._checks import check_count
from .._io import staged_file, write_json
from .._progress import progress_bar, report
from ..data.seeds import mix_seeds
from ..distributed.jobs import ResultStore, sweep, uses_workers
from ..engine.device import choose_device
from ..errors import DrossError, InvalidInput
from . import plans
from .checked_labels import project_rows
from .edits import ChosenEdits, choose_edits
from .estimators import Estimators, JudgingModel, find_model
from .label_noise import (
    PRIORS,
    LabelPosterior,
    Rows,
    assign_folds,
    estimate_label_noise,
    principal_components,
)
from .modality import PreparedData
from .plans import NO_EDITS, Edits, class_effects
from .project import Project
from .project_files import delete_stale_files, delete_written, write_sealed
from .reopen import reopen_inputs
from .report import write_report
from .task import read_learnable
from .training import ModelSpec, Recipe, train_many
from .verdict import (
    ABSOLUTE_ERROR,
    BRIER,
    ERROR,
    LOG_LOSS,
    NO_PROBABILITIES,
    PLAIN,
    SQUARED_ERROR,
    Verdict,
    reach_verdict,
    warn_of_vanished,
)

QUICK_SEEDS = 6
SEEDS = 10
FOLDS = 5
_MAX_SEEDS = 1000
_ASSIGNMENTS = 2  # of rows to folds
_QUICK_ASSIGNMENTS = 1
_SEEDS_SIDE_BY_SIDE = 5
_STATUS = "judging.json"

FRESH = 1_000_003  # the stream of seeds that nothing before the verdict has used
CONTROL = 7  # the stream within it that draws the control's edits
_FOLDED = 9  # and the one that assigns rows to folds

_RATES = "rates"  # the estimated share of wrong labels, of each row
_ABOVE = "dross.finetune.trials"  # judges chats, in a layer above this one


def judge(
    folder: str | os.PathLike,
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
        folder: a project, or the folder that `dross.clean` made.
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
    has_chats = project.modality.has_tokens
    count = seeds if seeds is not None else QUICK_SEEDS if quick or has_chats else SEEDS
    check_seeds(count)
    here = choose_device(device)
    uses_workers(n_jobs)  # raises if there cannot be that many
    check_writable(project.folder)
    delete_stale_files(project.folder)
    if has_chats:
        if estimator is not None:
            raise InvalidInput(
                "Chats are judged by the model that is fine-tuned: leave out `estimator`."
            )
        open_judgement = importlib.import_module(_ABOVE).open_judgement
        judgement = open_judgement(project, edits, count, device=here, progress=progress)
    else:
        training = project.info.training
        assert training is not None  # only chats have none
        model = None if estimator is None else find_model(estimator, project.task)
        prepared, recipe = reopen_inputs(project, trust_code, needs_model=model is None)
        judgement = RowJudgement(
            edits=edits,
            seeds=count,
            progress=progress,
            n_jobs=n_jobs,
            prepared=prepared,
            rows=project_rows(project, prepared),
            recipe=replace(recipe, device=str(here)),
            labels=training.labels,
            assignments=_QUICK_ASSIGNMENTS if quick else _ASSIGNMENTS,
            model=model,
            made_from={"job": project.info.job, "recipe": vars(training.recipe)},
        )
    store = ResultStore.under(project.folder / "judging", judgement.settings)
    with show_progress(project.folder, judgement.models) as tell:
        verdict = judgement.run(store, tell, earlier=len(project.verdicts()))
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


def _keep_verdict(project: Project, verdict: Verdict, results: Path) -> None:
    """Write the verdict and the report; then delete the results that they rest on."""
    folder = project.folder / "verdicts"
    stamp = time.strftime("%Y%m%d-%H%M%S")
    taken = len(list(folder.glob(f"{stamp}*.json")))
    write_sealed(folder / f"{stamp}-{taken:02d}-{os.getpid()}.json", verdict.to_json())
    report(verdict.numbers, len(project.verdicts()))
    write_report(project)
    with suppress(DrossError):
        delete_written(project.folder, f"judging/{results.name}")
    with suppress(OSError):  # another judgement waits there to go on
        results.parent.rmdir()


# --- judgements -----------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Models that are trained by one job: those of some passes, for one fold.

    In each pass every row is measured once. `fold` is bool [rows]: which rows are measured.
    """

    passes: tuple[int, ...]
    fold: np.ndarray


# Trains the models of a piece, before, after and control, in any process, and measures them: each
# measure of each measured row, float64 [passes, 3, measured].
Learner = Callable[[Piece], dict[str, Tensor]]


@dataclass(frozen=True)
class Judgement(ABC):
    """What is judged, by which models, on which rows."""

    edits: ChosenEdits
    seeds: int
    progress: bool
    n_jobs: int | None

    @property
    @abstractmethod
    def settings(self) -> dict[str, Any]:
        """Everything that decides what is measured, as JSON holds it."""

    @property
    @abstractmethod
    def pieces(self) -> list[Piece]:
        """The work, in parts that can be done apart."""

    @property
    @abstractmethod
    def learner(self) -> Learner:
        """Does the work."""

    @abstractmethod
    def conclude(self, values: dict[str, np.ndarray], earlier: int) -> Verdict:
        """The verdict on what `measure` returns."""

    @property
    def models(self) -> int:
        """How many are trained."""
        return 3 * sum(len(piece.passes) for piece in self.pieces)

    def run(
        self,
        store: ResultStore | None = None,
        tell: Callable[[int], None] = lambda done: None,
        *,
        earlier: int = 0,
    ) -> Verdict:
        """Train, measure and decide.

        Arguments:
            store: Keeps what was measured.
            tell: Called with how many models are done.
            earlier: How many verdicts there are already.
        """
        return self.conclude(self.measure(store, tell), earlier)

    def measure(
        self, store: ResultStore | None = None, tell: Callable[[int], None] = lambda done: None
    ) -> dict[str, np.ndarray]:
        """Each measure of each measured row, [passes, 3, rows]."""
        pieces = self.pieces
        place = np.cumsum(np.any([piece.fold for piece in pieces], axis=0)) - 1
        values: dict[str, np.ndarray] = {}
        done = 0
        results = sweep(
            self.learner, pieces, what="judging", n_jobs=self.n_jobs, store=store, progress=False
        )
        shown = progress_bar("judging", self.models, show=self.progress, unit="models")
        with shown as advance:
            for number, measured in results:
                passes, fold = pieces[number]
                for name, each in measured.items():
                    empty = np.zeros((self.seeds, 3, place[-1] + 1))
                    whole = values.setdefault(name, empty)
                    whole[np.ix_(passes, range(3), place[fold])] = each.numpy()
                done += 3 * len(passes)
                advance(3 * len(passes))
                tell(done)
        return values


# --- models ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Networks:
    """Trains the project's own models."""

    recipe: Recipe

    def predict(
        self, x: Tensor, y: Tensor, specs: Sequence[ModelSpec], queries: Tensor
    ) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Train models on x [N, ...] and y [N, ...], and predict the inputs `queries` [Q, ...].

        Yields:
            For each model its probabilities [Q, classes] and predicted classes [Q]; of numbers the
            predictions [Q, 1] as the model learns them, twice.
        """
        for outputs in train_many(self.recipe, x, y, specs).outputs(queries):
            if self.recipe.loss == "cross_entropy":
                probabilities = torch.softmax(outputs.double(), 1).numpy()
                yield probabilities, probabilities.argmax(1)
            else:
                yield outputs.double().numpy(), outputs.double().numpy()


# --- measures -------------------------------------------------------------------------------------


def measure_classes(
    probabilities: np.ndarray | None,
    predicted: np.ndarray,
    y: np.ndarray,
    noise: LabelPosterior,
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
    error = (predicted != y).astype(np.float64)
    if probabilities is None:
        return {ERROR: error}
    plain = plans.held_out_losses(probabilities, y)
    return {
        ERROR: error,
        LOG_LOSS: plans.held_out_losses(probabilities, y, noise, rates)["log loss"],
        PLAIN + LOG_LOSS: plain["log loss"],
        PLAIN + BRIER: plain["brier"],
    }


def measure_numbers(
    predicted: np.ndarray, y: np.ndarray, noise: LabelPosterior, rates: np.ndarray
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
        PLAIN + SQUARED_ERROR: plain["squared error"],
    }


# --- rows: tables, images and texts ---------------------------------------------------------------


@dataclass(frozen=True)
class RowLearner:
    """Trains and measures, in any process, the models of a piece: before, after, control."""

    trainer: Networks | Estimators
    rows: Rows  # training rows, validation rows, test rows; with labels that measure
    x: Tensor  # their inputs
    y: Tensor  # the given labels of the training rows, as models learn them
    scale: tuple[float, float]
    edits: Edits  # with labels as `rows` has them
    rule: str | None  # repeat it for each fold, instead of `edits`
    labels: str  # annotated or observed
    noise: LabelPosterior | None  # of the test file, if there is one
    z: np.ndarray  # the principal components of the rows

    def __call__(self, piece: Piece) -> dict[str, Tensor]:
        """Each measure of each measured row, float64 [passes, 3, measured]."""
        measured = np.flatnonzero(piece.fold)
        inside = np.flatnonzero(~piece.fold)
        edits, noise = self._edit_without(piece.fold, inside)
        learned = inside[inside < len(self.y)]
        usual = (noise.p_clean.argmax(1) if self.rows.classes else noise.best_other)[: len(learned)]
        rates = noise.flip_rates(
            self.z[measured], self.rows.validation[measured], self.rows.checked[measured]
        )
        specs = []
        for number in piece.passes:
            seed = mix_seeds(FRESH, len(self.y), number)
            control = draw_control(number, learned, len(self.y), edits, usual)
            specs += [self._specify(seed, one, learned) for one in (NO_EDITS, edits, control)]
        ids = torch.from_numpy(learned)
        queries = self.x[torch.from_numpy(measured)]
        y = self.rows.y[measured]
        by_model = []
        for probabilities, predicted in self.trainer.predict(
            self.x[ids], self.y[ids], specs, queries
        ):
            if self.rows.classes:
                by_model.append(measure_classes(probabilities, predicted, y, noise, rates))
            else:
                numbers = predicted[:, 0] * self.scale[1] + self.scale[0]
                by_model.append(measure_numbers(numbers, y, noise, rates))
        wrong = rates if not self.rows.classes else rates.mean(1)
        values = {name: np.stack([each[name] for each in by_model]) for name in by_model[0]}
        values[_RATES] = np.tile(wrong, (len(by_model), 1))
        shape = (len(piece.passes), 3, len(measured))
        return {name: torch.from_numpy(each.reshape(shape)) for name, each in values.items()}

    def _edit_without(self, fold: np.ndarray, inside: np.ndarray) -> tuple[Edits, LabelPosterior]:
        """What happens to the training rows outside of a fold, and the label noise there."""
        if self.noise is not None:
            return self.edits, self.noise
        if self.rule is not None:
            return plans.edits_without(self.rows, fold, self.rule, self.labels)
        kept = self.rows.take(inside)
        noise = estimate_label_noise(kept, PRIORS[self.labels], z=self.z[inside])
        return self.edits, noise

    def _specify(self, seed: int, edits: Edits, learned: np.ndarray) -> ModelSpec:
        """A model of the edited rows, in places of `learned`, with labels as models learn them."""
        kept = np.flatnonzero(~np.isin(learned, edits.removed))
        place = {id: number for number, id in enumerate(learned.tolist())}
        new = {place[id]: label for id, label in edits.relabelled.items() if id in place}
        if not new:
            return ModelSpec(seed, kept)
        labels = torch.tensor(list(new.values()), dtype=torch.float64)
        if not self.rows.classes:
            labels = (labels - self.scale[0]) / self.scale[1]
        y = self.y[torch.from_numpy(learned)]
        y[list(new)] = labels.to(y.dtype).reshape(-1, *y.shape[1:])
        return ModelSpec(seed, kept, labels=y)


def draw_control(
    number: int, learned: np.ndarray, count: int, edits: Edits, usual: np.ndarray
) -> Edits:
    """As many random edits of the rows that are learned; a pass takes the same in every fold.

    Arguments:
        number: Of the pass.
        learned: The places of the rows that are learned.
        count: How many training rows there are.
        edits: Those that are judged.
        usual: What is predicted for each row that is learned: its label where it is relabelled.
    """
    order = np.random.default_rng(mix_seeds(FRESH, CONTROL, number)).permutation(count)
    place = np.full(count, -1)
    place[learned] = np.arange(len(learned))
    order = order[place[order] >= 0]
    removed = int(np.isin(edits.removed, learned).sum())
    relabelled = int(np.isin(list(edits.relabelled), learned).sum())
    others = order[removed : removed + relabelled]
    labels = usual[place[others]].tolist()
    return Edits(order[:removed], dict(zip(others.tolist(), labels, strict=True)))


@dataclass(frozen=True)
class RowJudgement(Judgement):
    """A judgement on the rows of tables, images and texts, by networks or an estimator."""

    prepared: PreparedData
    rows: Rows  # training rows, then validation rows, with labels that a person corrected
    recipe: Recipe
    labels: str  # annotated or observed
    assignments: int
    model: JudgingModel | None = None
    made_from: dict[str, Any] | None = None  # settings that decide the rows and the recipe

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides what is measured, as JSON holds it."""
        digest = hashlib.sha256(repr(sorted(self.fixed.relabelled.items())).encode())
        for values in (self.fixed.removed, self.rows.y, self.rows.checked):
            digest.update(np.ascontiguousarray(values).tobytes())
        settings = {
            "made_from": self.made_from,
            "seeds": self.seeds,
            "assignments": self.assignments if self.nested else 0,
            "rule": self.rule,
            "labels": self.labels,
            "digest": digest.hexdigest(),
        }
        if self.model is not None:
            settings["with"] = self.model.describe() | {"resampled": self.resampled}
        return settings

    @property
    def nested(self) -> bool:
        """Whether there is no test file."""
        return len(self.prepared.parts["test"]) == 0

    @property
    def rule(self) -> str | None:
        """The rule that is repeated without each fold."""
        return self.edits.rule if self.nested else None

    @property
    def resampled(self) -> bool:
        """Whether each pass draws a bootstrap sample."""
        return self.model is not None and not self._tried[0]

    @cached_property
    def _all_rows(self) -> Rows:
        """All rows that are learned or measured.

        The rows of a test file count as validation rows: how often their labels are wrong, compared
        with the others, is estimated, and is not assumed.
        """
        if self.nested:
            return self.rows
        classes = self.rows.classes
        if classes:
            y = self.prepared.y["test"].numpy()
        else:
            y = self.prepared.part("test").labels.astype(np.float64)
        trained = len(self.rows)
        tested = len(y)
        x = self.prepared.x["test"].flatten(1).numpy()
        return Rows.of(
            np.concatenate([self.rows.x, x]),
            np.concatenate([self.rows.y, y]),
            classes,
            groups=np.concatenate([self.rows.groups, trained + np.arange(tested)]),
            validation=np.arange(trained + tested) >= trained,
            checked=np.concatenate([self.rows.checked, np.zeros(tested, dtype=bool)]),
        )

    @cached_property
    def _measured(self) -> np.ndarray:
        rows = self._all_rows
        return np.ones(len(rows), dtype=bool) if self.nested else rows.validation

    @cached_property
    def pieces(self) -> list[Piece]:
        """Without a test file one for each fold, else one for some passes."""
        if not self.nested:
            is_small = self.model is None and self.recipe.model in ("linear", "mlp")
            size = _SEEDS_SIDE_BY_SIDE if is_small else 1
            passes = tuple(range(self.seeds))
            starts = range(0, self.seeds, size)
            return [Piece(passes[start : start + size], self._measured) for start in starts]
        pieces = []
        for assignment in range(min(self.assignments, self.seeds)):
            fold = assign_folds(self._all_rows, FOLDS, mix_seeds(FRESH, _FOLDED, assignment))
            passes = tuple(range(assignment, self.seeds, self.assignments))
            pieces += [Piece(passes, fold == number) for number in range(FOLDS)]
        return pieces

    @cached_property
    def learner(self) -> RowLearner:
        """Trains networks, or the user's own estimator."""
        rows = self._all_rows
        inputs = self.prepared.x["train"]
        z = principal_components(rows.x)
        noise = None
        if not self.nested:
            noise = estimate_label_noise(rows, PRIORS[self.labels], z=z)
        return RowLearner(
            trainer=self._trainer,
            rows=rows,
            x=torch.from_numpy(rows.x).reshape(-1, *inputs.shape[1:]).to(inputs.dtype),
            y=self.prepared.y["train"],
            scale=self.prepared.scale,
            edits=self.fixed,
            rule=self.rule,
            labels=self.labels,
            noise=noise,
            z=z,
        )

    @property
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
        fold = self.pieces[0].fold
        trained = len(self.prepared.y["train"])
        learned = torch.from_numpy(np.flatnonzero(~fold[:trained]))
        return self._estimators.try_seeds(
            self.prepared.x["train"][learned].flatten(1).numpy(),
            self.prepared.y["train"][learned],
            self._all_rows.x[fold],
            [mix_seeds(FRESH, trained, number) for number in (0, 1)],
        )

    @cached_property
    def fixed(self) -> Edits:
        """The edits with labels as `rows` has them."""
        classes = self.prepared.source.classes
        if classes:
            number = {name: number for number, name in enumerate(classes)}
            labels = {id: number.get(label) for id, label in self.edits.relabelled.items()}
        else:
            labels = {id: read_learnable(label) for id, label in self.edits.relabelled.items()}
        unknown = [self.edits.relabelled[id] for id, label in labels.items() if label is None]
        if unknown:
            what = "one of the classes" if classes else "a number to learn"
            raise InvalidInput(
                f"Some instances were relabelled as '{min(unknown)}', which is not {what}."
            )
        return Edits(self.edits.removed, labels)

    @cached_property
    def _vanished(self) -> list[str]:
        """The classes that no training row has after the edits."""
        if not self.rows.classes:
            return []
        effects = class_effects(self.prepared.part("train").labels, self.edits)
        return [effect.name for effect in effects if not effect.left]

    def conclude(self, values: dict[str, np.ndarray], earlier: int) -> Verdict:
        """The verdict on what `measure` returns."""
        rows = self._all_rows
        measured = self._measured
        # each row once; which rows share a fold depends on the assignment, and this is the last
        rates = values.pop(_RATES)[min(self.assignments, self.seeds) - 1, 0]
        estimator = None if self.model is None else self.model.name
        names = np.array([*self.prepared.source.classes, ""], dtype=object)
        labels = names[rows.y[measured]] if rows.classes else rows.y[measured]
        notes = [
            warn_of_vanished(self._vanished, labels),
            *[f"The model warns: {line}" for line in self._tried[1][:1]],
        ]
        if set(values) == {ERROR}:
            notes.append(f"{estimator} has no predict_proba: {NO_PROBABILITIES}.")
        return reach_verdict(
            values,
            self.edits,
            model=estimator or self.recipe.model,
            estimator=estimator,
            groups=rows.groups[measured],
            per_class=self._compare_classes(values[ERROR]) if rows.classes else [],
            notes=notes,
            earlier=earlier,
            resampled=self.resampled,
            nested=self.nested,
            noise=float(rates.mean()),
        )

    def _compare_classes(self, off: np.ndarray) -> list[dict[str, Any]]:
        """off: float64 [passes, 3, measured]: 1 where a prediction is not the given label."""
        y = self._all_rows.y[self._measured]
        compared = []
        for number, name in enumerate(self.prepared.source.classes):
            members = y == number
            if members.any():
                compared.append(
                    {
                        "class": name,
                        "count": int(members.sum()),
                        "before": float(off[:, 0][:, members].mean()),
                        "after": float(off[:, 1][:, members].mean()),
                    }
                )
        return compared

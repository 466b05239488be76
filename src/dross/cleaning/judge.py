"""`dross judge`: does it help? New models with and without the edits, compared on held-out rows.

Each pass trains three models from the same weights: before (on everything), after (on the edited
data), and the control (on data with the same number of random edits). Nothing is decided on labels
that the changed model helped to choose:

- With a test file, the models are measured on the test rows, which nothing else has looked at.
- Without one, all rows are divided into folds, and each fold is measured by models that did not see
  it. If the edits follow a rule, the whole procedure (label noise, rule, edits) is repeated without
  the fold. If they are a fixed list, those in the fold have no effect on the models that measure
  it, and the verdict states that the list was chosen with knowledge of its labels.

The measured labels may be wrong themselves. The label noise is estimated, and the log loss passes
predictions through it before it compares them with the given labels; verdict.py decides.
"""

import importlib
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from .._checks import check_count
from .._io import digest_json, write_json
from .._progress import overall_progress, progress_bar, report
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
from .project import Project, reopen_inputs
from .project_files import check_no_links, delete_stale_files, delete_written, write_sealed
from .report import write_report
from .splits import join_groups
from .training import ModelSpec, Recipe, train_many
from .verdict import (
    ABSOLUTE_ERROR,
    BRIER,
    ERROR,
    LOG_LOSS,
    PLAIN,
    RATES,
    SQUARED_ERROR,
    Setup,
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

FRESH = 1_000_003  # the stream of seeds that nothing before the verdict has used
CONTROL = 7  # the stream within it that draws the control's edits
_COPIES = 8  # the one that draws its additional rows
_FOLDED = 9  # and the one that assigns rows to folds

# judges chats; in a layer above this one, which needs transformers, and so imported by name
_CHATS = "dross.finetune.trials"


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
    """Retrain with fresh seeds, with and without the edits, and compare on held-out rows.

    The held-out rows are those of the test file. Without a test file, all rows are divided into
    five folds, and each fold is measured by models, and after edits, that did not see it.

    By default, the edits are the decisions made on the review page or, if there are none, the
    recommended plan. Results are kept until the verdict and the report are written: to resume a
    judgment that was stopped, call it again.

    Arguments:
        folder: a project, or the folder that `dross.clean` created.
        remove: judge removing the N most harmful instances.
        relabel: judge relabeling the N instances most likely to be mislabeled: each gets the
            label that the models predict.
        decisions: judge only the decisions made on the review page.
        plan: judge a plan other than the recommended one: a name in `Project.plans`.
        seeds: how many times every row is measured, each time by three newly trained models; 10 by
            default, 6 with `quick` and for chats. Without a test file each of these passes trains
            three models per fold.
        quick: a first look: fewer seeds, and without a test file one assignment of rows to folds
            instead of two.
        progress: show the progress on stderr: a bar on a terminal, otherwise a line now and then.
        n_jobs: how many processes to train in. A joblib.parallel_config around the call spreads
            the work over a cluster instead.
        trust_code: the `module:function`s that the project was made with and that may be run. Code
            that this call does not name is never imported.
        estimator: the model to judge with, instead of the project's own: an estimator with the
            scikit-learn methods; the name of one, `sklearn:HistGradientBoostingClassifier`; or
            `module:function`, which returns one. It is fitted on the same inputs, as [N, features],
            with the same seeds and edits. Classes are numbered in the order of `project.classes`.
            Every `random_state` is set from the seed; if that changes nothing, each seed draws a
            bootstrap sample of the training rows instead. Without `predict_proba` only the error is
            compared.
        device: where to train: `cpu`, `cuda` or `mps`. By default, a CUDA GPU if there is one, and
            otherwise the CPU.

    Returns:
        The verdict. It is also written to the folder, and the report is written again.

    Raises:
        InvalidInput: there is nothing to judge, a number is out of range, the project needs code
            that `trust_code` does not name, or `estimator` cannot be found or fitted.
        InputChanged: the data or the model's module have changed since `dross.clean`.
        CorruptFile: a file of the project is damaged.
        DrossError: the folder cannot be written.

    Example:
        verdict = dross.judge("runs/people", remove=50)
        print(verdict.verdict, verdict.sentence)
        dross.judge("runs/people", estimator=RandomForestClassifier(300))
    """
    project = Project.open(folder)
    edits = choose_edits(project, remove, relabel, decisions, plan)
    has_chats = project.modality.has_tokens
    if seeds is None:
        seeds = QUICK_SEEDS if quick or has_chats else SEEDS
    check_seeds(seeds)
    where = choose_device(device)
    uses_workers(n_jobs)  # raises if there cannot be that many
    if has_chats and estimator is not None:
        raise InvalidInput(
            "Changes to chats are evaluated with the fine-tuned model itself: leave out "
            "`estimator`."
        )
    with (
        show_progress(project.folder) as tell,  # fails now, not after an hour of training
        overall_progress("dross judge", {"judging": 1.0}, show=progress) as stages,
    ):
        stages.begin("judging")
        delete_stale_files(project.folder)
        if has_chats:
            n_jobs = 1
            judge_chats = importlib.import_module(_CHATS).judge_chats
            judgment = judge_chats(project, edits, seeds, device=where, progress=progress)
        else:
            training = project.info.training
            assert training is not None  # only chats have none
            model = None if estimator is None else find_model(estimator, project.task)
            data, recipe = reopen_inputs(project, trust_code, needs_model=model is None)
            judgment = judge_rows(
                data,
                project_rows(project, data),
                replace(recipe, device=str(where)),
                edits,
                label_kind=training.labels,
                seeds=seeds,
                assignments=_QUICK_ASSIGNMENTS if quick else _ASSIGNMENTS,
                model=model,
            )
        settings = {"job": project.info.job, **judgment.settings}
        store = ResultStore.under(project.folder / "judging", settings)
        values = judgment.measure(store, tell, n_jobs=n_jobs, progress=progress)
    earlier = len(project.verdicts())
    verdict = reach_verdict(values, judgment.setup, earlier=earlier)
    stamp = time.strftime("%Y%m%d-%H%M%S")
    verdicts = project.folder / "verdicts"
    taken = len(list(verdicts.glob(f"{stamp}*.json")))
    write_sealed(verdicts / f"{stamp}-{taken:02d}-{os.getpid()}.json", verdict.to_json())
    report(verdict.numbers, earlier + 1)
    write_report(project)
    with suppress(DrossError):
        delete_written(project.folder, f"judging/{store.folder.name}")
    with suppress(OSError):  # another judgment that was stopped keeps its results there
        store.folder.parent.rmdir()
    return verdict


def check_seeds(count: int) -> None:
    """Refuse, with InvalidInput, too few seeds for a comparison, and more than anyone needs."""
    if count < 2:
        raise InvalidInput("A comparison needs at least 2 seeds; 10 are usually enough.")
    why = "three models are trained per seed, and 10 seeds are usually enough"
    check_count(count, "`seeds`", at_most=_MAX_SEEDS, because=why)


@contextmanager
def show_progress(folder: Path) -> Iterator[Callable[[int, int], None]]:
    """Inside, judging.json shows the page how many models are done, of how many.

    Raises:
        InvalidInput: a folder in it is a link.
        DrossError: the folder cannot be written.
    """
    check_no_links(folder)
    path = folder / "judging.json"

    def tell(done: int, models: int) -> None:
        stage = "training with and without the edits"
        write_json(path, {"done": done, "of": models, "stage": stage})

    try:
        tell(0, 0)
        yield tell
    finally:
        with suppress(OSError):
            path.unlink(missing_ok=True)


# --- a judgment -----------------------------------------------------------------------------------


class Piece(NamedTuple):
    """Models that are trained by one job: those of some passes, for one fold.

    In each pass every row is measured once. `fold` is bool [rows]: which rows no model is trained
    on; `measured` is bool [rows]: which of them are measured.
    """

    passes: tuple[int, ...]
    fold: np.ndarray
    measured: np.ndarray


# Trains the models of a piece, before, after and control, in any process, and measures them: each
# measure of each measured row, float64 [passes, 3, measured].
Learner = Callable[[Piece], dict[str, Tensor]]


@dataclass(frozen=True)
class Judgment:
    """What is compared, and the work that it takes.

    Attributes:
        setup: What the verdict reports besides the figures.
        learner: Does one piece of the work.
        pieces: The work, in parts that can be done apart.
        seeds: The number of passes in all pieces together.
        settings: Everything that decides what is measured, as JSON.
    """

    setup: Setup
    learner: Learner
    pieces: list[Piece]
    seeds: int
    settings: dict[str, Any]

    @property
    def models(self) -> int:
        """How many are trained."""
        return 3 * sum(len(piece.passes) for piece in self.pieces)

    def measure(
        self,
        store: ResultStore | None = None,
        tell: Callable[[int, int], None] = lambda done, models: None,
        *,
        n_jobs: int | None = None,
        progress: bool = False,
    ) -> dict[str, np.ndarray]:
        """Each measure of each measured row, [passes, 3, rows].

        Arguments:
            store: Keeps what was measured.
            tell: Called with how many models are done, of how many.
            n_jobs: How many processes to train in.
            progress: Whether to show a progress bar.
        """
        column = np.cumsum(np.any([piece.measured for piece in self.pieces], axis=0)) - 1
        values: dict[str, np.ndarray] = {}
        done = 0
        results = sweep(
            self.learner, self.pieces, what="judging", n_jobs=n_jobs, store=store, progress=False
        )
        with progress_bar("judging", self.models, show=progress, unit="models") as advance:
            for number, measured in results:
                piece = self.pieces[number]
                columns = column[piece.measured]
                for name, by_pass in measured.items():
                    empty = np.zeros((self.seeds, 3, column[-1] + 1))
                    whole = values.setdefault(name, empty)
                    for place, each in zip(piece.passes, by_pass.numpy(), strict=True):
                        whole[place][:, columns] = each  # [3, rows of the piece]
                done += 3 * len(piece.passes)
                advance(3 * len(piece.passes))
                tell(done, self.models)
        return values


# --- rows of tables, images and texts -------------------------------------------------------------


def judge_rows(
    data: PreparedData,
    rows: Rows,
    recipe: Recipe,
    edits: ChosenEdits,
    *,
    label_kind: str,
    seeds: int,
    assignments: int,
    model: JudgingModel | None = None,
) -> Judgment:
    """A judgment on test rows, or on all rows in folds, by networks or an estimator.

    Arguments:
        data: The dataset.
        rows: The training rows, then validation rows, with labels that a person corrected.
        recipe: Of the networks.
        edits: What is judged.
        label_kind: annotated or observed.
        seeds: The number of passes.
        assignments: Of rows to folds, if there is no test set.
        model: An estimator to judge with instead of networks.
    """
    nested = not len(data.parts["test"])
    encoded = _encode_labels(edits, data)
    inputs, y = data.pair("train")
    if nested:
        measured = np.ones(len(rows), dtype=bool)
        pieces = divide_into_folds(rows, seeds, assignments, measured)
    else:
        rows = append_test_rows(rows, data)
        measured = rows.validation
        is_small = model is None and recipe.model in ("linear", "mlp")
        pieces = divide_passes(measured, seeds, together=is_small)
    x = torch.from_numpy(rows.x).reshape(-1, *inputs.shape[1:]).to(inputs.dtype)
    classes = data.source.classes
    names = np.array(classes, dtype=object)[rows.y[measured]] if classes else None
    effects = class_effects(data.part("train").labels.tolist(), edits) if classes else []
    vanished = [effect.name for effect in effects if not effect.left]
    notes = [] if names is None else [warn_of_vanished(vanished, names)]
    settings = {
        "recipe": asdict(recipe.settings),
        "seeds": seeds,
        "assignments": assignments if nested else 0,
        "rule": edits.rule if nested else None,
        "labels": label_kind,
        "digest": digest_json(
            [
                encoded.removed.tolist(),
                sorted(encoded.relabeled.items()),
                rows.y.tolist(),
                rows.checked.tolist(),
            ]
        ),
    }
    if model is not None and vanished and len(vanished) >= len(y.unique()) - 1:
        raise InvalidInput(
            "After these edits, only one class has training instances: there is nothing left to "
            f"distinguish, so {model.name} cannot be trained. Remove fewer."
        )
    judges = choose_judges(model, recipe, data, x, pieces[0].fold)
    if judges.settings is not None:
        settings["estimator"] = judges.settings
    z = principal_components(rows.x)
    learner = RowLearner(
        predict=judges.predict,
        rows=rows,
        x=x,
        y=y,
        scale=data.scale,
        edits=encoded,
        rule=edits.rule if nested else None,
        label_kind=label_kind,
        noise=None if nested else estimate_label_noise(rows, PRIORS[label_kind], z=z),
        z=z,
        new=np.zeros(0, dtype=np.int64),
    )
    setup = Setup(
        edits=edits,
        model=judges.name,
        is_estimator=model is not None,
        groups=rows.groups[measured],
        classes=classes,
        class_of_row=names,
        notes=[*notes, *judges.notes],
        resampled=judges.resampled,
        nested=nested,
    )
    return Judgment(setup, learner, pieces, seeds, settings)


class Judges(NamedTuple):
    """The models that a verdict is reached with."""

    predict: Callable[..., Iterator[tuple[np.ndarray | None, np.ndarray]]]
    name: str
    resampled: bool = False  # whether each seed draws a bootstrap sample of the training rows
    notes: tuple[str, ...] = ()
    settings: dict[str, Any] | None = None  # everything that decides what they predict, as JSON


def choose_judges(
    model: JudgingModel | None, recipe: Recipe, data: PreparedData, x: Tensor, fold: np.ndarray
) -> Judges:
    """Networks, or estimators that resample if seeds make no difference to them.

    Arguments:
        model: An estimator to judge with instead of networks.
        recipe: Of the networks.
        data: With the targets of the training rows.
        x: The inputs of all rows, the training rows first.
        fold: bool [rows]: estimators are tried on these rows, after training on the others.
    """
    if model is None:
        return Judges(partial(predict_with_networks, recipe), recipe.model)
    y = data.y["train"]
    estimators = Estimators(model, len(data.source.classes), data.scale)
    learned = torch.from_numpy(np.flatnonzero(~fold[: len(y)]))
    seeds = [mix_seeds(FRESH, len(y), number) for number in (0, 1)]
    queries = x[torch.from_numpy(fold)]
    differ, warned = estimators.try_seeds(x[learned], y[learned], queries, seeds)
    estimators = replace(estimators, resample=not differ)
    return Judges(
        predict=estimators.predict,
        name=model.name,
        resampled=not differ,
        notes=tuple(f"Warning from the model: {line}" for line in warned[:1]),
        settings=model.describe() | {"resampled": not differ},
    )


def _encode_labels(edits: Edits, data: PreparedData) -> Edits:
    """The edits with labels as `Rows` has them: numbers of classes, or numbers."""
    classes = data.source.classes
    relabeled = {}
    for id, label in edits.relabeled.items():
        known = data.source.task.read(label, classes)
        if known is None:
            what = "one of the classes" if classes else "a valid number"
            raise InvalidInput(f"Some instances were relabeled as '{label}', which is not {what}.")
        relabeled[id] = classes.index(label) if classes else known
    return Edits(edits.removed, relabeled)


def append_test_rows(rows: Rows, data: PreparedData) -> Rows:
    """All rows that are trained on or measured.

    The rows of a test file count as validation rows: how often their labels are wrong, compared
    with the others, is estimated, and is not assumed.
    """
    x, y = data.pair("test")
    labels = y.numpy() if rows.classes else data.part("test").labels
    trained = len(rows)
    count = trained + len(y)
    return Rows.of(
        np.concatenate([rows.x, x.flatten(1).numpy()]),
        np.concatenate([rows.y, labels]),
        rows.classes,
        groups=np.concatenate([rows.groups, trained + _group_test_rows(data)]),
        validation=np.arange(count) >= trained,
        checked=np.concatenate([rows.checked, np.zeros(len(y), dtype=bool)]),
    )


def _group_test_rows(data: PreparedData) -> np.ndarray:
    """The group of each test row, int64 [n]."""
    test = data.part("test")
    return join_groups(np.arange(len(test)), test.groups)


def divide_passes(measured: np.ndarray, seeds: int, *, together: bool) -> list[Piece]:
    """Pieces of some passes each, all of which measure the same rows.

    together: whether models of several seeds are trained side by side.
    """
    size = _SEEDS_SIDE_BY_SIDE if together else 1
    passes = tuple(range(seeds))
    return [
        Piece(passes[start : start + size], measured, measured) for start in range(0, seeds, size)
    ]


def divide_into_folds(
    rows: Rows, seeds: int, assignments: int, measured: np.ndarray
) -> list[Piece]:
    """Pieces that measure one fold each; every row of `measured` once in every pass."""
    pieces = []
    for assignment in range(assignments):
        fold = assign_folds(rows, FOLDS, mix_seeds(FRESH, _FOLDED, assignment))
        passes = tuple(range(assignment, seeds, assignments))
        for number in range(FOLDS):
            inside = fold == number
            pieces.append(Piece(passes, inside, inside & measured))
    return pieces


def predict_with_networks(
    recipe: Recipe, x: Tensor, y: Tensor, specs: Sequence[ModelSpec], queries: Tensor
) -> Iterator[tuple[np.ndarray | None, np.ndarray]]:
    """Train models on x [N, ...] and y [N, ...], and predict the inputs `queries` [Q, ...].

    Yields:
        For each model its probabilities [Q, classes] and predicted classes [Q]; of numbers None,
        and the predictions [Q] in the scale of the training targets.
    """
    for outputs in train_many(recipe, x, y, specs).outputs(queries):
        if recipe.loss == "cross_entropy":
            probabilities = torch.softmax(outputs.double(), 1).numpy()
            yield probabilities, probabilities.argmax(1)
        else:
            yield None, outputs[:, 0].double().numpy()


@dataclass(frozen=True)
class RowLearner:
    """Trains and measures, in any process, the models of a piece: before, after, control."""

    predict: Callable[..., Iterator[tuple[np.ndarray | None, np.ndarray]]]
    rows: Rows  # training rows, validation rows, test rows; with labels that measure
    x: Tensor  # their inputs
    y: Tensor  # the given labels of the training rows, as training targets
    scale: tuple[float, float]
    edits: Edits  # with labels as `rows` has them
    rule: str | None  # repeat it for each fold, instead of `edits`
    label_kind: str  # annotated or observed
    noise: LabelPosterior | None  # of the test file, if there is one
    z: np.ndarray  # the principal components of the rows
    new: np.ndarray  # ids of training rows that only the models after the edits are trained on

    def __call__(self, piece: Piece) -> dict[str, Tensor]:
        """Each measure of each measured row, float64 [passes, 3, measured]."""
        measured = np.flatnonzero(piece.measured)
        inside = np.flatnonzero(~piece.fold)
        given = np.setdiff1d(inside, self.new)
        edits, noise = self._edit_without(piece.fold, given)
        learned = inside[inside < len(self.y)]
        before = given[given < len(self.y)]
        added = len(learned) - len(before)
        predicted = noise.p_clean.argmax(1) if self.rows.classes else noise.best_other
        rates = noise.flip_rates(
            self.z[measured], self.rows.validation[measured], self.rows.checked[measured]
        )
        specs = []
        for number in piece.passes:
            seed = mix_seeds(FRESH, len(self.y), number)
            control = draw_control(number, before, len(self.y), edits, predicted[: len(before)])
            kept = np.setdiff1d(before, control.removed)
            copied = draw_copies(number, kept, len(self.y), added)
            specs += [
                self._specify(seed, NO_EDITS, learned, before),
                self._specify(seed, edits, learned, learned),
                self._specify(seed, control, learned, np.concatenate([before, copied])),
            ]
        ids = torch.from_numpy(learned)
        queries = self.x[torch.from_numpy(measured)]
        by_model = []
        for probabilities, values in self.predict(self.x[ids], self.y[ids], specs, queries):
            if not self.rows.classes:
                values = values * self.scale[1] + self.scale[0]
            by_model.append(
                measure_model(probabilities, values, self.rows.y[measured], noise, rates)
            )
        measures = {name: np.stack([each[name] for each in by_model]) for name in by_model[0]}
        wrong = rates.mean(1) if self.rows.classes else rates
        measures[RATES] = np.tile(wrong, (len(by_model), 1))
        shape = (len(piece.passes), 3, len(measured))
        return {name: torch.from_numpy(each.reshape(shape)) for name, each in measures.items()}

    def _edit_without(self, fold: np.ndarray, inside: np.ndarray) -> tuple[Edits, LabelPosterior]:
        """What happens to the training rows outside of a fold, and the label noise there."""
        if self.noise is not None:
            return self.edits, self.noise
        if self.rule is not None:
            return plans.edits_without(self.rows, fold, self.rule, self.label_kind)
        kept = self.rows.take(inside)
        noise = estimate_label_noise(kept, PRIORS[self.label_kind], z=self.z[inside])
        return self.edits, noise

    def _specify(
        self, seed: int, edits: Edits, learned: np.ndarray, chosen: np.ndarray
    ) -> ModelSpec:
        """A model of the edited rows: positions in `learned`, and labels as training targets.

        chosen: the ids of the rows that it is trained on, but for those that the edits remove.
        """
        kept = np.searchsorted(learned, chosen[~np.isin(chosen, edits.removed)])
        place = {id: number for number, id in enumerate(learned.tolist())}
        new = {place[id]: label for id, label in edits.relabeled.items() if id in place}
        if not new:
            return ModelSpec(seed, kept)
        labels = torch.tensor(list(new.values()), dtype=torch.float64)
        if not self.rows.classes:
            labels = (labels - self.scale[0]) / self.scale[1]
        y = self.y[torch.from_numpy(learned)]
        y[list(new)] = labels.to(y.dtype).reshape(-1, *y.shape[1:])
        return ModelSpec(seed, kept, labels=y)


def draw_control(
    number: int, learned: np.ndarray, count: int, edits: Edits, predicted: np.ndarray
) -> Edits:
    """The same number of random edits of the training rows; a pass takes the same in every fold.

    Arguments:
        number: Of the pass.
        learned: The positions of the rows that are trained on.
        count: How many training rows there are.
        edits: Those that are judged.
        predicted: The label of each row that is trained on, if it is relabeled.
    """
    order = np.random.default_rng(mix_seeds(FRESH, CONTROL, number)).permutation(count)
    place = np.full(count, -1)
    place[learned] = np.arange(len(learned))
    order = order[place[order] >= 0]
    removed = int(np.isin(edits.removed, learned).sum())
    relabeled = int(np.isin(list(edits.relabeled), learned).sum())
    others = order[removed : removed + relabeled]
    labels = predicted[place[others]].tolist()
    return Edits(order[:removed], dict(zip(others.tolist(), labels, strict=True)))


def draw_copies(number: int, learned: np.ndarray, count: int, added: int) -> np.ndarray:
    """The ids of random training rows, as many as the edits add; as in `draw_control`."""
    if not added:
        return learned[:0]
    drawn = np.random.default_rng(mix_seeds(FRESH, _COPIES, number)).integers(count, size=4 * count)
    return np.resize(drawn[np.isin(drawn, learned)], added)


def measure_model(
    probabilities: np.ndarray | None,
    predicted: np.ndarray,
    y: np.ndarray,
    noise: LabelPosterior,
    rates: np.ndarray,
) -> dict[str, np.ndarray]:
    """The measures of one model for n rows, each [n].

    Arguments:
        probabilities: Of the classes, [n, classes]; None if there are none.
        predicted: The predicted classes, or numbers in the units of the label, [n].
        y: The given labels, [n].
        noise: The estimated label noise.
        rates: The flip rates of the rows, [n, classes]; of numbers [n].
    """
    if y.dtype.kind == "f":
        plain = plans.held_out_losses(predicted, y)
        noisy = plans.held_out_losses(predicted, y, noise, rates)
        return {
            ABSOLUTE_ERROR: plain["absolute error"],
            SQUARED_ERROR: noisy["squared error"],
            PLAIN + SQUARED_ERROR: plain["squared error"],
        }
    error = (predicted != y).astype(np.float64)
    if probabilities is None:
        return {ERROR: error}
    plain = plans.held_out_losses(probabilities, y)
    noisy = plans.held_out_losses(probabilities, y, noise, rates)
    return {
        ERROR: error,
        LOG_LOSS: noisy["log loss"],
        PLAIN + LOG_LOSS: plain["log loss"],
        PLAIN + BRIER: plain["brier"],
    }

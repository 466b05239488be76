"""Examine the labels, score, verify and recommend: everything between the recipe and the folder."""

import time
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas

from .._progress import Overall, progress_bar
from .._text import say_count
from ..errors import Diverged
from ..influence.run import Run
from .checked_labels import CheckedLabels, make_rows
from .duplicates import Copies
from .explain import Reasons, find_reasons
from .job import Job, estimate_cost
from .label_noise import (
    EXAMINED_FOLDS,
    LIKELY,
    PRIORS,
    LabelPosterior,
    Rows,
    estimate_label_noise,
)
from .measures import NOISE_AWARE
from .modality import Frame, PreparedData
from .model_choice import lower_rate
from .plans import (
    KEEP,
    RELABEL,
    REMOVE,
    PlanResult,
    Recommendation,
    describe_actions,
    needs_comparison,
    recommend,
)
from .project_files import delete_written, read_intact, write_sealed
from .project_info import NoiseInfo
from .scoring import (
    InstanceScores,
    RetrainingCheck,
    RunPart,
    cut_for_runs,
    error_scale,
    mean_over_runs,
    outlier_ranks,
    rank,
    score,
    split_half_agreement,
    verify,
)
from .training import Recipe, SearchResult

_EXPLAINED = 400  # of the most harmful instances; half as many of the probably mislabeled
_CHECKS = "checks.json"
_MEASURES = ("error", "log loss", "absolute error", "squared error")
_SHOWN = (*_MEASURES, *(f"{NOISE_AWARE}{name}" for name in _MEASURES))  # figures of a plan
CHECKED_ONLY = "checked"  # the plan that does only what a person has said


@dataclass(frozen=True)
class DrawnChecks:
    """The content of checks.json: all labels that were drawn to be checked."""

    weights: dict[int, float]  # by the place in the checked part


@dataclass(frozen=True)
class Outcome:
    """What was found about the instances of a project."""

    instances: Frame  # as `Project.table`
    labels: Frame  # as `Project.label_table`
    recipe: Recipe
    runs: list[Run]
    checked: RetrainingCheck
    verified_ids: np.ndarray  # int64: the instances that were checked by retraining
    scale: float  # of the expected error that the scores are about
    agreement: float | None  # between halves of the runs
    recommendation: Recommendation
    noise: NoiseInfo
    why: dict[int, Reasons]  # the content of why.json


def examine(
    job: Job, searched: SearchResult, copies: Copies, checked: CheckedLabels, stages: Overall
) -> Outcome:
    """Examine the label of every row, score every training instance, and recommend a plan.

    Arguments:
        job: With the data as they were given.
        searched: With the recipe of the recorded runs.
        copies: In the data; copies of each other are held out together.
        checked: What a person has said about labels.
        stages: The overall progress.
    """
    recipe = searched.recipe
    trusted = job.options.validation_is_clean
    rows = make_rows(job.prepared, checked, copies, trusted=trusted)
    job.say(f"Examining {len(rows):,} labels with models that were not trained on them ...")
    stages.begin("labels")
    started = time.monotonic()
    title = "examining labels"
    with progress_bar(title, EXAMINED_FOLDS, show=job.progress, unit="folds") as advance:
        noise = estimate_label_noise(
            rows, PRIORS[job.labels], seed=job.request.seed, tell=lambda: advance(1)
        )
    examined = time.monotonic() - started
    cost = estimate_cost(job, searched, examined, plans=needs_comparison(rows, noise))
    job.say(str(cost))
    stages.expect(cost.seconds)
    stages.begin("plans")
    recommendation, checks = _recommend(job, rows, noise, checked)
    scored_data = checked.apply(job.prepared)
    scored_job = replace(job, prepared=scored_data)
    errors = None if rows.classes else rows.y - noise.best_other
    scale = 1.0 if errors is None else error_scale(errors / job.prepared.scale[1])
    parts = cut_for_runs(scored_data, job.options.repeats, rows, job.request.seed)
    stages.begin("runs", bars=2 * len(parts))
    recipe, runs, scored = _score(scored_job, recipe, parts, scale)
    stages.begin("checks")
    verified = _verify(scored_job, runs[0], parts[0], scored)
    outliers = outlier_ranks(runs[0], job.pair)
    instances = instance_table(job.prepared, scored, noise, checked, outliers)
    learned = parts[0].learned[verified.verification.instances]
    instances.loc[learned, "verified"] = verified.verification.actual
    instances = _add_actions(instances, recommendation.plan, noise, checked)
    p_wrong = noise.p_wrong[~rows.validation]
    why = _explain(scored_job, instances, runs[0], recipe, parts[0], verified)
    return Outcome(
        instances=instances,
        labels=tabulate_labels(job.prepared, noise, checked, checks, trusted=trusted),
        recipe=recipe,
        runs=runs,
        checked=verified,
        verified_ids=learned,
        scale=scored.scale,
        agreement=split_half_agreement(scored.by_run),
        recommendation=recommendation,
        noise=NoiseInfo(
            rows=len(p_wrong),
            expected_wrong=float(p_wrong.sum()),
            likely_wrong=int((instances["wrong"] > LIKELY).sum()),
        ),
        why=checked.restore_ids(why, len(job.prepared.y["validation"])),
    )


# --- the recommendation ---------------------------------------------------------------------------


def _recommend(
    job: Job, rows: Rows, noise: LabelPosterior, checked: CheckedLabels
) -> tuple[Recommendation, list[int]]:
    """The recommendation by ids and names, and the ids in the checked part to check."""
    start = len(job.prepared.y["train"]) if checked.part == "validation" else 0
    left = checked.left(len(job.prepared.y[checked.part]))
    kept = read_intact(job.folder / _CHECKS, DrawnChecks)
    drawn = {} if kept is None else kept.weights
    by_person = [drawn.get(place, np.nan) for place in left.tolist()]
    weights = np.full(len(rows), np.nan)
    weights[start : start + len(left)] = by_person
    recommendation = recommend(
        rows,
        noise,
        job.labels,
        check_weights=weights,
        seed=job.request.seed,
        progress=job.progress,
    )
    new = {  # with a validation file, only its labels are checked
        int(left[id - start]): weight for id, weight in recommendation.checks.items() if id >= start
    }
    write_sealed(job.folder / _CHECKS, DrawnChecks(drawn | new))
    return _name_plans(job, recommendation, checked), list(new)


def _name_plans(job: Job, unnamed: Recommendation, checked: CheckedLabels) -> Recommendation:
    """Plans in ids and labels of the training set, with the corrections by a person."""
    by_person = checked.part == "train"
    corrected = checked.corrected if by_person else {}
    wrong = checked.wrong if by_person else []
    source = job.prepared.source
    classes = source.classes
    plans = []
    for plan in unnamed.plans:
        relabeled = {
            id: classes[int(label)] if classes else source.task.show(label)
            for id, label in plan.relabeled.items()
            if id not in wrong
        }
        relabeled |= corrected
        removed = np.union1d(plan.removed, wrong).astype(np.int64)
        removed = removed[~np.isin(removed, list(corrected))]
        plans.append(
            replace(
                plan,
                removed=removed,
                relabeled=relabeled,
                what=describe_actions(len(removed), len(relabeled)),
                figures={name: plan.figures[name] for name in _SHOWN if name in plan.figures},
            )
        )
    if unnamed.recommended is not None or not (corrected or wrong):
        return Recommendation(plans, unnamed.recommended, unnamed.state, unnamed.reason)
    only_checked = PlanResult(
        removed=np.array(sorted(wrong), dtype=np.int64),
        relabeled=dict(corrected),
        name=CHECKED_ONLY,
        what=f"{describe_actions(len(wrong), len(corrected))}, based on the labels you checked",
        figures={},
    )
    return Recommendation([*plans, only_checked], CHECKED_ONLY, unnamed.state, unnamed.reason)


def _add_actions(
    instances: Frame, plan: PlanResult | None, noise: LabelPosterior, checked: CheckedLabels
) -> Frame:
    """The columns `action` and `confidence`: how sure it is that the action is right."""
    instances = instances.assign(action=KEEP, confidence=np.nan)
    if plan is None:
        return instances
    relabeled = list(plan.relabeled)
    instances.loc[plan.removed, "action"] = REMOVE
    instances.loc[relabeled, "action"] = RELABEL
    instances.loc[relabeled, "prediction"] = list(plan.relabeled.values())
    instances.loc[plan.removed, "confidence"] = noise.p_wrong[plan.removed]
    instances.loc[relabeled, "confidence"] = noise.p_best_other[relabeled]
    if checked.part == "train":
        by_person = [*checked.wrong, *checked.corrected]
        instances.loc[by_person, "confidence"] = 1.0
    return instances


# --- scores ---------------------------------------------------------------------------------------


def _score(
    job: Job, recipe: Recipe, parts: list[RunPart], scale: float
) -> tuple[Recipe, list[Run], InstanceScores]:
    """Train and score; where that diverges, once more at a lower rate."""
    job.say(f"Recording {say_count(len(parts), 'training run')} and computing scores ...")

    def score_with(recipe: Recipe) -> tuple[Recipe, list[Run], InstanceScores]:
        runs, scored = score(
            recipe,
            job.prepared,
            parts,
            job.folder / "runs",
            scale=scale,
            seed=job.request.seed,
            progress=job.progress,
        )
        return recipe, runs, scored

    try:
        return score_with(recipe)
    except Diverged:
        job.say(f"Training diverges at learning rate {recipe.rate:g}. Trying {recipe.rate / 3:g}.")
    delete_written(job.folder, "runs")
    try:
        return score_with(lower_rate(job, recipe))
    except Diverged as error:
        raise Diverged(
            "Training or computing the scores diverged even at a third of the learning rate. "
            f"{error}",
            error.step,
        ) from None


def _verify(job: Job, run: Run, part: RunPart, scored: InstanceScores) -> RetrainingCheck:
    check = verify(
        run,
        scored.by_run[0][part.learned],
        part.held_out,
        part.held_out_pair(job.prepared),
        count=job.options.check,
        scale=scored.scale,
        seed=job.request.seed,
        progress=job.progress,
    )
    found = check.verification
    job.say(
        f"Checked {len(found.instances)} scores by retraining without each instance. For the "
        f"{found.drawn.sum()} instances drawn at random, Kendall's tau between the estimated and "
        f"actual changes is {found.tau:.2f}."
    )
    return check


def _explain(
    job: Job,
    instances: Frame,
    run: Run,
    recipe: Recipe,
    part: RunPart,
    verified: RetrainingCheck,
) -> dict[int, Reasons]:
    """Reasons for the instances that a person looks at first: the content of why.json."""
    ranked = instances.sort_values("harm_rank").index.to_numpy()
    suspects = instances[instances["mislabel_rank"] >= 0].sort_values("mislabel_rank")
    first = [ranked[:_EXPLAINED], suspects.index.to_numpy()[: _EXPLAINED // 2]]
    ids = np.unique(np.concatenate(first))
    return find_reasons(job.prepared, run, recipe, part, verified, ids)


# --- the tables of a project ----------------------------------------------------------------------


def instance_table(
    data: PreparedData,
    scored: InstanceScores,
    noise: LabelPosterior,
    checked: CheckedLabels,
    outliers: np.ndarray,
) -> Frame:
    """One row per training instance, with the columns that `Project.table` describes.

    Arguments:
        data: The dataset.
        scored: What the recorded runs found.
        noise: What is known about the labels; training instances come first.
        checked: What a person has said: a label that was corrected was wrong.
        outliers: See `outlier_ranks`, [N].
    """
    part = data.part("train")
    count = len(part)
    described = _describe_labels(data, noise, np.arange(count))
    if checked.part == "train":
        described["wrong"][[*checked.wrong, *checked.corrected]] = 1.0
    suspects = np.flatnonzero(described["wrong"] > LIKELY)
    mislabel_rank = np.full(count, -1)
    mislabel_rank[suspects] = rank(-described["wrong"][suspects])
    columns = {
        "row": part.rows,
        "source": part.names,
        "label": [part.task.show(label) for label in part.labels],
        "score": scored.scores,
        "spread": scored.spread,
        "harmful_in": (scored.by_run < 0).sum(0),
        "learned_in": scored.runs,
        "harm_rank": rank(scored.scores),
        "loss": _held_out_losses(data, noise, count),
        "training_loss": mean_over_runs(scored.losses),
        "mislabel_rank": mislabel_rank,
        **described,
        "outlier": outliers,
        "verified": np.nan,
    }
    return pandas.DataFrame(columns, index=pandas.RangeIndex(count, name="id"))


def tabulate_labels(
    data: PreparedData,
    noise: LabelPosterior,
    checked: CheckedLabels,
    checks: list[int],
    *,
    trusted: bool,
) -> Frame:
    """One row per label that a person may check: of the validation set, or else of all rows.

    The column `rank` orders those that are worth a check: first the labels that would decide most,
    then, of a validation set, the other likely wrong ones. It is -1 for all others.

    Arguments:
        data: As it was given.
        noise: What is known about the labels.
        checked: What a person has said.
        checks: The places of the labels that would decide most, the first first.
        trusted: Whether no validation label is doubted.
    """
    part = checked.part
    source = data.part(part)
    count = len(source)
    start = len(data.y["train"]) if part == "validation" else 0
    left = checked.left(count)
    described = _describe_labels(data, noise, start + np.arange(len(left)), data.parts[part][left])
    wrong = np.zeros(count)
    wrong[left] = described["wrong"]
    order = list(checks)
    if part == "validation" and not trusted:
        likely = np.flatnonzero(wrong > LIKELY)
        order += [place for place in likely[np.argsort(-wrong[likely])] if place not in order]
    order = [place for place in order if place not in checked.decided]
    ranks = np.full(count, -1)
    ranks[order] = np.arange(len(order))
    columns = {
        "source": source.names,
        "label": [source.task.show(label) for label in source.labels],
        **{name: _spread(column, left, count) for name, column in described.items()},
        "checked": [checked.words.get(place, "") for place in range(count)],
        "rank": ranks,
    }
    return pandas.DataFrame(columns, index=pandas.RangeIndex(count, name="id"))


def _describe_labels(
    data: PreparedData, noise: LabelPosterior, places: np.ndarray, ids: np.ndarray | None = None
) -> dict[str, Any]:
    """The predicted label of some rows, its probability, and how likely the given one is wrong.

    `probability` and `label_probability` are those of models that were not trained on the row.

    Arguments:
        data: The dataset.
        noise: Of all rows.
        places: Of the rows.
        ids: Of the instances in the source; by default those of the training set.
    """
    wrong = noise.p_wrong[places]
    other = noise.best_other[places]
    classes = data.source.classes
    if not classes:
        return {
            "wrong": wrong,
            "prediction": np.array([data.source.task.show(value) for value in other], dtype=object),
            "probability": np.full(len(places), np.nan),
            "label_probability": np.full(len(places), np.nan),
        }
    clean = noise.p_clean[places]
    rows = np.arange(len(places))
    ids = data.parts["train"] if ids is None else ids
    given = data.targets(data.source.labels[ids]).numpy()
    predicted = np.where(wrong > LIKELY, other, clean.argmax(1))
    return {
        "wrong": wrong,
        "prediction": np.array(classes, dtype=object)[predicted],
        "probability": clean[rows, predicted],
        "label_probability": clean[rows, given],
    }


def _held_out_losses(data: PreparedData, noise: LabelPosterior, count: int) -> np.ndarray:
    """The loss of each training instance by models that were not trained on it, [N]."""
    rows = np.arange(count)
    if data.source.classes:
        given = data.y["train"].numpy()
        return -np.log(np.maximum(noise.p_clean[rows, given], 1e-12))
    return ((noise.best_other[:count] - data.part("train").labels) / data.scale[1]) ** 2


def _spread(values: np.ndarray, places: np.ndarray, count: int) -> np.ndarray:
    """The values at their places of `count`; "" or nan at the others."""
    empty = "" if values.dtype == object else np.nan
    spread = np.full(count, empty, dtype=values.dtype)
    spread[places] = values
    return spread

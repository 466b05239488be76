"""Train, score, verify and suggest, in one or several rounds.

A later round follows the plans of the earlier ones, and scores again what is left.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor

from ...errors import NotFinite
from ...influence.run import Run
from ..confidence.agreement import compare_halves
from ..confidence.suggestions import suggestion_confidence
from ..inputs.source import Frame, import_pandas
from ..learning.reasons import find_reasons
from ..learning.recipe import Pair, Recipe
from ..learning.score import InstanceScores, RetrainingCheck, outlier_ranks, score, verify
from ..opinions.ask import Answers, ask_models
from ..opinions.beliefs import Beliefs
from ..opinions.table import instance_table
from ..plans.actions import KEEP, RELABEL, REMOVE
from ..plans.candidates import Plan, describe_actions
from ..plans.compete import compete
from ..plans.trials import Competition
from ..project_files import delete_written, read_intact, write_sealed
from .job import Job
from .search import lower_rate, use_lowered_rate

_EXPLAINED = 400  # of the most harmful instances; half as many of the probably mislabelled


@dataclass(frozen=True)
class _Round:
    """What one round found about the instances that were left in it."""

    recipe: Recipe
    runs: list[Run]  # that were recorded
    checked: RetrainingCheck
    competition: Competition
    scale: float  # of the expected error that its scores are about
    table: Frame  # one row per instance, indexed by id
    plan: Plan | None  # that it recommends, in ids of the whole training part
    answers: Answers  # what its models think of its training and validation labels
    agreement: float | None  # between halves of its runs


@dataclass(frozen=True)
class Outcome:
    """What all rounds together found."""

    instances: Frame  # as `Project.instances`
    recipe: Recipe  # of the last round, as everything below
    runs: list[Run]
    checked: RetrainingCheck
    competition: Competition
    scale: float  # of the expected error that the scores are about
    active: np.ndarray  # the ids that were left in it
    what: str  # the recommended plan of all rounds, in words; "" if there is none
    reason: str
    on_validation: np.ndarray  # what it changes for each validation instance; nan: not known
    validation_beliefs: Beliefs  # what the models of the last round think of its labels
    agreement: float | None  # between halves of the runs of the first round, which has everything


def run_rounds(job: Job, recipe: Recipe) -> Outcome:
    """Score every training instance. A round that recommends nothing is the last one."""
    active, y = np.arange(job.count), job.prepared.y["train"].clone()
    tables, reasons, agreements, rounds, number = [], [], [], job.options.rounds, 0
    on_validation = np.zeros(len(job.prepared.y["validation"]))
    while True:
        number += 1
        found = _run_round(job, recipe, active, y[active], number)
        recipe, plan, reason = found.recipe, found.plan, found.competition.reason
        agreements.append(found.agreement)
        reasons.append(reason if rounds == 1 else f"round {number}: {reason}")
        if plan is not None or number == 1:
            on_validation += found.competition.on_validation or np.nan
        if number == rounds or plan is None:
            break
        left = np.setdiff1d(active, plan.removed)
        job.say(
            f"Round {number}: {len(plan.removed)} are set aside and {len(plan.relabelled)} "
            f"relabelled; the next round scores the other {len(left):,}."
        )
        predicted = found.answers.training.predicted
        y[plan.relabelled] = predicted[np.searchsorted(active, plan.relabelled)]
        tables.append(found.table.loc[found.table["action"] != KEEP])  # with their scores so far
        active = left
    instances = _merge_rounds([*tables, found.table])
    instances["confidence"] = suggestion_confidence(instances, job.options.runs)
    return Outcome(
        instances,
        recipe,
        found.runs,
        found.checked,
        found.competition,
        found.scale,
        active,
        _describe_actions(instances, found.plan if number == 1 else None),
        "; ".join(reasons),
        on_validation,
        found.answers.validation,
        agreements[0],
    )


def _describe_actions(instances: Frame, plan: Plan | None) -> str:
    """What is recommended, in words."""
    if plan is not None:
        return plan.describe()
    counts = instances["action"].value_counts()
    return describe_actions(int(counts.get(REMOVE, 0)), int(counts.get(RELABEL, 0)))


def explain_suggestions(job: Job, outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Reasons for the instances that a person looks at first: the content of why.json."""
    instances = outcome.instances
    ranked = instances.sort_values("harm_rank").index.to_numpy()
    suspects = instances[instances["mislabel_rank"] >= 0].sort_values("mislabel_rank")
    first = [ranked[:_EXPLAINED], suspects.index.to_numpy()[: _EXPLAINED // 2]]
    ids = np.unique(np.concatenate(first))
    # in a later round the checked ids are places among those that are left
    checked = outcome.checked if len(outcome.active) == len(instances) else None
    return find_reasons(job.prepared, outcome.runs[0], outcome.recipe, checked, ids)


def _run_round(job: Job, recipe: Recipe, active: np.ndarray, y: Tensor, number: int) -> _Round:
    """active: the ids that are left; y: their labels, as earlier rounds left them."""
    data = (job.prepared.x["train"][active], y)
    recipe, runs, scored = _score(job, recipe, data, number)
    validation, seed = job.prepared.pair("validation"), job.request.seed + number - 1
    answers = ask_models(recipe, data, validation, scored, seed=seed, progress=job.progress)
    part, source = job.prepared.part("train"), job.prepared.source
    found = instance_table(
        scored,
        answers.training,
        part.labels[active],
        [part.names[id] for id in active],
        source.classes,
        job.prepared.scale,
        outlier_ranks(runs[0]),
    )
    checked = _verify(job, runs[0], scored)
    competition = _find_plan(job, recipe, data, scored, answers, number)
    found.loc[checked.verification.instances, "verified"] = checked.verification.actual
    found.index = active
    found = found.assign(round=number, action=KEEP)
    chosen, plan = competition.recommended, None
    if chosen is not None:
        plan = Plan(chosen.kind, active[chosen.removed], active[chosen.relabelled])
        found.loc[plan.removed, "action"], found.loc[plan.relabelled, "action"] = REMOVE, RELABEL
    rest = (scored.scale, found, plan, answers, compare_halves(scored.by_run))
    return _Round(recipe, runs, checked, competition, *rest)


def _score(
    job: Job, recipe: Recipe, data: Pair, number: int
) -> tuple[Recipe, list[Run], InstanceScores]:
    """Train and score; where that diverges, once more at a lower rate."""
    recipe = use_lowered_rate(job, recipe, number)
    job.say(f"Training {job.options.runs} runs and retracing each ...")
    folder, seed = job.folder / "runs" / f"round-{number}", job.request.seed + number - 1
    validation, options = job.prepared.pair("validation"), {"seed": seed, "progress": job.progress}
    try:
        return recipe, *score(recipe, data, validation, job.options.runs, folder, **options)
    except NotFinite:
        job.say(
            f"At rate {recipe.rate:g} the run diverges; trying once more at {recipe.rate / 3:g}."
        )
    delete_written(job.folder, f"runs/round-{number}")
    lowered = lower_rate(job, recipe, number)
    try:
        return lowered, *score(lowered, data, validation, job.options.runs, folder, **options)
    except NotFinite as error:
        raise NotFinite(
            f"Training or retracing diverged even at a third of the rate. {error}", error.step
        ) from None


def _verify(job: Job, run: Run, scored: InstanceScores) -> RetrainingCheck:
    count = job.options.verified
    checked = verify(
        run,
        scored.by_run[0],
        job.prepared.pair("validation"),
        np.argsort(scored.scores, kind="stable")[:count],
        scale=scored.scale,
        at_random=count,
        seed=job.request.seed,
        progress=job.progress,
    )
    verification = checked.verification
    job.say(
        f"Checked {len(verification.instances)} of them by retraining without each: the estimates "
        f"agree with the truth with Kendall's tau {verification.tau:.2f}."
    )
    return checked


def _find_plan(
    job: Job,
    recipe: Recipe,
    data: Pair,
    scored: InstanceScores,
    answers: Answers,
    number: int,
) -> Competition:
    """Let plans compete, or read what an earlier attempt found."""
    saved = job.folder / f"plans-{number}.json"
    kept = read_intact(saved)
    if isinstance(kept, dict) and "finalists" in kept:
        return Competition.from_json(kept)
    found = compete(
        recipe,
        data,
        job.prepared.pair("validation"),
        scored,
        answers.training,
        seed=job.request.seed + number - 1,
        progress=job.progress,
    )
    write_sealed(saved, found.to_json())
    job.say(f"Tried {len(found.tried)} plans for what to remove or relabel.")
    return found


def _merge_rounds(tables: list[Frame]) -> Frame:
    """Rank first what an earlier round acted on, with the scores it had then."""
    merged = import_pandas().concat(tables)
    later = merged.index.duplicated(keep="first")  # relabelled in one round, scored in the next
    removed_later = merged.index[later & (merged["action"] == REMOVE)]
    merged = merged[~later].sort_index(kind="stable")
    merged.loc[removed_later, "action"] = REMOVE
    if len(tables) > 1:  # those of the last round come after those that earlier rounds acted on
        suspects = merged[merged["mislabel_rank"] >= 0]
        suspects = suspects.sort_values(["wrong", "loss"], ascending=False, kind="stable").index
        merged.loc[suspects, "mislabel_rank"] = np.arange(len(suspects))
        order = merged.sort_values(["round", "score"], kind="stable")
        merged.loc[order.index, "harm_rank"] = np.arange(len(order))
    merged.index.name = "id"
    return merged

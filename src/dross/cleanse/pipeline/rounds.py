"""Train, score, verify and suggest, in one or several rounds.

A later round sets aside what the earlier ones suggest to remove, and scores the rest again.
"""

from dataclasses import dataclass, fields
from typing import Any

import numpy as np

from ...errors import NotFinite
from ...influence.run import Run
from ..inputs.source import Frame, import_pandas
from ..learning.reasons import find_reasons
from ..learning.recipe import Pair, Recipe
from ..learning.score import (
    InstanceScores,
    RetrainingCheck,
    instance_table,
    outlier_ranks,
    score,
    verify,
)
from ..plan import RemovalCurve, plan_removal
from ..project_files import delete_written, read_intact, write_sealed
from .job import Job
from .search import lower_rate, use_lowered_rate

_EXPLAINED = 400  # of the most harmful instances; half as many of the probably mislabelled
_SEEDS_PER_SIZE = 4


@dataclass(frozen=True)
class _Round:
    """What one round found about the instances that were left in it."""

    recipe: Recipe
    run: Run  # the first of its recorded runs
    checked: RetrainingCheck
    curve: RemovalCurve
    scale: float  # of the expected error that its scores are about
    table: Frame  # one row per instance, indexed by id
    harmful: np.ndarray  # the ids that it suggests to remove


@dataclass(frozen=True)
class Outcome:
    """What all rounds together found."""

    instances: Frame  # as `Project.instances`
    recipe: Recipe  # of the last round, as everything below
    run: Run
    checked: RetrainingCheck
    curve: RemovalCurve
    scale: float  # of the expected error that the scores are about
    active: np.ndarray  # the ids that were left in it
    suggested: int  # removals, of all rounds
    reason: str


def run_rounds(job: Job, recipe: Recipe) -> Outcome:
    """Score every training instance. A round that suggests nothing is the last one."""
    active, removed = np.arange(job.count), np.zeros(0, dtype=np.int64)
    tables, reasons, rounds, number = [], [], job.options.rounds, 0
    while True:
        number += 1
        found = _run_round(job, recipe, active, number)
        recipe, m, reason = found.recipe, found.curve.m, found.curve.reason
        reasons.append(reason if rounds == 1 else f"round {number}: {reason}")
        if number == rounds or m == 0:
            break
        left = np.setdiff1d(active, found.harmful)
        job.say(
            f"Round {number}: {m} are set aside; the next round scores the other {len(left):,}."
        )
        tables.append(found.table.loc[found.harmful])  # they keep the scores of this round
        active, removed = left, np.concatenate([removed, found.harmful])
    return Outcome(
        _merge_rounds([*tables, found.table], removed),
        recipe,
        found.run,
        found.checked,
        found.curve,
        found.scale,
        active,
        len(removed) + found.curve.m,
        "; ".join(reasons),
    )


def explain_suggestions(job: Job, outcome: Outcome) -> dict[str, dict[str, Any]]:
    """Reasons for the instances that a person looks at first: the content of why.json."""
    instances = outcome.instances
    ranked = instances.sort_values("harm_rank").index.to_numpy()
    suspects = instances[instances["mislabel_rank"] >= 0].sort_values("mislabel_rank")
    first = [ranked[:_EXPLAINED], suspects.index.to_numpy()[: _EXPLAINED // 2]]
    ids = np.unique(np.concatenate(first))
    # in a later round the checked ids are places among those that are left
    checked = outcome.checked if len(outcome.active) == len(instances) else None
    return find_reasons(job.prepared, outcome.run, outcome.recipe, checked, ids)


def _run_round(job: Job, recipe: Recipe, active: np.ndarray, number: int) -> _Round:
    x, y = job.prepared.pair("train")
    data = (x[active], y[active])
    recipe, runs, scored = _score(job, recipe, data, number)
    part, source = job.prepared.part("train"), job.prepared.source
    found = instance_table(
        scored,
        part.labels[active],
        [part.names[id] for id in active],
        source.classes,
        job.prepared.scale,
        outlier_ranks(runs[0]),
    )
    checked = _verify(job, runs[0], scored)
    removal = _find_curve(job, recipe, data, scored, number)
    found.loc[checked.verification.instances, "verified"] = checked.verification.actual
    found.index = active
    harmful = active[np.argsort(scored.scores, kind="stable")[: removal.m]]
    found = found.assign(round=number)
    return _Round(recipe, runs[0], checked, removal, scored.scale, found, harmful)


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


def _find_curve(
    job: Job, recipe: Recipe, data: Pair, scored: InstanceScores, number: int
) -> RemovalCurve:
    """How many to remove, or what an earlier attempt found."""
    saved = job.folder / f"curve-{number}.json"
    kept = read_intact(saved)
    if isinstance(kept, dict) and set(kept) == {field.name for field in fields(RemovalCurve)}:
        return RemovalCurve(**kept)
    found = plan_removal(
        recipe,
        data,
        job.prepared.pair("validation"),
        scored,
        seeds=_SEEDS_PER_SIZE,
        seed=job.request.seed + number - 1,
        progress=job.progress,
    )
    write_sealed(saved, found.to_json())
    job.say(f"Suggested: remove {found.m}; {found.reason}.")
    return found


def _merge_rounds(tables: list[Frame], removed: np.ndarray) -> Frame:
    """Rank what an earlier round set aside first, with the scores it had then."""
    merged = import_pandas().concat(tables).sort_index(kind="stable")
    suspects = merged[merged["mislabel_rank"] >= 0]
    suspects = suspects.sort_values("loss", ascending=False, kind="stable").index
    merged.loc[suspects, "mislabel_rank"] = np.arange(len(suspects))
    order = [*removed.tolist(), *tables[-1].sort_values("score", kind="stable").index]
    merged.loc[order, "harm_rank"] = np.arange(len(order))
    merged.index.name = "id"
    return merged

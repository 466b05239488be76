"""Let plans compete: train with each, and ask validation data that had no part in the ranking.

The validation part is cut in two. What the first half blames is removed or relabelled, new models
are trained on the result, and the second half tells whether they are better; then the other way
round. A ranking that only fits its own validation instances gains nothing here. Each seed leaves a
quarter of the training part out as well and asks about it: the scores have not seen it, its labels
are as good or bad as those that are cleaned, and there is more of it than of the validation part.

The measure is the expected error of sharpened predictions: 1 - p(label), with the logits tripled.
Of wrong validation labels it makes no more than of others, as the expected error does. But cleaned
data make models surer of themselves, which lowers the expected error of models that are right no
more often; sharpened, both are sure already. The share of mistakes itself would not be misled
either, and is coarser.

All plans are tried with one seed, the better ones with more, the best with many: seldom can one
seed tell the best from the second best, but it can tell both from the worst. The plan that touches
what is likely wrong is tried to the end, and stands unless another is clearly better: on sets with
noisy validation labels the best of many plans is often only the luckiest, and where validation
labels seem right it more often is the best. Where no label is likely wrong, "do nothing" stands in
its place, and gives way only to a plan that is better by more than chance.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import Tensor

from ...data.seeds import mix_seeds
from ...step.loss import bound_losses
from ..learning.recipe import Pair, Recipe
from ..learning.score import InstanceScores, validation_halves
from ..learning.train_many import ModelSpec, TrainedModels, can_train_together, train_many
from ..opinions.ask import Answers
from ..opinions.beliefs import Beliefs
from .candidates import KINDS_BY_SCORES, Plan, list_plans, plan_sizes

SHARPER = 3.0  # times the logits
_CLEARLY = 2.0  # standard errors, by which a plan must be better than the usual one ...
_CLEARLY_IF_TRUSTED = 0.5  # ... and where the validation labels seem right
_FEW_WRONG = 0.03  # of the validation labels, ...
_FEWER_THAN = 0.25  # ... or of the share of wrong training labels: then they seem right
_ALIKE = 0.5  # standard errors of the difference
_USUAL = "likely-wrong"
_TRIED_TO_THE_END = (_USUAL, "confused")
FOLDS = 4  # of the training part, one of which each seed leaves out
_RELABELLING = ("relabel", "relabel-or-remove")


@dataclass(frozen=True)
class Stage:
    """So many of the best plans so far are tried with so many new seeds."""

    plans: int
    seeds: int


SIDE_BY_SIDE = (Stage(1000, 1), Stage(16, 3), Stage(6, 6))
ONE_BY_ONE = (Stage(14, 1), Stage(4, 2), Stage(2, 2))  # models that cannot share a vmap are slow
_SIZES_ONE_BY_ONE = 4


@dataclass(frozen=True)
class Trial:
    """What the models that were trained by a plan say, compared with "do nothing"."""

    plan: Plan
    change: float  # of the mean measure; below 0 is better
    error: float  # its standard error
    seeds: int

    @property
    def is_worse(self) -> bool:
        """Whether it is worse than doing nothing by more than one standard error."""
        return self.change > self.error

    def to_json(self) -> dict[str, Any]:
        """The plan and its figures as a project keeps them."""
        return {
            "name": self.plan.name,
            "kind": self.plan.kind,
            "removed": self.plan.removed.tolist(),
            "relabelled": self.plan.relabelled.tolist(),
            "change": self.change,
            "error": self.error,
            "seeds": self.seeds,
        }

    @staticmethod
    def from_json(about: dict[str, Any]) -> "Trial":
        """Read what `to_json` wrote."""
        removed, relabelled = (
            np.array(about[key], dtype=np.int64) for key in ("removed", "relabelled")
        )
        plan = Plan(about["kind"], removed, relabelled)
        return Trial(plan, about["change"], about["error"], about["seeds"])


@dataclass(frozen=True)
class Competition:
    """Every plan that was tried, and the one that is recommended."""

    finalists: list[Trial]  # those of the last stage, the best first
    tried: list[dict[str, Any]]  # every plan: kind, size, change, error, seeds
    recommended: Plan | None  # None: do nothing
    reason: str
    on_validation: list[float] | None = None  # what that plan, or the nearest, changes for each

    def to_json(self) -> dict[str, Any]:
        """Everything, as a project keeps it."""
        return {
            "finalists": [trial.to_json() for trial in self.finalists],
            "tried": self.tried,
            "recommended": None if self.recommended is None else self.recommended.name,
            "reason": self.reason,
            "on_validation": self.on_validation,
        }

    @staticmethod
    def from_json(about: dict[str, Any]) -> "Competition":
        """Read what `to_json` wrote."""
        finalists = [Trial.from_json(trial) for trial in about["finalists"]]
        by_name = {trial.plan.name: trial.plan for trial in finalists}
        chosen = None if about["recommended"] is None else by_name[about["recommended"]]
        on_validation = about.get("on_validation")  # earlier versions did not keep it
        return Competition(finalists, about["tried"], chosen, about["reason"], on_validation)


def compete(
    recipe: Recipe,
    data: Pair,
    validation: Pair,
    scored: InstanceScores,
    answers: Answers,
    *,
    trusted: bool = False,
    seed: int,
    progress: bool,
) -> Competition:
    """Try plans and recommend one.

    Arguments:
        recipe: The model to train.
        data: The inputs and targets of the training part.
        validation: Those of the validation part.
        scored: The scores that rank the training instances.
        answers: What models that did not learn them think of training and validation labels.
        trusted: Whether all validation labels are known to be right.
        seed: Must be the one that the scores were computed with: it decides the halves.
        progress: Whether to show a progress bar.
    """
    beliefs, clearly = answers.training, _clear_difference(answers, trusted)
    sizes, stages = plan_sizes(len(data[1]), beliefs), SIDE_BY_SIDE
    if not can_train_together(recipe):
        sizes, stages = sizes[1 :: max(1, len(sizes) // _SIZES_ONE_BY_ONE)], ONE_BY_ONE
    halves = validation_halves(validation, seed)
    contest = _Contest(recipe, data, validation, beliefs, scored.scale, halves, seed, progress)
    everyone = entries = _list_entries(scored, beliefs, sizes)
    for stage in stages:
        ranked = sorted(entries, key=_rank_entry)
        entries = ranked[: stage.plans]
        contest.try_entries(entries, stage.seeds)
    return contest.conclude(entries, [entry for entry in everyone if entry.changes], clearly)


def _clear_difference(answers: Answers, trusted: bool) -> float:
    """By how many standard errors a plan must be better than the usual one."""
    wrong, of_training = (b.wrong.mean() for b in (answers.validation, answers.training))
    seem_right = wrong < max(_FEW_WRONG, _FEWER_THAN * of_training)
    return _CLEARLY_IF_TRUSTED if trusted or seem_right else _CLEARLY


@dataclass
class _Entry:
    """A plan, its two forms that each know one half of the validation part, and its results."""

    plan: Plan
    forms: tuple[Plan, Plan] | None  # None: the ranking does not look at the validation part
    # one [validation + training] for each seed; nan where an instance was not asked about
    changes: list[np.ndarray] = field(default_factory=list)

    @property
    def mean(self) -> float:
        return mean_change(np.stack(self.changes)) if self.changes else 0.0

    def to_trial(self) -> Trial:
        error = standard_error(np.stack(self.changes))
        return Trial(self.plan, self.mean, error, len(self.changes))

    def describe(self) -> dict[str, Any]:
        trial = self.to_trial()
        about = {"kind": self.plan.kind, "size": self.plan.size}
        return about | {"change": trial.change, "error": trial.error, "seeds": trial.seeds}


def _rank_entry(entry: _Entry) -> tuple[bool, float]:
    return entry.plan.kind not in _TRIED_TO_THE_END, entry.mean


def _list_entries(scored: InstanceScores, beliefs: Beliefs, sizes: list[int]) -> list[_Entry]:
    by_half = [
        {plan.name: plan for plan in list_plans(scored.by_half(half), beliefs, sizes)}
        for half in range(2)
    ]
    entries = []
    for plan in list_plans(scored.scores, beliefs, sizes):
        if plan.kind not in KINDS_BY_SCORES:
            entries.append(_Entry(plan, None))
        elif all(plan.name in plans for plans in by_half):
            entries.append(_Entry(plan, (by_half[0][plan.name], by_half[1][plan.name])))
    return entries


def mean_change(changes: np.ndarray) -> float:
    """The mean over instances of their mean over seeds, of [seeds, instances]; nan: not asked."""
    return float(_by_instance(changes).mean())


def standard_error(changes: np.ndarray) -> float:
    """The standard error of `mean_change`, over the choice of instances and of seeds."""
    by_instance = _by_instance(changes)
    over_instances = by_instance.std(ddof=1) / np.sqrt(len(by_instance))
    if len(changes) == 1:
        return float(over_instances)
    by_seed = np.nanmean(changes, axis=1)
    return float(np.hypot(over_instances, by_seed.std(ddof=1) / np.sqrt(len(changes))))


def _by_instance(changes: np.ndarray) -> np.ndarray:
    asked = ~np.isnan(changes).all(0)
    return np.nanmean(changes[:, asked], axis=0)


def _is_close(entry: _Entry | None, best: _Entry, errors: float) -> bool:
    """Whether it is behind the best by no more than so many standard errors; None: do nothing."""
    behind = (0.0 if entry is None else np.stack(entry.changes)) - np.stack(best.changes)
    return mean_change(behind) <= errors * standard_error(behind)


def _choose(finalists: list[_Entry], clearly: float) -> _Entry | None:
    """The usual plan, unless another is clearly better; then the mildest of the best.

    clearly: the standard errors by which another must be better than the usual plan. Whatever
    that one is like, another must be better than doing nothing, too, by more than chance.
    """
    best = min(finalists, key=lambda entry: entry.mean)
    usual = next((entry for entry in finalists if entry.plan.kind == _USUAL), None)
    if _is_close(None, best, _CLEARLY) or (usual and _is_close(usual, best, clearly)):
        return None if usual is None or usual.to_trial().is_worse else usual
    alike = [entry for entry in finalists if _is_close(entry, best, _ALIKE)]
    return min(alike, key=lambda e: (e.plan.kind not in _RELABELLING, e.plan.size))


class _Contest:
    """Trains by plans and keeps what the models without a plan say."""

    def __init__(
        self,
        recipe: Recipe,
        data: Pair,
        validation: Pair,
        beliefs: Beliefs,
        scale: float,
        halves: Sequence[np.ndarray],
        seed: int,
        progress: bool,
    ):
        self.recipe, self.data, self.validation, self.beliefs = recipe, data, validation, beliefs
        self.scale, self.halves, self.seed, self.progress = scale, halves, seed, progress
        self.tried, self.seeds = 0, 0

    def try_entries(self, entries: list[_Entry], seeds: int) -> None:
        """Train with the next seeds, the same ones for all entries and for "do nothing"."""
        self.tried = max(self.tried, len(entries))
        plans = [plan for entry in entries for plan in (entry.forms or (entry.plan,))]
        for _ in range(seeds):
            changes = iter(self._train(plans, f"trying {len(entries)} plans"))
            for entry in entries:
                change = next(changes)
                if entry.forms is not None:  # each half is asked about what the other blames
                    first, second = self.halves
                    by_second = next(changes)
                    mixed = (change + by_second) / 2  # the training part: about both
                    mixed[second], mixed[first] = change[second], by_second[first]
                    change = mixed
                entry.changes.append(change)
            self.seeds += 1

    def _train(self, plans: list[Plan], what: str) -> np.ndarray:
        """What each plan changes for one more seed, [plans, validation + training]."""
        own, count = mix_seeds(self.seed, 5, self.seeds), len(self.data[1])
        shuffled = np.random.default_rng(mix_seeds(self.seed, 9, self.seeds // FOLDS))
        left_out = np.array_split(shuffled.permutation(count), FOLDS)[self.seeds % FOLDS]
        specs = [self._specify(plan, own, left_out) for plan in (None, *plans)]
        trained = train_many(self.recipe, *self.data, specs, what=what, progress=self.progress)
        on_validation = self._measure(trained, *self.validation)
        on_training = np.full((len(specs), count), np.nan)
        on_training[:, left_out] = self._measure(trained, *(t[left_out] for t in self.data))
        measured = np.concatenate([on_validation, on_training], axis=1)
        return measured[1:] - measured[0]

    def conclude(self, finalists: list[_Entry], tried: list[_Entry], clearly: float) -> Competition:
        """Choose among those of the last stage; clearly: see `_choose`."""
        trials = [entry.to_trial() for entry in sorted(finalists, key=lambda entry: entry.mean)]
        figures = [entry.describe() for entry in tried]
        chosen = _choose(finalists, clearly)
        nearest = chosen or min(finalists, key=lambda entry: entry.mean)
        changes = np.stack(nearest.changes)[:, : len(self.validation[1])]
        on_validation = changes.mean(0).tolist()
        data = "data that had no part in the ranking"
        if chosen is None:
            reason = f"none of {self.tried} plans is better than chance would make one, on {data}"
            return Competition(trials, figures, None, reason, on_validation)
        found = chosen.to_trial()
        measured = (
            f"{abs(100 * found.change):.2f} % {'fewer' if found.change < 0 else 'more'} mistakes "
            f"(standard error {100 * found.error:.2f}) with {found.seeds} new seeds, on {data}"
        )
        if chosen.plan.kind == _USUAL:
            reason = f"about {round(self.beliefs.wrong.sum()):,} labels are wrong; {measured}"
        else:
            reason = f"of {self.tried} plans it did best, or about as well as the best: {measured}"
        return Competition(trials, figures, chosen.plan, reason, on_validation)

    def _specify(self, plan: Plan | None, seed: int, left_out: np.ndarray) -> ModelSpec:
        y, rate = self.data[1], self.recipe.rate
        left = np.setdiff1d(np.arange(len(y)), left_out)
        if plan is None:
            return ModelSpec(seed, left, rate)
        left = np.setdiff1d(left, plan.removed)
        if not len(plan.relabelled):
            return ModelSpec(seed, left, rate)
        labels = y.clone()
        labels[plan.relabelled] = self.beliefs.predicted[plan.relabelled]
        return ModelSpec(seed, left, rate, labels)

    def _measure(self, trained: TrainedModels, x: Tensor, y: Tensor) -> np.ndarray:
        """How wrong each of K models is about each of V instances, [K, V]."""
        sharper = SHARPER if self.recipe.loss == "cross_entropy" else 1.0
        losses = self.recipe.losses(sharper * trained.outputs(x), y).double()
        return bound_losses(losses, self.scale).numpy()

"""Let plans compete: train with each, and ask validation data that had no part in the ranking.

The validation part is cut in two. What the first half blames is removed or relabelled, new models
are trained on the result, and the second half tells whether they are better; then the other way
round. A ranking that only fits its own validation instances gains nothing here. Each seed leaves a
quarter of the training part out as well and asks about it: the scores have not seen it, its labels
are as good or bad as those that are cleaned, and there is more of it than of the validation part.

The measure is the expected error of sharpened predictions: 1 - p(label), with the logits tripled.
Like the expected error, it counts wrong validation labels no more than others. But cleaned data
make models surer of themselves, which lowers the expected error even of models that are right no
more often; sharpened, both are sure already. The share of mistakes itself would not be misled
either, but it is coarser.

All plans are tried with one seed, the better ones with more, the best with many: one seed can
seldom tell the best from the second best, but it can tell both from the worst. With the last ones,
models of other kinds are trained as well and count as much: whoever uses the cleaned data may train
another model, and what helps one network only is often luck. The plan that touches what is likely
wrong is tried to the end, and is recommended unless another is better by more than chance. Where no
label is likely wrong, "do nothing" takes its place.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ...data.seeds import mix_seeds
from ...step.loss import bound_losses
from ...support.progress import progress_bar
from ..learning.edited_data import NO_EDITS, EncodedEdits
from ..learning.recipe import Pair, Recipe
from ..learning.score import InstanceScores, validation_halves
from ..learning.train_many import can_train_together, train_many
from ..opinions.beliefs import Beliefs
from ..opinions.other_models import Maker, fit_other_model, flatten, list_other_models, say_of
from .candidates import KINDS_BY_SCORES, Plan, list_plans, plan_sizes
from .trials import Competition, Entry, Trial, compare, explain_doing_nothing

SHARPER = 3.0  # times the logits
_LEAST_CHANCE = 1e-6  # that a model of another kind gives to a class
_CLEARLY = 2.0  # standard errors, by which a plan must be better than the usual one
_WORSE = 1.0  # standard errors, by which it is worse than doing nothing: then nothing is done
_ALIKE = 0.5  # standard errors of the difference
_USUAL = "likely-wrong"
_TRIED_TO_THE_END = (_USUAL, "confused")
FOLDS = 4  # of the training part, one of which each seed leaves out
_RELABELLING = ("relabel", "relabel-or-remove")
_OTHER_KINDS_TRY = 2  # of the folds
_LARGEST_FOR_OTHER_KINDS = 2e7  # instances x features: with more it takes too long


@dataclass(frozen=True)
class Stage:
    """How many of the best plans so far are tried, and with how many new seeds."""

    plans: int
    seeds: int


SIDE_BY_SIDE = (Stage(1000, 1), Stage(16, 3), Stage(6, 6))
ONE_BY_ONE = (Stage(14, 1), Stage(4, 2), Stage(2, 2))  # models that cannot share a vmap are slow
_SIZES_ONE_BY_ONE = 4


def compete(
    recipe: Recipe,
    data: Pair,
    validation: Pair,
    scored: InstanceScores,
    beliefs: Beliefs,
    *,
    seed: int,
    progress: bool,
) -> Competition:
    """Try plans and recommend one.

    Arguments:
        recipe: The model to train.
        data: The inputs and targets of the training part.
        validation: Those of the validation part.
        scored: The scores that rank the training instances.
        beliefs: What models that did not learn them think of the training labels.
        seed: Must be the one that the scores were computed with: it decides the halves.
        progress: Whether to show a progress bar.
    """
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
    contest.try_other_kinds(entries)
    return contest.conclude(entries, [entry for entry in everyone if entry.changes])


def _rank_entry(entry: Entry) -> tuple[bool, float]:
    return entry.plan.kind not in _TRIED_TO_THE_END, entry.mean


def _list_entries(scored: InstanceScores, beliefs: Beliefs, sizes: list[int]) -> list[Entry]:
    by_half = [
        {plan.name: plan for plan in list_plans(scored.by_half(half), beliefs, sizes)}
        for half in range(2)
    ]
    entries = []
    for plan in list_plans(scored.scores, beliefs, sizes):
        if plan.kind not in KINDS_BY_SCORES:
            entries.append(Entry(plan, None))
        elif all(plan.name in plans for plans in by_half):
            entries.append(Entry(plan, (by_half[0][plan.name], by_half[1][plan.name])))
    return entries


def _is_close(entry: Entry | None, best: Entry, errors: float) -> bool:
    """Whether it is behind the best by at most this many standard errors; None: do nothing."""
    behind, error = compare(entry, best)
    return behind <= errors * error


def _choose(finalists: list[Entry]) -> Entry | None:
    """The usual plan, unless another is clearly better; then the mildest of the best.

    Whatever the usual plan is like, another must be better than doing nothing, too, by more than
    chance.
    """
    best = min(finalists, key=lambda entry: compare(entry, None)[0])
    usual = next((entry for entry in finalists if entry.plan.kind == _USUAL), None)
    if _is_close(None, best, _CLEARLY) or (usual and _is_close(usual, best, _CLEARLY)):
        if usual is None:
            return None
        worse, error = compare(usual, None)
        return None if worse > _WORSE * error else usual
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

    def try_entries(self, entries: list[Entry], seeds: int) -> None:
        """Train with the next seeds, the same ones for all entries and for "do nothing"."""
        self.tried = max(self.tried, len(entries))
        for _ in range(seeds):
            left_out = self._leave_out(self.seeds)
            changes = self._train(_plans_of(entries), left_out, f"trying {len(entries)} plans")
            for entry, change in zip(entries, self._join_forms(entries, changes)):
                entry.changes.append(change)
            self.seeds += 1

    def try_other_kinds(self, entries: list[Entry]) -> None:
        """Train models of other kinds, where they are quick; what each kind says is kept apart."""
        x, asked = (flatten(part[0]) for part in (self.data, self.validation))
        if x.size > _LARGEST_FOR_OTHER_KINDS:
            return
        makers = list_other_models(x, classes=self._classes > 0)
        plans = _plans_of(entries)
        count = len(makers) * _OTHER_KINDS_TRY * (1 + len(plans))
        title = f"trying {len(entries)} plans with other models"
        with progress_bar(title, count, show=self.progress) as advance:
            for name, make in makers.items():
                for turn in range(_OTHER_KINDS_TRY):
                    left_out = self._leave_out(turn)
                    measured = []
                    for plan in (None, *plans):
                        said = self._ask_other(make, x, plan, left_out, asked)
                        measured.append(self._spread(*said, left_out))
                        advance(1)
                    changes = np.stack(measured[1:]) - measured[0]
                    for entry, change in zip(entries, self._join_forms(entries, changes)):
                        entry.by_kind.setdefault(name, []).append(change)

    def _ask_other(
        self, make: Maker, x: np.ndarray, plan: Plan | None, left_out: np.ndarray, asked: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """How wrong a model of another kind is about validation and left-out instances.

        It counts as wrong about all of them where a plan leaves only one class.
        """
        edits, y = self._encode(plan), self.data[1]
        labels = edits.relabel(y)
        learnt = (labels if self._classes else labels[:, 0]).cpu().numpy()
        model = fit_other_model(make, x, learnt, edits.left(len(y), left_out))
        if model is None:
            return np.ones(len(asked)), np.ones(len(left_out))
        of = lambda x, y: self._measure_said(say_of(model, x, self._classes), y)
        return of(asked, self.validation[1]), of(x[left_out], y[left_out])

    def _measure_said(self, said: np.ndarray, y: Tensor) -> np.ndarray:
        """As `_measure`, of what a model of another kind says: chances or numbers."""
        if self._classes:
            said = np.log(np.clip(said, _LEAST_CHANCE, None))
        return self._measure(torch.from_numpy(said).float()[None].to(y.device), y)[0]

    def _leave_out(self, turn: int) -> np.ndarray:
        """The training instances that nobody learns in a turn, and that are asked about."""
        shuffled = np.random.default_rng(mix_seeds(self.seed, 9, turn // FOLDS))
        return np.array_split(shuffled.permutation(len(self.data[1])), FOLDS)[turn % FOLDS]

    def _join_forms(self, entries: list[Entry], changes: np.ndarray) -> Iterator[np.ndarray]:
        """What each entry changes: each half is asked about what the other blames."""
        found, (first, second) = iter(changes), self.halves
        for entry in entries:
            change = next(found)
            if entry.forms is not None:
                by_second = next(found)
                mixed = (change + by_second) / 2  # the training part: about both
                mixed[second], mixed[first] = change[second], by_second[first]
                change = mixed
            yield change

    def _spread(
        self, on_validation: np.ndarray, on_training: np.ndarray, left_out: np.ndarray
    ) -> np.ndarray:
        """[..., validation + training], nan for training instances that were not left out."""
        everyone = np.full((*on_training.shape[:-1], len(self.data[1])), np.nan)
        everyone[..., left_out] = on_training
        return np.concatenate([on_validation, everyone], axis=-1)

    def _train(self, plans: list[Plan], left_out: np.ndarray, what: str) -> np.ndarray:
        """What each plan changes for one more seed, [plans, validation + training]."""
        own = mix_seeds(self.seed, 5, self.seeds)
        edits, y = [self._encode(plan) for plan in (None, *plans)], self.data[1]
        specs = [one.specify(own, y, self.recipe.rate, left_out) for one in edits]
        trained = train_many(self.recipe, *self.data, specs, what=what, progress=self.progress)
        (x, y), rest = self.validation, tuple(t[left_out] for t in self.data)
        of = lambda x, y: self._measure(trained.outputs(x), y)
        measured = self._spread(of(x, y), of(*rest), left_out)
        return measured[1:] - measured[0]

    def conclude(self, finalists: list[Entry], tried: list[Entry]) -> Competition:
        """Choose among those of the last stage."""
        trials = [entry.to_trial() for entry in sorted(finalists, key=lambda entry: entry.mean)]
        figures = [entry.describe() for entry in tried]
        chosen = _choose(finalists)
        nearest = chosen or min(finalists, key=lambda entry: entry.mean)
        changes = np.stack(nearest.changes)[:, : len(self.validation[1])]
        on_validation = changes.mean(0).tolist()
        plan = None if chosen is None else chosen.plan
        return Competition(trials, figures, plan, self._give_reason(chosen), on_validation)

    def _give_reason(self, chosen: Entry | None) -> str:
        """Why it was chosen, and how sure that is, in words; None: do nothing."""
        where = "on data that had no part in the ranking"
        if chosen is None:
            return explain_doing_nothing(self.tried, where)
        measured = f"{self._say_result(chosen.to_trial())}, {where}"
        if chosen.plan.kind == _USUAL:
            count = f"{round(self.beliefs.wrong.sum()):,}"
            return f"about {count} labels are wrong; after this {measured}"
        return f"of {self.tried} plans it did best, or about as well as the best: {measured}"

    def _say_result(self, found: Trial) -> str:
        """What it changed for models of every kind, in words."""
        less = "fewer" if self._classes else "less"
        say = lambda change: f"{abs(100 * change):.2f} % {less if change < 0 else 'more'}"
        own = (
            f"dross' model makes {say(found.change)} {'mistakes' if self._classes else 'error'} "
            f"(standard error {100 * found.error:.2f}, {found.seeds} new seeds)"
        )
        *first, last = own, *(f"{name} {say(change)}" for name, change in found.by_kind.items())
        return f"{', '.join(first)} and {last}" if first else last

    def _encode(self, plan: Plan | None) -> EncodedEdits:
        """What a plan does to the training part; None: nothing."""
        return NO_EDITS if plan is None else plan.encode(self.beliefs.predicted)

    @property
    def _classes(self) -> int:
        """How many there are; 0 where labels are numbers."""
        return self.recipe.outputs if self.recipe.loss == "cross_entropy" else 0

    def _measure(self, outputs: Tensor, y: Tensor) -> np.ndarray:
        """How wrong each of K models is about each of V instances, [K, V]."""
        sharper = SHARPER if self._classes else 1.0
        losses = self.recipe.losses(sharper * outputs, y).double()
        return bound_losses(losses, self.scale).numpy()


def _plans_of(entries: list[Entry]) -> list[Plan]:
    """Every form of every entry, in their order."""
    return [plan for entry in entries for plan in (entry.forms or (entry.plan,))]

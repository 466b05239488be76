"""Which examples to leave out: plans compete, each tried by fine-tuning again.

What one half of the validation part blames is left out, and the other half is asked; then the
halves change places. A plan is recommended if it is better than doing nothing by more than two
standard errors, which cover the validation examples and the seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from .._progress import Advance, progress_bar
from ..cleaning.plans import Figure, KnownPlan
from ..data.seeds import mix_seeds
from ..distributed.jobs import ResultStore
from .score import ChatScores
from .tuner import ERROR, Tuner

HARMFUL, UNLIKELY = "harmful", "unlikely"  # kinds of plans
_WHAT = {
    HARMFUL: "remove the {count:,} most harmful",
    UNLIKELY: "remove the {count:,} with the highest loss before fine-tuning",
}
_SHARES = (0.03, 0.1, 0.2)  # of the training part that plans leave out
_FINALISTS, _SEEDS = 2, 2  # that are tried with so many more seeds
_CLEARLY = 2.0  # standard errors
_ALIKE = 1.0
_TRIALS = 23  # the stream of seeds of trials
_NOTHING = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class ChatRecommendation:
    """The plans that were tried with most seeds, the best first, and the recommended one."""

    plans: list[KnownPlan]
    recommended: str | None  # the name of one of them; None: do nothing
    reason: str

    @property
    def removed(self) -> np.ndarray:
        """The ids that the recommended plan removes."""
        found = [plan.removed for plan in self.plans if plan.name == self.recommended]
        return found[0] if found else _NOTHING

    def to_json(self) -> dict[str, Any]:
        """The recommendation as project.json keeps it."""
        return {
            "state": "no gain" if self.recommended is None else "recommended",
            "reason": self.reason,
            "recommended": self.recommended,
            "plans": [plan.to_json() for plan in self.plans],
        }


@dataclass
class Entry:
    """A plan, its two forms that each know one half of the validation part, and its results.

    Each result is [validation]: what the plan changes for each example.
    """

    kind: str
    removed: np.ndarray
    forms: tuple[np.ndarray, np.ndarray] | None  # None: the order ignores the validation part
    changes: list[np.ndarray] = field(default_factory=list)  # one for each seed

    @property
    def name(self) -> str:
        """The kind and the size, such as `harmful-12`: what `--plan` takes."""
        return f"{self.kind}-{len(self.removed)}"

    @property
    def mean(self) -> float:
        """The mean change."""
        return float(np.mean(self.changes)) if self.changes else 0.0

    def to_plan(self, before: float) -> KnownPlan:
        """The plan with its figures; before: the token error without any change."""
        change, error = compare(self, None)
        interval = (change - 1.96 * error, change + 1.96 * error)
        figure = Figure(before, before + change, change, interval)
        what = _WHAT[self.kind].format(count=len(self.removed))
        return KnownPlan(self.name, what, self.removed, {}, {"token error": figure})


def plan_sizes(count: int) -> list[int]:
    """How many of `count` examples plans leave out."""
    return sorted({max(1, round(share * count)) for share in _SHARES})


def count_trials(count: int) -> int:
    """How many fine-tunings a competition takes at most."""
    first = 1 + 3 * len(plan_sizes(count))  # nothing; two forms by scores; one by loss
    return first + _SEEDS * (1 + 2 * _FINALISTS)


def compete(
    tuner: Tuner,
    train: Sequence[int],
    validation: Sequence[int],
    scored: ChatScores,
    store: ResultStore,
    *,
    seed: int,
    progress: bool,
) -> ChatRecommendation:
    """Try plans, the best of them with more seeds, and recommend one or none.

    Arguments:
        tuner: The model.
        train, validation: Places among the tuner's examples.
        scored: The scores.
        store: Keeps what every fine-tuning gave.
        seed: Of the seeds.
        progress: Whether to show a bar.
    """
    entries = _list_entries(scored)
    contest = _Contest(tuner, train, validation, scored.halves, store, seed, progress)
    contest.try_entries(entries)
    finalists = sorted(entries, key=lambda entry: entry.mean)[:_FINALISTS]
    for _ in range(_SEEDS):
        contest.try_entries(finalists)
    chosen = _choose(finalists)
    ranked = sorted(finalists, key=lambda entry: entry.mean)
    before = float(np.mean(contest.before))
    return ChatRecommendation(
        [entry.to_plan(before) for entry in ranked],
        None if chosen is None else chosen.name,
        _give_reason(chosen, len(entries), contest.seeds),
    )


def _list_entries(scored: ChatScores) -> list[Entry]:
    by_half = scored.by_half.mean(0)  # [2, N]
    orders = [np.argsort(by_half[half], kind="stable") for half in range(2)]
    whole = np.argsort(scored.scores, kind="stable")
    unlikely = np.argsort(-scored.base_loss, kind="stable")
    entries = []
    for size in plan_sizes(len(whole)):
        first = lambda order, size=size: np.sort(order[:size])
        forms = (first(orders[0]), first(orders[1]))
        entries.append(Entry(HARMFUL, first(whole), forms))
        entries.append(Entry(UNLIKELY, first(unlikely), None))
    return entries


def _choose(finalists: list[Entry]) -> Entry | None:
    """The smallest of those that are about as good as the best; None: do nothing."""
    best = min(finalists, key=lambda entry: entry.mean)
    change, error = compare(best, None)
    if not change + _CLEARLY * error < 0:
        return None

    def is_alike(entry: Entry) -> bool:
        behind, error = compare(entry, best)
        better, own = compare(entry, None)
        return behind <= _ALIKE * error and better + _CLEARLY * own < 0

    alike = [entry for entry in finalists if entry is best or is_alike(entry)]
    return min(alike, key=lambda entry: len(entry.removed))


def compare(entry: Entry, other: Entry | None) -> tuple[float, float]:
    """By how much the first is worse, and the standard error; None stands for doing nothing."""
    changes = np.stack(entry.changes)
    behind = changes - (0 if other is None else np.stack(other.changes))
    return float(behind.mean()), standard_error(behind)


def standard_error(changes: np.ndarray) -> float:
    """The standard error of the mean of [seeds, examples], over both."""
    by_example = changes.mean(0)
    over_examples = by_example.std(ddof=1) / np.sqrt(len(by_example))
    if len(changes) == 1:
        return float(over_examples)
    over_seeds = changes.mean(1).std(ddof=1) / np.sqrt(len(changes))
    return float(np.hypot(over_examples, over_seeds))


def _give_reason(chosen: Entry | None, tried: int, seeds: int) -> str:
    where = "on validation examples that had no part in the ranking"
    if chosen is None:
        return f"None of {tried} plans is better than no change beyond chance, {where}."
    return f"Of {tried} plans it is the best, or the smallest of about equally good ones, {where}."


@dataclass
class _Contest:
    """Fine-tunes by plans, and keeps what the model says after each."""

    tuner: Tuner
    train: Sequence[int]
    validation: Sequence[int]
    halves: np.ndarray
    store: ResultStore
    seed: int
    progress: bool
    seeds: int = 0  # that were used
    pieces: int = 0  # that were asked for
    before: list[float] = field(default_factory=list)  # the token error without a change, by seed

    def try_entries(self, entries: list[Entry]) -> None:
        """Fine-tune with the next seed, the same one for all plans and for doing nothing."""
        plans = [form for entry in entries for form in (entry.forms or (entry.removed,))]
        total = self.tuner.steps * (1 + len(plans))
        title = f"trying {len(entries)} plans"
        with progress_bar(title, total, show=self.progress) as advance:
            before = self._errors(_NOTHING, advance)
            changes = [self._errors(removed, advance) - before for removed in plans]
        self.before.append(float(before.mean()))
        found = iter(changes)
        for entry in entries:
            if entry.forms is None:
                entry.changes.append(next(found))
            else:  # each form is judged by the half that it does not know
                first, second = next(found), next(found)
                entry.changes.append(np.where(self.halves == 0, second, first))
        self.seeds += 1

    def _errors(self, removed: np.ndarray, advance: Advance) -> np.ndarray:
        """How wrong a model that learns all but these is about each validation example."""
        number, self.pieces = self.pieces, self.pieces + 1
        kept = self.store.get(number)
        if kept is None:
            left = np.delete(self.train, removed).tolist()
            self.tuner.train(left, mix_seeds(self.seed, _TRIALS, self.seeds), advance)
            errors = self.tuner.measure(self.validation)[ERROR]
            kept = {"errors": torch.from_numpy(np.ascontiguousarray(errors))}
            self.store.put(number, kept)
        else:
            advance(self.tuner.steps)
        return kept["errors"].numpy()

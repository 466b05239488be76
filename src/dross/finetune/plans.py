"""Which examples to leave out: plans compete, each tried by fine-tuning again.

What one half of the validation part blames is left out, and the other half is asked; then the
halves change places. A plan is recommended if it is better than doing nothing by more than two
standard errors, which cover the validation examples and the seeds.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..cleanse.plans.candidates import Plan
from ..cleanse.plans.trials import Competition, Entry, compare, explain_doing_nothing
from ..data.seeds import mix_seeds
from ..parallel.result_store import ResultStore
from ..support.progress import Advance, progress_bar
from .score import ChatScores
from .tuner import ERROR, Tuner

HARMFUL, UNLIKELY = "harmful", "unlikely"  # kinds of plans: see KINDS
_SHARES = (0.03, 0.1, 0.2)  # of the training part that plans leave out
_FINALISTS, _SEEDS = 2, 2  # that are tried with so many more seeds
_CLEARLY = 2.0  # standard errors
_ALIKE = 1.0
_TRIALS = 23  # the stream of seeds of trials
_NOTHING = np.zeros(0, dtype=np.int64)


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
) -> Competition:
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
    on_validation = np.stack((chosen or ranked[0]).changes).mean(0).tolist()
    reason = _give_reason(chosen, len(entries), contest.seeds)
    trials = [entry.to_trial() for entry in ranked]
    tried = [entry.describe() for entry in entries]
    plan = None if chosen is None else chosen.plan
    return Competition(trials, tried, plan, reason, on_validation)


def _list_entries(scored: ChatScores) -> list[Entry]:
    by_half = scored.by_half.mean(0)  # [2, N]
    orders = [np.argsort(by_half[half], kind="stable") for half in range(2)]
    whole = np.argsort(scored.scores, kind="stable")
    unlikely = np.argsort(-scored.base_loss, kind="stable")
    entries = []
    for size in plan_sizes(len(whole)):
        of = lambda kind, order, size=size: Plan(kind, np.sort(order[:size]), _NOTHING)
        forms = (of(HARMFUL, orders[0]), of(HARMFUL, orders[1]))
        entries.append(Entry(of(HARMFUL, whole), forms))
        entries.append(Entry(of(UNLIKELY, unlikely), None))
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
    return min(alike, key=lambda entry: entry.plan.size)


def _give_reason(chosen: Entry | None, tried: int, seeds: int) -> str:
    where = "on validation examples that had no part in the ranking"
    if chosen is None:
        return explain_doing_nothing(tried, where)
    trial = chosen.to_trial()
    return (
        f"of {tried} plans it did best, or about as well as the best: {abs(100 * trial.change):.2f}"
        f" % fewer mistakes in the answers' tokens (standard error {100 * trial.error:.2f}, {seeds}"
        f" new seeds), {where}"
    )


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

    def try_entries(self, entries: list[Entry]) -> None:
        """Fine-tune with the next seed, the same one for all plans and for doing nothing."""
        plans = [plan for entry in entries for plan in (entry.forms or (entry.plan,))]
        total = self.tuner.steps * (1 + len(plans))
        title = f"trying {len(entries)} plans"
        with progress_bar(title, total, show=self.progress) as advance:
            before = self._errors(_NOTHING, advance)
            changes = [self._errors(plan.removed, advance) - before for plan in plans]
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

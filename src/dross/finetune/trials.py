"""What removing examples does to the model: plans compete, and a verdict, by fine-tuning again.

Plans. What one half of the validation part blames is left out, and the other half is measured; then
the halves change places. A plan is recommended if it is better than doing nothing by more than two
standard errors, which cover the validation examples and the seeds.

Verdict. For each fresh seed three models start from the same weights and take the same number of
steps. They are compared by their loss and their expected error on the test part.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._progress import progress_bar
from ..cleaning.edits import ChosenEdits
from ..cleaning.judge import CONTROL, FRESH, Judgement, Piece
from ..cleaning.plans import Figure, PlanResult, Recommendation
from ..cleaning.project import Project
from ..cleaning.verdict import Verdict, reach_verdict
from ..data.seeds import mix_seeds
from ..distributed.jobs import ResultStore, sweep
from ..errors import InputChanged
from .examples import open_examples
from .model import load
from .score import ChatScores
from .tuner import ERROR, LOSS, Tuner

HARMFUL = "harmful"  # kinds of plans
UNLIKELY = "unlikely"
_WHAT = {
    HARMFUL: "remove the {count:,} most harmful",
    UNLIKELY: "remove the {count:,} with the highest loss before fine-tuning",
}
_SHARES = (0.03, 0.1, 0.2)  # of the training part that plans leave out
_FINALISTS = 2  # that are tried with more seeds
_SEEDS = 2  # so many
_CLEARLY = 2.0  # standard errors
_ALIKE = 1.0
_TRIALS = 23  # the stream of seeds of trials
_NOTHING = np.zeros(0, dtype=np.int64)


# --- plans ----------------------------------------------------------------------------------------


@dataclass
class Candidate:
    """A plan, and what it changes.

    Attributes:
        kind: HARMFUL or UNLIKELY.
        removed: The ids that it removes.
        by_half: The ids that it would remove if only that half of the validation part were known.
        changes: For each seed, the change of the error of each validation example, [V].
    """

    kind: str
    removed: np.ndarray
    by_half: tuple[np.ndarray, np.ndarray]
    changes: list[np.ndarray] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The kind and the size, such as `harmful-12`: what `--plan` takes."""
        return f"{self.kind}-{len(self.removed)}"

    @property
    def mean(self) -> float:
        """The mean change."""
        return float(np.mean(self.changes))

    def to_plan(self, before: float) -> PlanResult:
        """The plan with its figures; before: the token error without any change."""
        change, error = compare(self, None)
        interval = (change - 1.96 * error, change + 1.96 * error)
        return PlanResult(
            removed=self.removed,
            relabelled={},
            name=self.name,
            what=_WHAT[self.kind].format(count=len(self.removed)),
            figures={"token error": Figure(before, before + change, change, interval)},
        )


def plan_sizes(count: int) -> list[int]:
    """How many of `count` examples plans leave out."""
    return sorted({max(1, round(share * count)) for share in _SHARES})


def count_trials(count: int) -> int:
    """How many fine-tunings a competition takes at most."""
    first = 1 + 3 * len(plan_sizes(count))  # nothing; two forms by scores; one by loss
    return first + _SEEDS * (1 + 2 * _FINALISTS)


def compete(
    tuner: Tuner,
    scored: ChatScores,
    open_store: Callable[[str], ResultStore],
    *,
    seed: int,
    progress: bool,
) -> Recommendation:
    """Try plans, the best of them with more seeds, and recommend one or none.

    Arguments:
        tuner: The model.
        scored: The scores.
        open_store: Gives a store of this name, which keeps what fine-tunings gave.
        seed: Of the seeds.
        progress: Whether to show a bar.
    """
    candidates = _list_candidates(scored)
    finalists = candidates
    before = []
    for number in range(1 + _SEEDS):  # the same seed for all plans and for doing nothing
        if number == 1:
            finalists = sorted(candidates, key=lambda candidate: candidate.mean)[:_FINALISTS]

        def measure(removed: np.ndarray, number=number) -> dict[str, Tensor]:
            own = mix_seeds(seed, _TRIALS, number)
            errors = tuner.measure_without(removed, own, "validation")[ERROR]
            return {"errors": torch.from_numpy(np.ascontiguousarray(errors))}

        forms = [form for candidate in finalists for form in candidate.by_half]
        pieces = list({form.tobytes(): form for form in (_NOTHING, *forms)}.values())
        errors = {}
        title = f"trying {len(finalists)} plans"
        store = open_store(f"plans {number}")
        results = sweep(measure, pieces, what=title, n_jobs=1, store=store, progress=False)
        with progress_bar(title, len(pieces), show=progress, unit="fine-tunings") as advance:
            for piece, measured in results:
                errors[pieces[piece].tobytes()] = measured["errors"].numpy()
                advance(1)
        unchanged = errors[_NOTHING.tobytes()]
        before.append(float(unchanged.mean()))
        for candidate in finalists:  # each form is judged by the half that it does not know
            first, second = (errors[form.tobytes()] - unchanged for form in candidate.by_half)
            candidate.changes.append(np.where(scored.halves == 0, second, first))
    ranked = sorted(finalists, key=lambda candidate: candidate.mean)
    chosen = _choose(ranked)
    where = "on validation examples that had no part in the ranking"
    if chosen is None:
        reason = f"None of {len(candidates)} plans is better than no change beyond chance, {where}."
    else:
        reason = (
            f"Of {len(candidates)} plans it is the best, or the smallest of about equally good "
            f"ones, {where}."
        )
    return Recommendation(
        plans=[candidate.to_plan(float(np.mean(before))) for candidate in ranked],
        recommended=None if chosen is None else chosen.name,
        state="no gain" if chosen is None else "recommended",
        reason=reason,
    )


def _list_candidates(scored: ChatScores) -> list[Candidate]:
    by_half = scored.by_half.mean(0)  # [2, N]
    harmful = np.argsort(scored.scores, kind="stable")
    to_first, to_second = (np.argsort(by_half[half], kind="stable") for half in range(2))
    unlikely = np.argsort(-scored.base_loss, kind="stable")
    candidates = []
    for size in plan_sizes(len(harmful)):
        forms = (np.sort(to_first[:size]), np.sort(to_second[:size]))
        candidates.append(Candidate(HARMFUL, np.sort(harmful[:size]), forms))
        removed = np.sort(unlikely[:size])  # whichever half is known
        candidates.append(Candidate(UNLIKELY, removed, (removed, removed)))
    return candidates


def _choose(finalists: list[Candidate]) -> Candidate | None:
    """The smallest of those that are about as good as the best; None: do nothing."""
    best = finalists[0]

    def is_better_than_nothing(candidate: Candidate) -> bool:
        change, error = compare(candidate, None)
        return change + _CLEARLY * error < 0

    def is_as_good(candidate: Candidate) -> bool:
        behind, error = compare(candidate, best)
        return behind <= _ALIKE * error

    if not is_better_than_nothing(best):
        return None
    alike = [one for one in finalists if is_as_good(one) and is_better_than_nothing(one)]
    return min(alike, key=lambda candidate: len(candidate.removed))


def compare(candidate: Candidate, other: Candidate | None) -> tuple[float, float]:
    """By how much the first is worse, and the standard error; None stands for doing nothing."""
    behind = np.stack(candidate.changes) - (0 if other is None else np.stack(other.changes))
    return float(behind.mean()), standard_error(behind)


def standard_error(changes: np.ndarray) -> float:
    """The standard error of the mean of [seeds, examples], over both."""
    by_example = changes.mean(0)
    over_examples = by_example.std(ddof=1) / np.sqrt(len(by_example))
    if len(changes) == 1:
        return float(over_examples)
    over_seeds = changes.mean(1).std(ddof=1) / np.sqrt(len(changes))
    return float(np.hypot(over_examples, over_seeds))


# --- the verdict ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class ChatLearner:
    """Fine-tunes the models of a verdict and measures them on the test part."""

    tuner: Tuner
    removed: np.ndarray

    def __call__(self, piece: Piece) -> dict[str, Tensor]:
        """The loss and the error of each test example, float64 [passes, 3, test]."""
        measured = []
        for number in piece.passes:
            rng = np.random.default_rng(mix_seeds(FRESH, CONTROL, number))
            control = rng.permutation(len(self.tuner.parts["train"]))[: len(self.removed)]
            for removed in (_NOTHING, self.removed, control):
                seed = mix_seeds(FRESH, number)
                measured.append(self.tuner.measure_without(removed, seed, "test"))
        values = torch.from_numpy(np.stack(measured)).unflatten(0, (-1, 3))
        return {"loss": values[:, :, LOSS], "error": values[:, :, ERROR]}


@dataclass(frozen=True)
class ChatJudgement(Judgement):
    """A judgement of examples that a model was fine-tuned on."""

    tuner: Tuner
    made_from: dict[str, Any]  # settings that decide the examples and the model

    @property
    def settings(self) -> dict[str, Any]:
        """Everything that decides what is measured, as JSON holds it."""
        removed = hashlib.sha256(np.sort(self.edits.removed).tobytes()).hexdigest()
        return self.made_from | {"removed": removed, "seeds": self.seeds}

    @property
    def pieces(self) -> list[Piece]:
        """One for each seed."""
        everything = np.ones(len(self.tuner.parts["test"]), dtype=bool)
        return [Piece((number,), everything) for number in range(self.seeds)]

    @property
    def learner(self) -> ChatLearner:
        """Fine-tunes."""
        return ChatLearner(self.tuner, self.edits.removed)

    def conclude(self, values: dict[str, np.ndarray], earlier: int) -> Verdict:
        """The verdict on what `measure` returns."""
        return reach_verdict(values, self.edits, model=self.tuner.options.model, earlier=earlier)


def open_judgement(
    project: Project, edits: ChosenEdits, seeds: int, *, device: torch.device, progress: bool
) -> ChatJudgement:
    """The judgement of a project of chats, with the model and the examples as they were.

    Raises:
        InputChanged: the data or the model have changed since `dross clean`.
    """
    info = project.info
    request = info.request
    options = info.chat_options
    assert options is not None
    loaded = load(options)
    examples, _ = open_examples(request, options, loaded, device, progress=progress)
    for what, same in (
        (request.data, examples.digest == info.digest),
        (options.model, loaded.digest == info.model_digest),
    ):
        if not same:
            raise InputChanged(
                f"{what} has changed since dross clean read it. Put it back as it was, or run "
                "dross clean again."
            )
    return ChatJudgement(
        edits=edits,
        seeds=seeds,
        progress=progress,
        n_jobs=1,
        tuner=Tuner(loaded, examples, options, device),
        made_from={"job": info.job},
    )

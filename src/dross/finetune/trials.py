"""What removing examples does to the model: plans compete, and a verdict, by fine-tuning again.

Plans. What one half of the validation set blames is left out, and the other half is measured; then
the halves change places. A plan is recommended if it is better than doing nothing by more than two
standard errors, which cover the validation examples and the seeds.

Verdict. For each fresh seed three models start from the same weights and take the same number of
steps. They are compared by their loss and their expected error on the test set.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from .._io import digest_bytes
from .._progress import progress_bar
from ..cleaning.edits import ChosenEdits
from ..cleaning.judge import CONTROL, FRESH, Judgment, Piece
from ..cleaning.plans import Figure, PlanResult, Recommendation
from ..cleaning.project import Project
from ..cleaning.verdict import Setup
from ..data.seeds import mix_seeds
from ..distributed.jobs import ResultStore, sweep
from ..errors import InputChanged
from .examples import open_examples
from .model import load
from .score import ChatScores
from .tuner import ERROR, LOSS, Tuner

_KINDS = {  # of plans
    "harmful": "remove the {count:,} most harmful",
    "unlikely": "remove the {count:,} whose loss before fine-tuning was highest",
}
_SHARES = (0.03, 0.1, 0.2)  # of the training set that plans leave out
_FINALISTS = 2  # plans that are tried with more seeds
_SEEDS = 2  # that they are tried with
_CLEARLY = 2.0  # standard errors
_ALIKE = 1.0
_TRIALS = 23  # the stream of seeds of trials
_NOTHING = np.zeros(0, dtype=np.int64)


# --- plans ----------------------------------------------------------------------------------------


@dataclass
class Candidate:
    """A plan, and what it changes.

    Attributes:
        kind: One of `_KINDS`.
        removed: The ids that it removes.
        by_half: The ids that it would remove if only that half of the validation set were known.
        by_seed: For each seed, the change in the error of each validation example, [V].
    """

    kind: str
    removed: np.ndarray
    by_half: tuple[np.ndarray, np.ndarray]
    by_seed: list[np.ndarray] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The kind and the size, such as `harmful-12`: what `--plan` takes."""
        return f"{self.kind}-{len(self.removed)}"

    @property
    def changes(self) -> np.ndarray:
        """The changes for all seeds, [seeds, V]."""
        return np.stack(self.by_seed)

    def to_plan(self, before: float) -> PlanResult:
        """The plan with its figures; before: the token error without any change."""
        change = float(self.changes.mean())
        reach = 1.96 * standard_error(self.changes)
        figure = Figure(before, before + change, change, (change - reach, change + reach))
        return PlanResult(
            removed=self.removed,
            relabeled={},
            name=self.name,
            what=_KINDS[self.kind].format(count=len(self.removed)),
            figures={"token error": figure},
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
        open_store: Returns a store of this name, which keeps the results of fine-tunings.
        seed: Of the seeds.
        progress: Whether to show a bar.
    """
    candidates = _list_candidates(scored)
    finalists = candidates
    before = []
    for number in range(1 + _SEEDS):  # the same seed for all plans and for doing nothing
        if number == 1:
            finalists = _rank(candidates)[:_FINALISTS]

        def measure(removed: np.ndarray, number=number) -> dict[str, Tensor]:
            trial = mix_seeds(seed, _TRIALS, number)
            errors = tuner.measure_without(removed, trial, "validation")[ERROR]
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
            candidate.by_seed.append(np.where(scored.halves == 0, second, first))
    ranked = _rank(finalists)
    chosen = _choose(ranked)
    where = "on validation examples that were not used for the ranking"
    if chosen is None:
        reason = (
            f"None of the {len(candidates)} plans improves the model by more than chance would "
            f"explain, {where}."
        )
    else:
        reason = (
            f"It is the best of {len(candidates)} plans, or the smallest of several about equally "
            f"good ones, {where}."
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
        candidates.append(Candidate("harmful", np.sort(harmful[:size]), forms))
        removed = np.sort(unlikely[:size])  # whichever half is known
        candidates.append(Candidate("unlikely", removed, (removed, removed)))
    return candidates


def _rank(candidates: list[Candidate]) -> list[Candidate]:
    return sorted(candidates, key=lambda candidate: candidate.changes.mean())


def _choose(ranked: list[Candidate]) -> Candidate | None:
    """The smallest of those that are about as good as the best; None: do nothing."""
    best = ranked[0].changes

    def is_better(changes: np.ndarray) -> bool:
        return changes.mean() + _CLEARLY * standard_error(changes) < 0

    def is_as_good(changes: np.ndarray) -> bool:
        behind = changes - best
        return behind.mean() <= _ALIKE * standard_error(behind)

    if not is_better(best):
        return None
    alike = [one for one in ranked if is_better(one.changes) and is_as_good(one.changes)]
    return min(alike, key=lambda candidate: len(candidate.removed))


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
    """Fine-tunes the models of a verdict and measures them on the test set."""

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


def judge_chats(
    project: Project, edits: ChosenEdits, seeds: int, *, device: torch.device, progress: bool
) -> Judgment:
    """A judgment of a project of chats, with the model and the examples as they were.

    Raises:
        InputChanged: the data or the model have changed since `dross clean`.
    """
    info = project.info
    request = info.request
    options = info.chat_options
    assert options is not None
    loaded = load(options)
    examples = open_examples(request, options, loaded, progress=progress)
    for what, same in (
        (request.data, examples.digest == info.digest),
        (options.model, loaded.digest == info.model_digest),
    ):
        if not same:
            raise InputChanged(
                f"{what} has changed since dross clean read it. Restore the original, or run "
                "dross clean again."
            )
    everything = np.ones(len(examples.parts["test"]), dtype=bool)
    return Judgment(
        setup=Setup(edits, options.model),
        learner=ChatLearner(Tuner(loaded, examples, options, device), edits.removed),
        pieces=[Piece((number,), everything, everything) for number in range(seeds)],
        seeds=seeds,
        settings={"removed": digest_bytes(np.sort(edits.removed).tobytes()), "seeds": seeds},
    )

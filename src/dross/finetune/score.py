"""Scores of every token and of every example: recorded fine-tunings, retraced.

The query is the expected error of the validation set: over its examples, and over the tokens of
each, the mean of 1 - p(token). Unlike the loss it is bounded, so that wrong answers among the
validation examples do not turn the scores around. It is computed for either half of the set, in
one retrace whose instances are tokens; an example's score is the sum of its tokens'.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from .._progress import progress_bar
from ..data.dataset import move_to
from ..data.seeds import mix_seeds
from ..distributed.jobs import ResultStore, sweep
from ..engine.objective import Objective
from ..influence.query import Buffers, Query, QueryPart
from .tuner import LOSS, Tuner

_RUNS = 11  # the stream of seeds of recorded runs


@dataclass(frozen=True)
class ChatScores:
    """The scores of N training examples from R recorded fine-tunings."""

    tokens: np.ndarray  # float64 [R, 2, tokens]: of every token trained on, for either half
    starts: np.ndarray  # int64 [N + 1]: where each example's tokens begin
    weights: np.ndarray  # [2]: the shares of the halves
    halves: np.ndarray  # int64 [V]: which half each validation example is in
    base_loss: np.ndarray  # [N]: of the model before it was fine-tuned
    training_loss: np.ndarray  # [N]: of the first run
    growth: np.ndarray  # [R]: how many times each run magnified a small change

    @property
    def by_half(self) -> np.ndarray:
        """The scores of the examples, [R, 2, N]."""
        return np.add.reduceat(self.tokens, self.starts[:-1], axis=2)

    @property
    def by_run(self) -> np.ndarray:
        """The scores of the examples for the whole validation set, [R, N]."""
        return np.einsum("rhn,h->rn", self.by_half, self.weights)

    @property
    def scores(self) -> np.ndarray:
        """The mean over runs, [N]. Below 0: the expected error would fall without it."""
        return self.by_run.mean(0)

    def token_effects(self) -> list[np.ndarray]:
        """The scores of the tokens that each example trains on, which add up to its score."""
        effects = np.einsum("rhn,h->n", self.tokens, self.weights) / len(self.tokens)
        return np.split(effects, self.starts[1:-1])


def score(
    tuner: Tuner, folder: Path, store: ResultStore, *, seed: int, progress: bool
) -> ChatScores:
    """Fine-tune, record and retrace as often as the options say.

    Arguments:
        tuner: The model.
        folder: Where the tapes go.
        store: Keeps the scores of each run; those that it has are not computed again.
        seed: Of the halves and of the runs.
        progress: Whether to show bars.
    """
    count = len(tuner.parts["validation"])
    halves = np.random.default_rng(mix_seeds(seed, 3)).permutation(count) % 2
    tuner.reset(seed)
    base = tuner.measure(tuner.parts["train"])[LOSS]

    def score_run(number: int) -> dict[str, Tensor]:
        run_seed = mix_seeds(seed, _RUNS, number)
        return _score_run(tuner, halves, folder / f"run-{number}", run_seed, progress)

    numbers = range(tuner.options.repeats)
    results = sweep(score_run, numbers, what="scoring", n_jobs=1, store=store, progress=False)
    runs = [run for _, run in sorted(results, key=lambda result: result[0])]
    return ChatScores(
        tokens=np.stack([run["tokens"].numpy() for run in runs]),
        starts=runs[0]["starts"].numpy(),
        weights=np.bincount(halves, minlength=2) / len(halves),
        halves=halves,
        base_loss=base,
        training_loss=runs[0]["losses"].numpy(),
        growth=np.array([float(run["growth"]) for run in runs]),
    )


def _score_run(
    tuner: Tuner, halves: np.ndarray, tape: Path, seed: int, progress: bool
) -> dict[str, Tensor]:
    train = tuner.parts["train"]
    with progress_bar("fine-tuning", tuner.steps, show=progress) as advance:
        with tuner.trained(train, seed, advance, tape=tape) as trainer:
            losses = tuner.measure(train)[LOSS]
            held_out = trainer._collated([tuner.examples[k] for k in tuner.parts["validation"]])
            query = expected_errors_of(held_out, halves, tuner.options.batch_size)
            run = trainer.recorded_run(per_token=True)
    scores = run.run.influence(query)
    values = {"tokens": scores.values, "starts": run.starts, "losses": losses}
    values["growth"] = np.array(scores.details["adjoint_growth"])
    return {name: torch.from_numpy(np.ascontiguousarray(value)) for name, value in values.items()}


def expected_errors_of(data: Any, halves: np.ndarray, batch_size: int) -> Query:
    """The expected error of either half of a dataset: a query of two numbers.

    Every example counts alike, and so does every token that one example trains on.

    Arguments:
        data: A `Collated`, as a recording trainer makes it.
        halves: Which half each example is in: 0 or 1, int [N].
        batch_size: Examples in a batch.
    """
    sizes = np.bincount(halves, minlength=2)

    def parts(objective: Objective) -> Iterator[QueryPart]:
        losses: Any = objective.loss.token_by_token()  # type: ignore[attr-defined]
        parameter = next(objective.model.parameters())
        to = lambda t: move_to(t, parameter.device, parameter.dtype)
        for start in range(0, len(data), batch_size):
            ids = np.arange(start, min(start + batch_size, len(data)))
            x, y = tree_map(to, data.collate(ids))
            counts = losses.count(y).cpu().numpy()
            share = np.zeros((2, int(counts.sum())))
            half = np.repeat(halves[ids], counts)
            share[half, np.arange(len(half))] = np.repeat(1 / counts, counts) / sizes[half]
            weights = torch.from_numpy(share).to(parameter.device)

            def evaluate(theta: Tensor, buffers: Buffers, x=x, y=y, weights=weights) -> Tensor:
                outputs = objective.predict(theta, buffers, x)
                errors = 1 - torch.exp(-losses(outputs, y))
                return weights.to(errors.dtype) @ errors

            yield len(ids), evaluate

    return Query("expected_errors_of", parts, added=True, data=data)

"""How many to remove: tried with new seeds, on validation data that the ranking has not seen.

The validation part is cut in two. The instances that the first half blames are removed, new models
are trained without them, and the second half tells whether they are better; then the other way
round. A ranking that only fits its own validation instances gains nothing here. Each validation
instance counts at most as much as a plain guess would cost: otherwise a few confident mistakes, or
wrong labels among them, would drown everything else.

Mere confidence can lower a loss that is cut off like this: a model that has not seen the hard
instances is surer of itself, and what it gets wrong costs no more. So a number of removals is
suggested only if the validation error (for a number: the mean absolute error) did not rise with it.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..data.seeds import mix_seeds
from .learning.recipe import Pair, Recipe
from .learning.score import InstanceScores, validation_halves
from .learning.train_many import ModelSpec, train_many

# Standard errors. Seven sizes are tried, and one of them may look good by chance: by simulation,
# about 6 % of the time.
_SURE = 2.2
_TRIED_SHARES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25)
_MAX_SQUARED_ERROR = 4.0  # in units of the labels' variance


@dataclass(frozen=True)
class RemovalCurve:
    """The change of the validation loss against the number removed, and the number to remove."""

    sizes: list[int]
    changes: list[list[float]]  # [seeds][sizes]
    errors: list[float]  # [sizes]: standard errors of their means
    kept: float  # the mean validation loss if nothing is removed
    m: int  # how many to remove; 0 if nothing is suggested
    reason: str

    def to_json(self) -> dict[str, Any]:
        """The fields as a project keeps them."""
        return asdict(self)


def plan_removal(
    recipe: Recipe,
    data: Pair,
    validation: Pair,
    scored: InstanceScores,
    *,
    seeds: int,
    seed: int,
    progress: bool,
) -> RemovalCurve:
    """Remove more and more of the most harmful instances, and suggest how many.

    Arguments:
        recipe: The model to train.
        data: The inputs and targets of the training part.
        validation: Those of the validation part.
        scored: The scores that rank the training instances.
        seeds: How many models are trained for each number of removals.
        seed: Must be the one that the scores were computed with: it decides the halves.
        progress: Whether to show a progress bar.
    """
    sizes, halves = removal_sizes(len(data[1])), validation_halves(validation, seed)
    everyone = np.arange(len(data[1]))
    orders = [np.argsort(scored.by_half(half), kind="stable") for half in range(2)]
    kept = [np.setdiff1d(everyone, orders[half][:m]) for half in range(2) for m in sizes]
    plans = [everyone, *kept]
    model_seeds = [mix_seeds(seed, 5, k) for k in range(seeds)]
    specs = [ModelSpec(own, ids, recipe.rate) for own in model_seeds for ids in plans]
    trained = train_many(recipe, *data, specs, what="trying how many to remove", progress=progress)
    outputs, shape = trained.outputs(validation[0]), (seeds, len(plans), -1)
    losses = recipe.losses(outputs, validation[1]).double()
    losses = losses.clamp(max=_cost_of_guessing(recipe)).numpy().reshape(shape)
    errors = recipe.errors(outputs, validation[1]).double().numpy().reshape(shape)
    by_loss = _changes(losses, halves, len(sizes))
    by_error = _changes(errors, halves, len(sizes))
    m, reason = _choose_size(sizes, by_loss, by_error)
    return RemovalCurve(
        sizes=sizes,
        changes=by_loss.mean(2).tolist(),
        errors=_standard_errors(by_loss).tolist(),
        kept=float(losses[:, 0].mean()),
        m=m,
        reason=reason,
    )


def removal_sizes(count: int) -> list[int]:
    """The numbers of removals to try, out of `count` instances."""
    return sorted({max(1, round(share * count)) for share in _TRIED_SHARES})


def _cost_of_guessing(recipe: Recipe) -> float:
    """The loss of a model that knows nothing: the log of the number of classes."""
    if recipe.loss == "cross_entropy":
        return float(np.log(max(recipe.outputs, 2)))
    return _MAX_SQUARED_ERROR


def _changes(values: np.ndarray, halves: list[np.ndarray], sizes: int) -> np.ndarray:
    """[seeds, plans, validation] -> [seeds, sizes, validation].

    Each validation instance is asked about the removal of what the other half blamed.
    """
    changes = np.empty((len(values), sizes, values.shape[2]))
    for half in range(2):
        other = halves[1 - half]
        removed = values[:, 1 + half * sizes :][:, :sizes]
        changes[:, :, other] = removed[:, :, other] - values[:, :1, other]
    return changes


def _standard_errors(changes: np.ndarray) -> np.ndarray:
    """Standard errors of the mean changes, [sizes].

    They cover the choice of seeds and the choice of validation instances.
    """
    by_seed, by_instance = changes.mean(2), changes.mean(0)
    return np.hypot(
        by_seed.std(0, ddof=1) / np.sqrt(len(by_seed)),
        by_instance.std(1, ddof=1) / np.sqrt(by_instance.shape[1]),
    )


def _choose_size(sizes: list[int], by_loss: np.ndarray, by_error: np.ndarray) -> tuple[int, str]:
    """The smallest number that does about as well as the best, and why.

    Only those count that lower the loss by more than chance and do not raise the error.

    Arguments:
        sizes: The numbers of removals.
        by_loss: The changes of the loss, [seeds, sizes, validation].
        by_error: The changes of the error, [seeds, sizes, validation].
    """
    mean, error = by_loss.mean((0, 2)), _standard_errors(by_loss)
    trials = f"{len(by_loss)} new seeds, on validation data that had no part in the ranking"
    lower = [k for k in range(len(sizes)) if mean[k] < -_SURE * error[k]]
    if not lower:
        reason = "no number of removals lowered the validation loss by more than chance would"
        return 0, f"{reason} ({trials})"
    better = [k for k in lower if by_error.mean((0, 2))[k] <= 0]
    if not better:
        reason = (
            "removing made the models surer of themselves, but not right more often: "
            "the validation error rose"
        )
        return 0, f"{reason} ({trials})"
    best = min(better, key=lambda k: mean[k])
    best = next(k for k in better if mean[k] <= mean[best] + error[best])
    return sizes[best], (
        f"removing {sizes[best]} lowered the validation loss by {-mean[best]:.4f} (standard error "
        f"{error[best]:.4f}), and removing more did not lower it clearly further, over {trials}"
    )

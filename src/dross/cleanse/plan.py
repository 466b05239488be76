"""How many to remove: tried on validation data that the ranking has not seen, with new seeds.

The validation part is cut in two. The instances that the first half blames are removed, new models are trained without them, and the second half
tells whether they are better; then the other way round. A ranking that only fits its own validation instances gains nothing here. Each validation instance
counts at most as much as a plain guess would cost: a few confident mistakes, or wrong labels among them, would otherwise drown everything else.

A loss that is cut off so can be lowered by mere confidence: a model that has not seen the hard instances is surer of itself, and what it gets wrong costs no
more. Therefore a number of removals is suggested only if the validation error (for a number: the mean absolute error) did not rise with it.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..data.seeds import mixed
from .score import Pair, Scored, halves_of
from .train_many import Fit, Recipe, fit, losses, mistakes

_SURE = 2.2  # standard errors: seven sizes are tried, and one of them may look good by chance (about 6 % of the time, by simulation)
_SHARES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25)


@dataclass(frozen=True)
class Curve:
    """The change of the validation loss against the number removed."""

    sizes: list[int]
    changes: list[list[float]]  # [seeds][sizes]
    errors: list[float]  # standard errors of their means
    kept: float  # the mean validation loss with everything kept
    m: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def grid(count: int) -> list[int]:
    return sorted({max(1, round(share * count)) for share in _SHARES})


def curve(
    recipe: Recipe,
    data: Pair,
    validation: Pair,
    scored: Scored,
    *,
    seeds: int,
    seed: int,
    progress: bool,
) -> Curve:
    sizes, parts = grid(len(data[1])), halves_of(validation, seed)
    everyone = np.arange(len(data[1]))
    orders = [np.argsort(scored.by_half(half), kind="stable") for half in range(2)]
    plans = [everyone] + [
        np.setdiff1d(everyone, orders[half][:m]) for half in range(2) for m in sizes
    ]
    fits = [Fit(mixed(seed, 5, k), ids, recipe.rate) for k in range(seeds) for ids in plans]
    trained = fit(recipe, *data, fits, what="trying how many to remove", progress=progress)
    outputs = trained.outputs(validation[0])
    loss = losses(recipe, outputs, validation[1]).double()
    off = mistakes(recipe, outputs, validation[1]).double()
    capped = loss.clamp(max=_guess(recipe)).numpy().reshape(seeds, len(plans), -1)
    by_loss = _changes(capped, parts, len(sizes))
    by_error = _changes(off.numpy().reshape(seeds, len(plans), -1), parts, len(sizes))
    m, reason = _chosen(sizes, by_loss, by_error)
    return Curve(
        sizes,
        by_loss.mean(2).tolist(),
        _errors(by_loss).tolist(),
        float(capped[:, 0].mean()),
        m,
        reason,
    )


def _changes(found: np.ndarray, parts: list[np.ndarray], sizes: int) -> np.ndarray:
    """[seeds, plans, validation] -> [seeds, sizes, validation]: each validation instance is asked of what the other half blamed."""
    changes = np.empty((len(found), sizes, found.shape[2]))
    for half in range(2):
        other = parts[1 - half]
        removed = found[:, 1 + half * sizes :][:, :sizes]
        changes[:, :, other] = removed[:, :, other] - found[:, :1, other]
    return changes


def _guess(recipe: Recipe) -> float:
    """What it costs to know nothing: log of the number of classes; for a number, in units of its variance, four."""
    return float(np.log(max(recipe.outputs, 2))) if recipe.loss == "cross_entropy" else 4.0


def _errors(per_instance: np.ndarray) -> np.ndarray:
    """Standard errors of the mean changes, from the seeds and from which instances happen to be in the validation part: [sizes]"""
    by_seed, by_instance = per_instance.mean(2), per_instance.mean(0)
    return np.hypot(
        by_seed.std(0, ddof=1) / np.sqrt(len(by_seed)),
        by_instance.std(1, ddof=1) / np.sqrt(by_instance.shape[1]),
    )


def _chosen(sizes: list[int], by_loss: np.ndarray, by_error: np.ndarray) -> tuple[int, str]:
    """The smallest m that does about as well as the best, among those that do more than chance and do not raise the error.

    by_loss, by_error: the changes, [seeds, sizes, validation]"""
    mean, error = by_loss.mean((0, 2)), _errors(by_loss)
    trials = f"{len(by_loss)} new seeds, on validation data that had no part in the ranking"
    lower = [k for k in range(len(sizes)) if mean[k] < -_SURE * error[k]]
    if not lower:
        return (
            0,
            f"no number of removals lowered the validation loss by more than chance would ({trials})",
        )
    sure = [k for k in lower if by_error.mean((0, 2))[k] <= 0]
    if not sure:
        return (
            0,
            f"removing made the models surer of themselves, but not right more often: the validation error rose ({trials})",
        )
    best = min(sure, key=lambda k: mean[k])
    best = next(k for k in sure if mean[k] <= mean[best] + error[best])
    return sizes[best], (
        f"removing {sizes[best]} lowered the validation loss by {-mean[best]:.4f} (standard error {error[best]:.4f}), and removing more did not "
        f"lower it clearly further, over {trials}"
    )

"""How many to remove: tried on validation data that the ranking has not seen, with new seeds.

The validation part is cut in two. The instances that the first half blames are removed, new models are trained without them, and the second half
tells whether they are better; then the other way round. A ranking that only fits its own validation instances gains nothing here.
"""

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ..randomness import mixed
from .learn import Fit, Recipe, fit, losses
from .scoring import Pair, Scored, halves_of

_SHARES = (0.005, 0.01, 0.02, 0.04, 0.08, 0.15, 0.25)


@dataclass(frozen=True)
class Curve:
    """The change of the validation loss against the number removed; each line is a seed and a half."""

    sizes: list[int]
    changes: list[list[float]]  # [lines][sizes]
    kept: float  # the mean validation loss with everything kept
    m: int
    reason: str

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


def grid(count: int) -> list[int]:
    return sorted({max(1, round(share * count)) for share in _SHARES})


def curve(recipe: Recipe, data: Pair, validation: Pair, scored: Scored, *, seeds: int, seed: int, progress: bool) -> Curve:
    sizes, parts = grid(len(data[1])), halves_of(validation, seed)
    everyone = np.arange(len(data[1]))
    orders = [np.argsort(scored.by_half(half), kind="stable") for half in range(2)]
    plans = [everyone] + [np.setdiff1d(everyone, orders[half][:m]) for half in range(2) for m in sizes]
    fits = [Fit(mixed(seed, 5, k), ids, recipe.rate) for k in range(seeds) for ids in plans]
    trained = fit(recipe, *data, fits, what="trying how many to remove", progress=progress)
    found = losses(recipe, trained.outputs(validation[0]), validation[1]).double().numpy().reshape(seeds, len(plans), -1)
    lines = []
    for k in range(seeds):
        for half in range(2):
            other = parts[1 - half]
            removed = found[k, 1 + half * len(sizes) :][: len(sizes)][:, other].mean(1)
            lines.append((removed - found[k, 0, other].mean()).tolist())
    m, reason = _chosen(sizes, np.array(lines))
    return Curve(sizes, lines, float(found[:, 0].mean()), m, reason)


def _chosen(sizes: list[int], changes: np.ndarray) -> tuple[int, str]:
    """The smallest m that does about as well as the best, if that is more than noise."""
    mean, error = changes.mean(0), changes.std(0, ddof=1) / np.sqrt(len(changes))
    best = int(np.argmin(mean))
    best = next(k for k in range(len(sizes)) if mean[k] <= mean[best] + error[best])
    trials = f"{len(changes)} trials with new seeds, on validation data that had no part in the ranking"
    if mean[best] < -2 * error[best]:
        return sizes[best], (
            f"removing {sizes[best]} lowered the validation loss by {-mean[best]:.4f} (standard error {error[best]:.4f}), and removing more did not "
            f"lower it clearly further, over {trials}"
        )
    return 0, f"no number of removals lowered the validation loss by more than chance would ({trials})"

"""How long a project takes and how much disk it needs, from how long its search took."""

from dataclasses import dataclass

import numpy as np

from ..learning.train_many import MAX_SEARCHED_INSTANCES, SearchResult

# In trainings of the search, which trains its models side by side. A run and its retrace are about
# five trainings, one at a time and so at a third of the speed; about 75 more are side by side.
_TRAININGS_PER_RUN = 15
_OTHER_TRAININGS = 75


@dataclass(frozen=True)
class Cost:
    """What a project is expected to take."""

    seconds: float
    bytes: float


def estimate_cost(found: SearchResult, took: float, count: int, runs: int) -> Cost:
    """took: the seconds of the search; count: the training instances; runs: to be recorded."""
    recipe = found.recipe
    searched_epochs = len(found.curves) * sum(found.epochs)
    # an epoch of all instances is longer than one of the part that was searched
    longer = max(1.0, count / MAX_SEARCHED_INSTANCES)
    training = took * (recipe.epochs / searched_epochs) * longer
    steps = recipe.epochs * recipe.steps_per_epoch(count)
    parameters = sum(p.numel() for p in recipe.build(0).parameters())
    checkpoints = 2 * np.sqrt(steps) * 8 * parameters
    batches = 4 * steps * recipe.batch_size
    return Cost(
        training * (_TRAININGS_PER_RUN * runs + _OTHER_TRAININGS),
        runs * float(checkpoints + batches),
    )


def describe_cost(cost: Cost) -> str:
    """The cost in words: "about 40 seconds and 12 MB"."""
    if cost.seconds < 90:
        duration = f"{max(1, round(cost.seconds))} seconds"
    else:
        duration = f"{cost.seconds / 60:.0f} minutes"
    return f"about {duration} and {cost.bytes / 1e6:,.0f} MB"

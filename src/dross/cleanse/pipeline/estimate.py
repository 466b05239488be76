"""How long a project takes and how much disk it needs, from how long its first stages took."""

from dataclasses import dataclass

import numpy as np

from ..learning.train_many import SearchResult
from .job import Job

_PLANS_PER_ESTIMATE = 4.5  # seconds of comparing plans per second of examining the labels
_TRAININGS_PER_RETRACE = 4  # a run and its retrace, beside its training
_TRAININGS_PER_CHECK = 1 / 12  # counterfactual runs train side by side


@dataclass(frozen=True)
class Cost:
    """What the rest of a project is expected to take."""

    seconds: float
    bytes: float


def estimate_cost(job: Job, searched: SearchResult, examined: float) -> Cost:
    """The cost of everything after the labels were examined.

    Arguments:
        job: With the data and the options.
        searched: What the search for a recipe found, and how long it took.
        examined: The seconds that it took to examine the labels.
    """
    recipe = searched.recipe
    steps = recipe.epochs * recipe.steps_per_epoch(job.count)
    training = steps * searched.seconds_per_step
    checked = 2 * job.options.verified * _TRAININGS_PER_CHECK
    trainings = job.options.runs * (1 + _TRAININGS_PER_RETRACE) + checked
    checkpoints = 2 * np.sqrt(steps) * 8 * recipe.count_parameters()
    batches = 4 * steps * recipe.batch_size
    return Cost(
        _PLANS_PER_ESTIMATE * examined + training * trainings,
        job.options.runs * float(checkpoints + batches),
    )


def describe_cost(cost: Cost) -> str:
    """The cost in words, as a sentence."""
    if cost.seconds < 90:
        duration = f"{max(1, round(cost.seconds))} seconds"
    else:
        duration = f"{cost.seconds / 60:.0f} minutes"
    return f"Expected from here: about {duration} and {cost.bytes / 1e6:,.0f} MB."

"""What the stages of `dross clean` share, and how long the rest of them takes."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from .._text import say_bytes, say_duration
from ..tape.retention import DefaultRetention, EveryStep
from .features import NONE
from .inputs import Request
from .label_noise import MOST_LEARNED
from .modality import PreparedData
from .plans import MOST_MEASURED
from .project_info import JobInfo, Options
from .scoring import count_learned
from .training import Pair, SearchResult

Say = Callable[[str], None]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Job:
    """Everything that the stages of `dross clean` share."""

    info: JobInfo
    prepared: PreparedData
    folder: Path
    progress: bool
    say: Say
    backbone: str = NONE  # whose features are used or tried
    device: torch.device = CPU  # where models are trained; it decides nothing else

    @property
    def request(self) -> Request:
        """Which data is read."""
        return self.info.request

    @property
    def options(self) -> Options:
        """How to train and score."""
        assert self.info.options is not None
        return self.info.options

    @property
    def labels(self) -> str:
        """How the labels came about, as given or assumed: annotated or observed."""
        return self.options.labels or self.prepared.source.modality.labels

    @property
    def pair(self) -> Pair:
        """The inputs and targets of the training set."""
        return self.prepared.pair("train")

    @property
    def count(self) -> int:
        """The number of training instances."""
        return len(self.prepared.y["train"])


# Ratios of times, as measured for tables of 2,000 to 30,000 rows.
_PLANS_PER_EXAMINED = 5.5  # to compare plans, and to examine the labels of as many rows
_STEP_OF_A_RUN = 0.93  # recorded and retraced, and a step of the search, which trains four models
_CHECK_PER_TRAINING = 1.5  # counterfactual runs train side by side; 16 of them and 16 others
_SECONDS_OF_THE_REST = 1.5  # to explain, to draw and to write
_BYTES_PER_INSTANCE = 700  # of the tables about an instance: its scores, its content and its copies
_BYTES_OF_A_REPORT = 400_000
_BYTES_PER_IMAGE = 1_500  # of its thumbnail


@dataclass(frozen=True)
class Cost:
    """What everything after the labels were examined is expected to take."""

    seconds: dict[str, float]  # by stage
    size: float  # in bytes, on disk

    def __str__(self) -> str:
        duration = say_duration(sum(self.seconds.values()))
        return f"Remaining: about {duration}, and {say_bytes(self.size)} on disk."


def estimate_cost(job: Job, searched: SearchResult, examined: float, *, plans: bool) -> Cost:
    """What everything after the labels were examined is expected to take.

    Arguments:
        job: With the data and the options.
        searched: What the search for a recipe found, and how long it took.
        examined: The seconds that it took to examine the labels.
        plans: Whether plans are compared.
    """
    recipe = searched.recipe
    learned = count_learned(job.prepared, job.options.repeats)
    steps = recipe.epochs * recipe.steps_per_epoch(learned)
    training = steps * searched.seconds_per_step
    runs = job.options.repeats * training * _STEP_OF_A_RUN * searched.enlarged ** (1 / 3)
    checks = _CHECK_PER_TRAINING * training * searched.enlarged * job.options.check / 16
    measured = min(1.0, MOST_MEASURED / min(job.count, MOST_LEARNED))
    compared = _PLANS_PER_EXAMINED * measured * examined if plans else 0.0
    seconds = {"plans": compared, "runs": runs, "checks": checks, "writing": _SECONDS_OF_THE_REST}
    state = 8 * recipe.count_parameters()  # the parameters and their momentum
    retention = DefaultRetention().resolve(steps, state, 0)
    kept = steps if isinstance(retention, EveryStep) else math.sqrt(steps)
    batches = 8 * recipe.epochs * learned
    tables = _BYTES_OF_A_REPORT + _BYTES_PER_INSTANCE * job.count
    if job.prepared.root is not None:
        tables += _BYTES_PER_IMAGE * job.count
    size = job.options.repeats * (state * kept + batches) + tables
    return Cost(seconds, size)

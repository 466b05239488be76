"""What a tape says about itself: everything needed to know whether a model, a data set and a loss are the recorded ones."""

import json
import uuid

import torch

from .._version import __version__
from ..data.batch import Augment
from ..data.dataset import Instances
from ..errors import TapeMismatch
from ..step.objective import Objective
from ..step.optimizers import Optimizer
from .reader import FORMAT
from .retention import Keep


def describe(
    objective: Objective,
    optimizer: Optimizer,
    loss_name: str,
    augment: Augment | None,
    keep: Keep,
    seed: int,
    planned: int | None,
    device: torch.device,
    instances: Instances | None,
    foreign: bool,
    schedule: str | None = None,
) -> dict:
    """The manifest of a tape on which nothing has been recorded yet. foreign: by somebody else's loop. schedule: a digest of the numbers that
    the optimizer will use, where they are known beforehand."""
    layout = objective.layout
    return {
        "made_by": "dross",
        "format": FORMAT,
        "id": uuid.uuid4().hex,
        "foreign": foreign,
        "dross": __version__,
        "torch": torch.__version__,
        "device": str(device),
        "model": layout.signature(objective.model),
        "layout": layout.to_json(),
        "stochastic": objective.stochastic,
        "evaluated": list(objective.evaluated),
        "unused": list(objective.unused),
        "optimizer": optimizer.to_json(),
        "loss": loss_name,
        "penalty": objective.penalty is not None,
        "augment": augment is not None,
        "instances": None if instances is None else len(instances),
        "data": None if instances is None else instances.fingerprint(),
        "seed": seed,
        "keep": repr(keep),
        "memory": keep.memory,
        "arithmetic": objective.arithmetic,
        "planned": planned,
        "schedule": schedule,
        "steps": 0,
        "segments": [],
        "complete": False,
    }


_MAY_DIFFER = {"id", "dross", "torch", "segments", "end", "steps", "complete"}


def check_same_run(earlier: dict, now: dict) -> None:
    """A tape is only continued with the settings it was started with."""
    known = set(now) - (
        {"schedule", "arithmetic", "memory"} - set(earlier)
    )  # tapes of the first days do not have them
    for key in sorted(known - _MAY_DIFFER):
        if earlier.get(key) != now[key]:
            was, is_now = (json.dumps(value)[:200] for value in (earlier.get(key), now[key]))
            raise TapeMismatch(
                f"The tape cannot be continued with other settings: {key} was {was} and is {is_now}. Use the settings it was "
                "started with, or overwrite=True to start again."
            )

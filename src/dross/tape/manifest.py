"""What a tape says about itself: whether a model, a data set and a loss are the recorded ones."""

import json
import uuid
from dataclasses import dataclass

import torch

from .._version import __version__
from ..data.batch import Augment
from ..data.dataset import Instances
from ..engine.objective import Objective
from ..engine.optim import Optimizer
from ..errors import InputChanged
from .reader import FORMAT
from .retention import Keep


@dataclass(frozen=True)
class RunSettings:
    """What a run is recorded with."""

    objective: Objective
    optimizer: Optimizer
    loss_name: str
    augment: Augment | None
    keep: Keep
    seed: int
    planned: int | None  # steps, where their number is known beforehand
    device: torch.device
    instances: Instances | None
    foreign: bool  # recorded from the user's own training loop
    #: a digest of the numbers that the optimizer will use, where they are known beforehand
    schedule: str | None = None


def describe(run: RunSettings, earlier: dict | None = None) -> dict:
    """The manifest of a tape on which no step has been recorded yet.

    Arguments:
        run: what it is recorded with.
        earlier: the manifest of a tape to be continued; the data are digested as they were for it.
    """
    objective, instances = run.objective, run.instances
    kind = None if instances is None else instances.digest_kind
    kind = kind if earlier is None else earlier.get("data_digest")
    layout = objective.layout
    held = {"held": list(objective.held)} if objective.held else {}
    return held | {
        "made_by": "dross",
        "format": FORMAT,
        "id": uuid.uuid4().hex,
        "foreign": run.foreign,
        "dross": __version__,
        "torch": torch.__version__,
        "device": str(run.device),
        "model": layout.signature(objective.model),
        "layout": layout.to_json(),
        "stochastic": objective.stochastic,
        "evaluated": list(objective.evaluated),
        "unused": list(objective.unused),
        "optimizer": run.optimizer.to_json(),
        "loss": run.loss_name,
        "penalty": objective.penalty is not None,
        "augment": run.augment is not None,
        "instances": None if instances is None else len(instances),
        "data": None if instances is None else instances.fingerprint(kind),
        "data_digest": kind,
        "seed": run.seed,
        "keep": repr(run.keep),
        "memory": run.keep.memory,
        **objective.precision.to_json(),
        "planned": run.planned,
        "schedule": run.schedule,
        "steps": 0,
        "segments": [],
        "complete": False,
    }


_MAY_DIFFER = {"id", "format", "dross", "torch", "segments", "end", "steps", "complete"}
_MISSING_IN_OLD_TAPES = {"schedule", "arithmetic", "memory", "data_digest"}
_MISSING_IN_OLD_TAPES |= {"autocast", "inner_cast", "kernels"}


def check_same_run(earlier: dict, now: dict) -> None:
    """Refuse to continue a tape with other settings than those it was started with.

    Raises:
        InputChanged: a setting of `now` differs from the one in the manifest `earlier`.
    """
    known = set(now) - (_MISSING_IN_OLD_TAPES - set(earlier))
    elsewhere = {"device"} if earlier.get("complete") else set()  # no step is left to be taken
    for key in sorted(known - _MAY_DIFFER - elsewhere):
        if earlier.get(key) != now[key]:
            was, is_now = (json.dumps(value)[:200] for value in (earlier.get(key), now[key]))
            raise InputChanged(
                f"The tape cannot be continued with other settings: {key} was {was} and is "
                f"{is_now}. Use the settings it was started with, or overwrite=True to start again."
            )

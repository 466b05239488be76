"""What a tape says about itself: everything needed to know whether a model, a data set and a loss are the recorded ones."""

import torch

from .instances import Augment, Instances
from .keep import Keep
from .objective import Objective
from .optimizers import Optimizer
from .tape import FORMAT


def describe(
    objective: Objective, optimizer: Optimizer, loss_name: str, augment: Augment | None, keep: Keep, seed: int,
    planned: int | None, device: torch.device, instances: Instances | None,
) -> dict:  # fmt: skip
    """The manifest of a tape on which nothing has been recorded yet."""
    from . import __version__

    layout = objective.layout
    return {
        "made_by": "dross",
        "format": FORMAT,
        "dross": __version__,
        "torch": torch.__version__,
        "device": str(device),
        "model": layout.signature(objective.model),
        "layout": layout.to_json(),
        "stochastic": objective.stochastic,
        "evaluated": list(objective.evaluated),
        "optimizer": optimizer.to_json(),
        "loss": loss_name,
        "penalty": objective.penalty is not None,
        "augment": augment is not None,
        "instances": None if instances is None else len(instances),
        "data": None if instances is None else instances.fingerprint(),
        "seed": seed,
        "keep": repr(keep),
        "planned": planned,
        "steps": 0,
        "segments": [],
        "complete": False,
    }

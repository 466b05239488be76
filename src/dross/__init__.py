"""dross finds the training instances that make a model worse, and proves it by retraining.

Record (S_t, eta_t, theta_t) while a model trains, and retrace the run backwards. This estimates,
for every training instance, how any query would change if that instance had been absent. After
Hara, Nitanda, Maehara, "Data Cleansing for Models Trained with SGD", NeurIPS 2019.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._version import __version__ as __version__
from .errors import (
    BadInput,
    DataUnavailable,
    DrossError,
    DrossWarning,
    NotFinite,
    NotReplayable,
    NotSupported,
    RankLost,
    StorageFailed,
    TapeDamaged,
    TapeError,
    TapeExists,
    TapeMismatch,
    WorkerLost,
)
from .support.environment import prepare_environment

prepare_environment()  # before torch is imported

if TYPE_CHECKING:  # at run time a name is imported when it is first used: see __getattr__
    from . import estimators
    from .cleanse.export import export
    from .cleanse.judge import judge
    from .cleanse.pipeline.clean import clean
    from .cleanse.project import Project
    from .data.collated import Collated, Keywords
    from .data.dataset import indexed
    from .finetune.clean import clean_chats
    from .influence import bounds
    from .influence.counterfactual import Counterfactual
    from .influence.query import Query
    from .influence.query_makers import expected_error, losses, mean_loss, outputs, query
    from .influence.run import Run
    from .influence.scores import Scores
    from .influence.verification import Verification
    from .record.recorder import Recorder
    from .record.train import train
    from .step.clipping import ClipNorm, ClipValue
    from .step.formulas import registry as optimizers
    from .support.progress import track
    from .tape.retention import Budget, Checkpoints, EveryStep, LastEpochs

__all__ = [
    "BadInput",
    "Budget",
    "Checkpoints",
    "ClipNorm",
    "ClipValue",
    "Collated",
    "Counterfactual",
    "DataUnavailable",
    "DrossError",
    "DrossWarning",
    "EveryStep",
    "Keywords",
    "LastEpochs",
    "NotFinite",
    "NotReplayable",
    "NotSupported",
    "Project",
    "Query",
    "RankLost",
    "Recorder",
    "Run",
    "Scores",
    "StorageFailed",
    "TapeDamaged",
    "TapeError",
    "TapeExists",
    "TapeMismatch",
    "Verification",
    "WorkerLost",
    "bounds",
    "clean",
    "clean_chats",
    "estimators",
    "expected_error",
    "export",
    "indexed",
    "judge",
    "losses",
    "mean_loss",
    "optimizers",
    "outputs",
    "query",
    "track",
    "train",
]

_MODULES = {  # public names that are modules
    "bounds": "influence.bounds",
    "estimators": "estimators",
    "optimizers": "step.formulas.registry",
}
_HOMES = {  # the module of every other public name, except the errors
    "Budget": "tape.retention",
    "Checkpoints": "tape.retention",
    "ClipNorm": "step.clipping",
    "ClipValue": "step.clipping",
    "Collated": "data.collated",
    "Counterfactual": "influence.counterfactual",
    "EveryStep": "tape.retention",
    "Keywords": "data.collated",
    "LastEpochs": "tape.retention",
    "Project": "cleanse.project",
    "Query": "influence.query",
    "Recorder": "record.recorder",
    "Run": "influence.run",
    "Scores": "influence.scores",
    "Verification": "influence.verification",
    "clean": "cleanse.pipeline.clean",
    "clean_chats": "finetune.clean",
    "expected_error": "influence.query_makers",
    "export": "cleanse.export",
    "indexed": "data.dataset",
    "judge": "cleanse.judge",
    "losses": "influence.query_makers",
    "mean_loss": "influence.query_makers",
    "outputs": "influence.query_makers",
    "query": "influence.query_makers",
    "track": "support.progress",
    "train": "record.train",
}


def __getattr__(name: str) -> Any:
    """Import a public name, or a folder of dross, when it is first used.

    torch takes one to three seconds to import. `dross --help` does without it.
    """
    if name.startswith("_"):  # such as __main__, which would run the command line
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in _HOMES:
        found = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    else:
        home = f"{__name__}.{_MODULES.get(name, name)}"
        try:
            found = importlib.import_module(home)
        except ModuleNotFoundError as error:
            if error.name != home:  # dross has it, and it needs something that is not installed
                raise
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

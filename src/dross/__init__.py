"""dross finds the training instances that make a model worse, and proves it by retraining.

Record (S_t, eta_t, theta_t) while a model trains, and retrace the run backwards. This estimates,
for every training instance, how any query would change if that instance had been absent. After
Hara, Nitanda, Maehara, "Data Cleansing for Models Trained with SGD", NeurIPS 2019.
"""

import importlib
from typing import TYPE_CHECKING, Any

from ._environment import prepare_environment
from ._version import __version__ as __version__
from .errors import (
    CorruptFile,
    Diverged,
    DrossError,
    DrossWarning,
    InputChanged,
    InvalidInput,
    NotSupported,
)

prepare_environment()  # before torch is imported

if TYPE_CHECKING:  # at run time a name is imported when it is first used: see __getattr__
    from . import estimators
    from ._progress import track
    from .cleaning.export import export
    from .cleaning.judge import judge
    from .cleaning.pipeline import clean
    from .cleaning.project import Project
    from .data.dataset import Collated, ModelKwargs, indexed
    from .engine import optim_custom as optimizers
    from .finetune.clean import clean_chats
    from .influence.counterfactual import Counterfactual
    from .influence.query import Query, expected_error, losses, mean_loss, outputs, query
    from .influence.run import Run, load
    from .influence.scores import Scores
    from .influence.verify import Verification
    from .record.recorder import Recorder
    from .record.train import train
    from .tape.retention import Budget, Checkpoints, EveryStep, LastEpochs

__all__ = [
    "Budget",
    "Checkpoints",
    "Collated",
    "CorruptFile",
    "Counterfactual",
    "Diverged",
    "DrossError",
    "DrossWarning",
    "EveryStep",
    "InputChanged",
    "InvalidInput",
    "LastEpochs",
    "ModelKwargs",
    "NotSupported",
    "Project",
    "Query",
    "Recorder",
    "Run",
    "Scores",
    "Verification",
    "clean",
    "clean_chats",
    "estimators",
    "expected_error",
    "export",
    "indexed",
    "judge",
    "load",
    "losses",
    "mean_loss",
    "optimizers",
    "outputs",
    "query",
    "track",
    "train",
]

_MODULES = {  # public names that are modules
    "estimators": "estimators",
    "optimizers": "engine.optim_custom",
}
_HOMES = {  # the module of every other public name, except the errors
    "Budget": "tape.retention",
    "Checkpoints": "tape.retention",
    "Collated": "data.dataset",
    "Counterfactual": "influence.counterfactual",
    "EveryStep": "tape.retention",
    "ModelKwargs": "data.dataset",
    "LastEpochs": "tape.retention",
    "Project": "cleaning.project",
    "Query": "influence.query",
    "Recorder": "record.recorder",
    "Run": "influence.run",
    "Scores": "influence.scores",
    "Verification": "influence.verify",
    "clean": "cleaning.pipeline",
    "clean_chats": "finetune.clean",
    "expected_error": "influence.query",
    "export": "cleaning.export",
    "indexed": "data.dataset",
    "judge": "cleaning.judge",
    "load": "influence.run",
    "losses": "influence.query",
    "mean_loss": "influence.query",
    "outputs": "influence.query",
    "query": "influence.query",
    "track": "_progress",
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

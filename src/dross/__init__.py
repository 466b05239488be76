"""dross finds the training instances that make a model worse, and tests it by retraining.

Record (S_t, eta_t, theta_t) while a model trains, and retrace the run backwards. This estimates,
for every training instance, how any query would change if that instance had been absent. After
Hara, Nitanda, Maehara, "Data Cleansing for Models Trained with SGD", NeurIPS 2019.

Advanced names are in `dross.tape` (what a recording keeps), `dross.data` (what a loader yields),
`dross.optim` (your own optimizers) and `dross.estimators` (other ways to score instances).
"""

import importlib
from typing import TYPE_CHECKING, Any

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

# A public name is in three places: type checkers read the imports and accept no `__all__` that is
# computed, and `__getattr__` needs the modules. tests/test_package.py and pyright compare them.

if TYPE_CHECKING:  # at run time a name is imported when it is first used: see __getattr__
    from ._progress import on_progress
    from .cleaning.compare import compare
    from .cleaning.export import export
    from .cleaning.judge import judge
    from .cleaning.label_issues import find_label_issues
    from .cleaning.pipeline import clean
    from .cleaning.project import Project
    from .finetune.clean import clean_chats
    from .influence.query import Query, expected_error, losses, mean_loss, outputs, query
    from .influence.run import Run, load
    from .influence.scores import Scores
    from .record.recorder import Recorder
    from .record.train import train

__all__ = [
    "CorruptFile",
    "Diverged",
    "DrossError",
    "DrossWarning",
    "InputChanged",
    "InvalidInput",
    "NotSupported",
    "Project",
    "Query",
    "Recorder",
    "Run",
    "Scores",
    "clean",
    "clean_chats",
    "compare",
    "expected_error",
    "export",
    "find_label_issues",
    "judge",
    "load",
    "losses",
    "mean_loss",
    "on_progress",
    "outputs",
    "query",
    "train",
]

_HOMES = {  # the module of every public name, except the errors
    "Project": "cleaning.project",
    "Query": "influence.query",
    "Recorder": "record.recorder",
    "Run": "influence.run",
    "Scores": "influence.scores",
    "clean": "cleaning.pipeline",
    "clean_chats": "finetune.clean",
    "compare": "cleaning.compare",
    "expected_error": "influence.query",
    "export": "cleaning.export",
    "find_label_issues": "cleaning.label_issues",
    "judge": "cleaning.judge",
    "load": "influence.run",
    "losses": "influence.query",
    "mean_loss": "influence.query",
    "on_progress": "_progress",
    "outputs": "influence.query",
    "query": "influence.query",
    "train": "record.train",
}
_MODULES = ("data", "estimators", "optim", "tape")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used: torch takes one to three seconds to import."""
    if name in _HOMES:
        value = getattr(importlib.import_module(f".{_HOMES[name]}", __name__), name)
    elif name in _MODULES:
        value = importlib.import_module(f".{name}", __name__)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_MODULES})

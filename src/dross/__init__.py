"""dross finds the training instances that make a model worse, and proves it by retraining.

Record (S_t, eta_t, theta_t) while a model trains, retrace the run backwards, and get for every
training instance the estimated change of any query had that instance been absent. After Hara,
Nitanda, Maehara, "Data Cleansing for Models Trained with SGD", NeurIPS 2019.
"""

from .support.environment import prepare_environment

prepare_environment()  # before torch is imported

from . import estimators
from ._version import __version__ as __version__
from .cleanse.export import export
from .cleanse.judge import judge
from .cleanse.pipeline.clean import clean
from .cleanse.project import Project
from .data.collated import Collated, Keywords
from .data.dataset import indexed
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
from .finetune import judge as _judge_chats  # noqa: F401  (judge knows chats then)
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

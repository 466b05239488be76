"""The content of project.json: what a project was made from, and what was found."""

from dataclasses import dataclass, field
from typing import Literal

import msgspec

from .._checks import check_count, check_name
from .._io import digest_json
from ..errors import InvalidInput
from ..record.plan import check_batch_size, check_epochs
from .chats import ChatOptions
from .duplicates import CopyCounts
from .inputs import MODALITIES, Request
from .label_noise import PRIORS
from .modality import Column, Encoding, Modality
from .plans import Recommendation
from .task import TASKS
from .training import MODELS, RecipeSettings

FORMAT = 1
_MAX_RUNS = 1000
_MAX_CHECKED = 100_000
_MAX_BATCH_SIZE = 1_000_000  # a batch that is larger than the data has instances twice


@dataclass(frozen=True)
class Options:
    """How to train and score. Together with the request and the data, it decides the outcome."""

    model: str | None = None
    make: str | None = None  # module:function that builds the user's model
    repeats: int = 4
    lr: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    check: int = 16
    validation_is_clean: bool = False  # no label of the validation set is doubted
    labels: str | None = None  # annotated or observed; by default the modality decides

    def __post_init__(self):
        why = "each run trains new models and keeps them on disk"
        check_count(self.repeats, "`repeats`", at_most=_MAX_RUNS, because=why)
        why = "each one is checked by retraining without it"
        check_count(self.check, "`check`", at_least=1, at_most=_MAX_CHECKED, because=why)
        if self.epochs is not None:
            check_epochs(self.epochs)
        if self.batch_size is not None:
            check_batch_size(self.batch_size, _MAX_BATCH_SIZE)
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise InvalidInput(f"`lr` must be above 0, not {self.lr}.")
        if self.model is not None:
            check_name("model", self.model, MODELS)
        if self.labels is not None:
            check_name("kind of labels", self.labels, tuple(PRIORS))


@dataclass(frozen=True, kw_only=True)
class JobInfo:
    """What decides the results of a project: with other values, a folder is of another job."""

    made_by: Literal["dross"] = "dross"
    format: Literal[1] = FORMAT
    request: Request
    options: Options | None = None  # None for chats
    chat_options: ChatOptions | None = None  # for chats
    digest: str  # of the data as the models see them
    input_files: dict[str, str]  # digests of their whole content, used or not
    model_source: str | None = None  # digest of the module that `options.make` names
    model_digest: str | None = None  # of the model that is fine-tuned on chats

    @property
    def job(self) -> str:
        """A digest of all of it."""
        return digest_json(msgspec.to_builtins({name: getattr(self, name) for name in _OF_A_JOB}))


_OF_A_JOB = tuple(JobInfo.__dataclass_fields__)


@dataclass(frozen=True)
class NoiseInfo:
    """How many of the examined labels are wrong."""

    rows: int
    expected_wrong: float
    likely_wrong: int  # more likely than right


@dataclass(frozen=True)
class CheckedInfo:
    """The labels that a person may check, and what has come of it."""

    part: str  # validation, or train where there is no validation file
    count: int
    to_check: int
    checked: int
    wrong: int  # of those that were checked
    before: str | None  # what was recommended before the last ones were checked


@dataclass(frozen=True)
class VerificationInfo:
    """The scores that were checked by retraining."""

    ids: list[int]
    estimated: list[float]
    actual: list[float]
    tau: float
    spearman: float


@dataclass(frozen=True, kw_only=True)
class TrainingInfo:
    """How models were trained on the data, and what follows about the labels."""

    recipe: RecipeSettings
    encoding: Encoding
    scale: tuple[float, float]  # of a regression: the model is trained on (y - scale[0]) / scale[1]
    columns: list[Column]
    search: dict[float, list[float]]  # learning rate -> held-out loss for each number of epochs
    searched_epochs: list[int]
    measure_scale: float  # of the expected error that the scores are about
    labels: str  # annotated or observed
    noise: NoiseInfo
    verification: VerificationInfo
    checked_labels: CheckedInfo


@dataclass(frozen=True, kw_only=True)
class ProjectInfo(JobInfo):
    """The content of project.json."""

    dross: str  # the version that wrote it
    name: str
    kind: str  # table, images, text, custom or chats
    task: str  # classification, regression or fine-tuning
    label: str
    classes: list[str]  # in the order of the model's outputs; none for a regression
    counts: dict[str, int]  # of the instances of each part
    runs: int
    run_agreement: float | None
    notes: list[str]
    copies: CopyCounts
    recommendation: Recommendation
    training: TrainingInfo | None = None  # None for chats
    origins: list[str] = field(default_factory=list)  # of chats
    seconds: float
    made: str  # local time
    digests: dict[str, str] = field(default_factory=dict)  # of the other files

    def __post_init__(self):
        if self.kind not in MODALITIES or self.task not in TASKS:
            raise ValueError("the kind of data is unknown")
        names = {plan.name for plan in self.recommendation.plans}
        if self.recommendation.recommended not in {None, *names}:
            raise ValueError("the recommended plan is not one of the plans")
        for plan in self.recommendation.plans:
            ids = [*plan.removed.tolist(), *plan.relabeled]
            if not all(0 <= id < self.counts["train"] for id in ids):
                raise ValueError(f"the plan {plan.name} refers to instances that do not exist")
            if self.classes and not set(plan.relabeled.values()) <= set(self.classes):
                raise ValueError(f"the plan {plan.name} has labels that are not classes")

    @property
    def modality(self) -> Modality:
        """What kind of data it is about."""
        return MODALITIES[self.kind]

    @property
    def is_share(self) -> bool:
        """Whether the scores are changes of a share, which are shown in percentage points."""
        return TASKS[self.task].error_is_share

    @property
    def measure(self) -> str:
        """What the scores are changes of.

        For classes it is the mean of 1 - p(label); for chats, the same for the tokens of the
        answers. For numbers, every held-out instance counts from 0, if the prediction is exact,
        to 1, if it is far off.
        """
        return "expected held-out error" if self.is_share else "bounded held-out error"

    @property
    def checked_labels(self) -> CheckedInfo | None:
        """What people may check; None for chats."""
        return None if self.training is None else self.training.checked_labels

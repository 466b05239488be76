"""What one call of `dross clean` is about: its options, its data, and where its results go."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from .._checks import check_count, check_name
from ..errors import InvalidInput
from ..record.plan import check_batch_size, check_epochs
from .features import NONE
from .inputs import Request
from .label_noise import PRIORS
from .modality import PreparedData
from .training import MODELS, Pair

_MAX_RUNS = 1000
_MAX_CHECKED = 100_000
_MAX_BATCH_SIZE = 1_000_000  # a batch that is larger than the data has instances twice
_WHY_RUNS = "each trains new models and keeps them on the disk"
_WHY_CHECKED = "each is checked by a training without it"
CPU = torch.device("cpu")
_ASSUMED = {"images": "annotated", "text": "annotated"}  # all else is observed

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How to train and score. Together with the request and the data, it decides the outcome."""

    model: str | None = None
    make: str | None = None  # module:function that builds a model of the user's own
    repeats: int = 4
    lr: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    check: int = 16
    validation_is_clean: bool = False  # no label of the validation part is doubted
    labels: str | None = None  # annotated or observed; by default the kind of data decides

    def __post_init__(self):
        check_count(self.repeats, "repeats", at_most=_MAX_RUNS, because=_WHY_RUNS)
        check_count(self.check, "check", at_least=1, at_most=_MAX_CHECKED, because=_WHY_CHECKED)
        if self.epochs is not None:
            check_epochs(self.epochs)
        if self.batch_size is not None:
            check_batch_size(self.batch_size, _MAX_BATCH_SIZE)
        if self.lr is not None and not 0 < self.lr < float("inf"):
            raise InvalidInput(f"lr must be above 0, not {self.lr}.")
        if self.model is not None:
            check_name("model", self.model, MODELS)
        if self.labels is not None:
            check_name("labels", self.labels, tuple(PRIORS))


@dataclass(frozen=True)
class Job:
    """Everything that the stages of `dross clean` share."""

    request: Request
    options: Options
    prepared: PreparedData
    digest: str  # of the data
    input_files: dict[str, str]  # digests of all that is in them, learnt from or not
    folder: Path
    progress: bool
    say: Say
    backbone: str = NONE  # whose features are used or tried
    device: torch.device = CPU  # where models are trained; it decides nothing else

    @property
    def labels(self) -> str:
        """How the labels came about, as given or assumed: annotated or observed."""
        return self.options.labels or _ASSUMED.get(self.prepared.source.kind, "observed")

    @property
    def pair(self) -> Pair:
        """The inputs and targets of the training part."""
        return self.prepared.pair("train")

    @property
    def count(self) -> int:
        """The number of training instances."""
        return len(self.prepared.y["train"])

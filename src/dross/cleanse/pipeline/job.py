"""What one call of `dross clean` is about: its options, its data, and where its results go."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ...errors import BadInput
from ...support.name_hints import check_name
from ..inputs.load import Request
from ..inputs.prepared import PreparedData
from ..learning.recipe import MODELS

Say = Callable[[str], None]


@dataclass(frozen=True)
class Options:
    """How to train and score. Together with the request and the data, it decides the outcome."""

    model: str | None = None
    make: str | None = None  # module:function that builds a model of the user's own
    runs: int = 4
    rounds: int = 1
    rate: float | None = None
    epochs: int | None = None
    batch_size: int | None = None
    verified: int = 16

    def __post_init__(self):
        for name in ("runs", "rounds"):
            if getattr(self, name) < 1:
                raise BadInput(f"{name} must be at least 1, not {getattr(self, name)}.")
        if self.rate is not None and not 0 < self.rate < float("inf"):
            raise BadInput(f"A rate must be above 0, not {self.rate}.")
        if self.model is not None:
            check_name("model", self.model, MODELS)


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

    @property
    def count(self) -> int:
        """The number of training instances."""
        return len(self.prepared.y["train"])

"""Instances as they were read, and as inputs and targets of a model."""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas
from torch import Tensor

from ..errors import InvalidInput
from .task import CLASSIFICATION, REGRESSION, LabelTask

# typed as Any: the types of pandas are hard to satisfy
Frame = Any  # a pandas.DataFrame
Series = Any  # a pandas.Series

PARTS = ("train", "validation", "test")
MIN_INSTANCES = 40  # with fewer, no set is large enough to train or judge with


class Encoder(Protocol):
    """Turns content into numbers. It is fitted on the training set only."""

    def __call__(self, content: Frame) -> Tensor:
        """The inputs of a model, float32 [N, ...]."""
        ...


@dataclass(frozen=True)
class Modality:
    """A kind of data: what sets tables, images, texts and chats apart."""

    name: str  # as project.json has it
    labels: str = "observed"  # how labels come about where no one says: annotated or observed
    as_read: str | None = None  # the inputs without features, in words
    backbone: str | None = None  # the usual pretrained model
    has_text: bool = False  # an instance is one text, in the column `text`
    has_images: bool = False  # an instance is a file, in the column `path`
    has_tokens: bool = False  # scores are of tokens, too, and labels are not changed
    # (content, root of the files) -> a function from a place to what a pretrained model sees there
    load_item: Callable[[Frame, Path | None], Callable[[int], Any]] | None = None

    @property
    def has_columns(self) -> bool:
        """Whether an instance is a row of cells."""
        return not self.has_text and not self.has_images


@dataclass(frozen=True)
class Column:
    """What one column of a table is."""

    name: str
    kind: str  # number, category, date, text or ignore
    why: str = ""


@dataclass(frozen=True)
class RowEdits:
    """What to change in a copy of the input, by the numbers of its rows."""

    removed: set[int] = field(default_factory=set)
    relabeled: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Source:
    """N instances: what they look like, their labels, and where each comes from."""

    modality: Modality
    label: str  # the name of what is predicted
    content: Frame  # one row per instance; images by their file names
    labels: np.ndarray  # [N]: str for classes, float64 for numbers
    rows: np.ndarray  # int64 [N]: the number of each instance in the input
    row_word: str = "row"  # what such a number counts; "" where images have names
    notes: list[str] = field(default_factory=list)  # for the user: what was inferred or left out
    groups: np.ndarray | None = None  # str [N]: rows that are held out together; "" is no group
    times: np.ndarray | None = None  # float64 [N]: when each row was made
    keys: np.ndarray | None = None  # str [N]: what identifies each row in two versions of the data

    @property
    def task(self) -> LabelTask:
        """What is predicted."""
        return CLASSIFICATION if self.labels.dtype.kind in "OUT" else REGRESSION

    @property
    def classes(self) -> list[str]:
        """The names of the classes in their natural order; none for a regression."""
        return self.task.classes(self.labels)

    @property
    def names(self) -> list[str]:
        """Where each instance comes from, for people: "row 17", or a file name."""
        if not self.row_word:
            return self.content["path"].tolist()
        return [f"{self.row_word} {row}" for row in self.rows.tolist()]

    def __len__(self) -> int:
        return len(self.labels)

    def check_learnable(self) -> None:
        """Refuse a source from which nothing can be predicted, with the reason."""
        if len(self) < MIN_INSTANCES:
            raise InvalidInput(
                f"There are {len(self)} labeled instances. dross needs at least {MIN_INSTANCES}; "
                "useful results require a few hundred."
            )
        self.task.check(self.labels, self.names, self.label)

    def take(self, ids: np.ndarray) -> "Source":
        """The same source with these instances only, in this order."""
        return replace(
            self,
            content=self.content.iloc[ids],
            labels=self.labels[ids],
            rows=self.rows[ids],
            groups=None if self.groups is None else self.groups[ids],
            times=None if self.times is None else self.times[ids],
            keys=None if self.keys is None else self.keys[ids],
        )


def join_parts(sources: dict[str, Source]) -> tuple[Source, dict[str, np.ndarray]]:
    """Join training, validation and test sets that were read from separate files.

    Returns:
        One source with all instances, and the ids of each set; a set without a file has none.
    """
    whole = join_sources(list(sources.values()))
    sizes = [len(sources[part]) if part in sources else 0 for part in PARTS]
    ids = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    return whole, dict(zip(PARTS, ids, strict=True))


def join_sources(sources: Sequence[Source]) -> Source:
    """One source with the instances of several; all else is that of the first."""
    return replace(
        sources[0],
        content=pandas.concat([one.content for one in sources], ignore_index=True),
        labels=np.concatenate([one.labels for one in sources]),
        rows=np.concatenate([one.rows for one in sources]),
        groups=_join([one.groups for one in sources]),
        times=_join([one.times for one in sources]),
        keys=_join([one.keys for one in sources]),
    )


def _join(arrays: list[np.ndarray | None]) -> np.ndarray | None:
    known = [array for array in arrays if array is not None]
    return np.concatenate(known) if len(known) == len(arrays) else None


AS_READ, FEATURES, BOTH = "as read", "features", "both"


@dataclass(frozen=True)
class Encoding:
    """How instances become inputs, as a project keeps it."""

    inputs: str = AS_READ  # AS_READ, FEATURES or BOTH
    backbone: str | None = None
    digest: str | None = None  # of the features


@dataclass(frozen=True)
class PreparedData:
    """Everything that training and its reports need of a dataset."""

    source: Source
    parts: dict[str, np.ndarray]  # the ids of each part
    x: dict[str, Tensor]
    y: dict[str, Tensor]
    encoder: Encoder | None
    columns: list[Column]
    notes: list[str]
    scale: tuple[float, float]  # of a regression: the model is trained on (y - scale[0]) / scale[1]
    root: Path | None  # where images are
    encoding: Encoding = field(default_factory=Encoding)  # see `features.encode`

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x["train"].shape[1:])

    @property
    def outputs(self) -> int:
        """How many outputs a model needs."""
        return len(self.source.classes) or 1

    def pair(self, part: str) -> tuple[Tensor, Tensor]:
        """The inputs and the targets of a set."""
        return self.x[part], self.y[part]

    @property
    def checked_part(self) -> str:
        """The set whose labels a person checks: the validation set, else the training set."""
        return "validation" if len(self.parts["validation"]) else "train"

    def part(self, part: str) -> Source:
        """The instances of a set as they were read."""
        return self.source.take(self.parts[part])

    def targets(self, labels: np.ndarray) -> Tensor:
        """Labels as a model is trained on them: int64 [N], or float32 [N, 1] for a regression."""
        return self.source.task.encode(labels, self.source.classes, self.scale)


def assemble(
    source: Source,
    parts: dict[str, np.ndarray],
    x: dict[str, Tensor],
    *,
    encoder: Encoder | None = None,
    columns: list[Column] | None = None,
    notes: list[str] | None = None,
    root: Path | None = None,
) -> PreparedData:
    """Put a dataset together; the targets are scaled by the training labels."""
    uses = np.bincount(np.concatenate(list(parts.values())), minlength=len(source))
    assert len(uses) == len(source) and uses.max() <= 1, "an instance is in more than one set"
    task, classes = source.task, source.classes
    scale = task.scale(source.labels[parts["train"]])
    y = {part: task.encode(source.labels[ids], classes, scale) for part, ids in parts.items()}
    return PreparedData(source, parts, x, y, encoder, columns or [], notes or [], scale, root)


def data_digest(data: PreparedData) -> str:
    """A digest that changes whenever the rows, labels, inputs or targets change."""
    lines = [*data.source.names, *map(str, data.source.labels)]
    sha = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass"))
    for part in PARTS:
        for tensor in data.pair(part):
            sha.update(tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()

"""Instances as they were read, and as a model learns them."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import pandas
import torch
from torch import Tensor

from ..errors import InvalidInput
from .task import check_size, read_number

# source ---


# typed as Any: the types of pandas are hard to satisfy
Frame = Any  # a pandas.DataFrame
Series = Any  # a pandas.Series

PARTS = ("train", "validation", "test")
ENCODER_VERSION = 2  # a project is opened again with the one that made it
MIN_INSTANCES = 40  # with fewer, no part is large enough to learn from or to judge with
_MIN_INSTANCES_OF_A_CLASS = 5  # of a smaller class, no model can learn much


@dataclass(frozen=True)
class Column:
    """What one column of a table is."""

    name: str
    kind: str  # number, category, date, text or ignore
    why: str = ""


class Encoder(Protocol):
    """Turns content into numbers. It is fitted on the training part alone."""

    def __call__(self, content: Frame) -> torch.Tensor:
        """The inputs of a model, float32 [N, ...]."""
        ...


@dataclass(frozen=True)
class Source:
    """N instances: what they look like, their labels, and where each comes from."""

    kind: str  # table, images, text or custom
    label: str  # the name of what is learnt
    content: Frame  # one row per instance; pictures by their file names
    labels: np.ndarray  # [N]: str for classes, float64 for numbers
    names: list[str]  # where each instance comes from: "row 17", a file name
    notes: list[str] = field(default_factory=list)  # for the user: what was inferred or left out

    @property
    def task(self) -> str:
        """Either classification or regression."""
        return "classification" if self.labels.dtype.kind in "OUT" else "regression"

    @property
    def classes(self) -> list[str]:
        """The names of the classes in their natural order; none for a regression."""
        return sorted(set(self.labels), key=_natural_order) if self.task == "classification" else []

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, ids: np.ndarray) -> "Source":
        """The same source with these instances only, in this order."""
        return replace(
            self,
            content=self.content.iloc[ids],
            labels=self.labels[ids],
            names=[self.names[k] for k in ids],
        )


def _natural_order(name: str) -> tuple:
    """A sorting key that puts classes named by numbers in the order of the numbers."""
    number = read_number(name)
    return (1, 0.0, name) if number is None else (0, number, name)


def check_learnable(source: Source) -> None:
    """Refuse a source from which nothing can be learnt, and say why."""
    if len(source) < MIN_INSTANCES:
        raise InvalidInput(
            f"There are {len(source)} instances with a label. dross needs at least "
            f"{MIN_INSTANCES}; a useful verdict needs a few hundred."
        )
    if source.task == "regression":
        check_size(source.names, source.label, source.labels)
        if float(np.std(source.labels)) == 0:
            raise InvalidInput(
                f"'{source.label}' is {source.labels[0]:g} everywhere: there is nothing to learn."
            )
        return
    classes = source.classes
    if len(classes) < 2:
        raise InvalidInput(
            f"'{source.label}' is '{classes[0]}' everywhere: there is nothing to tell apart. "
            "Is it the right column?"
        )
    if len(classes) > max(20, len(source) // 4):
        raise InvalidInput(
            f"'{source.label}' has {len(classes)} different values for {len(source)} instances: "
            "too many to be classes. Is it the right column? For a number to be predicted, pass "
            f"`task` as regression."
        )


def rare_classes(source: Source) -> list[str]:
    """The classes that have too few instances for their labels to be examined."""
    if source.task != "classification":
        return []
    counts = Counter(source.labels)
    return sorted(name for name in counts if counts[name] < _MIN_INSTANCES_OF_A_CLASS)


def join_parts(sources: dict[str, Source]) -> tuple[Source, dict[str, np.ndarray]]:
    """Join parts that were read from files of their own.

    Returns:
        One source with all instances, and the ids of each part.
    """
    first = next(iter(sources.values()))
    contents = [source.content for source in sources.values()]
    names = [
        f"{part}: {name}" if part != "train" else name
        for part, source in sources.items()
        for name in source.names
    ]
    whole = replace(
        first,
        content=pandas.concat(contents, ignore_index=True),
        labels=np.concatenate([source.labels for source in sources.values()]),
        names=names,
    )
    return whole, consecutive_ids({part: len(source) for part, source in sources.items()})


def consecutive_ids(sizes: dict[str, int]) -> dict[str, np.ndarray]:
    """The ids of parts that lie one after the other."""
    ends = np.cumsum(list(sizes.values()))
    return dict(zip(sizes, np.split(np.arange(ends[-1]), ends[:-1])))


# split_dataset ---


AS_READ, FEATURES, BOTH = "as read", "features", "both"


@dataclass(frozen=True)
class Encoding:
    """How instances become inputs, as a project keeps it."""

    inputs: str = AS_READ  # AS_READ, FEATURES or BOTH
    backbone: str | None = None
    digest: str | None = None  # of the features


@dataclass(frozen=True)
class PreparedData:
    """Everything that training and its reports need to know of a data set."""

    source: Source
    parts: dict[str, np.ndarray]  # the ids of each part
    x: dict[str, Tensor]
    y: dict[str, Tensor]
    encoder: Encoder | None
    columns: list[Column]
    notes: list[str]
    scale: tuple[float, float]  # of a regression: the model learns (y - scale[0]) / scale[1]
    root: Path | None  # where pictures are
    encoding: Encoding = field(default_factory=Encoding)  # see `features.encode`

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x["train"].shape[1:])

    @property
    def outputs(self) -> int:
        """How many outputs a model needs."""
        return len(self.source.classes) if self.source.task == "classification" else 1

    def pair(self, part: str) -> tuple[Tensor, Tensor]:
        """The inputs and the targets of a part."""
        return self.x[part], self.y[part]

    @property
    def checked_part(self) -> str:
        """The part whose labels a person checks: the validation part, else the training part."""
        return "validation" if len(self.parts["validation"]) else "train"

    def part(self, part: str) -> Source:
        """The instances of a part as they were read."""
        return self.source.take(self.parts[part])

    def targets(self, labels: np.ndarray) -> Tensor:
        """Labels as the model learns them: int64 [N], or float32 [N, 1] for a regression."""
        return _encode_labels(self.source, self.scale, labels)


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
    """Put a data set together; the targets are scaled by the labels of the training part."""
    _assert_disjoint(parts, len(source))
    train = source.labels[parts["train"]]
    regression = source.task == "regression"
    if regression:
        check_size(source.names, source.label, source.labels)
    scale = (float(train.mean()), float(train.std())) if regression else (0.0, 1.0)
    if regression and not scale[1] > 0:
        raise InvalidInput(
            f"'{source.label}' is {train[0]:g} everywhere in training: there is nothing to learn."
        )
    y = {
        part: _encode_labels(source, scale, source.labels[ids], source.take(ids).names)
        for part, ids in parts.items()
    }
    return PreparedData(source, parts, x, y, encoder, columns or [], notes or [], scale, root)


def _assert_disjoint(parts: dict[str, np.ndarray], count: int) -> None:
    """Every instance is in one part at most: no verdict may rest on what was learnt."""
    uses = np.bincount(np.concatenate(list(parts.values())), minlength=count)
    assert len(uses) == count and uses.max() <= 1, "an instance is in two parts"


def _encode_labels(
    source: Source,
    scale: tuple[float, float],
    labels: np.ndarray,
    names: list[str] | None = None,
) -> Tensor:
    """Labels as the model learns them. `names` are the instances', for messages."""
    if source.task == "regression":
        scaled = (labels.astype(np.float64) - scale[0]) / scale[1]
        check_size(names or ["a new label"] * len(labels), source.label, scaled)
        return torch.from_numpy(scaled.astype(np.float32))[:, None]
    place = {name: k for k, name in enumerate(source.classes)}
    return torch.tensor([place[label] for label in labels], dtype=torch.int64)


def data_digest(data: PreparedData) -> str:
    """A digest that changes whenever the names, labels, inputs or targets change."""
    lines = [*data.source.names, *map(str, data.source.labels)]
    sha = hashlib.sha256("\n".join(lines).encode("utf-8", "surrogatepass"))
    for part in PARTS:
        for tensor in data.pair(part):
            sha.update(tensor.contiguous().numpy().tobytes())
    return sha.hexdigest()

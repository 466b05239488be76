"""A data set that is ready to be learnt: parts, tensors, and how to get back from them."""

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInput
from .columns import Column
from .numbers import check_size
from .source import PARTS, Encoder, Source


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
    encoding: dict[str, str | None] = field(default_factory=dict)  # see features/encode.py

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

"""Instances as they were read, before anything is learnt from them."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch

from ...errors import BadInput
from .frames import Frame, library

PARTS = ("train", "validation", "test")
SHARES = {"train": 0.6, "validation": 0.2, "test": 0.2}
FEWEST = 40  # instances; with fewer, no part is large enough to learn or to judge anything
_RARE = 5  # a class with fewer instances cannot be in every part


class Encoder(Protocol):
    """From content to numbers. Fitted on the training part alone."""

    def __call__(self, content: Frame) -> torch.Tensor: ...


@dataclass(frozen=True)
class Source:
    kind: str  # table, images, text or custom
    label: str  # what is learnt
    content: Frame  # what each instance looks like; pictures by their file names
    labels: np.ndarray  # str for classes, float64 for numbers
    names: list[str]  # where each instance comes from: "row 17", a file name
    notes: list[str] = field(
        default_factory=list
    )  # what was inferred or left out, for a person to read

    @property
    def task(self) -> str:
        return "classification" if self.labels.dtype.kind in "OUT" else "regression"

    @property
    def classes(self) -> list[str]:
        return sorted(set(self.labels), key=_natural) if self.task == "classification" else []

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, ids: np.ndarray) -> "Source":
        return replace(
            self,
            content=self.content.iloc[ids],
            labels=self.labels[ids],
            names=[self.names[k] for k in ids],
        )


def _natural(name: str) -> tuple:
    """Classes named by numbers in the order of the numbers."""
    try:
        return (0, float(name), name)
    except ValueError:
        return (1, 0.0, name)


def check_learnable(source: Source) -> None:
    """Refuse what nothing can be learnt from, and say what is the matter."""
    if len(source) < FEWEST:
        raise BadInput(
            f"There are {len(source)} instances with a label. dross splits them into training, validation and test parts and needs at "
            f"least {FEWEST}; a verdict worth having takes a few hundred."
        )
    if source.task == "regression":
        if float(np.std(source.labels)) == 0:
            raise BadInput(
                f"'{source.label}' is {source.labels[0]:g} everywhere: there is nothing to learn."
            )
        return
    if len(source.classes) < 2:
        raise BadInput(
            f"'{source.label}' is '{source.classes[0]}' everywhere: there is nothing to tell apart. Is it the right column?"
        )
    if len(source.classes) > max(20, len(source) // 4):
        raise BadInput(
            f"'{source.label}' has {len(source.classes)} different values for {len(source)} instances: too many to be classes. Is it the right "
            "column? For a number to be predicted, pass --task regression."
        )


def split(source: Source, seed: int, shares: dict[str, float] = SHARES) -> dict[str, np.ndarray]:
    """The ids of each part, classes in equal shares. Instances of a class too rare for that are all used for training."""
    rng = np.random.default_rng(seed)
    parts: dict[str, list[np.ndarray]] = {part: [] for part in PARTS}
    for group in _strata(source):
        group = rng.permutation(group)
        if source.task == "classification" and len(group) < _RARE:
            parts["train"].append(group)
            continue
        total = sum(shares.values())
        ends = np.cumsum(
            [round(shares[part] / total * len(group)) for part in ("validation", "test")]
        )
        for part, ids in zip(("validation", "test", "train"), np.split(group, ends)):
            parts[part].append(ids)
    return {
        part: np.sort(np.concatenate(found)) if found else np.zeros(0, dtype=np.int64)
        for part, found in parts.items()
    }


def rare_classes(source: Source) -> list[str]:
    values, counts = (
        np.unique(source.labels, return_counts=True)
        if source.task == "classification"
        else ([], [])
    )
    return [str(value) for value, count in zip(values, counts) if count < _RARE]


def _strata(source: Source) -> Sequence[np.ndarray]:
    if source.task == "classification":
        return [np.flatnonzero(source.labels == name) for name in source.classes]
    return np.array_split(np.argsort(source.labels, kind="stable"), 10)


def joined(sources: dict[str, Source]) -> tuple[Source, dict[str, np.ndarray]]:
    """Parts that came from files of their own, as one source and the ids of each part."""
    pandas = library()

    first = next(iter(sources.values()))
    ends = np.cumsum([len(source) for source in sources.values()])
    parts = dict(zip(sources, np.split(np.arange(ends[-1]), ends[:-1])))
    content = pandas.concat([source.content for source in sources.values()], ignore_index=True)
    labels = np.concatenate([source.labels for source in sources.values()])
    names = [
        f"{part}: {name}" if part != "train" else name
        for part, source in sources.items()
        for name in source.names
    ]
    return replace(first, content=content, labels=labels, names=names), parts

"""What is predicted: classes, or numbers. How their labels are read, encoded and shown."""

import re
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor

from ..errors import InvalidInput

LARGEST = float(np.finfo(np.float32).max)  # models are trained in float32
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)


def read_number(text: Any) -> float | None:
    """The number that a text is; None for anything else, such as 1_000, which Python would read."""
    return float(text) if isinstance(text, str) and _NUMBER.fullmatch(text) else None


def read_learnable(text: Any) -> float | None:
    """The number that a text is, if a model can be trained on it: finite and not too large."""
    number = read_number(text)
    return number if number is not None and abs(number) <= LARGEST else None


def parse_numbers(cells: Any) -> Any:
    """A pandas.Series of cells as numbers, infinities among them; nan for all others."""
    if cells.dtype.kind in "bM":  # pandas would count days, and take True for 1
        return pandas.Series(np.nan, index=cells.index)
    numbers: Any = pandas.to_numeric(cells, errors="coerce")
    return numbers.astype(float)


def parse_finite(cells: Any) -> Any:
    """Cells as finite numbers; nan for all others."""
    numbers = parse_numbers(cells).to_numpy()
    return pandas.Series(np.where(np.isfinite(numbers), numbers, np.nan), index=cells.index)


def check_size(names: Sequence[str], column: str, numbers: np.ndarray) -> None:
    """Refuse numbers that are infinite or too large for float32; missing ones are allowed.

    Arguments:
        names: The names of the instances they belong to.
        column: Their column.
        numbers: One for each instance.
    """
    wrong = np.flatnonzero(np.abs(numbers) > LARGEST)
    if len(wrong):
        first = int(wrong[0])
        more = f" (and {len(wrong) - 1:,} more such values)" if len(wrong) > 1 else ""
        raise InvalidInput(
            f"{names[first]}: '{column}' contains {numbers[first]:g}{more}, which is too large to "
            f"train on: the largest allowed value is {LARGEST:.2g}. Correct it, or leave it empty."
        )


_MOST_CLASSES = 1000
_MIN_INSTANCES_OF_A_CLASS = 5  # a smaller class is too small to train on


@dataclass(frozen=True)
class Task:
    """What kind of label is predicted. There are three: see `TASKS`."""

    name: str
    noun: str  # one label is a ...
    loss: str  # which models are trained with
    estimator: str  # what scikit-learn calls a model that predicts such labels
    error_is_share: bool  # whether the error is a share of wrong predictions

    def classes(self, labels: np.ndarray) -> list[str]:
        """The names of the classes in their natural order; none for other tasks."""
        return []

    def check(self, labels: np.ndarray, names: Sequence[str], column: str) -> None:
        """Refuse training labels from which nothing can be predicted, with the reason."""

    def rare(self, labels: np.ndarray) -> list[str]:
        """The classes with too few instances for their labels to be examined."""
        return []

    def read(self, text: str, classes: Sequence[str]) -> str | float | None:
        """A label that a person entered; None if it does not occur in this data."""
        return None

    def show(self, label: Any) -> str:
        """A label as people read it."""
        return str(label)

    def scale(self, train: np.ndarray) -> tuple[float, float]:
        """The mean and the deviation by which labels are standardized."""
        return 0.0, 1.0


class LabelTask(Task, ABC):
    """A task whose labels become the targets of a model."""

    @abstractmethod
    def encode(
        self, labels: np.ndarray, classes: Sequence[str], scale: tuple[float, float]
    ) -> Tensor:
        """Labels as a model is trained on them: int64 [N] of classes, float32 [N, 1] of numbers."""


class _Classification(LabelTask):
    def classes(self, labels: np.ndarray) -> list[str]:
        return sorted(set(labels), key=_natural_order)

    def check(self, labels: np.ndarray, names: Sequence[str], column: str) -> None:
        classes = self.classes(labels)
        if len(classes) < 2:
            raise InvalidInput(
                f"'{column}' is '{classes[0]}' in every row, so there is nothing to predict. Check "
                "that it is the right column."
            )
        if len(classes) > min(_MOST_CLASSES, max(20, len(labels) // 4)):
            raise InvalidInput(
                f"'{column}' has {len(classes):,} distinct values for {len(labels):,} instances: "
                "too many to be classes. Check that it is the right column. To predict a number, "
                "pass `task='regression'`."
            )

    def rare(self, labels: np.ndarray) -> list[str]:
        counts = Counter(labels)
        return sorted(name for name in counts if counts[name] < _MIN_INSTANCES_OF_A_CLASS)

    def read(self, text: str, classes: Sequence[str]) -> str | float | None:
        return text if text in classes else None

    def encode(
        self, labels: np.ndarray, classes: Sequence[str], scale: tuple[float, float]
    ) -> Tensor:
        number = {name: k for k, name in enumerate(classes)}
        return torch.tensor([number[label] for label in labels], dtype=torch.int64)


class _Regression(LabelTask):
    def check(self, labels: np.ndarray, names: Sequence[str], column: str) -> None:
        check_size(names, column, labels)
        if float(np.std(labels)) == 0:
            raise InvalidInput(
                f"'{column}' is {labels[0]:g} in every row, so there is nothing to predict. Check "
                "that it is the right column."
            )

    def read(self, text: str, classes: Sequence[str]) -> str | float | None:
        return read_learnable(text)

    def show(self, label: Any) -> str:
        return f"{label:.6g}"

    def scale(self, train: np.ndarray) -> tuple[float, float]:
        return float(train.mean()), float(train.std())

    def encode(
        self, labels: np.ndarray, classes: Sequence[str], scale: tuple[float, float]
    ) -> Tensor:
        scaled = (labels.astype(np.float64) - scale[0]) / scale[1]
        if np.abs(scaled).max(initial=0) > LARGEST:
            raise InvalidInput(
                "A label is too far outside the range of the training labels to train on."
            )
        return torch.from_numpy(scaled.astype(np.float32))[:, None]


CLASSIFICATION = _Classification(
    "classification", "class", "cross_entropy", "classifier", error_is_share=True
)
REGRESSION = _Regression("regression", "number", "squared_error", "regressor", error_is_share=False)
FINE_TUNING = Task("fine-tuning", "text", "cross_entropy", "", error_is_share=True)
TASKS: dict[str, Task] = {task.name: task for task in (CLASSIFICATION, REGRESSION, FINE_TUNING)}


def _natural_order(name: str) -> tuple:
    """A sorting key that puts classes named by numbers in the order of the numbers."""
    number = read_number(name)
    return (1, 0.0, name) if number is None else (0, number, name)

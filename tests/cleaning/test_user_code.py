"""Data that a user gives as `module:function`."""

import numpy as np
import pytest

from dross.cleaning.task import REGRESSION
from dross.cleaning.user_code import prepare_from_python
from dross.errors import InvalidInput

HERE = "tests.cleaning.test_user_code"


def parts(targets: np.ndarray) -> dict:
    x = np.random.default_rng(0).normal(size=(len(targets), 3))
    cuts = np.split(np.arange(len(targets)), [60, 80])
    return {
        name: (x[ids], targets[ids]) for name, ids in zip(("train", "validation", "test"), cuts)
    }


def two_classes() -> dict:
    return parts(np.arange(100) % 2) | {"classes": ["no", "yes"]}


def unnamed_classes() -> dict:
    return parts(10 + np.arange(100) % 2)


def too_few_names() -> dict:
    return parts(np.arange(100) % 3) | {"classes": ["no", "yes"]}


def numbers() -> dict:
    return parts(np.linspace(0, 9, 100))


def test_labels_get_the_names_of_their_classes():
    data = prepare_from_python(f"{HERE}:two_classes", "answer")
    assert data.source.classes == ["no", "yes"] and data.outputs == 2 and data.shape == (3,)
    assert data.y["train"].tolist() == [0, 1] * 30 and data.source.names[60] == "instance 0"
    assert prepare_from_python(f"{HERE}:unnamed_classes", "answer").source.classes == ["10", "11"]


def test_labels_without_a_class_are_refused():
    with pytest.raises(InvalidInput, match="returns 2 class names, but the labels run from 0 to 2"):
        prepare_from_python(f"{HERE}:too_few_names", "answer")


def test_numbers_are_scaled_by_the_training_part():
    data = prepare_from_python(f"{HERE}:numbers", "amount")
    assert data.source.task is REGRESSION and data.outputs == 1
    assert data.y["train"].shape == (60, 1) and abs(float(data.y["train"].mean())) < 1e-6
    assert float(data.y["test"].min()) > float(data.y["train"].max())

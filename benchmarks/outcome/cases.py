"""One set with some of its labels wrong, as one user has it."""

from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from . import noise, sets

TRAIN, VALIDATION, TEST = 2000, 700, 2000
CHECKED = 100
RIGHT, NOISY, PERSON, ONE_FILE = "validation right", "validation noisy", "checked", "one file"
SITUATIONS = (RIGHT, NOISY, PERSON, ONE_FILE)


@dataclass
class Case:
    """What a user has, and what only the benchmark knows: `truth`, and the labels of `test`."""

    name: str
    noise: str
    situation: str
    seed: int
    data: sets.DataSet
    train: np.ndarray  # places
    validation: np.ndarray  # empty with one file
    test: np.ndarray
    given: np.ndarray  # labels as the user has them, [N]
    unchecked: np.ndarray  # the same before a person looked at some of them, [N]
    checked: np.ndarray  # bool [N]: a person has looked at the label
    labels: str  # annotated or observed
    kept: dict = field(default_factory=dict)  # what methods share, such as cross-validated models

    @property
    def x(self) -> np.ndarray:
        """The inputs of all rows."""
        return self.data.x

    @property
    def truth(self) -> np.ndarray:
        """The right labels of all rows."""
        return self.data.y

    @property
    def is_regression(self) -> bool:
        """Whether labels are numbers."""
        return self.data.task == "regression"

    @property
    def classes(self) -> int:
        """How many there are; 0 where labels are numbers."""
        return 0 if self.is_regression else int(self.truth.max()) + 1

    @property
    def wrong(self) -> np.ndarray:
        """The places of the training rows with wrong labels."""
        return self.train[self.given[self.train] != self.truth[self.train]]


@cache
def _load(path: Path) -> sets.DataSet:
    return sets.load(path)


def situations_of(kind: str) -> tuple[str, ...]:
    """With no noise, validation labels are right, or there is no validation file."""
    return (RIGHT, ONE_FILE) if kind == noise.NONE else SITUATIONS


def make_case(path: Path, kind: str, situation: str, seed: int) -> Case:
    """The case of a set, a kind of noise, what the user has, and a seed."""
    data = _load(path)
    order = np.random.default_rng([seed, 7]).permutation(len(data.y))[: TRAIN + VALIDATION + TEST]
    train, validation = min(TRAIN, len(order) // 2), min(VALIDATION, len(order) // 6)
    parts = np.split(order, [train, train + validation])
    given = noise.wrong_labels(data, kind, seed)
    given[parts[2]] = data.y[parts[2]]
    checked = np.zeros(len(data.y), dtype=bool)
    if situation == RIGHT:
        given[parts[1]] = data.y[parts[1]]
    if situation == ONE_FILE:
        parts = [np.concatenate(parts[:2]), parts[1][:0], parts[2]]
    unchecked = given.copy()
    if situation == PERSON:
        rows = np.concatenate(parts[:2])
        chosen = np.random.default_rng([seed, 8]).choice(
            rows, min(CHECKED, len(rows)), replace=False
        )
        checked[chosen] = True
        given[chosen] = data.y[chosen]
    # data as they come get what dross assumes of them; one file of damaged labels is annotated
    labels = "observed" if data.kind == "table" else "annotated"
    if situation == ONE_FILE and kind != noise.NONE:
        labels = "annotated"
    return Case(
        name=data.name,
        noise=kind,
        situation=situation,
        seed=seed,
        data=data,
        train=parts[0],
        validation=parts[1],
        test=parts[2],
        given=given,
        unchecked=unchecked,
        checked=checked,
        labels=labels,
    )

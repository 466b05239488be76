"""Judgments of arrays, without a project."""

import numpy as np
import pandas
import torch

from dross.cleaning import judge, verdict
from dross.cleaning.edits import ChosenEdits
from dross.cleaning.estimators import find_model
from dross.cleaning.label_noise import PRIORS, LabelPosterior, NoiseModel, Rows
from dross.cleaning.modality import PreparedData, Source, assemble
from dross.cleaning.tables import TABLE
from dross.cleaning.training import Recipe
from dross.cleaning.verdict import Verdict


def flip(y: np.ndarray, share: float, classes: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels of which a share is another class, and which."""
    rng = np.random.default_rng(seed)
    bad = rng.random(len(y)) < share
    return np.where(bad, (y + rng.integers(1, classes, len(y))) % classes, y), bad


def overlapping(count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Two classes that overlap: features, labels, and the true probability of class 1."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, 6))
    p = 1 / (1 + np.exp(-(1.5 * x[:, 0] + x[:, 1])))
    return x, (rng.random(count) < p).astype(np.int64), p


def know_noise(rows: Rows, rate: float) -> LabelPosterior:
    """Uniform label noise of a known rate, in place of an estimate."""
    components = min(8, rows.x.shape[1])
    model = NoiseModel(1, rows.classes, components, PRIORS["annotated"])
    model.rate = torch.tensor(np.log(rate / (1 - rate)), dtype=torch.float64)
    model.validation = torch.tensor(20.0, dtype=torch.float64)
    none, sure = np.zeros(len(rows)), np.eye(rows.classes)[rows.y]
    return LabelPosterior(none, rows.y, none, sure, sure, model)


def prepare(x: np.ndarray, y: np.ndarray, trained: int) -> PreparedData:
    """Arrays as `dross.clean` prepares them; the rows after `trained` are the test set."""
    names = y.astype(str).astype(object) if y.dtype.kind == "i" else y
    frame = pandas.DataFrame(index=range(len(y)))
    source = Source(TABLE, "label", frame, names, np.arange(len(y)))
    ids = np.arange(len(y))
    parts = {"train": ids[:trained], "validation": ids[:0], "test": ids[trained:]}
    tensor = torch.from_numpy(x.astype(np.float32))
    return assemble(source, parts, {part: tensor[own] for part, own in parts.items()})


def judge_arrays(
    x: np.ndarray,
    y: np.ndarray,
    test: tuple[np.ndarray, np.ndarray] | None = None,
    *,
    removed=(),
    relabeled: dict[int, str] | None = None,
    rule: str | None = None,
    labels: str = "annotated",
    seeds: int = 6,
    assignments: int = 1,
    model=None,
    checked: np.ndarray | None = None,
    groups: np.ndarray | None = None,
) -> judge.Judgment:
    """A judgment of edits of the rows x, y, on a test part or in nested folds."""
    inputs, given = (x, y) if test is None else (np.r_[x, test[0]], np.r_[y, test[1]])
    data = prepare(inputs, given, len(y))
    classes = len(data.source.classes)
    loss = "cross_entropy" if classes else "squared_error"
    recipe = Recipe("linear", x.shape[1:], max(1, classes), loss, rate=0.05, epochs=15)
    return judge.judge_rows(
        data,
        Rows.of(x, y, classes, checked=checked, groups=groups),
        recipe,
        ChosenEdits(np.array(removed, dtype=np.int64), relabeled or {}, "a list", rule=rule),
        label_kind=labels,
        seeds=seeds,
        assignments=assignments,
        model=None if model is None else find_model(model, data.source.task),
    )


def reach_verdict(*arguments, **options) -> Verdict:
    """The verdict of `judge_arrays` with these arguments."""
    judgment = judge_arrays(*arguments, **options)
    return verdict.reach_verdict(judgment.measure(), judgment.setup)

"""Fit an estimator of the user's own on everything, on the edited data, and on the control's.

Where the seeds make no difference to what it learns, each seed draws a bootstrap sample of the
training part instead, the same one for all three fits: a comparison needs a spread.
"""

import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import BadInput, first_line
from ...support.progress import progress_bar
from ..inputs.prepared import PreparedData
from ..learning.edited_data import NO_EDITS, EncodedEdits
from .estimators import JudgingModel
from .seeds import SeedOfThree

_MAX_SEED = 1 << 32  # numpy's generators take no larger ones
_SAME = 1e-3  # probabilities, or deviations of the label, by which two seeds may differ by rounding
_LEAST_PROBABILITY = float(np.finfo(np.float32).eps)  # as scikit-learn's log loss takes it
_BOOTSTRAP = 11  # the stream of a seed that draws samples


@dataclass(frozen=True)
class Learnable:
    """A prepared data set as scikit-learn takes it."""

    x: np.ndarray  # float32 [N, features], of the training part
    y: Tensor  # its targets, as dross' own models learn them
    scale: tuple[float, float]  # of a regression
    outputs: int  # how many classes; 1 for a regression
    is_classification: bool

    @staticmethod
    def of(prepared: PreparedData) -> "Learnable":
        """The training part of a data set."""
        x, y = prepared.pair("train")
        is_classification = prepared.source.task == "classification"
        return Learnable(flatten(x), y, prepared.scale, prepared.outputs, is_classification)

    def targets(self, y: Tensor) -> np.ndarray:
        """The places of classes, int64 [N]; or numbers in their own units, float64 [N]."""
        if self.is_classification:
            return y.numpy()
        return y[:, 0].double().numpy() * self.scale[1] + self.scale[0]


def flatten(x: Tensor) -> np.ndarray:
    """Inputs as [N, features]."""
    return x.reshape(len(x), -1).numpy()


@dataclass(frozen=True)
class FitSeeds:
    """Fits, in any process, the three estimators of some seeds: everything, edited, control."""

    model: JudgingModel
    data: Learnable
    test: np.ndarray  # [test, features]
    edits: EncodedEdits
    resample: bool
    seeds: int
    progress: bool

    def __call__(self, piece: Sequence[SeedOfThree]) -> dict[str, Tensor]:
        """What the estimators say of the test part, [seeds, 3, test, ...]; see `predict`."""
        said = []
        what = f"seed {piece[0].number + 1} of {self.seeds}"
        with progress_bar(what, 3 * len(piece), show=self.progress, unit="fits") as advance:
            for _, seed, control in piece:
                for edits in (NO_EDITS, self.edits, control):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")  # `try_seeds` has said them once
                        rows = draw_sample(self.data, seed) if self.resample else None
                        said.append(fit_and_predict(self, edits, seed, self.test, rows))
                    advance(1)
        return {
            name: torch.stack([one[name] for one in said]).unflatten(0, (len(piece), 3))
            for name in said[0]
        }


def try_seeds(
    model: JudgingModel,
    data: Learnable,
    inputs: np.ndarray,
    seeds: tuple[int, int],
    progress: bool = False,
) -> tuple[bool, list[str]]:
    """Fit everything with two seeds, and compare what they predict.

    Returns:
        Whether they differ, and the first lines of their warnings.

    Raises:
        BadInput: it cannot be fitted.
    """
    work = FitSeeds(model, data, inputs, NO_EDITS, False, 2, False)
    said_by = []
    with (
        progress_bar(f"trying {model.name}", 2, show=progress, unit="fits") as advance,
        warnings.catch_warnings(record=True) as caught,
    ):
        warnings.simplefilter("always")
        for seed in seeds:
            said_by.append(fit_and_predict(work, NO_EDITS, seed, inputs))
            advance(1)
    first, second = said_by
    said = list(dict.fromkeys(first_line(one.message) for one in caught))  # type: ignore[arg-type]
    differ = False
    for name, value in first.items():
        one, other = value.double(), second[name].double()
        if name == "outputs" and data.is_classification:
            one, other = one.exp(), other.exp()
        differ = differ or bool((one - other).abs().max() > _SAME)
    return differ, said


def draw_sample(data: Learnable, seed: int) -> np.ndarray:
    """The ids of a bootstrap sample; every class keeps its size."""
    rng = np.random.default_rng([seed % _MAX_SEED, _BOOTSTRAP])
    everything = np.arange(len(data.x))
    groups = [everything]
    if data.is_classification:
        y = data.y.numpy()
        groups = [everything[y == place] for place in np.unique(y)]
    return np.sort(np.concatenate([rng.choice(group, len(group)) for group in groups]))


def fit_and_predict(
    work: FitSeeds,
    edits: EncodedEdits,
    seed: int,
    inputs: np.ndarray,
    rows: np.ndarray | None = None,
) -> dict[str, Tensor]:
    """Fit one estimator on the edited data, and have it predict.

    Returns:
        `predicted`, the places of classes [N], and, where it gives probabilities, `outputs`, their
        logarithms [N, classes]. For a regression only `outputs`, [N, 1], scaled like the targets.

    Raises:
        BadInput: it fails.
    """
    data, name = work.data, work.model.name
    rows = np.arange(len(data.x)) if rows is None else rows
    rows = rows[~np.isin(rows, edits.removed)]
    y = data.targets(edits.relabel(data.y))[rows]
    present = np.unique(y) if data.is_classification else None
    if present is not None:
        y = np.searchsorted(present, y)  # without gaps: some estimators insist
    step = "fit"
    try:
        with _seeded(seed):
            estimator = _prepare(work.model.estimator, seed)
            estimator.fit(data.x[rows], y)
            step = "predict"
            if present is None:
                return {"outputs": _scale(estimator.predict(inputs), data)}
            return _predict_classes(work.model, estimator, inputs, present, data.outputs)
    except BadInput:
        raise
    except Exception as error:  # somebody else's code can fail in any way
        raise BadInput(
            f"{name} fails to {step} ({type(error).__name__}: {first_line(error)}). No verdict was "
            "written, and the project is unchanged."
        ) from error


def _prepare(estimator: Any, seed: int) -> Any:
    """An unfitted copy with every `random_state`, also those of its steps, set from the seed."""
    from sklearn.base import clone

    copy: Any = clone(estimator, safe=False)
    if hasattr(copy, "get_params") and hasattr(copy, "set_params"):
        names = [name for name in copy.get_params() if name.split("__")[-1] == "random_state"]
        if names:
            copy.set_params(**dict.fromkeys(names, seed % _MAX_SEED))
    return copy


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Inside, Python's, numpy's and torch's own random numbers are those of the seed."""
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            random.seed(seed)
            np.random.seed(seed % _MAX_SEED)
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _scale(predicted: Any, data: Learnable) -> Tensor:
    numbers = np.asarray(predicted, dtype=np.float64).reshape(-1)
    _check_finite(numbers, "predict")
    return torch.from_numpy(((numbers - data.scale[0]) / data.scale[1]).astype(np.float32))[:, None]


def _predict_classes(
    model: JudgingModel, estimator: Any, inputs: np.ndarray, present: np.ndarray, count: int
) -> dict[str, Tensor]:
    """present: the classes that it has learnt; the others have the least probability there is."""
    places = np.asarray(estimator.predict(inputs)).reshape(len(inputs)).astype(np.int64)
    said = {"predicted": torch.from_numpy(present[places])}
    if not model.is_probabilistic:
        return said
    given = np.asarray(estimator.predict_proba(inputs), dtype=np.float64)
    _check_finite(given, "predict_proba")
    learnt = np.asarray(getattr(estimator, "classes_", np.arange(len(present)))).astype(np.int64)
    probabilities = np.zeros((len(inputs), count))
    probabilities[:, present[learnt]] = given
    logs = np.log(np.clip(probabilities, _LEAST_PROBABILITY, 1.0))
    said["outputs"] = torch.from_numpy(logs.astype(np.float32))
    return said


def _check_finite(numbers: np.ndarray, method: str) -> None:
    if not np.isfinite(numbers).all():
        raise ValueError(f"{method} returned numbers that are not finite")

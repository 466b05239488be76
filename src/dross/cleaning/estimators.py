"""Estimators of scikit-learn, or similar ones, to judge with.

`sklearn:NAME` and `sklearn.ensemble:NAME` are classes of scikit-learn, made with their defaults.
Any other `module:function` is code of the user that returns an estimator. The call that asks for
the verdict names it, so it may be imported; what a project names never is.
"""

import difflib
import random
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import joblib
import numpy as np
import sklearn
import torch
from sklearn.base import clone
from sklearn.utils import all_estimators
from torch import Tensor

from ..errors import InvalidInput, first_line
from .task import CLASSIFICATION, Task
from .training import ModelSpec
from .user_code import import_function, source_digest

_BOOTSTRAP = 11  # the stream of a seed that draws samples
_MAX_SEED = 1 << 32  # numpy's generators take no larger ones
_SAME = 1e-3  # probabilities, or deviations of the label, by which two seeds may differ by rounding


@dataclass(frozen=True)
class JudgingModel:
    """A model to judge with instead of the project's own, before it is fitted."""

    estimator: Any
    name: str  # for people
    entry: str  # as it was passed; empty for an object

    def describe(self) -> dict[str, str]:
        """Everything that decides how it is fitted, as JSON."""
        try:
            known = joblib.hash(self.estimator)
        except Exception:  # an object that cannot be pickled, such as a lambda in a pipeline
            known = repr(self.estimator)
        return {
            "entry": self.entry,
            "name": self.name,
            "estimator": str(known),
            "source": source_digest(self.entry) if _is_own_code(self.entry) else "",
            "sklearn": sklearn.__version__,
        }


def find_model(model: Any, task: Task) -> JudgingModel:
    """Find the estimator that a user specifies, which must be of the kind that the task needs.

    Arguments:
        model: `sklearn:NAME`, `module:function`, or an estimator.
        task: What it should predict.

    Raises:
        InvalidInput: there is none of this name, it is of another kind, or it cannot fit or predict.
    """
    entry = model if isinstance(model, str) else ""
    estimator = model
    if entry:
        if ":" not in entry:
            raise InvalidInput(
                f"`estimator` takes sklearn:NAME or module:function, but '{entry}' has no colon. "
                f"For a scikit-learn class: `estimator='sklearn:{_nearest(entry, task) or entry}'`."
            )
        estimator = import_function(entry) if _is_own_code(entry) else _find_class(entry, task)
    if isinstance(estimator, type) or (entry and callable(estimator)):
        estimator = _make(estimator, entry)
    name = _name(estimator)
    for method in ("fit", "predict"):
        if not callable(getattr(estimator, method, None)):
            raise InvalidInput(
                f"{name} has no {method} method, so it cannot be used as an estimator here. Pass "
                "one that has fit and predict, such as sklearn:HistGradientBoostingClassifier."
            )
    _check_kind(estimator, name, task)
    return JudgingModel(estimator, f"{name} ({entry})" if _is_own_code(entry) else name, entry)


def _is_own_code(entry: str) -> bool:
    """Whether it is a `module:function` that is not scikit-learn's."""
    return entry != "" and entry.partition(":")[0].partition(".")[0] != "sklearn"


def _find_class(entry: str, task: Task) -> type:
    """A class of scikit-learn by its name, in the module that is named or below it."""
    module, _, name = entry.partition(":")
    known = _list_estimators(module)
    if name not in known:
        near = _nearest(name, task, module)
        hint = f" Did you mean {module}:{near}?" if near else ""
        raise InvalidInput(f"`estimator={entry!r}`: scikit-learn has no such estimator.{hint}")
    return known[name]


def _list_estimators(module: str = "sklearn") -> dict[str, type]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about deprecated modules
        return {
            name: one
            for name, one in all_estimators()
            if f"{one.__module__}.".startswith(f"{module}.")
        }


def _nearest(name: str, task: Task, module: str = "sklearn") -> str | None:
    """The most similar known name; names that fit the task come before others."""
    near = difflib.get_close_matches(name, _list_estimators(module), n=3, cutoff=0.5)
    return next(
        iter(sorted(near, key=lambda one: not one.endswith(task.estimator.capitalize()))), None
    )


def _make(make: Any, entry: str) -> Any:
    """Call what makes the estimator; a class of scikit-learn has its defaults."""
    try:
        return make()
    except Exception as error:  # someone else's code can fail in any way
        who = f"`estimator={entry!r}`" if entry else f"The class {make.__name__}"
        needs = "it must not require arguments"
        if not isinstance(error, TypeError):
            needs = "it must not raise an error"
        raise InvalidInput(
            f"{who} could not be instantiated as an estimator ({type(error).__name__}: "
            f"{first_line(error)}); {needs}. Write a function that returns the estimator, and pass "
            f"it as `estimator='module:function'`."
        ) from error


def _name(estimator: Any) -> str:
    steps = getattr(estimator, "steps", None)
    if isinstance(steps, list) and all(isinstance(step, tuple) for step in steps):
        return " + ".join(_name(step[1]) for step in steps)
    return estimator if isinstance(estimator, str) else type(estimator).__name__


def _check_kind(estimator: Any, name: str, task: Task) -> None:
    """Refuse an estimator that is declared for another task; one that declares nothing is tried."""
    kind = _find_kind(estimator)
    if kind in (None, task.estimator):
        return
    other = f"{type(estimator).__name__.removesuffix('Classifier').removesuffix('Regressor')}"
    other += task.estimator.capitalize()
    hint = f", such as sklearn:{other}" if other in _list_estimators() else ""
    learned = "classes" if task is CLASSIFICATION else "numbers"
    article = "an" if kind[0] in "aeiou" else "a"
    raise InvalidInput(
        f"{name} is {article} {kind.replace('_', ' ')}, but the labels of this project are "
        f"{learned}. Pass a {task.estimator}{hint}."
    )


def _find_kind(estimator: Any) -> str | None:
    """The declared type of an estimator: classifier, regressor, clusterer, ..."""
    try:
        from sklearn.utils import get_tags

        kind = get_tags(estimator).estimator_type
    except Exception:  # scikit-learn before 1.6, or an estimator that only resembles its own
        kind = getattr(estimator, "_estimator_type", None)
    return kind if isinstance(kind, str) else None


# --- fits -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Estimators:
    """Fits the user's estimator.

    If the seeds make no difference to the fitted model, each seed draws a bootstrap sample of the
    rows instead, the same one for all three fits: a comparison needs a spread.
    """

    model: JudgingModel
    classes: int  # 0 where labels are numbers
    scale: tuple[float, float]
    resample: bool = False

    def predict(
        self, x: Tensor, y: Tensor, specs: Sequence[ModelSpec], queries: Tensor
    ) -> Iterator[tuple[np.ndarray | None, np.ndarray]]:
        """As `predict_with_networks`; without `predict_proba` there are no probabilities."""
        inputs = x.flatten(1).numpy()
        for spec in specs:
            rows = np.arange(len(y))
            if self.resample:
                rows = draw_sample(y.numpy() if self.classes else None, len(y), spec.seed)
            rows = np.repeat(rows, np.bincount(spec.ids, minlength=len(y))[rows])
            labels = (y if spec.labels is None else spec.labels)[rows]
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # `try_seeds` has shown them once
                yield self.fit_and_predict(
                    inputs[rows], labels, spec.seed, queries.flatten(1).numpy()
                )

    def try_seeds(
        self, x: Tensor, y: Tensor, queries: Tensor, seeds: Sequence[int]
    ) -> tuple[bool, list[str]]:
        """Fit everything with two seeds, and compare what they predict.

        Returns:
            Whether they differ, and the first lines of their warnings.

        Raises:
            InvalidInput: it cannot be fitted.
        """
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            inputs = x.flatten(1).numpy()
            questions = queries.flatten(1).numpy()
            one, other = (self.fit_and_predict(inputs, y, seed, questions) for seed in seeds)
        lines = list(dict.fromkeys(first_line(each.message) for each in caught))  # type: ignore[arg-type]
        differ = any(
            np.abs(first - second).max() > _SAME
            for first, second in zip(one, other, strict=True)
            if first is not None and second is not None
        )
        return differ, lines

    def fit_and_predict(
        self, x: np.ndarray, y: Tensor, seed: int, queries: np.ndarray
    ) -> tuple[np.ndarray | None, np.ndarray]:
        """Fit one estimator. Raises InvalidInput if it fails."""
        if self.classes:
            present, labels = np.unique(y.numpy(), return_inverse=True)  # some insist on no gaps
            if len(present) == 1 and hasattr(self.model.estimator, "predict_proba"):
                # of a rare class, edits may leave a fold none: many estimators refuse one class
                probabilities = np.zeros((len(queries), self.classes))
                probabilities[:, present[0]] = 1.0
                return probabilities, np.full(len(queries), present[0])
        else:
            present = None
            labels = y.numpy()[:, 0].astype(np.float64) * self.scale[1] + self.scale[0]
        step = "fit"
        try:
            with _seeded(seed):
                estimator = _prepare(self.model.estimator, seed)
                estimator.fit(x, labels)
                step = "predict"
                if present is None:
                    numbers = np.asarray(estimator.predict(queries), dtype=np.float64)
                    _check_finite(numbers, "predict")
                    return None, (numbers.reshape(-1) - self.scale[0]) / self.scale[1]
                return self._predict_classes(estimator, queries, present)
        except Exception as error:  # someone else's code can fail in any way
            raise InvalidInput(
                f"{self.model.name} failed to {step} ({type(error).__name__}: "
                f"{first_line(error)}). No verdict was written, and the project is unchanged."
            ) from error

    def _predict_classes(
        self, estimator: Any, queries: np.ndarray, present: np.ndarray
    ) -> tuple[np.ndarray | None, np.ndarray]:
        """present: the classes that it was fitted on; the others have probability 0."""
        places = np.asarray(estimator.predict(queries)).reshape(len(queries)).astype(np.int64)
        predicted = present[places]
        if not hasattr(estimator, "predict_proba"):
            return None, predicted
        of_learned = np.asarray(estimator.predict_proba(queries), dtype=np.float64)
        _check_finite(of_learned, "predict_proba")
        default = np.arange(len(present))
        learned = np.asarray(getattr(estimator, "classes_", default)).astype(np.int64)
        probabilities = np.zeros((len(queries), self.classes))
        probabilities[:, present[learned]] = of_learned
        return probabilities, predicted


def draw_sample(y: np.ndarray | None, count: int, seed: int) -> np.ndarray:
    """The ids of a bootstrap sample, of `count`; with classes y [count], each keeps its size."""
    rng = np.random.default_rng([seed % _MAX_SEED, _BOOTSTRAP])
    groups = [np.arange(count)] if y is None else [np.flatnonzero(y == c) for c in np.unique(y)]
    return np.sort(np.concatenate([rng.choice(group, len(group)) for group in groups]))


def _prepare(estimator: Any, seed: int) -> Any:
    """An unfitted copy with every `random_state`, also those of its steps, set from the seed."""
    copy: Any = clone(estimator, safe=False)
    if hasattr(copy, "get_params") and hasattr(copy, "set_params"):
        names = [name for name in copy.get_params() if name.split("__")[-1] == "random_state"]
        if names:
            copy.set_params(**dict.fromkeys(names, seed % _MAX_SEED))
    return copy


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """Inside, Python's, numpy's and torch's own random numbers are those of the seed."""
    of_python = random.getstate()
    of_numpy = np.random.get_state()
    try:
        with torch.random.fork_rng(devices=[]):
            random.seed(seed)
            np.random.seed(seed % _MAX_SEED)
            torch.manual_seed(seed)
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


def _check_finite(numbers: np.ndarray, method: str) -> None:
    if not np.isfinite(numbers).all():
        raise ValueError(f"{method} returned numbers that are not finite")

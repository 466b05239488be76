"""What makes `dross.clean` fast enough for tests: models of few trees, and few folds."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from dross.cleaning import label_noise, plans

_SMALLER = {"n_estimators": 12, "max_iter": 12}  # trees of a forest, and of gradient boosting
_PLAN_FOLDS = 3


@contextmanager
def quick_cleaning() -> Iterator[None]:
    """Inside, the experts of the noise model are small, and plans are compared on few folds."""
    fit, folds = label_noise.Expert.fit, plans._FOLDS

    def fit_less(self: label_noise.Expert, *rest: Any) -> label_noise.FittedModel:
        return fit(replace(self, make=lambda: _shrink(self.make())), *rest)

    setattr(label_noise.Expert, "fit", fit_less)  # noqa: B010
    plans._FOLDS = _PLAN_FOLDS
    try:
        yield
    finally:
        setattr(label_noise.Expert, "fit", fit)  # noqa: B010
        plans._FOLDS = folds


def _shrink(model: Any) -> Any:
    if "Regression" in type(model).__name__:  # the steps of a linear model are no trees
        return model
    known = set(model.get_params())
    return model.set_params(**{name: count for name, count in _SMALLER.items() if name in known})

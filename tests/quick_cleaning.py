"""What makes `dross.clean` fast enough for tests: models of few trees, and few folds."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from dross.cleaning import label_noise, plans

_SMALLER = {"n_estimators": 12, "max_iter": 12}  # trees of a forest, and of gradient boosting
_GUARD_FOLDS = 3


@contextmanager
def quick_cleaning() -> Iterator[None]:
    """Inside, the experts of the noise model are small, and the guard measures on few folds."""
    learn, folds = label_noise.FittedModel.__init__, plans._FOLDS

    def learn_less(self, make: Callable[[], Any], *rest: Any) -> None:
        learn(self, lambda: _shrink(make()), *rest)

    setattr(label_noise.FittedModel, "__init__", learn_less)  # noqa: B010
    plans._FOLDS = _GUARD_FOLDS
    try:
        yield
    finally:
        setattr(label_noise.FittedModel, "__init__", learn)  # noqa: B010
        plans._FOLDS = folds


def _shrink(model: Any) -> Any:
    if "Regression" in type(model).__name__:  # the steps of a linear model are no trees
        return model
    known = set(model.get_params())
    return model.set_params(**{name: count for name, count in _SMALLER.items() if name in known})

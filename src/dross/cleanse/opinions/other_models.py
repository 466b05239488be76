"""Models of other kinds, which find wrong labels that the network does not.

Networks, linear models, trees and counts of words make different mistakes. What several kinds doubt
together is wrong more often than what one of them doubts.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

_TREES = 100
_THREADS_PAY_FROM = 1_000  # instances: fewer are learnt sooner than threads are started
_MOST_TREES_LEARN = 10_000  # instances; of more, each tree learns a sample
_WIDEST_FOR_TREES = 4096  # features
_LARGEST_FOR_LINEAR = 2e7  # instances x features: with more it takes too long
_SPARSE = 0.9  # of zeros: features with more of them are counts of words
_SMOOTHING = 0.3  # of counts of words

Maker = Callable[[], Any]


def list_other_models(x: np.ndarray, *, classes: bool) -> dict[str, Maker]:
    """Makers of scikit-learn models that suit the features, by the name of their kind.

    Arguments:
        x: [N, features].
        classes: Whether to tell classes apart, or to predict a number.
    """
    from sklearn.ensemble import ExtraTreesClassifier, ExtraTreesRegressor
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.naive_bayes import ComplementNB

    words = _are_counts_of_words(x)
    chosen: dict[str, Maker] = {}
    if x.size <= _LARGEST_FOR_LINEAR:
        strength = 1.0 if words else 0.1
        linear = lambda: LogisticRegression(max_iter=200, C=strength)
        chosen["a linear model"] = linear if classes else Ridge
    if words and classes:
        chosen["naive Bayes"] = lambda: ComplementNB(alpha=_SMOOTHING)
    elif x.shape[1] <= _WIDEST_FOR_TREES:
        kind = ExtraTreesClassifier if classes else ExtraTreesRegressor
        many = len(x) > _MOST_TREES_LEARN
        sample = {"bootstrap": True, "max_samples": _MOST_TREES_LEARN} if many else {}
        cores = torch.get_num_threads() if len(x) >= _THREADS_PAY_FROM else 1
        chosen["trees"] = lambda: kind(_TREES, random_state=0, n_jobs=cores, **sample)
    return chosen


def _are_counts_of_words(x: np.ndarray) -> bool:
    return bool(x.min() >= 0) and float((x == 0).mean()) > _SPARSE


def flatten(x: Tensor) -> np.ndarray:
    """Inputs as these models learn them: float32 [N, features]."""
    return x.reshape(len(x), -1).float().cpu().numpy()


def fit_other_model(make: Maker, x: np.ndarray, y: np.ndarray, ids: np.ndarray) -> Any:
    """A new model that has learnt some of the instances; None where they are of one class."""
    import warnings

    from sklearn.exceptions import ConvergenceWarning

    if y.dtype.kind == "i" and len(np.unique(y[ids])) < 2:
        return None
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # nearly converged is good enough here
        model = make().fit(x[ids], y[ids])
    if getattr(model, "n_jobs", None):
        model.n_jobs = 1  # threads would sum the trees in any order, and round differently
    return model


def say_of(model: Any, x: np.ndarray, classes: int) -> np.ndarray:
    """What a fitted model says: chances [N, classes], or numbers [N, 1] where classes is 0."""
    if not classes:
        return model.predict(x)[:, None]
    chances = np.zeros((len(x), classes))
    chances[:, model.classes_] = model.predict_proba(x)
    return chances

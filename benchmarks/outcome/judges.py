"""The user's models: what an ordinary scikit-learn model gains from a cleaned copy.

Two are of kinds that dross compares plans with (linear, trees), two of kinds that it never
trains (network, bayes for classes; network, neighbors for numbers).
"""

import numpy as np

from .cases import Case

JUDGES = ("linear", "trees", "network", "bayes")
NEVER_TRAINED = ("network", "bayes")  # by the plan comparison
_LEAST = 1e-3  # probability; for everyone alike
_BINS = 15
_MANY = 4  # classes, from which on a forest is used: boosting would take minutes


def classifiers(classes: int) -> dict:
    """Four kinds of classifiers by name."""
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.naive_bayes import GaussianNB
    from sklearn.neural_network import MLPClassifier

    trees = HistGradientBoostingClassifier(random_state=0)
    if classes >= _MANY:
        trees = RandomForestClassifier(100, random_state=0)
    return {
        "linear": LogisticRegression(max_iter=300),
        "trees": trees,
        "network": MLPClassifier(hidden_layer_sizes=(64,), max_iter=40, random_state=0),
        "bayes": GaussianNB(var_smoothing=1e-2),
    }


def regressors() -> dict:
    """Four kinds of regressors by name."""
    from sklearn.ensemble import HistGradientBoostingRegressor
    from sklearn.linear_model import Ridge
    from sklearn.neighbors import KNeighborsRegressor
    from sklearn.neural_network import MLPRegressor

    return {
        "linear": Ridge(),
        "trees": HistGradientBoostingRegressor(random_state=0),
        "network": MLPRegressor(hidden_layer_sizes=(64,), max_iter=60, random_state=0),
        "neighbors": KNeighborsRegressor(15),
    }


def make(case: Case) -> dict:
    """The user's models for a case."""
    return regressors() if case.is_regression else classifiers(case.classes)


def predict(model, x: np.ndarray, classes: int) -> np.ndarray:
    """Probabilities of all classes, [n, classes]; 0 for a class that was not learned."""
    found = np.zeros((len(x), classes))
    found[:, model.classes_] = model.predict_proba(x)
    return found


def measure_classes(p: np.ndarray, y: np.ndarray) -> dict[str, float]:
    """Error, log loss and expected calibration error on correct labels."""
    p = np.clip(np.nan_to_num(p), _LEAST, None)
    p = p / p.sum(1, keepdims=True)
    right, sure = p.argmax(1) == y, p.max(1)
    place = np.minimum((sure * _BINS).astype(int), _BINS - 1)
    gaps = np.bincount(place, right - sure, _BINS)
    return {
        "error": float(1 - right.mean()),
        "log loss": float(-np.log(p[np.arange(len(y)), y]).mean()),
        "ece": float(np.abs(gaps).sum() / len(y)),
    }


def judge(case: Case, kept: np.ndarray, labels: np.ndarray, weights=None) -> dict[str, dict]:
    """{model: {measure: value}} of models that learn `labels` [N] of the rows `kept`."""
    measures = {}
    for name, model in make(case).items():
        measures[name] = judge_model(case, model, kept, labels, weights)
    return measures


def judge_model(case: Case, model, kept, labels, weights=None) -> dict[str, float]:
    """The measures of one model. weights: of the rows `kept`, where the model takes them."""
    x, y, truth = case.x[kept], labels[kept], case.truth[case.test]
    if case.is_regression:
        return _judge_regressor(case, model, x, y, truth)
    if len(np.unique(y)) < 2:
        p = np.tile(np.bincount(y, minlength=case.classes) / len(y), (len(truth), 1))
        return measure_classes(p, truth)
    options = {"sample_weight": weights} if weights is not None else {}
    fitted = model.fit(x, y, **options)
    return measure_classes(predict(fitted, case.x[case.test], case.classes), truth)


def _judge_regressor(case: Case, model, x, y, truth) -> dict[str, float]:
    """Absolute error, and the log score of a normal distribution with the cross-validated scale.

    Calibration: how far the share within the central 80 % is from 80 %.
    """
    from sklearn.base import clone
    from sklearn.model_selection import cross_val_predict

    residual = y - cross_val_predict(clone(model), x, y, cv=5)
    scale = max(float(np.sqrt((residual**2).mean())), 1e-3)
    z = np.abs(truth - model.fit(x, y).predict(case.x[case.test])) / scale
    surprise = np.minimum(0.5 * z**2, 50) + np.log(scale) + 0.5 * np.log(2 * np.pi)
    return {
        "error": float((z * scale).mean()),
        "log loss": float(surprise.mean()),
        "ece": float(abs((z < 1.2816).mean() - 0.8)),
    }

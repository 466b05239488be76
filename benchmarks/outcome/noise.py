"""Ways for labels to be wrong: about a fifth of them."""

import numpy as np

from .sets import DataSet

RATE = 0.2
NONE = "none"
OF_CLASSES = ("uniform", "pair", "instance", "weak")
OF_NUMBERS = ("swapped", "shifted")


def kinds_of(data: DataSet) -> tuple[str, ...]:
    """The kinds of noise that a set is tried with."""
    if data.purpose == "as they come":
        return (NONE,)
    if data.human:
        return (NONE, *data.human)
    return (NONE, *(OF_NUMBERS if data.task == "regression" else OF_CLASSES))


def wrong_labels(data: DataSet, kind: str, seed: int) -> np.ndarray:
    """The labels of a set with some of them wrong, as `data.y`.

    uniform   a fifth become another class at random
    pair      a fifth of each class become the next class
    instance  rate and new label depend on random projections of the features; a fifth in all
    weak      a shallow tree or a logistic regression that has learned 2 % of the rows labels all
    human     one person's label; human worse: the worst of three
    swapped   a tenth of the numbers become those of other rows
    shifted   a fifth of the rows, in one region of the features, gain about a deviation
    """
    rng = np.random.default_rng([seed, *kind.encode()])
    y, n = data.y.copy(), len(data.y)
    if kind == NONE:
        return y
    if kind in data.human:
        return data.human[kind].copy()
    if kind == "swapped":
        chosen = np.flatnonzero(rng.random(n) < RATE / 2)
        y[chosen] = rng.choice(data.y, len(chosen))
        return y
    if kind == "shifted":
        direction = _project(data.x, 1, rng)[:, 0]
        chosen = (rng.random(n) < 2 * RATE) & (direction > np.median(direction))
        y[chosen] += data.y.std() * rng.uniform(0.5, 1.5, chosen.sum())
        return y
    classes = len(np.unique(y))
    if kind == "uniform":
        chosen = np.flatnonzero(rng.random(n) < RATE)
        y[chosen] = (y[chosen] + rng.integers(1, classes, len(chosen))) % classes
    elif kind == "pair":
        chosen = np.flatnonzero(rng.random(n) < RATE)
        y[chosen] = (y[chosen] + 1) % classes
    elif kind == "instance":
        y = _by_features(data.x, y, classes, rng)
    elif kind == "weak":
        y = _by_weak_model(data.x, y, classes, rng)
    else:
        raise ValueError(f"no such noise: {kind}")
    return y


def _project(x: np.ndarray, count: int, rng: np.random.Generator) -> np.ndarray:
    """Random directions of the features, each with deviation 1."""
    found = x @ rng.standard_normal((x.shape[1], count))
    return (found - found.mean(0)) / (found.std(0) + 1e-9)


def _by_features(x, y, classes: int, rng: np.random.Generator) -> np.ndarray:
    rate = 1 / (1 + np.exp(-1.5 * _project(x, 1, rng)[:, 0] + 1.5))
    rate = np.minimum(0.6, rate * RATE / rate.mean())
    scores = 2 * _project(x, classes, rng) + rng.gumbel(size=(len(y), classes))
    scores[np.arange(len(y)), y] = -np.inf
    return np.where(rng.random(len(y)) < rate, scores.argmax(1), y)


def _by_weak_model(x, y, classes: int, rng: np.random.Generator) -> np.ndarray:
    """Labels of a model that has learned few rows: of every class at least two."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.tree import DecisionTreeClassifier

    few = rng.permutation(len(y))[: max(30, len(y) // 50)]
    two = [np.flatnonzero(y == c)[:2] for c in range(classes)]
    few = np.unique(np.concatenate([few, *two]))
    tree = rng.random() < 0.5
    model = (
        DecisionTreeClassifier(max_depth=5, random_state=0) if tree else LogisticRegression(C=0.1)
    )
    found = model.fit(x[few], y[few]).predict(x)
    wrong = np.flatnonzero(found != y)
    if len(wrong) > 0.3 * len(y):  # a weak annotator, not a useless one
        back = rng.permutation(wrong)[int(0.3 * len(y)) :]
        found[back] = y[back]
    return found

"""Ways for labels to be wrong."""

import numpy as np
from sets import DataSet

_WIDE = 50  # features; of more, as many directions are looked at
KINDS = ("none", "uniform 10", "uniform 20", "neighbour", "features", "people")


def kinds_of(data: DataSet) -> tuple[str, ...]:
    """The kinds of noise that a set is tried with."""
    if data.people is not None:
        return ("none", "people")
    if data.task == "regression":
        return ("none", "uniform 10", "uniform 20", "features")
    return KINDS[:5]


def wrong_labels(data: DataSet, kind: str, seed: int) -> np.ndarray:
    """The labels of a set with some of them wrong, as `data.y`.

    uniform 10, 20   that many percent become another class at random; a number becomes that of
                     another instance
    neighbour        a fifth of each class become the next class
    features         the harder an instance is for a linear model, the likelier it becomes what
                     that model takes it for; a fifth in all. A number gains half a spread
                     where the model predicts above the mean
    people           what one person said, instead of about twenty
    """
    rng = np.random.default_rng([seed, *kind.encode()])
    y = data.y.copy()
    if kind == "people":
        assert data.people is not None
        return data.people.copy()
    if kind == "features":
        return _by_features(data, rng)
    if kind.startswith("uniform"):
        chosen = np.flatnonzero(rng.random(len(y)) < int(kind.split()[1]) / 100)
        if data.task == "regression":
            y[chosen] = rng.choice(data.y, len(chosen))
            return y
        classes = np.unique(y)
        places = np.searchsorted(classes, y[chosen].astype(str))
        y[chosen] = classes[(places + rng.integers(1, len(classes), len(chosen))) % len(classes)]
    if kind == "neighbour":
        classes = np.unique(y)
        chosen = np.flatnonzero(rng.random(len(y)) < 0.2)
        y[chosen] = classes[(np.searchsorted(classes, y[chosen].astype(str)) + 1) % len(classes)]
    return y


def _by_features(data: DataSet, rng: np.random.Generator) -> np.ndarray:
    from judges import encode
    from sklearn.decomposition import TruncatedSVD
    from sklearn.linear_model import LogisticRegression, Ridge
    from sklearn.model_selection import cross_val_predict

    x, y = encode(data, np.arange(len(data.y))), data.y.copy()
    if x.shape[1] > _WIDE:
        x = TruncatedSVD(_WIDE, random_state=0).fit_transform(x)
    if data.task == "regression":
        predicted = cross_val_predict(Ridge(), x, y, cv=3)
        chosen = (rng.random(len(y)) < 0.4) & (predicted > np.median(predicted))
        y[chosen] += 0.5 * data.y.std()
        return y
    model = LogisticRegression(max_iter=200)
    chances = cross_val_predict(model, x, y.astype(str), cv=3, method="predict_proba")
    classes = np.unique(y.astype(str))
    rows, places = np.arange(len(y)), np.searchsorted(classes, y.astype(str))
    own = chances[rows, places]
    chances[rows, places] = -1
    other = chances.argmax(1)
    odds = np.clip(chances[rows, other], 1e-3, None) / np.clip(own, 1e-3, None)
    odds = np.sqrt(odds) + 0.1  # the easy ones may be wrong as well
    share = np.minimum(1, odds * 0.2 / odds.mean())
    for _ in range(20):  # the cut at 0.9 takes some away: until a fifth are expected
        share = np.minimum(0.9, share * 0.2 / share.mean())
    flipped = rng.random(len(y)) < share
    y[flipped] = classes[other[flipped]].astype(object)
    return y

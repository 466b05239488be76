"""Other ways to find wrong labels, as strong as they can be had; what they find is removed.

confident learning   `find_label_issues` of cleanlab 2.9 with its defaults ("prune by noise rate"),
                     with five-fold cross-validated probabilities. Written out here, so that nothing
                     needs to be installed; `python rivals.py` checks that cleanlab gives the same
CleanLearning        cleanlab's class around each of the user's models, with its sample weights
Datalab              cleanlab's audit of features: out-of-sample 10 nearest neighbors
AUM                  area under the margin (Pleiss et al. 2020): mean margin over the epochs of a
                     network, below the 99th percentile of rows that were given a fake class
Data-OOB             out-of-bag accuracy in bagging (Kwon and Zou 2023), the lower of two clusters
"""

import sys

import numpy as np
from sklearn.model_selection import KFold, StratifiedKFold

from . import judges
from .cases import Case

_FOLDS = 5
_TINY = 1e-6
_OVERSHOOT = 3  # robust deviations


# --- cross-validated probabilities ----------------------------------------------------------------


def _models(case: Case) -> dict:
    """Unfitted models of all kinds that rivals use."""
    from sklearn.ensemble import ExtraTreesClassifier
    from sklearn.neighbors import KNeighborsClassifier

    found = judges.classifiers(case.classes)
    found["extra trees"] = ExtraTreesClassifier(100, random_state=0)
    found["neighbors"] = KNeighborsClassifier(15)
    return found


ENSEMBLE = ("linear", "trees", "extra trees", "neighbors")


def cross_validate(case: Case, name: str, with_validation: bool = False) -> np.ndarray:
    """Out-of-fold probabilities of the training rows, [n, classes]; kept with the case."""
    key = (name, with_validation)
    if key not in case.kept:
        x, y = case.x[case.train], case.given[case.train]
        more = case.validation if with_validation else case.train[:0]
        found = np.zeros((len(y), case.classes))
        folds = StratifiedKFold(_FOLDS, shuffle=True, random_state=case.seed)
        for learned, asked in folds.split(x, y):
            model = _models(case)[name]
            rows = np.concatenate([case.train[learned], more])
            model.fit(case.x[rows], case.given[rows])
            found[asked] = judges.predict(model, x[asked], case.classes)
        case.kept[key] = found
    return case.kept[key]


def _issues(case: Case, p: np.ndarray) -> np.ndarray:
    return case.train[find_label_issues(case.given[case.train], p)]


def confident_linear(case: Case) -> np.ndarray:
    """Confident learning with a logistic regression."""
    return _issues(case, cross_validate(case, "linear"))


def confident_trees(case: Case) -> np.ndarray:
    """Confident learning with gradient boosting, from 4 classes on a random forest."""
    return _issues(case, cross_validate(case, "trees"))


def confident_ensemble(case: Case) -> np.ndarray:
    """Confident learning with the mean of four kinds of models."""
    return _issues(case, np.mean([cross_validate(case, name) for name in ENSEMBLE], axis=0))


def confident_with_validation(case: Case) -> np.ndarray:
    """The same, by models that learn the validation rows as well."""
    p = [cross_validate(case, name, with_validation=True) for name in ENSEMBLE]
    return _issues(case, np.mean(p, axis=0))


def datalab(case: Case) -> np.ndarray:
    """Datalab's label issues from features."""
    from sklearn.neighbors import KNeighborsClassifier

    k, x, y = 10, case.x[case.train], case.given[case.train]
    model = KNeighborsClassifier(k + 1).fit(x, y)
    own = np.eye(case.classes)[y]
    p = (judges.predict(model, x, case.classes) - own / (k + 1)) * (k + 1) / k
    return _issues(case, np.clip(p, 0, 1))


def clean_learning(case: Case, name: str) -> tuple[np.ndarray, np.ndarray]:
    """What CleanLearning removes for one of the user's models, and the weight of each class."""
    p, y = cross_validate(case, name), case.given[case.train]
    joint = confident_joint(y, p)
    kept = np.diagonal(joint) / np.maximum(joint.sum(0), 1)
    return _issues(case, p), 1 / np.maximum(kept, 1e-3)


# --- cleanlab 2.9, written out --------------------------------------------------------------------


def _round_rows(table: np.ndarray) -> np.ndarray:
    """Integers that keep the sum of each row."""
    found = table.round()
    for row, whole in zip(table, found, strict=True):
        total = row.sum().round()
        while abs(whole.sum() - total) > _TINY:
            missing = np.round(total - whole.sum())
            step = -1 if missing < 0 else 1
            order = np.argsort(row - whole)[::-step]
            whole[order[: min(int(abs(missing)), len(row))]] += step
    return found.astype(int)


def confident_joint(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Counts of given label x likely class, calibrated to the counts of the given labels."""
    classes = p.shape[1]
    usual = np.array([p[y == k, k].mean() if (y == k).any() else 2.0 for k in range(classes)])
    above = p >= np.maximum(usual, 2 * _TINY) - _TINY
    likely = np.where(above.sum(1) > 1, p.argmax(1), above.argmax(1))
    sure = above.any(1)
    joint = np.zeros((classes, classes))
    np.add.at(joint, (y[sure], likely[sure]), 1)
    np.fill_diagonal(joint, joint.diagonal().clip(min=1))
    counts = np.bincount(y, minlength=classes)
    joint = (joint.T / np.clip(joint.sum(1), 1e-100, None) * counts).T
    return _round_rows(joint / joint.sum() * counts.sum())


def find_label_issues(y: np.ndarray, p: np.ndarray) -> np.ndarray:
    """Whether each label is an issue, bool [n]: `cleanlab.filter.find_label_issues(y, p)`."""
    counts = confident_joint(y, p).T.astype(float)  # likely class x given label
    classes = len(counts)
    enough = np.maximum(np.diagonal(counts), 1)
    raised = enough - np.diagonal(counts)
    others = np.maximum(np.count_nonzero(counts, axis=0) - 1.0, 1.0)
    counts = np.maximum(counts - raised / others, 0)
    np.fill_diagonal(counts, enough)
    counts = _round_rows(counts.astype(int).astype(float))
    issues = np.zeros(len(y), dtype=bool)
    for k in range(classes):
        rows = np.flatnonzero(y == k)
        if len(rows) <= 1:
            continue
        for j in range(classes):
            if j != k and counts[j, k] > 0:
                order = np.argsort(-(p[rows, j] - p[rows, k]))
                issues[rows[order[: counts[j, k]]]] = True
    near = p.copy()
    near[np.arange(len(y)), y] += _TINY
    return issues & (near.argmax(1) != y)


# --- margins and out-of-bag accuracy --------------------------------------------------------------


def area_under_margin(case: Case) -> np.ndarray:
    """Two passes, so that rows that got the fake class in the first are examined in the second."""
    y, n, classes = case.given[case.train], len(case.train), case.classes
    rng = np.random.default_rng(case.seed)
    order, count = rng.permutation(n), n // (classes + 1)
    found = np.zeros(n, dtype=bool)
    for number in range(2):
        fake = np.zeros(n, dtype=bool)
        fake[order[number * count : (number + 1) * count]] = True
        margins = _margins(case, np.where(fake, classes, y))
        below = ~fake & (margins < np.quantile(margins[fake], 0.99))
        examined = order[:count] if number else np.flatnonzero(~fake)
        found[examined] = below[examined]
    return case.train[found]


def _margins(case: Case, y: np.ndarray, epochs: int = 10) -> np.ndarray:
    """The mean over epochs of logit(label) - the largest other, of a small network."""
    import torch

    torch.manual_seed(case.seed)
    x, labels = torch.from_numpy(case.x[case.train]).float(), torch.from_numpy(y)
    x = (x - x.mean(0)) / (x.std(0) + 1e-6)
    hidden, out = 64, case.classes + 1
    model = torch.nn.Sequential(
        torch.nn.Linear(x.shape[1], hidden),
        torch.nn.ReLU(),
        torch.nn.Linear(hidden, out),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)
    own = torch.nn.functional.one_hot(labels, out).bool()
    total = torch.zeros(len(y))
    for _ in range(epochs):
        for batch in torch.randperm(len(y)).split(64):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(x[batch]), labels[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            logits = model(x)
            total += logits[own] - logits.masked_fill(own, -torch.inf).max(1).values
    return (total / epochs).numpy()


def data_oob(case: Case) -> np.ndarray:
    """Out-of-bag accuracy (of numbers: minus the squared error) over 300 bagged trees."""
    from sklearn.cluster import KMeans
    from sklearn.ensemble import BaggingClassifier, BaggingRegressor
    from sklearn.tree import DecisionTreeClassifier, DecisionTreeRegressor

    x, y = case.x[case.train], case.given[case.train]
    if case.is_regression:
        bag = BaggingRegressor(DecisionTreeRegressor(max_features="sqrt"), 300, random_state=0)
    else:
        bag = BaggingClassifier(DecisionTreeClassifier(max_features="sqrt"), 300, random_state=0)
    bag.fit(x, y)
    names = np.unique(y)  # of the classes, which the trees know by their places
    total, times = np.zeros(len(y)), np.zeros(len(y))
    for tree, rows in zip(bag.estimators_, bag.estimators_samples_, strict=True):
        out = np.ones(len(y), dtype=bool)
        out[rows] = False
        predicted = tree.predict(x[out])
        if case.is_regression:
            total[out] -= (predicted - y[out]) ** 2
        else:
            total[out] += names[predicted.astype(int)] == y[out]
        times[out] += 1
    value = total / np.maximum(times, 1)
    clusters = KMeans(n_clusters=2, random_state=0).fit(value[:, None])
    return case.train[clusters.labels_ == clusters.cluster_centers_[:, 0].argmin()]


# --- numbers --------------------------------------------------------------------------------------


def large_residuals(case: Case) -> np.ndarray:
    """Cross-validated residuals of gradient boosting beyond three robust deviations."""
    x, y = case.x[case.train], case.given[case.train]
    found = np.zeros(len(y))
    for learned, asked in KFold(_FOLDS, shuffle=True, random_state=case.seed).split(x):
        model = judges.regressors()["trees"].fit(x[learned], y[learned])
        found[asked] = y[asked] - model.predict(x[asked])
    scale = 1.4826 * np.median(np.abs(found - np.median(found)))
    return case.train[np.abs(found) > _OVERSHOOT * scale]


def clean_learning_of_numbers(case: Case) -> np.ndarray | None:
    """cleanlab's CleanLearning for regression with gradient boosting, where it is installed."""
    try:
        from cleanlab.regression.learn import CleanLearning  # pyright: ignore
    except ImportError:
        return None
    found = CleanLearning(judges.regressors()["trees"], seed=case.seed)
    issues = found.find_label_issues(case.x[case.train], case.given[case.train])
    return case.train[np.flatnonzero(issues["is_label_issue"])]


def main() -> None:
    """Check against cleanlab on made-up probabilities."""
    from cleanlab.filter import find_label_issues as published  # pyright: ignore

    rng = np.random.default_rng(0)
    for number in range(300):
        classes, n = int(rng.integers(2, 30)), int(rng.integers(100, 1500))
        p = rng.dirichlet(np.full(classes, rng.uniform(0.05, 2)), n)
        y = np.array([rng.choice(classes, p=row) for row in p])
        y = np.where(rng.random(n) < 0.2, rng.integers(0, classes, n), y)
        y[:classes] = np.arange(classes)
        if number % 3 == 0:
            p = np.round(p * 10) / 10  # ties, as neighbors have them
        if not (published(y, p, n_jobs=1) == find_label_issues(y, p)).all():
            sys.exit(f"cleanlab differs: {classes} classes, {n} rows")
    print("300 draws: the same issues as cleanlab")


if __name__ == "__main__":
    main()

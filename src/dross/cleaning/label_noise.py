"""Which labels are wrong, and what they should be: one likelihood for the labels of all rows.

Experts are models of several kinds. Their predictions for a row come from models that were not
trained on it (out-of-fold).

Classes. Three things stand between the predictions p_m,i of expert m and the label y_i:

    clean class    q_i(t)  proportional to  prod over m of p_m,i(t)^a_m
    flip rate      r_i(t) = sigmoid(s + b_t + w . z_i)
    label          P(y | t) = 1 - r_i(t) if y == t, else r_i(t) C[t, y]

The exponents a_m stack and calibrate the experts. z_i are the first principal components of the
features: labels can be wrong more often in some regions than in others. C gives the classes as
which each class is mislabeled. Labels of a validation file flip rho times as often, with rho
between 0 and 1. Everything is fitted by maximizing

    sum over i of  log sum over t of  q_i(t) P(y_i | t)

with weak priors. Of a row that a person has checked, the true class t is known and so is the label
y that it had before: its term is log q_i(t) P(y | t), and its label is never wrong. Bayes' rule
gives the posterior of every other row's true class.

Numbers. f_i is the average of the experts' predictions with weights that are fitted, and u_i the
error that is usual for rows like this one, plus the standard deviation of the experts' predictions:

    good label     (y_i - f_i) / (c u_i)  follows Student's distribution
    wrong label    with probability r_i = sigmoid(s + w . z_i), y_i is any number: half of the time
                   it is drawn as labels are drawn, else evenly from their range

In a second round the experts are not trained on what is likely wrong.

Overlap and noise are distinguished by where the surprises are: overlap surprises where the experts
hesitate, wrong labels surprise even where they are sure. Where experts are never sure, the labels
cannot distinguish the two, and the prior decides: see `LabelPrior`, and docs/derivations.md.
"""

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import numpy as np
import torch
from scipy.stats import norm, t
from sklearn import ensemble
from sklearn.decomposition import TruncatedSVD
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from threadpoolctl import ThreadpoolController
from torch import Tensor

from ..data.seeds import mix_seeds

LIKELY = 0.5  # a label is likely wrong if its probability of being wrong is higher

_SURELY = 0.9
_FOLDS = 4
_ROUNDS = 2
EXAMINED_FOLDS = _ROUNDS * _FOLDS  # in which `estimate_label_noise` trains the experts by default
_COMPONENTS = 8
_LEAST_PROBABILITY = 1e-6
_SMOOTHING = 1e-3  # the share of a uniform distribution in what experts predict for classes
MOST_LEARNED = 12_000  # rows that experts are trained on; of more, a sample
_MOST_CELLS = 2_000_000  # rows x classes that experts are trained on; of more, a sample
_CHUNK = 50_000  # rows whose posterior is computed at once
_MOST_PAIRED = 50  # classes; with more, every wrong class counts as equally likely
_FEWEST_ANCHORS = 40  # validation and checked rows, for experts trained only on them
_FEWEST_KEPT = 5  # rows of each class that the second round must leave
_TRUSTED = 0.4  # with a smaller rho, validation rows count several times in the second round
_TRUSTED_WEIGHT = 3
_STEPS = 60  # of L-BFGS
_FREEDOMS = (2.0, 3.0, 5.0, 10.0, 30.0)  # degrees of freedom, of which the likeliest is taken
_THREADS = 2


@dataclass(frozen=True)
class Rows:
    """Labeled rows, as training data of the experts."""

    x: np.ndarray  # float32 [N, features]
    y: np.ndarray  # int64 [N]; float64 [N] where labels are numbers
    classes: int  # 0 where labels are numbers
    groups: np.ndarray  # int64 [N]: duplicates share a group, and so a fold
    validation: np.ndarray  # bool [N]: rows of a validation file
    checked: np.ndarray  # bool [N]: a person has confirmed or corrected the label
    given: np.ndarray | None = None  # [N]: labels before a person corrected them, where known

    def __len__(self) -> int:
        return len(self.y)

    def take(self, ids: np.ndarray) -> "Rows":
        """Some of the rows."""
        return Rows(
            x=self.x[ids],
            y=self.y[ids],
            classes=self.classes,
            groups=self.groups[ids],
            validation=self.validation[ids],
            checked=self.checked[ids],
            given=None if self.given is None else self.given[ids],
        )

    @property
    def anchors(self) -> np.ndarray:
        """Rows whose labels are right at least as often as those of the others, bool [N]."""
        return self.validation | self.checked

    @staticmethod
    def of(
        x: np.ndarray,
        y: np.ndarray,
        classes: int,
        *,
        groups: np.ndarray | None = None,
        validation: np.ndarray | None = None,
        checked: np.ndarray | None = None,
        given: np.ndarray | None = None,
    ) -> "Rows":
        """Rows; by default every row is its own group, and none is validated or checked."""
        none = np.zeros(len(y), dtype=bool)
        return Rows(
            x=np.ascontiguousarray(x, dtype=np.float32),
            y=np.asarray(y, dtype=np.int64 if classes else np.float64),
            classes=classes,
            groups=np.arange(len(y)) if groups is None else groups,
            validation=none if validation is None else validation,
            checked=none if checked is None else checked,
            given=given,
        )


@dataclass(frozen=True)
class LabelPrior:
    """What is known about labels before any is seen.

    Annotated labels can be wrong and hardly overlap: someone judged each row, and careful people
    would nearly always agree. Observed labels overlap and are seldom wrong: they are what happened.
    """

    flip_log_odds: float
    flip_weight: float
    # the sum of the experts' exponents a_m: with 1 they are as sure together as on average
    exponents: float = 1.3
    overlap: float = 0.0  # how much less likely a row is for each nat of entropy of its clean class


PRIORS = {
    "annotated": LabelPrior(-2.2, 0.05, overlap=0.2),
    "observed": LabelPrior(-2.2, 0.05),
}


# --- folds ----------------------------------------------------------------------------------------


def assign_folds(rows: Rows, count: int, seed: int) -> np.ndarray:
    """The fold of each row, int64 [N]: groups stay together, and labels are spread evenly."""
    rng = np.random.default_rng(seed)
    _, first, group = np.unique(rows.groups, return_index=True, return_inverse=True)
    label = rows.y[first]
    if not rows.classes:
        label = np.argsort(np.argsort(label, kind="stable")) // max(1, count)
    stratum = 2 * label + rows.validation[first]
    order = np.lexsort((rng.random(len(first)), stratum))
    fold = np.empty(len(first), dtype=np.int64)
    fold[order] = (np.arange(len(first)) + rng.integers(count)) % count
    return fold[group]


# --- experts --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Expert:
    """A kind of model that examines labels.

    Attributes:
        make: returns a new estimator, with the methods of scikit-learn.
        smoothing: the share of a uniform distribution in what it predicts for classes.
        measures_plans: whether models of this kind also measure what plans do.
        on_anchors: whether a model of this kind is also trained on validation and checked rows
            alone, where there are enough: it counts as one more expert.
        smoothing_on_anchors: the smoothing of that one.
    """

    make: Callable[[], Any]
    smoothing: float = _SMOOTHING
    measures_plans: bool = False
    on_anchors: bool = False
    smoothing_on_anchors: float = 0.05

    def fit(self, x: np.ndarray, y: np.ndarray, classes: int) -> "FittedModel":
        """Train a model of this kind; classes: how many, 0 where labels are numbers."""
        if not len(y):
            return FittedModel(classes, constant=np.full(classes, 1 / classes) if classes else 0.0)
        if (y == y[0]).all():
            return FittedModel(classes, constant=np.eye(classes)[y[0]] if classes else float(y[0]))
        model = self.make()
        center, scale = 0.0, 1.0
        if not classes:  # the scale of the labels must not matter to penalties and tolerances
            center = float(y.mean())
            scale = float(y.std())
            y = (y - center) / scale
        if hasattr(model, "n_neighbors"):
            model.n_neighbors = min(model.n_neighbors, len(y))
        with _quiet():
            model.fit(x, y)
        return FittedModel(classes, model, center=center, scale=scale)


def list_experts(x: np.ndarray, classes: int) -> list[Expert]:
    """The experts that suit the features."""
    if not classes:
        return [
            Expert(
                lambda: Ridge(1.0), measures_plans=True, on_anchors=True, smoothing_on_anchors=0.02
            ),
            Expert(  # different features at each split: as in classification, trees that differ
                lambda: ensemble.ExtraTreesRegressor(
                    60, max_features=0.3, random_state=0, n_jobs=_THREADS
                ),
                on_anchors=True,
            ),
            Expert(lambda: make_boosting(0), measures_plans=True),
            Expert(lambda: KNeighborsRegressor(15)),
        ]
    many = classes > _MOST_PAIRED  # then every leaf of every tree is a long row of numbers
    steps = 30 if many else 200
    forest = {
        "n_estimators": 12 if many else 60,
        "max_leaf_nodes": 256 if many else None,
        "n_jobs": _THREADS,
    }
    if classes > 3 or x.shape[1] > 200:
        strong = lambda: ensemble.RandomForestClassifier(
            **forest, min_samples_leaf=2, random_state=1
        )
    else:
        strong = lambda: make_boosting(classes)
    return [
        Expert(
            lambda: LogisticRegression(max_iter=steps),
            measures_plans=True,
            on_anchors=True,
            smoothing_on_anchors=0.02,
        ),
        Expert(
            lambda: ensemble.ExtraTreesClassifier(**forest, random_state=0),
            smoothing=0.02,
            on_anchors=True,
        ),
        Expert(strong, smoothing=0.02, measures_plans=True),
        Expert(lambda: KNeighborsClassifier(15), smoothing=0.06),
    ]


def make_boosting(classes: int) -> Any:
    """Gradient boosting that is trained in a tenth of a second."""
    make = (
        ensemble.HistGradientBoostingClassifier
        if classes
        else ensemble.HistGradientBoostingRegressor
    )
    return make(max_iter=40, learning_rate=0.15, max_leaf_nodes=15, max_bins=63, random_state=0)


_thread_pools = cache(ThreadpoolController)  # finding the libraries takes longer than a small fit


@contextmanager
def _quiet() -> Iterator[None]:
    """Inside, models that have nearly converged do not warn, and small products start no threads.

    OpenMP's threads wait in a busy loop: on a machine that does something else as well, boosting
    of a tenth of a second would take ten times as long. Forests have their own threads.
    """
    with warnings.catch_warnings(), _thread_pools().limit(limits=1):
        warnings.simplefilter("ignore")
        yield


@contextmanager
def _one_thread() -> Iterator[None]:
    """Inside, torch starts no threads: for small tensors they cost more than they save."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@dataclass(frozen=True)
class FittedModel:
    """What `Expert.fit` returns: a trained model, or a constant if nothing could be fitted."""

    classes: int  # 0 where labels are numbers
    model: Any = None
    constant: np.ndarray | float | None = None  # predicted for every row; None: the model predicts
    center: float = 0.0  # of the numbers that the model was trained on,
    scale: float = 1.0  # which it predicts standardized

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Probabilities float32 [N, classes], 0 for classes not trained on; of numbers [N, 1]."""
        if self.constant is not None:
            return np.tile(np.asarray(self.constant, dtype=np.float32), (len(x), 1))
        with _quiet():
            if not self.classes:
                numbers = self.model.predict(x) * self.scale + self.center
                return numbers[:, None].astype(np.float32)
            probabilities = np.zeros((len(x), self.classes), dtype=np.float32)
            probabilities[:, self.model.classes_] = self.model.predict_proba(x)
            return probabilities


def predict_out_of_fold(
    experts: list[Expert],
    rows: Rows,
    fold: np.ndarray,
    weight: np.ndarray,
    needed: np.ndarray,
    tell: Callable[[], None] = lambda: None,
) -> list[np.ndarray]:
    """What each expert predicts for rows that it was not trained on, each [N, classes] or [N, 1].

    Arguments:
        experts: The kinds of models.
        rows: The rows.
        fold: Of each row; the model of a fold is trained on the rows of the others.
        weight: How often each row is learned, int64 [N]; 0 leaves it out.
        needed: bool [N]: the rows that need predictions. The others get zeros.
        tell: Called after each fold.
    """
    shape = (len(rows), max(1, rows.classes))
    predictions = [np.zeros(shape, dtype=np.float32) for _ in experts]
    for number in np.unique(fold):
        learned = np.repeat(np.arange(len(rows)), np.where(fold == number, 0, weight))
        held_out = np.flatnonzero(needed & (fold == number))
        for expert, predicted in zip(experts, predictions, strict=True):
            model = expert.fit(rows.x[learned], rows.y[learned], rows.classes)
            for start in range(0, len(held_out), _CHUNK):
                part = held_out[start : start + _CHUNK]
                predicted[part] = model.predict(rows.x[part])
        tell()
    return predictions


def _cross_predict(
    rows: Rows,
    weight: np.ndarray,
    needed: np.ndarray,
    folds: int,
    seed: int,
    tell: Callable[[], None],
) -> list[np.ndarray]:
    """Out-of-fold predictions of all experts; of classes, their log probabilities."""
    fold = assign_folds(rows, folds, mix_seeds(seed, 1))
    experts = list_experts(rows.x, rows.classes)
    predictions = predict_out_of_fold(experts, rows, fold, weight, needed, tell)
    anchors = rows.anchors & (weight > 0)
    if anchors.sum() >= _FEWEST_ANCHORS and len(np.unique(rows.y[anchors])) > 1:
        on_anchors = [
            replace(expert, smoothing=expert.smoothing_on_anchors)
            for expert in experts
            if expert.on_anchors
        ]
        fold = np.full(len(rows), _FOLDS)  # a separate fold: the model of all anchors
        fold[anchors] = assign_folds(rows.take(np.flatnonzero(anchors)), _FOLDS, seed)
        once = anchors.astype(np.int64)
        predictions += predict_out_of_fold(on_anchors, rows, fold, once, needed)
        experts = [*experts, *on_anchors]
    if not rows.classes:
        return predictions
    return [_smooth(p, expert.smoothing) for expert, p in zip(experts, predictions, strict=True)]


def _count_fair_experts(rows: Rows) -> int | None:
    """How many of the first experts of `_cross_predict` learned from a fair sample; None: all.

    Without a validation file, the anchors are labels that a person has checked. Most of them were
    drawn because they looked wrong: a model of them alone predicts other labels worse than chance.
    """
    return None if rows.validation.any() else len(list_experts(rows.x, rows.classes))


def _smooth(probabilities: np.ndarray, smoothing: float) -> np.ndarray:
    """Log probabilities of a mixture with the uniform distribution, float32 [N, classes]."""
    mixed = (1 - smoothing) * probabilities + smoothing / probabilities.shape[1]
    return np.log(np.maximum(mixed, _LEAST_PROBABILITY)).astype(np.float32)


def principal_components(x: np.ndarray, seed: int = 0) -> np.ndarray:
    """The first components of the features, standardized and clipped at 3, float64 [N, 8]."""
    if x.shape[1] > _COMPONENTS:
        sample = x
        if len(x) > MOST_LEARNED:
            sample = x[np.random.default_rng(seed).choice(len(x), MOST_LEARNED, replace=False)]
        with _quiet():
            x = TruncatedSVD(_COMPONENTS, random_state=0).fit(sample).transform(x)
    z = (x - x.mean(0)) / (x.std(0) + 1e-9)
    return np.clip(z, -3, 3).astype(np.float64)


# --- the likelihood of classes --------------------------------------------------------------------


class NoiseModel:
    """The parameters of the likelihood of classes, and what follows from them."""

    def __init__(
        self,
        experts: int,
        classes: int,
        components: int,
        prior: LabelPrior,
        pairs: np.ndarray | None = None,
    ):
        self.classes = classes
        self.prior = prior
        self._start = float(np.log(np.expm1(prior.exponents / experts)))
        self.exponents = torch.full((experts,), self._start, dtype=torch.float64)
        self.rate = torch.tensor(-2.2, dtype=torch.float64)
        self.by_class = torch.zeros(classes, dtype=torch.float64)
        self.by_component = torch.zeros(components, dtype=torch.float64)
        self.validation = torch.tensor(0.0, dtype=torch.float64)
        self.pairs = None if pairs is None else torch.from_numpy(pairs)
        self._other = ~torch.eye(classes, dtype=torch.bool)

    @property
    def parameters(self) -> list[Tensor]:
        """What is fitted."""
        fitted = [self.exponents, self.rate, self.by_class, self.by_component, self.validation]
        return fitted if self.pairs is None else [*fitted, self.pairs]

    @property
    def rho(self) -> float:
        """How often validation labels flip, compared with the others."""
        return float(torch.sigmoid(self.validation.detach()))

    def confusions(self) -> Tensor:
        """C: the classes as which each is mislabeled, [classes, classes]; the diagonal is 0."""
        if self.pairs is None:
            return self._other.double() / max(1, self.classes - 1)
        return torch.softmax(self.pairs.masked_fill(~self._other, -torch.inf), 1)

    def log_clean(self, logs: Tensor) -> Tensor:
        """log q, [N, classes], of the experts' log probabilities [experts, N, classes]."""
        exponents = torch.nn.functional.softplus(self.exponents)
        return torch.log_softmax(torch.einsum("m,mnk->nk", exponents, logs), 1)

    def flip_rates(self, z: Tensor, factor: Tensor) -> Tensor:
        """r, [N, classes]; factor: 0 for checked rows, rho for validation rows, else 1, [N]."""
        rates = torch.sigmoid(self.rate + self.by_class[None, :] + (z @ self.by_component)[:, None])
        return rates * factor[:, None]

    def factors(self, validation: Tensor, checked: Tensor) -> Tensor:
        """What the flip rate of each row is multiplied by, [N]."""
        one = torch.ones(len(validation), dtype=torch.float64)
        factor = torch.where(validation, torch.sigmoid(self.validation) * one, one)
        return torch.where(checked, torch.zeros_like(one), factor)

    def rates_of(self, evidence: "Evidence") -> Tensor:
        """The flip rates of all rows, [N, classes]."""
        return self.flip_rates(evidence.z, self.factors(evidence.validation, evidence.certain))

    def log_joint(self, logs: Tensor, given: Tensor, rates: Tensor) -> Tensor:
        """log q_i(t) P(given label | t), [N, classes]."""
        same = given[:, None] == torch.arange(self.classes)
        if self.pairs is None:
            flipped = rates / max(1, self.classes - 1)
        else:
            flipped = rates * self.confusions().T[given]
        likelihood = torch.where(same, 1 - rates, flipped)
        return self.log_clean(logs) + torch.log(likelihood + 1e-12)

    def penalty(self) -> Tensor:
        """Minus the logarithm of the prior."""
        cost = self.prior.flip_weight * (self.rate - self.prior.flip_log_odds) ** 2
        cost = cost + 2 * (self.by_class**2).sum()
        cost = cost + 4 * (self.by_component**2).sum()
        cost = cost + 0.5 * ((self.exponents - self._start) ** 2).sum()
        cost = cost + 0.1 * self.validation**2
        if self.pairs is not None:
            cost = cost + 0.01 * (self.pairs**2).sum()
            cost = cost - 0.3 * torch.log(self.confusions()[self._other] + 1e-9).sum()
        return cost


def _start_pairs(mean: np.ndarray, y: np.ndarray) -> np.ndarray | None:
    """Log odds of the class as which each class is mislabeled, where experts are most certain."""
    classes = mean.shape[1]
    if not 2 < classes <= _MOST_PAIRED:
        return None
    pairs = np.zeros((classes, classes))
    for true in range(classes):
        count = max(5, int(0.3 * (y == true).sum()))
        surest = np.argsort(-mean[:, true], kind="stable")[:count]
        odds = np.log(mean[surest].mean(0) + 1e-3)
        others = np.arange(classes) != true
        pairs[true, others] = odds[others] - odds[others].mean()
    return pairs


@dataclass(frozen=True)
class Evidence:
    """What the likelihood of classes is about, as tensors."""

    logs: Tensor  # [experts, N, classes]
    given: Tensor  # int64 [N]: labels before any check
    z: Tensor  # [N, components]
    validation: Tensor  # bool [N]
    certain: Tensor  # bool [N]: the label cannot be wrong, and no one knows what it was before
    known: Tensor  # int64: positions of checked rows
    truth: Tensor  # int64: their classes

    @staticmethod
    def of(logs: np.ndarray, rows: Rows, z: np.ndarray) -> "Evidence":
        """The evidence of some rows."""
        on = lambda values: torch.from_numpy(np.ascontiguousarray(values))
        known = np.flatnonzero(rows.checked)
        return Evidence(
            logs=on(logs).double(),
            given=on(rows.y if rows.given is None else rows.given),
            z=on(z),
            validation=on(rows.validation),
            certain=on(rows.checked if rows.given is None else np.zeros_like(rows.checked)),
            known=on(known),
            truth=on(rows.y[known]),
        )


def log_likelihood(model: NoiseModel, evidence: Evidence) -> Tensor:
    """Of the labels of all rows, and of what people found where they checked."""
    joint = model.log_joint(evidence.logs, evidence.given, model.rates_of(evidence))
    each = torch.logsumexp(joint, 1)
    checked = joint[evidence.known, evidence.truth] - each[evidence.known]
    total = each.sum() + checked.sum()
    if model.prior.overlap:
        log_clean = model.log_clean(evidence.logs)
        total = total + model.prior.overlap * (log_clean.exp() * log_clean).sum()
    return total


def fit_noise_model(
    evidence: Evidence, prior: LabelPrior, pairs: np.ndarray | None = None
) -> NoiseModel:
    """The parameters of the largest likelihood times prior; pairs: where C starts."""
    experts, _, classes = evidence.logs.shape
    model = NoiseModel(experts, classes, evidence.z.shape[1], prior, pairs)
    for parameter in model.parameters:
        parameter.requires_grad_()
    with _one_thread():
        _minimize(lambda: model.penalty() - log_likelihood(model, evidence), model.parameters)
    for parameter in model.parameters:
        parameter.requires_grad_(False)
    return model


def _minimize(cost: Callable[[], Tensor], parameters: list[Tensor]) -> None:
    optimizer = torch.optim.LBFGS(parameters, max_iter=_STEPS, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        total = cost()
        total.backward()
        return total

    optimizer.step(closure)  # type: ignore[arg-type]  # it takes tensors as well as floats


# --- the likelihood of numbers --------------------------------------------------------------------


@dataclass(frozen=True)
class NumberNoiseModel:
    """The parameters of the likelihood of numbers."""

    expert_weights: np.ndarray  # [experts], with sum 1
    freedom: float  # degrees of freedom of the errors of good labels
    scale: float  # c: of those errors, in units of u_i
    center: float  # of the labels
    spread: float
    range: tuple[float, float]  # of the labels
    rate: float  # s
    by_component: np.ndarray  # w
    rho: float  # how often validation labels are wrong, compared with the others
    usual: float  # the median u_i

    def rates(self, z: np.ndarray, validation: np.ndarray, checked: np.ndarray) -> np.ndarray:
        """r: how often labels are wrong, [N]."""
        rates = 1 / (1 + np.exp(-(self.rate + z @ self.by_component)))
        rates = np.where(validation, self.rho * rates, rates)
        return np.where(checked, 0.0, rates)

    def largest_error(self, rates: np.ndarray) -> np.ndarray:
        """The error from which on a label is more likely wrong than right, [N].

        Where both densities are alike; that of wrong labels is taken at its mean.
        """
        scale = self.scale * self.usual
        width = self.range[1] - self.range[0]
        mean = 0.5 / (2 * np.sqrt(np.pi) * self.spread) + 0.5 / width
        peak = self.densities(np.zeros(1), np.full(1, self.usual), np.zeros(1))[0][0]
        rates = np.clip(rates, 1e-4, 0.9999)
        ratio = np.minimum(rates / (1 - rates) * mean / peak, 1.0)
        errors = scale * np.sqrt(self.freedom * (ratio ** (-2 / (self.freedom + 1)) - 1))
        return np.maximum(errors, 2 * scale)

    def densities(
        self, predicted: np.ndarray, usual: np.ndarray, y: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Of the labels if they are good, and if they are wrong, each [N]."""
        scale = self.scale * usual
        good = t.pdf((y - predicted) / scale, self.freedom) / scale
        low, high = self.range
        inside = (y >= low) & (y <= high)
        return good, 0.5 * norm.pdf(y, self.center, self.spread) + 0.5 * inside / (high - low)


def fit_number_noise_model(
    predictions: np.ndarray, usual: np.ndarray, rows: Rows, z: np.ndarray
) -> NumberNoiseModel:
    """The parameters of the largest likelihood; predictions: of the experts, [experts, N].

    The EM algorithm: where labels are likely good, the scale; where they are likely wrong, the
    rates. The weights of the experts come first, from the absolute errors.
    """
    weights = _weigh_experts(predictions, rows.y)
    predicted = weights @ predictions
    fits = [_fit_freedom(freedom, weights, predicted, usual, rows, z) for freedom in _FREEDOMS]
    return max(fits, key=lambda fit: fit[0])[1]


def _weigh_experts(predictions: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Weights of least absolute error, at least 0, with sum 1."""
    logs = torch.zeros(len(predictions), dtype=torch.float64, requires_grad=True)
    on = torch.from_numpy(predictions).double()
    target = torch.from_numpy(y)
    spread = float(np.median(np.abs(y - np.median(y)))) or float(y.std()) or 1.0

    def cost() -> Tensor:
        error = (target - torch.softmax(logs, 0) @ on) / spread
        return torch.sqrt(error**2 + 1e-4).mean() + 1e-3 * (logs**2).sum()

    _minimize(cost, [logs])
    return torch.softmax(logs.detach(), 0).numpy()


def _fit_freedom(
    freedom: float,
    expert_weights: np.ndarray,
    predicted: np.ndarray,
    usual: np.ndarray,
    rows: Rows,
    z: np.ndarray,
) -> tuple[float, NumberNoiseModel]:
    """The log likelihood, and the parameters, for some degrees of freedom."""
    spread = max(float(rows.y.std()), 1e-12)
    least = float(rows.y.min())
    errors = np.abs(rows.y - predicted) / usual
    model = NumberNoiseModel(
        expert_weights=expert_weights,
        freedom=freedom,
        scale=max(float(np.median(errors)), 1e-6),
        center=float(rows.y.mean()),
        spread=spread,
        range=(least, max(float(rows.y.max()), least + spread)),
        rate=-2.2,
        by_component=np.zeros(z.shape[1]),
        rho=0.5,
        usual=float(np.median(usual)),
    )
    before = -np.inf
    likelihood = -np.inf
    for _ in range(_STEPS):
        rates = model.rates(z, rows.validation, rows.checked)
        good, bad = model.densities(predicted, usual, rows.y)
        total = (1 - rates) * good + rates * bad + 1e-300
        wrong = rates * bad / total
        likelihood = float(np.log(total).sum())
        if likelihood - before < 1e-7 * abs(likelihood):
            break
        before = likelihood
        weight = (1 - wrong) * (freedom + 1) / (freedom + (errors / model.scale) ** 2)
        variance = (weight * errors**2).sum() / max((1 - wrong).sum(), 1e-12)
        rate, by_component = _fit_rates(wrong, rows, z, model)
        expected = model.rates(z, np.zeros_like(rows.validation), rows.checked)[rows.validation]
        ratio = wrong[rows.validation].sum() / max(expected.sum(), 1e-9)
        model = replace(
            model,
            scale=max(float(np.sqrt(variance)), 1e-6),
            rate=rate,
            by_component=by_component,
            rho=float(np.clip(ratio, 0.0, 1.0)) if rows.validation.any() else 0.5,
        )
    return likelihood, model


def _fit_rates(
    wrong: np.ndarray, rows: Rows, z: np.ndarray, model: NumberNoiseModel
) -> tuple[float, np.ndarray]:
    """One Newton step of the logistic regression of `wrong` on the components."""
    free = ~rows.checked & ~rows.validation
    if not free.any():
        return model.rate, model.by_component
    design = np.column_stack([np.ones(free.sum()), z[free]])
    weights = np.concatenate([[model.rate], model.by_component])
    rates = model.rates(z[free], rows.validation[free], rows.checked[free])
    penalty = np.concatenate([[0.1], np.full(z.shape[1], 8.0)])
    offset = np.concatenate([[-2.2], np.zeros(z.shape[1])])
    gradient = design.T @ (wrong[free] - rates) - penalty * (weights - offset)
    curvature = (design * (rates * (1 - rates))[:, None]).T @ design + np.diag(penalty)
    weights = weights + np.clip(np.linalg.solve(curvature, gradient), -1, 1)
    return float(weights[0]), weights[1:]


def _usual_errors(rows: Rows, predicted: np.ndarray, learned: np.ndarray, seed: int) -> np.ndarray:
    """The absolute error that is usual for rows like each, out-of-fold, [N]."""
    errors = np.abs(rows.y - predicted)
    usual = float(np.median(errors[learned])) if learned.any() else 1.0
    usual = usual or float(errors.mean()) or 1.0
    capped = np.minimum(errors, 5 * usual)  # a few wild labels must not look like a rough region
    near = Expert(lambda: KNeighborsRegressor(min(50, max(1, learned.sum() // 4))))
    inputs = np.column_stack([rows.x, predicted / (rows.y.std() or 1.0)]).astype(np.float32)
    around = Rows.of(inputs, capped, 0, groups=rows.groups)
    fold = assign_folds(rows, _FOLDS, mix_seeds(seed, 2))
    every = np.ones(len(rows), dtype=bool)
    local = predict_out_of_fold([near], around, fold, learned.astype(np.int64), every)[0][:, 0]
    return 0.5 * np.maximum(local, 0) + 0.5 * usual


# --- the estimate ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class LabelPosterior:
    """What is known about the labels of N rows, given all of them.

    Attributes:
        p_wrong: the probability that the label is wrong, [N].
        best_other: the best label instead, [N]: the likeliest other class; of numbers f_i, the
            weighted average of what the experts predict.
        p_best_other: the probability that it is the truth, [N]. Of numbers that is `p_wrong`: if
            the label is wrong, nothing else is known but f_i.
        p_clean: q, [N, classes]; of numbers [N, 0].
        mean_prediction: the plain mean of what the experts that learned from a fair sample of the
            rows predict in the first round, [N, classes]; of numbers [N, 1].
        model: the fitted likelihood.
    """

    p_wrong: np.ndarray
    best_other: np.ndarray
    p_best_other: np.ndarray
    p_clean: np.ndarray
    mean_prediction: np.ndarray
    model: NoiseModel | NumberNoiseModel

    def flip_rates(self, z: np.ndarray, validation: np.ndarray, checked: np.ndarray) -> np.ndarray:
        """How often labels of other rows are wrong, [N, classes]; of numbers [N].

        Arguments:
            z: From one call of `principal_components` for these rows and those of the fit.
            validation: bool [N].
            checked: bool [N].
        """
        if isinstance(self.model, NumberNoiseModel):
            return self.model.rates(z, validation, checked)
        on = torch.from_numpy
        factor = self.model.factors(on(validation), on(checked))
        return self.model.flip_rates(on(z), factor).numpy()

    def add_noise(self, probabilities: np.ndarray, rates: np.ndarray) -> np.ndarray:
        """Probabilities of the labels that would be given, from those of true classes."""
        if isinstance(self.model, NumberNoiseModel):
            return probabilities
        flipped = probabilities * rates
        return probabilities - flipped + flipped @ self.model.confusions().numpy()


def estimate_label_noise(
    rows: Rows,
    prior: LabelPrior,
    *,
    z: np.ndarray | None = None,
    folds: int = _FOLDS,
    rounds: int = _ROUNDS,
    seed: int = 0,
    tell: Callable[[], None] = lambda: None,
) -> LabelPosterior:
    """Fit the model above.

    Arguments:
        rows: All rows, those of a validation file included.
        prior: What is known before.
        z: The principal components of the rows; computed by default.
        folds: Of the out-of-fold predictions.
        rounds: 2: the experts are trained again without what is likely wrong.
        seed: Decides the folds.
        tell: Called after each fold of each round.

    If there are very many rows, the experts are trained on a sample. Every row is examined.
    """
    z = principal_components(rows.x) if z is None else z
    most = min(MOST_LEARNED, max(2_000, _MOST_CELLS // max(1, rows.classes)))
    sample = draw_sample(rows, most, mix_seeds(seed, 3))
    every = np.ones(len(rows), dtype=bool)
    needed = every if rounds == 1 else sample
    weight = sample.astype(np.int64)
    predictions = _cross_predict(rows, weight, needed, folds, mix_seeds(seed, 0), tell)
    first = _fit(predictions, rows, z, prior, sample, needed, seed)
    if rounds == 1:
        return first
    weight = _reweigh(rows, first, sample)
    predictions = _cross_predict(rows, weight, every, folds, mix_seeds(seed, 1), tell)
    second = _fit(predictions, rows, z, prior, sample, every, seed)
    # what the second round leaves out depends on every label, so its predictions do as well
    return replace(second, mean_prediction=first.mean_prediction)


def estimate_from_probabilities(
    rows: Rows, prior: LabelPrior, probabilities: np.ndarray
) -> LabelPosterior:
    """The same, with the out-of-sample probabilities [N, classes] of one model as the only expert."""
    every = np.ones(len(rows), dtype=bool)
    z = np.zeros((len(rows), 1))
    return _fit([_smooth(probabilities, _SMOOTHING)], rows, z, prior, every, every, seed=0)


def draw_sample(rows: Rows, most: int, seed: int) -> np.ndarray:
    """At most so many rows, bool [N]: checked rows, and others by chance."""
    if len(rows) <= most:
        return np.ones(len(rows), dtype=bool)
    order = np.random.default_rng(seed).random(len(rows)) - rows.checked
    chosen = np.zeros(len(rows), dtype=bool)
    chosen[np.argsort(order, kind="stable")[:most]] = True
    return chosen


def _reweigh(rows: Rows, first: LabelPosterior, sample: np.ndarray) -> np.ndarray:
    """How often each row is trained on in the second round."""
    # large numbers are hard to predict as it is: without them they would all look wrong
    least = LIKELY if rows.classes else _SURELY
    kept = ((first.p_wrong < least) | rows.anchors) & sample
    if rows.classes:
        # a class of which hardly anything is left keeps all of its rows
        left = np.bincount(rows.y[kept], minlength=rows.classes)
        kept |= (left < _FEWEST_KEPT)[rows.y] & sample
    trusted = rows.checked | (rows.validation if first.model.rho < _TRUSTED else np.False_)
    return np.where(trusted & sample, _TRUSTED_WEIGHT, kept.astype(np.int64))


def _fit(
    predictions: list[np.ndarray],
    rows: Rows,
    z: np.ndarray,
    prior: LabelPrior,
    sample: np.ndarray,
    needed: np.ndarray,
    seed: int,
) -> LabelPosterior:
    """The posterior of the rows that experts have predicted; zeros for the others."""
    if not rows.classes:
        return _fit_numbers(predictions, rows, z, sample, needed, seed)
    ids = np.flatnonzero(sample)
    learned = np.stack([logs[ids] for logs in predictions])
    some = rows.take(ids)
    pairs = _start_pairs(np.exp(learned).mean(0), some.y)
    model = fit_noise_model(Evidence.of(learned, some, z[ids]), prior, pairs)
    fair = _count_fair_experts(rows)
    posterior = np.zeros((len(rows), rows.classes), dtype=np.float32)
    p_clean = np.zeros_like(posterior)
    mean_prediction = np.zeros_like(posterior)
    every = np.flatnonzero(needed)
    for start in range(0, len(every), _CHUNK):
        part = every[start : start + _CHUNK]
        logs = np.stack([values[part] for values in predictions])
        evidence = Evidence.of(logs, rows.take(part), z[part])
        joint = model.log_joint(evidence.logs, evidence.given, model.rates_of(evidence))
        posterior[part] = torch.softmax(joint, 1).numpy()
        p_clean[part] = model.log_clean(evidence.logs).exp().numpy()
        mean_prediction[part] = np.exp(logs[:fair]).mean(0)
    posterior[rows.checked] = np.eye(rows.classes, dtype=np.float32)[rows.y[rows.checked]]
    of_label = (np.arange(len(rows)), rows.y)
    p_wrong = np.where(needed, 1 - posterior[of_label], 0)
    posterior[of_label] = -1
    return LabelPosterior(
        p_wrong=p_wrong,
        best_other=posterior.argmax(1),
        p_best_other=np.maximum(posterior.max(1), 0),
        p_clean=p_clean,
        mean_prediction=mean_prediction,
        model=model,
    )


def _fit_numbers(
    predictions: list[np.ndarray],
    rows: Rows,
    z: np.ndarray,
    sample: np.ndarray,
    needed: np.ndarray,
    seed: int,
) -> LabelPosterior:
    """The same for labels that are numbers."""
    stacked = np.concatenate(predictions, axis=1).T.astype(np.float64, order="C")  # [experts, N]
    ids = np.flatnonzero(sample)
    first = _weigh_experts(stacked[:, ids], rows.y[ids]) @ stacked
    usual = _usual_errors(rows, first, sample, seed) + stacked.std(0)
    model = fit_number_noise_model(stacked[:, ids], usual[ids], rows.take(ids), z[ids])
    predicted = model.expert_weights @ stacked
    rates = model.rates(z, rows.validation, rows.checked)
    good, bad = model.densities(predicted, usual, rows.y)
    p_wrong = np.where(needed, rates * bad / ((1 - rates) * good + rates * bad + 1e-300), 0)
    return LabelPosterior(
        p_wrong=p_wrong,
        best_other=predicted,
        p_best_other=p_wrong,
        p_clean=np.zeros((len(rows), 0)),
        mean_prediction=stacked[: _count_fair_experts(rows)].mean(0)[:, None],
        model=model,
    )

"""scikit-learn estimators that clean their training data before they learn from it.

model = make_pipeline(StandardScaler(), CleaningClassifier(LogisticRegression()))
model.fit(X, y)
model[-1].plan_, model[-1].removed_, model[-1].relabelled_
"""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from sklearn.base import (
    BaseEstimator,
    ClassifierMixin,
    MetaEstimatorMixin,
    RegressorMixin,
    clone,
)
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, column_or_1d, has_fit_parameter

from ..cleaning.modality import MIN_INSTANCES
from ..errors import DrossWarning, InvalidInput
from .cleaned_rows import CleanedRows, HowToClean, clean_rows, take

_COPIED = ("n_features_in_", "feature_names_in_")  # from the estimator that was fitted
_SEEDS = 2**31 - 1


def _wrapped_has(name: str):
    """Whether the wrapped estimator has a method; only then does this one have it."""

    def check(self: "_Cleaning") -> bool:
        getattr(self.estimator_ if hasattr(self, "estimator_") else self._unfitted(), name)
        return True

    return check


class _Cleaning(ABC):
    """What both estimators share."""

    def __init__(
        self,
        estimator: Any = None,
        *,
        validation: Any = None,
        plan: str | None = None,
        judge: bool | str = False,
        validation_is_clean: bool = False,
        min_rows: int = 200,
        out: str | os.PathLike | None = None,
        random_state: Any = 0,
        device: str | None = None,
        progress: bool = False,
        options: Mapping[str, Any] | None = None,
    ):
        self.estimator = estimator
        self.validation = validation
        self.plan = plan
        self.judge = judge
        self.validation_is_clean = validation_is_clean
        self.min_rows = min_rows
        self.out = out
        self.random_state = random_state
        self.device = device
        self.progress = progress
        self.options = options

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Clean the data, and fit the estimator on what is left.

        The estimator is fitted on everything first, so its errors come before the cleaning begins.
        Where nothing has to be changed, that fit is the result.

        Arguments:
            X: a DataFrame, an array or a sparse matrix [N, features], or a list of N texts.
            y: one label for each row.
            sample_weight: weights [N] for the estimator; the cleaning ignores them.

        Returns:
            Itself.

        Raises:
            InvalidInput: the data or a parameter cannot be used, or there is no such plan.
            Diverged: training diverges at every rate that was tried.
            DrossError: the folder `out` cannot be written.
        """
        y = _check_column(y)
        fitted = self._fit_estimator(X, y, sample_weight, None)
        if not hasattr(X, "shape") and not isinstance(X, (list, tuple)):
            X = np.asarray(X)
        cleaned = self._clean(X, self._learn_labels(y))
        self.plan_, self.verdict_ = cleaned.plan, cleaned.verdict
        self.scores_, self.wrong_ = cleaned.scores, cleaned.wrong
        self.removed_ = cleaned.removed
        self.relabelled_ = {row: self._read(label) for row, label in cleaned.relabelled.items()}
        if len(self.removed_) or self.relabelled_:
            y = y.copy()
            y[list(self.relabelled_)] = list(self.relabelled_.values())
            left = np.delete(np.arange(len(y)), self.removed_)
            fitted = self._fit_estimator(X, y, sample_weight, left)
        self.estimator_ = fitted
        for name in _COPIED:
            vars(self).pop(name, None)
            if hasattr(fitted, name):
                setattr(self, name, getattr(fitted, name))
        return self

    def _unfitted(self) -> Any:
        return self._default() if self.estimator is None else self.estimator

    def _fit_estimator(self, X: Any, y: Any, weights: Any, rows: np.ndarray | None) -> Any:
        """A copy of the estimator that has learned these rows; by default all."""
        estimator: Any = clone(self._unfitted())
        options: dict[str, Any] = {}
        if weights is not None:
            if not has_fit_parameter(estimator, "sample_weight"):
                raise InvalidInput(
                    f"{type(estimator).__name__} takes no sample_weight. Leave it out."
                )
            options["sample_weight"] = weights if rows is None else take(weights, rows)
        if rows is not None:
            X, y = take(X, rows), y[rows]
        return estimator.fit(X, y, **options)

    def _clean(self, X: Any, labels: np.ndarray) -> CleanedRows:
        count, how = len(labels), self._how()
        fewest = max(self.min_rows, MIN_INSTANCES)
        if count >= fewest:
            return clean_rows(X, labels, how)
        warnings.warn(
            f"The {count:,} rows are too few to clean, so {type(self).__name__} has learned all of "
            f"them as they are. It cleans at least {fewest} rows (min_rows).",
            DrossWarning,
            stacklevel=3,
        )
        unknown = np.full(count, np.nan)
        return CleanedRows(None, unknown, unknown, np.zeros(0, dtype=np.int64), {})

    def _how(self) -> HowToClean:
        if not isinstance(self.judge, bool) and self.judge != "estimator":
            raise InvalidInput(f"judge must be True, False or 'estimator', not {self.judge!r}.")
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(_SEEDS)
        validation = self.validation
        if isinstance(validation, tuple) and len(validation) == 2:
            validation = (validation[0], self._name_labels(validation[1]))
        return HowToClean(
            validation=validation,
            plan=self.plan,
            judge=bool(self.judge),
            judge_with=clone(self._unfitted()) if self.judge == "estimator" else None,
            validation_is_clean=self.validation_is_clean,
            out=self.out,
            seed=int(seed),
            device=self.device,
            progress=self.progress,
            options=dict(self.options or {}),
        )

    # --- what depends on the task ---

    @abstractmethod
    def _default(self) -> Any:
        """The estimator that is used where none is given."""

    def _learn_labels(self, y: np.ndarray) -> np.ndarray:
        """Labels as dross takes them, after noting which ones there are."""
        return self._name_labels(y)

    @abstractmethod
    def _name_labels(self, y: Any) -> np.ndarray:
        """Labels as dross takes them."""

    @abstractmethod
    def _read(self, label: str) -> Any:
        """A label of dross as y has it."""

    # --- what the fitted estimator does ---

    @available_if(_wrapped_has("predict"))
    def predict(self, X: Any) -> Any:
        """What the fitted estimator predicts."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict(X)

    @available_if(_wrapped_has("predict_proba"))
    def predict_proba(self, X: Any) -> Any:
        """The fitted estimator's probabilities of the classes, in the order of `classes_`."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict_proba(X)

    @available_if(_wrapped_has("predict_log_proba"))
    def predict_log_proba(self, X: Any) -> Any:
        """Their logarithms."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.predict_log_proba(X)

    @available_if(_wrapped_has("decision_function"))
    def decision_function(self, X: Any) -> Any:
        """The fitted estimator's decision function."""
        check_is_fitted(self, "estimator_")
        return self.estimator_.decision_function(X)

    @available_if(_wrapped_has("score"))
    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """The fitted estimator's score: for most of them accuracy, or R^2."""
        check_is_fitted(self, "estimator_")
        options = {} if sample_weight is None else {"sample_weight": sample_weight}
        return self.estimator_.score(X, y, **options)

    def __sklearn_tags__(self) -> Any:
        """scikit-learn's tags: what the wrapped estimator takes, with one label for each row."""
        from sklearn.utils import get_tags

        tags, wrapped = super().__sklearn_tags__(), get_tags(self._unfitted())  # type: ignore[misc]
        tags.input_tags, tags.non_deterministic = wrapped.input_tags, wrapped.non_deterministic
        tags.target_tags.positive_only = wrapped.target_tags.positive_only
        tags.classifier_tags = wrapped.classifier_tags or tags.classifier_tags
        tags.regressor_tags = wrapped.regressor_tags or tags.regressor_tags
        return tags


class CleaningClassifier(_Cleaning, ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Any classifier of scikit-learn, fitted on data that dross has cleaned.

    `fit(X, y)` examines the label of every row with models that did not learn it, removes or
    relabels what the recommended plan says, and fits the estimator on the result. Where no plan is
    better than changing nothing, beyond chance and on held-out rows, nothing is changed.

    Arguments:
        estimator: what learns the cleaned data; LogisticRegression(max_iter=1000) by default.
        validation: a pair (X, y) of other data, best with labels that were checked. They help to
            find wrong labels; the estimator is not fitted on them.
        plan: another plan than the recommended one, such as `wrong-50`.
        judge: whether to retrain with and without the changes, on parts of the rows that had no
            part in them; the answer is `verdict_`. With "estimator" the wrapped estimator is
            retrained, on the numbers that dross makes of X, instead of dross' model.
        validation_is_clean: all labels of the validation part are right.
        min_rows: with fewer rows nothing is cleaned, and a warning says so.
        out: a folder for the project, for `dross review` and the report. It takes one data set:
            leave it out in a cross-validation. What was decided on the page is followed by the next
            fit. By default everything is in a temporary folder.
        random_state: decides the folds and dross' models. None draws a new one each time.
        device: where dross' models are trained: `cpu`, `cuda` or `mps`.
        progress: show progress bars where stderr is a terminal.
        options: further arguments of `dross.clean`, such as {"repeats": 2, "model": "linear"}.

    Attributes:
        estimator_: the fitted estimator.
        plan_: the plan, in rows of X; None if nothing is recommended, or there are too few rows.
        scores_: float64 [N]: the estimated change of the expected held-out error without each row,
            below 0 if it does harm.
        wrong_: float64 [N]: the probability that each label is wrong.
        removed_: the rows that were removed.
        relabelled_: {row: its new label}.
        verdict_: the verdict if `judge` and something was changed, else None.
        classes_: the classes.
        n_features_in_, feature_names_in_: as the estimator has them, if it has.

    Example:
        model = CleaningClassifier(HistGradientBoostingClassifier()).fit(X, y)
        print(model.plan_, len(model.removed_), model.score(X_test, y_test))
    """

    def _default(self) -> Any:
        return LogisticRegression(max_iter=1000)

    def _learn_labels(self, y: np.ndarray) -> np.ndarray:
        self.classes_ = np.unique(y)
        names = [str(kind).strip() for kind in self.classes_]  # dross names classes by text
        if "" in names or len(set(names)) < len(names):
            names = [f"class {number}" for number in range(len(names))]
        self._names = np.array(names, dtype=object)
        return self._name_labels(y)

    def _name_labels(self, y: Any) -> np.ndarray:
        column = _check_column(y)
        unknown = sorted(set(column.tolist()) - set(self.classes_.tolist()))
        if unknown:
            raise InvalidInput(f"The validation labels have the class {unknown[0]!r}; y does not.")
        return self._names[np.searchsorted(self.classes_, column)]

    def _read(self, label: str) -> Any:
        return self.classes_[list(self._names).index(label)]


class CleaningRegressor(_Cleaning, RegressorMixin, MetaEstimatorMixin, BaseEstimator):
    """Any regressor of scikit-learn, fitted on data that dross has cleaned.

    Everything is as in `CleaningClassifier`, except `classes_`; the default estimator is Ridge().
    """

    def _default(self) -> Any:
        return Ridge()

    def _name_labels(self, y: Any) -> np.ndarray:
        return _check_column(y).astype(np.float64)

    def _read(self, label: str) -> Any:
        return float(label)


def _check_column(y: Any) -> np.ndarray:
    array = np.asarray(y)
    if array.ndim > 1 and array.shape[1] != 1:
        raise InvalidInput(
            f"y has the shape {array.shape}, and dross cleans one label for each row. Wrap it: "
            "MultiOutputClassifier or MultiOutputRegressor takes one Cleaning... per column."
        )
    return column_or_1d(array, warn=True)

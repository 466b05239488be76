"""scikit-learn estimators that clean their training data before they learn from it.

model = make_pipeline(StandardScaler(), CleaningClassifier(LogisticRegression()))
model.fit(X, y)
model[-1].plan_, model[-1].removed_, model[-1].relabeled_
"""

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from inspect import signature
from pathlib import Path
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
from sklearn.utils import _safe_indexing, check_random_state, get_tags
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_is_fitted, column_or_1d, has_fit_parameter

from .._checks import check_name
from .._io import temporary_folder
from ..cleaning.edits import choose_edits
from ..cleaning.judge import judge
from ..cleaning.modality import MIN_INSTANCES
from ..cleaning.pipeline import clean
from ..cleaning.plans import RULES, Edits, PlanResult
from ..cleaning.project import Project
from ..cleaning.task import TASKS
from ..cleaning.verdict import Verdict
from ..errors import DrossWarning, InvalidInput

_COPIED = ("n_features_in_", "feature_names_in_")  # from the estimator that was fitted
_SEEDS = 2**31 - 1

# arguments of dross.clean that are parameters of the estimators, or meant for files
_NO_OPTIONS = "data label out validation test task seed device progress say validation_is_clean"


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
        self._check_parameters()
        y = _check_column(y)
        fitted = self._fit_estimator(X, y, sample_weight, None)
        if not hasattr(X, "shape") and not isinstance(X, (list, tuple)):
            X = np.asarray(X)
        labels = self._learn_labels(y)
        self.plan_: PlanResult | None = None
        self.verdict_: Verdict | None = None
        self.scores_ = np.full(len(y), np.nan)
        self.wrong_ = np.full(len(y), np.nan)
        self.removed_ = np.zeros(0, dtype=np.int64)
        self.relabeled_: dict[int, Any] = {}
        fewest = max(self.min_rows, MIN_INSTANCES)
        if len(y) >= fewest:
            self._clean(X, labels)
        else:
            warnings.warn(
                f"{len(y):,} rows are too few to clean, so {type(self).__name__} was fitted on all of "
                f"them unchanged. Cleaning needs at least {fewest} rows (min_rows).",
                DrossWarning,
                stacklevel=2,
            )
        if len(self.removed_) or self.relabeled_:
            y = y.copy()
            y[list(self.relabeled_)] = list(self.relabeled_.values())
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
                    f"{type(estimator).__name__} does not accept sample_weight. Leave it out."
                )
            options["sample_weight"] = weights if rows is None else _safe_indexing(weights, rows)
        if rows is not None:
            X = _safe_indexing(X, rows)
            y = y[rows]
        return estimator.fit(X, y, **options)

    def _check_estimator(self) -> None:
        """Refuse an estimator that cannot learn the labels of this task."""
        estimator = self._unfitted()
        name = type(self).__name__
        if isinstance(estimator, type):
            raise InvalidInput(
                f"{name} needs an instance of an estimator, not the class. Write "
                f"{name}({estimator.__name__}())."
            )
        if not (hasattr(estimator, "fit") and hasattr(estimator, "predict")):
            raise InvalidInput(
                f"{name} needs an estimator with the methods fit and predict, not {estimator!r}."
            )
        # an estimator that does not inherit from those of scikit-learn has no tags
        has_tags = hasattr(estimator, "__sklearn_tags__")
        kind = get_tags(estimator).estimator_type if has_tags else None
        if kind is not None and kind != TASKS[self._task].estimator:
            other = "CleaningRegressor" if kind == "regressor" else "CleaningClassifier"
            hint = f" Use {other}." if kind in ("regressor", "classifier") else ""
            raise InvalidInput(
                f"{name} needs a {TASKS[self._task].estimator}, but {type(estimator).__name__} is a "
                f"{kind}.{hint}"
            )

    def _check_parameters(self) -> None:
        self._check_estimator()
        validation = self.validation
        if validation is not None and not (isinstance(validation, tuple) and len(validation) == 2):
            raise InvalidInput(f"validation must be a pair (X, y) or None, not {validation!r}.")
        if not isinstance(self.judge, bool) and self.judge != "estimator":
            raise InvalidInput(f"judge must be True, False or 'estimator', not {self.judge!r}.")
        if self.plan is not None:
            check_name("plan", self.plan, tuple(RULES))
        known = set(signature(clean).parameters) - set(_NO_OPTIONS.split())
        for name in self.options or {}:
            check_name("option of dross.clean", name, sorted(known))

    def _clean(self, X: Any, labels: np.ndarray) -> None:
        """Clean the rows; labels [N] are text for classes and float64 for numbers."""
        seed = self.random_state
        if not isinstance(seed, (int, np.integer)):
            seed = check_random_state(seed).randint(_SEEDS)
        validation = self.validation
        if validation is not None:
            validation = (validation[0], self._name_labels(validation[1]))
        with _project_folder(self.out) as folder:
            project = clean(
                X,
                labels,
                validation=validation,
                task=self._task,
                out=folder,
                seed=int(seed),
                device=self.device,
                validation_is_clean=self.validation_is_clean,
                progress=self.progress,
                **(self.options or {}),
            )
            edits = self._read_project(project)
            if edits is None:
                return
            if self.judge:
                self.verdict_ = judge(
                    project.folder,
                    plan=self.plan,
                    progress=self.progress,
                    device=self.device,
                    estimator=clone(self._unfitted()) if self.judge == "estimator" else None,
                )
            removed, relabeled = _in_rows(project, edits)
        if self._task == "classification":
            removed, relabeled = _keep_classes(labels, removed, relabeled)
        self.removed_ = removed
        self.relabeled_ = {row: self._read(label) for row, label in relabeled.items()}

    def _read_project(self, project: Project) -> Edits | None:
        """Keep scores and the plan, in rows of X; the edits that are to be made, if there are any."""
        rows = project.table["row"].to_numpy()
        self.scores_[rows] = project.table["score"]
        self.wrong_[rows] = project.table["wrong"]
        plan = project.recommended
        if self.plan is not None:  # a rule that touches no row has no plan
            plan = next((plan for plan in project.plans if plan.name == self.plan), None)
        if plan is not None:
            removed, relabeled = _in_rows(project, plan)
            self.plan_ = replace(plan, removed=removed, relabeled=relabeled)
        edits: Edits | None = plan
        if project.current_decisions():  # made on the page of a project that is kept
            edits = choose_edits(project, None, None, decisions=False)
        if edits is None or not (len(edits.removed) or edits.relabeled):
            return None
        return edits

    # --- what depends on the task -----------------------------------------------------------------

    _task: str

    @abstractmethod
    def _default(self) -> Any:
        """The estimator that is used if none is given."""

    def _learn_labels(self, y: np.ndarray) -> np.ndarray:
        """Labels as dross takes them, after noting which ones there are."""
        return self._name_labels(y)

    @abstractmethod
    def _name_labels(self, y: Any) -> np.ndarray:
        """Labels as dross takes them."""

    @abstractmethod
    def _read(self, label: str) -> Any:
        """A label of dross as y has it."""

    # --- what the fitted estimator does -----------------------------------------------------------

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
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        wrapped = get_tags(self._unfitted())
        tags.input_tags = wrapped.input_tags
        tags.non_deterministic = wrapped.non_deterministic
        tags.target_tags.positive_only = wrapped.target_tags.positive_only
        tags.classifier_tags = wrapped.classifier_tags or tags.classifier_tags
        tags.regressor_tags = wrapped.regressor_tags or tags.regressor_tags
        return tags


class CleaningClassifier(_Cleaning, ClassifierMixin, MetaEstimatorMixin, BaseEstimator):
    """Any scikit-learn classifier, fitted on data that dross has cleaned.

    `fit(X, y)` examines the label of every row with out-of-fold predictions, removes or relabels
    what the recommended plan says, and fits the estimator on the result. Where no plan is
    better than changing nothing on held-out rows, by more than chance would explain, nothing is
    changed.

    Arguments:
        estimator: what learns the cleaned data; LogisticRegression(max_iter=1000) by default.
        validation: a pair (X, y) of other data, best with labels that were checked. They help to
            find wrong labels; the estimator is not fitted on them.
        plan: another plan than the recommended one, such as `wrong-50`.
        judge: whether to retrain with and without the changes, on parts of the rows that had no
            part in them; the answer is `verdict_`. With "estimator" the wrapped estimator is
            retrained, on the numbers that dross makes of X, instead of dross' model.
        validation_is_clean: all labels of the validation set are right.
        min_rows: with fewer rows nothing is cleaned, and a warning says so.
        out: a folder for the project, for `dross review` and the report. It takes one dataset:
            leave it out in a cross-validation. What was decided on the page is followed by the next
            fit. By default everything is in a temporary folder.
        random_state: decides the folds and dross' models. None draws a new one each time.
        device: where dross' models are trained: `cpu`, `cuda` or `mps`.
        progress: show progress bars where stderr is a terminal.
        options: further arguments of `dross.clean`, such as {"repeats": 2, "model": "linear"}.

    Attributes:
        estimator_: the fitted estimator.
        plan_: the plan, in rows of X; None if nothing is recommended, or there are too few rows.
        scores_: float64 [N]: the estimated change in the expected held-out error without each row,
            below 0 if it does harm.
        wrong_: float64 [N]: the probability that each label is wrong.
        removed_: the rows that were removed.
        relabeled_: {row: its new label}.
        verdict_: the verdict if `judge` and something was changed, else None.
        classes_: the classes.
        n_features_in_, feature_names_in_: as the estimator has them, if it has.

    Example:
        model = CleaningClassifier(HistGradientBoostingClassifier()).fit(X, y)
        print(model.plan_, len(model.removed_), model.score(X_test, y_test))
    """

    _task = "classification"

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
            raise InvalidInput(
                f"The validation labels contain the class {unknown[0]!r}, which y does not have."
            )
        return self._names[np.searchsorted(self.classes_, column)]

    def _read(self, label: str) -> Any:
        return self.classes_[list(self._names).index(label)]


class CleaningRegressor(_Cleaning, RegressorMixin, MetaEstimatorMixin, BaseEstimator):
    """Any scikit-learn regressor, fitted on data that dross has cleaned.

    Everything is as in `CleaningClassifier`, except `classes_`; the default estimator is Ridge().
    """

    _task = "regression"

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
            f"y has the shape {array.shape}, but dross cleans one label per row. To clean several, "
            f"wrap this estimator in MultiOutputClassifier or MultiOutputRegressor."
        )
    return column_or_1d(array, warn=True)


@contextmanager
def _project_folder(out: str | os.PathLike | None) -> Iterator[Path]:
    """The folder of the project; without `out` one that is deleted in the end."""
    if out is not None:
        yield Path(out)
        return
    with temporary_folder() as place:
        yield place / "project"


def _in_rows(project: Project, edits: Edits) -> tuple[np.ndarray, dict[int, str]]:
    """Removed and relabeled rows of X, in order; ids of a project count those with a label."""
    rows = project.table["row"].to_numpy()
    relabeled = {int(rows[id]): label for id, label in sorted(edits.relabeled.items())}
    return np.sort(rows[edits.removed]), relabeled


def _keep_classes(
    labels: np.ndarray, removed: np.ndarray, relabeled: dict[int, str]
) -> tuple[np.ndarray, dict[int, str]]:
    """The same changes, except for those of classes of which nothing would be left."""
    after = labels.copy()
    after[list(relabeled)] = list(relabeled.values())
    gone = set(labels) - set(np.delete(after, removed))
    kept = [row for row in removed if labels[row] not in gone]
    relabeled = {row: new for row, new in relabeled.items() if labels[row] not in gone}
    return np.array(kept, dtype=np.int64), relabeled

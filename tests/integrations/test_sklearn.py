"""Estimators that clean before they learn: what they do to the rows, and how they fit in."""

import shutil
import warnings

import numpy as np
import pandas
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV, ShuffleSplit, cross_val_score
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.svm import LinearSVC
from sklearn.utils.estimator_checks import check_classifiers_train, check_estimator

import dross
from dross.errors import DrossWarning, InvalidInput
from dross.integrations.sklearn import CleaningClassifier, CleaningRegressor
from tests.cleaning.made_inputs import flipped
from tests.quick_cleaning import quick_cleaning

QUICK = {"repeats": 1, "epochs": 6, "lr": 0.05, "model": "linear", "check": 1}


def made(count=400, share=0.2, kinds=("no", "yes")):
    """Two classes that a line tells apart, with wrong labels: X, y, which are wrong."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, count)
    x = rng.normal(size=(count, 3)) + 2.5 * y[:, None]
    wrong, bad = flipped(y, share)
    return x, np.array(kinds)[wrong], bad


def quick(estimator=None, **options):
    return CleaningClassifier(estimator, options=QUICK, **options)


@pytest.fixture(scope="module", autouse=True)
def _quick():
    with quick_cleaning():  # these tests are about rows
        yield


@pytest.fixture(scope="module")
def cancer():
    """Breast cancer with a fifth of the labels wrong, and a model that was fitted on it."""
    x, y = load_breast_cancer(return_X_y=True)
    x, (noisy, bad) = x[:400], flipped(y[:400], 0.2)
    model = make_pipeline(StandardScaler(), quick(judge=True))
    return x, noisy, bad, model.fit(x, noisy)[-1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A project of `made()`: a fit that uses it has nothing to compute."""
    folder = tmp_path_factory.mktemp("sklearn") / "run"
    quick(out=folder).fit(*made()[:2])
    return folder


def test_rows_that_are_wrong_are_removed_or_relabeled(cancer):
    _, noisy, bad, model = cancer
    touched = np.union1d(model.removed_, list(model.relabeled_)).astype(int)
    assert len(touched) > 40 and bad[touched].mean() > 0.8
    assert all(label == 1 - noisy[row] for row, label in model.relabeled_.items())
    assert (model.plan_.removed == model.removed_).all()
    assert set(model.plan_.relabeled) == set(model.relabeled_)


def test_every_row_has_a_score_and_a_probability_that_its_label_is_wrong(cancer):
    x, _, bad, model = cancer
    assert len(model.scores_) == len(model.wrong_) == len(x)
    assert not np.isnan(model.wrong_).any() and ((model.wrong_ >= 0) & (model.wrong_ <= 1)).all()
    assert model.wrong_[bad].mean() > 0.7 > 0.2 > model.wrong_[~bad].mean()
    known = ~np.isnan(model.scores_)  # one run holds a part of the rows out
    assert model.scores_[bad & known].mean() < model.scores_[~bad & known].mean()


def test_a_verdict_is_given_where_it_is_asked_for(cancer):
    verdict = cancer[3].verdict_
    assert verdict.verdict in ("improved", "worse", "inconclusive") and verdict.nested
    assert verdict.removed == len(cancer[3].removed_)


def test_the_estimator_learns_exactly_what_is_left(cancer):
    x, noisy, _, model = cancer
    x, y = StandardScaler().fit_transform(x), noisy.copy()
    for row, label in model.relabeled_.items():
        y[row] = label
    left = np.setdiff1d(np.arange(len(y)), model.removed_)
    expected = LogisticRegression(max_iter=1000).fit(x[left], y[left])
    assert (model.predict_proba(x) == expected.predict_proba(x)).all()
    assert (model.decision_function(x) == expected.decision_function(x)).all()
    assert model.score(x, noisy) == expected.score(x, noisy)
    assert model.classes_.tolist() == [0, 1] and model.n_features_in_ == x.shape[1]


def test_a_frame_keeps_its_names_and_labels_their_type(folder):
    x, y, bad = made()
    frame = pandas.DataFrame(x, columns=["a", "b", "c"], index=np.arange(len(x)) * 3)
    model = quick(KNeighborsClassifier(1)).fit(frame, pandas.Series(y, index=frame.index))
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    touched = [*model.removed_, *model.relabeled_]
    assert touched and bad[touched].mean() > 0.8
    assert set(model.relabeled_.values()) <= {"no", "yes"}
    assert all(model.predict(frame)[row] == label for row, label in model.relabeled_.items())
    array = quick(out=folder).fit(x, y)
    assert (array.removed_ == model.removed_).all() and array.relabeled_ == model.relabeled_
    assert np.allclose(array.scores_, model.scores_, equal_nan=True)


def test_validation_data_of_ones_own_are_not_learned():
    x, y, bad = made(280, kinds=(" ", "yes"))  # a class whose name is blank
    validation = (x[~bad][:80], y[~bad][:80])
    how = {"validation": validation, "validation_is_clean": True, "plan": "wrong-70"}
    model = quick(KNeighborsClassifier(1), **how).fit(x, y)
    assert not np.isnan(model.scores_).any() and len(model.wrong_) == 280
    assert model.estimator_.n_samples_fit_ <= 280
    touched = [*model.removed_, *model.relabeled_]
    assert touched and bad[touched].mean() > 0.8
    with pytest.raises(InvalidInput, match="class 'maybe'"):
        quick(validation=(x[:80], ["maybe"] * 80)).fit(x, y)


def test_a_regressor_removes_rows_whose_number_is_wrong():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(220, 3))
    y = x @ [1.0, -2.0, 0.5] + 0.1 * rng.normal(size=220) + 100
    bad = rng.random(220) < 0.1
    y[bad] = rng.permutation(y)[: bad.sum()]
    model = CleaningRegressor(options=QUICK | {"epochs": 20}).fit(x, y)
    touched = [*model.removed_, *model.relabeled_]
    assert len(touched) > 5 and bad[touched].mean() > 0.8
    assert all(isinstance(label, float) for label in model.relabeled_.values())
    assert not hasattr(model, "classes_") and not hasattr(model, "predict_proba")
    left = np.setdiff1d(np.arange(220), model.removed_)
    for row, label in model.relabeled_.items():
        y[row] = label
    assert np.allclose(model.predict(x), Ridge().fit(x[left], y[left]).predict(x))


def made_texts():
    texts = [f"a {'fine' if k % 2 else 'poor'} thing number {k % 9}" for k in range(200)]
    return texts, *flipped(np.arange(200) % 2, 0.15)


def test_texts_are_cleaned():
    texts, wrong, bad = made_texts()
    pipeline = make_pipeline(TfidfVectorizer(), LogisticRegression())
    options = QUICK | {"backbone": "none"}
    model = CleaningClassifier(pipeline, plan="wrong-50", options=options).fit(texts, wrong)
    assert bad[[*model.removed_, *model.relabeled_]].mean() > 0.8
    assert model.predict(np.array(texts[:2], dtype=object)).tolist() == [0, 1]


def test_sparse_matrices_are_cleaned_unless_they_are_too_large_to_be_dense():
    texts, wrong, bad = made_texts()
    rows = sparse.csr_matrix(TfidfVectorizer().fit_transform(texts))
    model = quick(plan="wrong-50").fit(rows, wrong)
    assert bad[[*model.removed_, *model.relabeled_]].mean() > 0.8
    wide = sparse.hstack([rows, sparse.csr_matrix((200, 400_000))], format="csr")
    with pytest.raises(InvalidInput, match=r"sparse matrix of .* TruncatedSVD"):
        quick().fit(wide, wrong)


def test_where_nothing_is_recommended_everything_is_learned():
    x, y, _ = made(200, share=0)
    model = quick(judge=True).fit(x, y)
    assert model.plan_ is None and model.verdict_ is None and not model.relabeled_
    assert len(model.removed_) == 0 and not np.isnan(model.scores_).all()
    expected = LogisticRegression(max_iter=1000).fit(x, y)
    assert (model.predict_proba(x) == expected.predict_proba(x)).all()


def test_a_plan_by_name_is_followed_and_an_unknown_one_refused(folder):
    x, y, _ = made()
    model = quick(plan="relabel-90", out=folder).fit(x, y)
    assert model.plan_.name == "relabel-90"
    assert len(model.removed_) == 0 and len(model.relabeled_) == len(model.plan_) > 0
    with pytest.raises(InvalidInput, match="Did you mean 'relabel-90'"):
        quick(plan="relable-90").fit(x, y)


def test_a_folder_of_ones_own_is_kept_and_its_decisions_are_followed(folder, tmp_path):
    x, y, _ = made()
    shutil.copytree(folder, tmp_path / "run")
    project = dross.Project.open(tmp_path / "run")
    project.decisions.record({0: ("remove", None), 1: ("relabel", "yes")})
    model = quick(out=tmp_path / "run").fit(x, y)
    assert model.removed_.tolist() == [0] and model.relabeled_ == {1: "yes"}
    assert model.plan_.name == project.recommended.name
    with pytest.raises(InvalidInput, match="contains results from other data"):
        quick(out=tmp_path / "run").fit(x + 1, y)


def test_too_few_rows_are_learned_as_they_are_with_a_warning():
    x, y, _ = made(60)
    with pytest.warns(DrossWarning, match="60 rows are too few to clean"):
        model = quick().fit(x, y)
    assert model.plan_ is None and np.isnan(model.scores_).all() and model.relabeled_ == {}
    assert (model.predict(x) == LogisticRegression(max_iter=1000).fit(x, y).predict(x)).all()
    with pytest.warns(DrossWarning, match="Cleaning needs at least 40 rows"):
        quick(min_rows=10).fit(x[:30], y[:30])


def test_bad_parameters_are_refused_before_anything_is_cleaned():
    x, y, _ = made()
    refused = [
        (quick(validation=0.2), r"a pair \(X, y\) or None"),
        (quick(validation=(x, y, y)), r"a pair \(X, y\) or None"),
        (quick(judge="me"), "judge must be True, False or 'estimator'"),
        (CleaningClassifier(options={"epoch": 3}), "Did you mean 'epochs'"),
        (CleaningClassifier(options={"seed": 3}), "no option of dross.clean named 'seed'"),
    ]
    for kind, estimator, message in (
        (CleaningClassifier, Ridge(), "Ridge is a regressor. Use CleaningRe"),
        (CleaningClassifier, make_pipeline(Ridge()), "Pipeline is a regressor"),
        (CleaningRegressor, LogisticRegression(), "is a classifier. Use CleaningClassifier"),
        (CleaningClassifier, LogisticRegression, r"Write CleaningClassifier\(LogisticRegression\("),
        (CleaningClassifier, StandardScaler(), "the methods fit and predict"),
        (CleaningClassifier, 5, "the methods fit and predict, not 5"),
    ):
        refused.append((kind(estimator), message))
    for model, sentence in refused:
        with pytest.raises(InvalidInput, match=sentence):
            model.fit(x, y)
    with pytest.raises(InvalidInput, match="does not accept sample_weight"):
        quick(KNeighborsClassifier()).fit(x, y, sample_weight=np.ones(len(x)))
    with pytest.raises(InvalidInput, match="one label per row"):
        CleaningRegressor().fit(x, np.zeros((len(x), 2)))
    with pytest.raises(ValueError, match="NaN"):  # the estimator's own words, at once
        quick().fit(np.where(x > 3, np.nan, x), y)


def test_weights_follow_the_rows_that_are_left(folder):
    x, y, _ = made()
    weights = np.random.default_rng(0).random(len(x))
    model = quick(out=folder).fit(x, y, sample_weight=weights)
    left = np.setdiff1d(np.arange(len(x)), model.removed_)
    y = y.copy()
    for row, label in model.relabeled_.items():
        y[row] = label
    expected = LogisticRegression(max_iter=1000).fit(x[left], y[left], weights[left])
    assert (model.predict_proba(x) == expected.predict_proba(x)).all()


def test_a_class_never_vanishes(tmp_path):
    x, y, _ = made(200, kinds=("common", "also common"))
    y = y.astype(object)
    y[[3, 5]] = "rare"
    quick(out=tmp_path / "run").fit(x, y)
    project = dross.Project.open(tmp_path / "run")
    project.decisions.record({3: ("remove", None), 5: ("remove", None), 7: ("remove", None)})
    model = quick(out=tmp_path / "run").fit(x, y)
    assert model.classes_.tolist() == ["also common", "common", "rare"]
    assert model.estimator_.classes_.tolist() == model.classes_.tolist()


def test_methods_are_those_of_the_estimator():
    assert not hasattr(CleaningClassifier(LinearSVC()), "predict_proba")
    assert hasattr(CleaningClassifier(LinearSVC()), "decision_function")
    assert hasattr(CleaningClassifier(), "predict_proba")
    assert not hasattr(CleaningRegressor(KNeighborsRegressor()), "decision_function")
    with pytest.raises(NotFittedError):
        CleaningClassifier().predict([[1.0]])


def test_pipelines_searches_and_clones():
    x, y, _ = made(200)
    pipeline = make_pipeline(StandardScaler(), quick(LogisticRegression(), min_rows=100))
    name = "cleaningclassifier__estimator__C"
    how = {"cv": ShuffleSplit(1, train_size=0.5, random_state=0), "error_score": "raise"}
    search = GridSearchCV(pipeline, {name: [0.01, 1.0]}, refit=False, **how).fit(x, y)
    assert search.best_params_[name] in (0.01, 1.0)
    accuracy = cross_val_score(pipeline, x, y, **how)
    assert accuracy.shape == (1,) and accuracy[0] == search.cv_results_["mean_test_score"][1] > 0.6
    copy = clone(pipeline.set_params(**{name: 3.0}))
    assert copy[-1].estimator.C == 3.0
    assert copy[-1].get_params()["options"] == QUICK and not hasattr(copy[-1], "plan_")


def test_the_judge_can_be_the_wrapped_estimator(folder, tmp_path):
    x, y, _ = made()
    shutil.copytree(folder, tmp_path / "run")
    forest = RandomForestClassifier(5, random_state=0)
    model = quick(forest, judge="estimator", out=tmp_path / "run").fit(x, y)
    assert model.verdict_.model == "RandomForestClassifier"


@pytest.mark.parametrize("kind", [CleaningClassifier, CleaningRegressor])
def test_scikit_learn_finds_nothing_wrong(kind):
    """All checks that check_estimator has, by the short way: their data are small."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DrossWarning)
        results = check_estimator(kind(min_rows=1000), on_skip=None, on_fail=None)
    failed = {r["check_name"]: r["exception"] for r in results if r["status"] == "failed"}
    skipped = {r["check_name"] for r in results if r["status"] == "skipped"}
    assert not failed and skipped <= SKIPPED and len(results) > 40


def test_scikit_learn_finds_nothing_wrong_where_its_rows_are_cleaned():
    """The check that has rows enough: 300."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DrossWarning)  # other data within it are small
        check_classifiers_train("CleaningClassifier", quick(min_rows=250))


# scikit-learn skips them by itself where a library or an environment variable is not there
SKIPPED = {"check_array_api_input"}

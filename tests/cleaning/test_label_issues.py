"""Label errors from probabilities of a model of one's own."""

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_val_predict

import dross


@pytest.fixture(scope="module")
def digits():
    """Given labels, a tenth of them wrong; out-of-sample probabilities; and the right labels."""
    x, right = load_digits(return_X_y=True)
    rng = np.random.default_rng(0)
    x, right = x[:900] / 16, right[:900]
    given = right.copy()
    wrong = rng.random(900) < 0.1
    given[wrong] = (given[wrong] + rng.integers(1, 10, wrong.sum())) % 10
    model = LogisticRegression(max_iter=200)
    return given, cross_val_predict(model, x, given, method="predict_proba"), right


def test_wrong_labels_are_found_with_what_they_should_be(digits):
    given, probabilities, right = digits
    issues = dross.find_label_issues(given, probabilities)
    wrong = given != right
    found = issues["is_label_issue"].to_numpy()
    assert found[wrong].mean() > 0.9 and wrong[found].mean() > 0.6
    both = found & wrong
    assert (issues["predicted_label"].to_numpy() == right)[both].mean() > 0.8
    assert (issues["given_label"].to_numpy() == given).all()
    assert issues["label_quality"].between(0, 1).all()
    assert (issues["label_quality"] < 0.5).equals(issues["is_label_issue"])


def test_names_of_classes_are_in_sorted_order(digits):
    given, probabilities, _ = digits
    names = np.array([f"digit {number}" for number in range(10)])
    issues = dross.find_label_issues(names[given].tolist(), probabilities)
    plain = dross.find_label_issues(given, probabilities)
    assert issues["predicted_label"].tolist() == names[plain["predicted_label"]].tolist()
    assert issues["label_quality"].equals(plain["label_quality"])


def test_classes_that_overlap_are_not_taken_for_errors():
    """Labels drawn from the probabilities themselves: all are as they should be."""
    rng = np.random.default_rng(0)
    p = rng.uniform(0.2, 0.8, 2000)
    labels = (rng.random(2000) < p).astype(int)
    issues = dross.find_label_issues(labels, np.column_stack([1 - p, p]), kind="observed")
    assert issues["is_label_issue"].mean() < 0.02


@pytest.mark.parametrize(
    ("labels", "probabilities", "said"),
    [
        ([0, 1], [[0.5, 0.5]], "1 rows"),
        ([0, 2], [[0.5, 0.5]] * 2, "from 0 to 1"),
        ([0, 1], [[0.5, 0.9], [1, 0]], "sum to 1; row 0"),
        ([0, 1], [[0.5, np.nan], [1, 0]], "sum to 1; row 0"),
        ([0, 1], [0.5, 0.5], r"\[N, classes\]"),
        (["a", "b"], [[0.5, 0.2, 0.3]] * 2, "2 distinct names"),
        ([0, 1], "probabilities", r"\[N, classes\]"),
    ],
)
def test_what_does_not_fit_is_refused(labels, probabilities, said):
    with pytest.raises(dross.InvalidInput, match=said):
        dross.find_label_issues(labels, probabilities)

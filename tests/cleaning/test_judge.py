"""What the verdict measures, on arrays: folds, edits, noise, and what is improved or worse."""

import re

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.naive_bayes import GaussianNB

from dross.cleaning import estimators, judge, plans
from dross.cleaning.estimators import find_model
from dross.cleaning.task import CLASSIFICATION
from dross.errors import InvalidInput
from tests.cleaning.made_judgments import (
    flip,
    judge_arrays,
    know_noise,
    overlapping,
    reach_verdict,
)


@pytest.fixture
def no_noise(monkeypatch):
    """The label noise is hardly any, and takes no time to estimate."""
    known = lambda rows, prior, **options: know_noise(rows, 1e-6)
    monkeypatch.setattr(judge, "estimate_label_noise", known)


@pytest.fixture(scope="module")
def digits():
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(x))
    return x[order] / 16, y[order].astype(np.int64)


class Spy(GaussianNB):
    """Writes down which rows it is fitted on, and which it is asked about."""

    fitted: list = []  # noqa: RUF012
    asked: list = []  # noqa: RUF012

    def fit(self, x, y):
        Spy.fitted.append((x[:, 0].astype(int).tolist(), y))
        return super().fit(x, y)

    def predict(self, x):
        Spy.asked.append(x[:, 0].astype(int).tolist())
        return super().predict(x)


def numbered(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Rows whose first feature is their number."""
    x, y, _ = overlapping(count)
    return np.column_stack([np.arange(count), x]), y


def do_not_resample(monkeypatch):
    """As if seeds made a difference, without fits that find out."""
    monkeypatch.setattr(estimators.Estimators, "try_seeds", lambda *given: (True, []))


# --- what is held out -----------------------------------------------------------------------------


def test_every_row_is_measured_by_models_that_did_not_see_it(no_noise, monkeypatch):
    do_not_resample(monkeypatch)
    Spy.fitted, Spy.asked = [], []
    x, y = numbered(60)
    held = []

    def edit_without(rows, held_out, rule, labels):
        held.append(np.flatnonzero(held_out).tolist())
        assert rule == "wrong-50" and labels == "observed"
        inside = np.flatnonzero(~held_out)
        relabeled = {int(id): int(1 - rows.y[id]) for id in inside[3:5]}
        return plans.Edits(inside[:3], relabeled), know_noise(rows, 0.1)

    monkeypatch.setattr(plans, "edits_without", edit_without)
    judgment = judge_arrays(
        x, y, rule="wrong-50", removed=[0], labels="observed", seeds=3, assignments=2, model=Spy()
    )
    values = judgment.measure()
    assert values["error"].shape == values["rates"].shape == (3, 3, 60)
    assert len(held) == 10  # five folds, twice: nothing is decided on labels that were seen
    for start in (0, 5):
        assert sorted(np.concatenate(held[start : start + 5])) == list(range(60))
    assert held[:5] != held[5:]
    assert len(Spy.fitted) == 3 * 3 * 5 == judgment.models
    for (rows, _), asked in zip(Spy.fitted, Spy.asked, strict=True):
        assert not set(rows) & set(asked) and asked in held
    for k in range(0, 45, 3):  # before, after, control
        (before, given), (after, changed), (control, _) = Spy.fitted[k : k + 3]
        assert len(before) == 48 and after == before[3:]
        assert len(control) == 45 and control != after and set(control) < set(before)
        assert (np.array(changed)[:2] != np.array(given)[3:5]).all()
        assert (np.array(changed)[2:] == np.array(given)[5:]).all()


def test_a_fixed_list_is_applied_to_the_rows_outside_of_the_fold(no_noise, monkeypatch):
    do_not_resample(monkeypatch)
    Spy.fitted, Spy.asked = [], []
    x, y = numbered(50)
    judgment = judge_arrays(x, y, removed=range(20), seeds=2, model=Spy())
    judgment.measure()
    for k in range(0, 30, 3):
        before, after, control = (set(rows) for rows, _ in Spy.fitted[k : k + 3])
        asked = set(Spy.asked[k])
        assert before == set(range(50)) - asked and after == before - set(range(20))
        assert len(control) == len(after)


def test_copies_are_held_out_together(no_noise):
    x, y = numbered(40)
    groups = np.arange(40) // 2
    judgment = judge_arrays(x, y, removed=[0], groups=groups, seeds=2)
    for piece in judgment.pieces:
        assert (piece.fold[::2] == piece.fold[1::2]).all()


def test_the_test_rows_are_never_learned(no_noise, monkeypatch):
    do_not_resample(monkeypatch)
    Spy.fitted, Spy.asked = [], []
    x, y = numbered(70)
    test = (x[50:], y[50:])
    verdict = reach_verdict(x[:50], y[:50], test, removed=[3, 4], seeds=2, model=Spy())
    assert not verdict.nested and verdict.rows == 20
    assert all(asked == list(range(50, 70)) for asked in Spy.asked)
    assert [len(rows) for rows, _ in Spy.fitted] == [50, 48, 48] * 2
    assert "separate test file" not in verdict.advice


def test_random_edits_are_as_many_and_the_same_in_every_fold():
    edits = plans.Edits(np.arange(10), dict.fromkeys(range(10, 15), 1))
    learned = np.arange(5, 100)
    usual = np.arange(95) % 7
    one = judge.draw_control(0, learned, 100, edits, usual)
    assert len(one.removed) == 5 and len(one.relabeled) == 5  # as many as here
    assert len(set(one.removed) | set(one.relabeled)) == 10
    assert np.isin(one.ids, learned).all()
    assert one.relabeled == {id: usual[id - 5] for id in one.relabeled}
    again = judge.draw_control(0, learned, 100, edits, usual)
    other = judge.draw_control(1, learned, 100, edits, usual)
    assert (one.removed == again.removed).all() and (one.removed != other.removed).any()
    everywhere = judge.draw_control(0, np.arange(100), 100, edits, np.arange(100))
    inside = [id for id in everywhere.removed if id >= 5]
    assert set(inside[:5]) <= set(one.removed)


# --- what is measured -----------------------------------------------------------------------------


def test_the_log_loss_is_that_of_noisy_labels():
    """Slow and obvious: P(label) = sum over true classes of p(true) P(label | true)."""
    rng = np.random.default_rng(0)
    rows = judge_arrays(rng.normal(size=(30, 3)), rng.integers(0, 3, 30)).learner.rows
    noise = know_noise(rows, 0.2)
    p = rng.dirichlet(np.ones(3), 30)
    rates = noise.flip_rates(rng.normal(size=(30, 3)), rows.validation, rows.checked)
    assert rates == pytest.approx(0.2)
    found = judge.measure_model(p, p.argmax(1), rows.y, noise, rates)
    for k in range(30):
        chance = sum(p[k, t] * (0.8 if t == rows.y[k] else 0.1) for t in range(3))
        assert found["log loss"][k] == pytest.approx(-np.log(chance))
        assert found["plain log loss"][k] == pytest.approx(-np.log(p[k, rows.y[k]]))
        brier = sum((p[k, t] - (t == rows.y[k])) ** 2 for t in range(3))
        assert found["plain Brier score"][k] == pytest.approx(brier)
        assert found["error"][k] == (p[k].argmax() != rows.y[k])
    assert set(judge.measure_model(None, rows.y, rows.y, noise, rates)) == {"error"}


def test_labels_that_a_person_has_checked_are_right(no_noise, monkeypatch):
    monkeypatch.setattr(judge, "estimate_label_noise", lambda rows, *_, **__: know_noise(rows, 0.3))
    x, y = numbered(40)
    checked = np.arange(40) < 10
    rates = judge_arrays(x, y, removed=[30], seeds=2, checked=checked).measure()["rates"][0, 0]
    assert rates[:10] == pytest.approx(0) and rates[10:] == pytest.approx(0.3)


def test_numbers_are_measured_in_their_units(monkeypatch):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(240, 2))
    right = 400 + 60 * x[:, 0] + 30 * x[:, 1] + rng.normal(0, 10, 240)
    y = right.copy()
    wrong = rng.choice(180, 18, replace=False)
    y[wrong] += 300
    test = (x[180:], right[180:])
    verdict = reach_verdict(x[:180], y[:180], test, removed=wrong, model=LinearRegression())
    assert verdict.verdict == "improved" and verdict.resampled and verdict.per_class == []
    assert set(verdict.metrics) == {"absolute error", "squared error"}
    after = verdict.metrics["absolute error"].after
    assert 7 < np.mean(after) < 9.5  # a deviation of 10 gives 8
    assert set(verdict.plain) == {"squared error"}
    mended = {int(id): str(right[id]) for id in wrong}
    verdict = reach_verdict(x[:180], y[:180], test, relabeled=mended, model=LinearRegression())
    assert verdict.verdict == "improved"
    for label in ("1_000", "nan", "1e999"):  # float() would read them
        with pytest.raises(InvalidInput, match="which is not a valid number"):
            judge_arrays(x[:180], y[:180], relabeled={3: label})


# --- verdicts -------------------------------------------------------------------------------------


@pytest.mark.parametrize("tested", [False, True])
def test_a_correct_cleaning_of_data_that_are_noisy_everywhere_is_not_worse(digits, tested):
    """The models then disagree with the wrong test labels more surely than before."""
    x, right = digits
    y, bad = flip(right, 0.15, 10)
    count = 600
    relabeled = {int(id): str(right[id]) for id in np.flatnonzero(bad[:count])}
    test = (x[count:1000], y[count:1000]) if tested else None
    verdict = reach_verdict(x[:count], y[:count], test, relabeled=relabeled)
    assert verdict.verdict == "improved" and 0.1 < verdict.noise < 0.22
    assert verdict.metrics["log loss"].difference < -0.03
    changes = [each["log loss"].difference for each in (verdict.metrics, verdict.plain)]
    assert changes[0] < changes[1]  # the latter is as if wrong labels were right
    assert verdict.nested != tested
    assert re.search(r"About 1\d % of these labels are estimated to be wrong", verdict.sentence)


def test_right_test_labels_are_recognized(digits):
    x, right = digits
    y, bad = flip(right[:600], 0.15, 10)
    relabeled = {int(id): str(right[id]) for id in np.flatnonzero(bad)}
    verdict = reach_verdict(x[:600], y, (x[600:900], right[600:900]), relabeled=relabeled)
    assert verdict.verdict == "improved" and verdict.noise < 0.02


@pytest.mark.parametrize("tested", [False, True])
def test_an_overconfident_cleaning_is_worse(tested):
    """Without the rows that are against the odds the error stays, and the models are too sure."""
    x, y, p = overlapping(1600)
    count = 1000
    against = np.where(y == 1, p, 1 - p)[:count] < 0.3
    test = (x[count:], y[count:]) if tested else None
    verdict = reach_verdict(
        x[:count], y[:count], test, removed=np.flatnonzero(against), labels="observed"
    )
    assert verdict.verdict == "worse" and "got worse" in verdict.sentence
    assert verdict.metrics["log loss"].interval[0] > 0
    assert abs(verdict.metrics["error"].difference) < 0.02
    assert ("A separate test file" in verdict.advice) != tested


def test_overlap_that_is_taken_for_noise_does_not_make_an_overconfident_cleaning_better(
    monkeypatch,
):
    """Passed through noise that is not there, sure predictions look right."""
    monkeypatch.setattr(judge, "estimate_label_noise", lambda rows, *_, **__: know_noise(rows, 0.2))
    x, y, p = overlapping(3000)
    against = np.where(y == 1, p, 1 - p)[:1000] < 0.4
    verdict = reach_verdict(
        x[:1000], y[:1000], (x[1000:], y[1000:]), removed=np.flatnonzero(against)
    )
    assert verdict.metrics["log loss"].difference < -0.01  # it seems better
    assert verdict.plain["log loss"].difference > 0.05
    assert verdict.verdict == "worse"


def test_random_removal_is_not_an_improvement(digits, no_noise):
    x, y = digits
    removed = np.random.default_rng(3).choice(600, 40, replace=False)
    verdict = reach_verdict(x[:600], y[:600], removed=removed)
    assert verdict.verdict == "inconclusive" and verdict.removed == 40
    assert (
        "instances would be needed to detect the change (there are 600)" in verdict.advice
        or "less than" in verdict.advice
    )


def test_a_class_that_vanishes_by_the_edits(no_noise):
    rng = np.random.default_rng(0)
    y = np.arange(3).repeat([90, 90, 20])
    x = np.column_stack([y + rng.normal(0, 0.3, 200), rng.normal(size=200)])
    for model in (None, GaussianNB()):
        verdict = reach_verdict(x, y, removed=np.flatnonzero(y == 2), seeds=3, model=model)
        assert "no training instance of '2' is left" in verdict.advice
        assert "all 20 test instances of this class are misclassified" in verdict.advice
        assert {row["class"]: row["after"] for row in verdict.per_class}["2"] == 1.0
    relabeled = {int(id): "0" for id in np.flatnonzero(y)}
    with pytest.raises(InvalidInput, match=r"only one class .* GaussianNB cannot be trained"):
        reach_verdict(x, y, relabeled=relabeled, model=GaussianNB())
    with pytest.raises(InvalidInput, match="relabeled as 'x', which is not one of the classes"):
        reach_verdict(x, y, relabeled={3: "x"})


# --- estimators -----------------------------------------------------------------------------------


def test_the_three_fits_of_a_resampled_seed_have_the_same_sample(no_noise):
    y = np.arange(60) % 3
    one, other = estimators.draw_sample(y, 60, 5), estimators.draw_sample(y, 60, 6)
    assert (one == estimators.draw_sample(y, 60, 5)).all() and (one != other).any()
    assert np.bincount(y[one]).tolist() == [20, 20, 20] and len(set(one)) < 60
    x, y = numbered(60)
    verdict = reach_verdict(x, y, removed=[0], seeds=3, model=LogisticRegression())
    assert verdict.resampled and "3 bootstrap samples" in verdict.sentence
    assert len(set(verdict.metrics["log loss"].before)) == 3


def test_numbers_of_classes_have_no_gaps_and_come_back():
    """Some estimators insist on labels 0, 1, 2, ...; a class that was not learned stays at 0."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(90, 2)).astype(np.float32)
    y = np.arange(90) % 3
    x[:, 0] += 5 * y
    model = find_model(GaussianNB(), CLASSIFICATION)
    fits = estimators.Estimators(model, classes=3, scale=(0.0, 1.0))
    kept = y != 1
    found, predicted = fits.fit_and_predict(x[kept], torch.from_numpy(y[kept]), 0, x)
    assert set(predicted.tolist()) == {0, 2} and found.shape == (90, 3)
    assert (found[:, 1] == 0).all() and (predicted == y)[kept].mean() > 0.95


def test_a_fold_without_a_rare_class_predicts_the_other(no_noise, monkeypatch):
    """scikit-learn's logistic regression refuses to be fitted on one class."""
    x, y, _ = overlapping(60)
    y[:] = 0
    y[:3] = 1
    judged = judge_arrays(x, y, removed=[0, 1], seeds=2, model=LogisticRegression())
    values = judged.measure()
    assert np.isfinite(values["log loss"]).all()

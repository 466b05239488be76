"""The statistics of the verdict, and its words."""

from types import SimpleNamespace

import numpy as np
import pytest

from dross.cleaning import verdict
from dross.cleaning.edits import BY_DECISIONS, ChosenEdits

NONE = np.zeros(0, dtype=np.int64)


def values(before, after, control, spread=0.02, passes=10, rows=400, seed=0):
    """Losses [passes, 3, rows] with these means; the seeds vary by `spread`."""
    rng = np.random.default_rng(seed)
    noise = rng.normal(0, spread, (passes, 3, 1)) + rng.normal(0, 0.3, (1, 1, rows))
    means = np.array([before, after, control])[None, :, None]
    return means + noise + rng.normal(0, 0.05, (passes, 3, rows))


def compare(*means, **how):
    return verdict.compare_metric(values(*means, **how))


def test_what_is_measured_and_what_is_decided():
    better, worse = compare(1.0, 0.8, 1.0), compare(1.0, 1.3, 1.0)
    unclear = compare(1.0, 0.999, 1.0)
    assert better.difference == pytest.approx(-0.2, abs=0.02)
    assert better.is_better and not better.is_worse
    assert better.interval[0] < better.difference < better.interval[1] < 0
    assert abs(better.random_difference) < 0.02
    assert better.random_interval[0] < 0 < better.random_interval[1]
    decide = lambda *metrics: verdict.decide_verdict(dict(zip(("error", "log loss"), metrics)))
    assert decide(better, unclear) == "improved" and decide(unclear, better) == "improved"
    assert decide(unclear, unclear) == "inconclusive"
    assert decide(unclear, worse) == decide(better, worse) == decide(worse, better) == "worse"
    assert verdict.decide_verdict({"error": better}, worse) == "worse"
    assert verdict.decide_verdict({"error": unclear}, better) == "inconclusive"


def test_the_interval_is_that_of_the_formula():
    from scipy.stats import t

    given = values(1.0, 0.9, 1.0, passes=5, rows=50, seed=4)
    change, control = given[:, 1] - given[:, 0], given[:, 2] - given[:, 0]
    quantile = t.ppf(0.975, 4)
    error = lambda differences: differences.std(ddof=1) / len(differences) ** 0.5
    rows = 1.96 * error(change.mean(0))
    seeds, control_seeds = error(change.mean(1)), error(control.mean(1))
    more = control.mean(1).var(ddof=1) - change.mean(1).var(ddof=1)
    draw = max(more * (1 + 1 / 5), 0) ** 0.5
    assert draw > 0
    reach = (rows**2 + quantile**2 * (seeds**2 + draw**2)) ** 0.5
    found = verdict.compare_metric(given)
    assert found.interval == pytest.approx((change.mean() - reach, change.mean() + reach))
    further = quantile * (seeds**2 + control_seeds**2 + draw**2) ** 0.5
    assert found.random_margin == pytest.approx(further)


def test_copies_of_a_row_do_not_make_it_surer():
    given = values(1.0, 0.95, 1.0, rows=100)
    copied = np.concatenate([given] * 9, axis=2)
    groups = np.tile(np.arange(100), 9)
    once, apart = verdict.compare_metric(given), verdict.compare_metric(copied)
    together = verdict.compare_metric(copied, groups)
    assert together.rows_error == pytest.approx(once.rows_error, rel=1e-9)
    assert apart.rows_error == pytest.approx(once.rows_error / 3, rel=0.02)


def test_ten_rows_prove_nothing():
    """All passes agree, but on ten rows: another ten might say otherwise."""
    rng = np.random.default_rng(0)
    base = np.zeros((10, 3, 10))
    base[:, 1] = (rng.random(10) < 0.5) * -1.0 + (rng.random(10) < 0.4) * 1.0
    found = verdict.compare_metric(base + rng.normal(0, 1e-3, base.shape))
    assert not found.is_better and not found.is_worse
    assert "instances would be needed to detect the change (there are 10)" in verdict.advise(
        "inconclusive", {"log loss": found}, 10, 10
    )


def test_what_random_edits_do_as_well_is_no_improvement():
    rng = np.random.default_rng(0)
    given = values(1.0, 0.98, 1.0, spread=0.0, rows=4000)
    assert verdict.compare_metric(given).is_better
    given[:, 2] += rng.normal(0, 0.02, (10, 1))  # each draw of random edits changes the models
    found = verdict.compare_metric(given)
    assert not found.is_better and found.interval[1] > 0
    as_good = verdict.compare_metric(values(1.0, 0.9, 0.9, spread=0.0))
    assert as_good.interval[1] < 0 and not as_good.is_better
    said = verdict.advise("inconclusive", {"error": as_good}, 10, 400)
    assert said == "The same number of random edits lowers the error just as much."


def test_random_edits_are_called_an_improvement_as_seldom_as_stated():
    """Every draw of random edits changes a model for the better or the worse, on all rows alike."""
    rng = np.random.default_rng(1)
    improved, count = 0, 3000
    for _ in range(count):
        draws = rng.normal(0, 0.01, (6, 3, 1))  # of the control: another draw in each pass
        draws[:, 0] = 0
        draws[:, 1] = rng.normal(0, 0.01)  # of the judged edits: the same in all
        rows = rng.normal(0, 0.2, (6, 3, 200))
        rows[:, 0] = 0
        rows[:, 1] = rows[0, 1]
        given = 1 + draws + rows + rng.normal(0, 0.003, (6, 3, 1))
        other = given + rng.normal(0, 0.1, given.shape)  # a second measure, much like the first
        metrics = {"error": given, "log loss": other}
        compared = {name: verdict.compare_metric(each) for name, each in metrics.items()}
        improved += verdict.decide_verdict(compared) == "improved"
    assert improved / count < verdict.FALSE_ALARMS + 2 * (0.025 * 0.975 / count) ** 0.5


def test_a_model_is_read_in_the_way_that_suits_it():
    plain, noisy = np.ones((2, 3, 4)), np.ones((2, 3, 4))
    plain[:, 0], noisy[:, 0] = 0.5, 0.6  # before: predicts given labels
    plain[:, 1], noisy[:, 1] = 0.9, 0.55  # after: predicts true classes
    read = verdict.best_reading(noisy, plain)
    assert (read[:, 0] == 0.5).all() and (read[:, 1] == 0.55).all() and (read[:, 2] == 1).all()


def test_nothing_changes():
    """No prediction changes: neither an error nor a log loss to give advice about."""
    same = np.random.default_rng(0).random((10, 1, 40)).repeat(3, axis=1)
    metrics = {"error": verdict.compare_metric(same), "log loss": verdict.compare_metric(2 * same)}
    assert verdict.decide_verdict(metrics) == "inconclusive"
    said = verdict.advise("inconclusive", metrics, 10, 40)
    assert "make the same predictions for all 40 rows" in said


def test_advice_is_about_what_can_be_settled():
    assert verdict.advise("improved", {"log loss": compare(1.0, 0.8, 1.0)}, 10, 400) == ""
    same = verdict.compare_metric(np.zeros((10, 3, 40)))
    few = compare(1.0, 0.99, 1.0, passes=4)
    said = verdict.advise("inconclusive", {"error": same, "log loss": few}, 4, 400)
    assert "the log loss" in said and "(there are 400)" in said
    tiny = compare(1.0, 1.0, 1.0, spread=0.1)
    tiny = verdict.Comparison(**(vars(tiny) | {"difference": 1e-4}))
    said = verdict.advise("inconclusive", {"log loss": tiny}, 10, 400)
    assert "If the log loss changes at all, it is probably by less than 0." in said
    steady = values(1.0, 0.98, 1.0, spread=0.0, passes=3)
    steady[:, 1] += np.array([0.015, 0.0, -0.015])[:, None]  # only the seeds disagree
    said = verdict.advise("inconclusive", {"log loss": verdict.compare_metric(steady)}, 3, 400)
    assert "seeds would be needed to detect the change (`seeds`)." in said


def exact(before, after, low, high):
    """A comparison with these figures."""
    difference = after - before
    rest = (difference, (low, high), 0.0, (0.0, 0.0), 0.0, 0.0, 0.0)
    return verdict.Comparison([before], [after], [before], *rest)


def test_figures_are_what_they_say():
    error = exact(0.157, 0.154, -0.005, -0.001)
    loss = exact(0.336, 0.330, -0.0099, -0.0021)
    assert verdict.describe_metric("error", error) == (
        "error: 15.7 % -> 15.4 % (-0.3 points, 95 % confidence interval -0.5 to -0.1)"
    )
    assert verdict.describe_metric("log loss", loss) == (
        "log loss 0.336 -> 0.330 (-0.006, 95 % confidence interval -0.010 to -0.002)"
    )
    number = exact(1234.5, 1200.0, -60.0, -9.0)
    assert verdict.describe_metric("absolute error", number) == (
        "absolute error 1,234 -> 1,200 (-34, 95 % confidence interval -60 to -9)"
    )
    improved = verdict.Verdict(
        made="",
        what="x",
        removed=3,
        relabeled=1,
        seeds=6,
        metrics={"error": error, "log loss": loss},
        plain={},
        per_class=[],
        verdict="improved",
        sentence="",
        advice="",
        model="linear",
        resampled=False,
        nested=True,
        rows=900,
        noise=0.15,
    )
    sentence = verdict.describe_verdict(improved, "The model")
    assert sentence.startswith("The model improved with 3 removed and 1 relabeled: error: 15.7 %")
    assert "on all 900 rows, each predicted by models that were not trained on it" in sentence
    assert "a perfect model would have an error of about 15 %" in sentence
    assert sentence.endswith("The log loss takes them into account.")
    assert "mistake" not in sentence


def test_a_change_that_decides_comes_before_one_that_is_not_clear():
    error = exact(0.101, 0.102, -0.006, 0.008)
    loss = exact(0.522, 0.491, -0.050, -0.013)
    told = SimpleNamespace(
        verdict="improved",
        removed=5,
        relabeled=44,
        edited=0,
        added=0,
        metrics={"error": error, "log loss": loss},
        rows=900,
        nested=False,
        seeds=10,
        resampled=False,
        noise=0.0,
    )
    assert verdict.describe_verdict(told, "The model") == (
        "The model improved with 5 removed and 44 relabeled: log loss 0.522 -> 0.491 (-0.031, 95 % "
        "confidence interval -0.050 to -0.013); error: 10.1 % -> 10.2 % (no clear change: +0.1 "
        "points, 95 % confidence interval -0.6 to +0.8); on 900 test rows (10 repetitions with fresh "
        "seeds)."
    )


def test_the_verdict_says_how_the_list_was_chosen():
    by_rule = ChosenEdits(NONE, {}, "x", rule="wrong-50")
    assert verdict.warn_of_sight(by_rule) == ""
    assert verdict.warn_of_sight(ChosenEdits(NONE, {}, "x")).startswith(
        "This list was made with knowledge of all"
    )
    assert verdict.warn_of_sight(ChosenEdits(NONE, {}, BY_DECISIONS)).startswith(
        "These decisions were"
    )


def test_why_the_plain_log_loss_rises():
    better, worse = compare(1.0, 0.8, 1.0), compare(1.0, 1.3, 1.0)
    said = verdict.describe_plain({"log loss": worse}, {"log loss": better})
    assert "would rise from 0.99 to 1.29" in said and "penalized for its confidence" in said
    assert verdict.describe_plain({"log loss": worse}, {"log loss": worse}) == ""
    assert verdict.describe_plain({"log loss": better}, {"log loss": better}) == ""

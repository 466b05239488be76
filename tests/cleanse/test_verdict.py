"""The statistics of the verdict."""

import numpy as np
import pytest

from dross.cleanse import verdict


def test_sign_flips_are_counted_exactly():
    assert verdict.sign_flip_test(np.array([1.0, 1.0, 1.0])) == pytest.approx(2 / 8)
    assert verdict.sign_flip_test(np.array([1.0, -1.0])) == 1.0
    differences = np.random.default_rng(0).normal(0.3, 1, 12)
    exact = verdict.sign_flip_test(differences)
    more = verdict.sign_flip_test(np.append(differences, [1e-9] * 2))  # above 12 they are sampled
    assert more == pytest.approx(exact, abs=0.02)


def values(before, after, control, spread=0.02, seeds=10, tested=400):
    """Per instance losses [seeds, 3, tested] with these means."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, spread, (seeds, 3, 1)) + rng.normal(0, 0.3, (1, 1, tested))
    return (
        np.array([before, after, control])[None, :, None]
        + noise
        + rng.normal(0, 0.05, (seeds, 3, tested))
    )


def test_what_is_measured_and_what_is_decided():
    better = verdict.compare_metric(values(1.0, 0.8, 1.0))
    assert (
        better.difference == pytest.approx(-0.2, abs=0.02)
        and better.interval[1] < 0
        and better.significant
    )
    assert (
        better.interval[0] < better.difference < better.interval[1]
        and better.p_t < 1e-5
        and better.p_signs < 0.01
    )
    assert (
        abs(better.random_difference) < 0.02
        and better.random_interval[0] < 0 < better.random_interval[1]
    )
    unclear = verdict.compare_metric(values(1.0, 0.999, 1.0))
    worse = verdict.compare_metric(values(1.0, 1.3, 1.0))
    assert verdict.decide_verdict({"error": better, "loss": unclear}) == "improved"
    assert verdict.decide_verdict({"error": unclear, "loss": unclear}) == "cannot tell"
    assert verdict.decide_verdict({"error": unclear, "loss": worse}) == "worse"
    assert verdict.decide_verdict({"error": better, "loss": worse}) == "cannot tell"
    assert verdict.advise("improved", {"loss": better}, 10, 400) == ""
    assert "probably smaller than" in verdict.advise("cannot tell", {"loss": unclear}, 10, 400)
    few = verdict.compare_metric(values(1.0, 0.98, 1.0, spread=0.03, seeds=4))
    assert "seeds would show it (seeds=...)." in verdict.advise(
        "cannot tell", {"loss": few}, 4, 400
    )


def test_a_test_part_of_ten_proves_nothing():
    """All seeds agree, but on ten instances: another ten might say otherwise."""
    rng = np.random.default_rng(0)
    base = np.zeros((10, 3, 10))
    base[:, 1] = (rng.random(10) < 0.5) * -1.0 + (rng.random(10) < 0.4) * 1.0
    found = verdict.compare_metric(base + rng.normal(0, 1e-3, base.shape))
    assert found.p_t < 0.05 and not found.significant
    assert "The seeds agree" in verdict.advise("cannot tell", {"loss": found}, 10, 10)


def test_nothing_changes():
    """No test prediction changes: neither an error nor a loss to give advice about."""
    same = np.random.default_rng(0).random((10, 1, 40)).repeat(3, axis=1)
    error, loss = verdict.compare_metric(same), verdict.compare_metric(2 * same)
    metrics = {"error": error, "loss": loss}
    assert verdict.decide_verdict(metrics) == "cannot tell"
    assert "do the same on all 40 test" in verdict.advise("cannot tell", metrics, 10, 40)


def test_a_metric_without_a_change_is_not_the_one_to_settle():
    """The predictions are the same, and only the loss moves a little."""
    same = verdict.compare_metric(np.zeros((10, 3, 40)))
    few = verdict.compare_metric(values(1.0, 0.98, 1.0, spread=0.03, seeds=4))
    assert "the loss" in verdict.advise("cannot tell", {"error": same, "loss": few}, 4, 400)
    balanced = np.zeros((4, 3, 2))
    balanced[:, 1] = [[1.0, -1.0], [-1.0, 1.0], [1.0, -1.0], [-1.0, 1.0]]
    no_mean = verdict.compare_metric(balanced)
    assert no_mean.difference == 0
    verdict.advise("cannot tell", {"error": same, "loss": no_mean}, 4, 2)

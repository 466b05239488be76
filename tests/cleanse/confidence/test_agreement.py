"""How far runs agree, and the sentence that says so."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from dross.cleanse.confidence.agreement import POOR, compare_halves, warn_of_disagreement


def noisy_runs(noise, runs=4, count=3000):
    rng = np.random.default_rng(0)
    return rng.normal(size=count) + noise * rng.normal(size=(runs, count))


def test_it_is_the_mean_rank_correlation_over_all_cuts():
    by_run = noisy_runs(1.0)
    cuts = [((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2))]
    mean = lambda half: by_run[list(half)].mean(0)
    expected = np.mean([spearmanr(mean(a), mean(b)).statistic for a, b in cuts])
    assert compare_halves(by_run) == pytest.approx(expected)
    assert compare_halves(by_run[:3]) == pytest.approx(
        np.mean([spearmanr(mean((k,)), mean({0, 1, 2} - {k})).statistic for k in range(3)])
    )


def test_below_the_limit_as_many_new_runs_would_not_find_half_of_the_order_again():
    for noise in (0.5, 2.0, 4.0):
        both = noisy_runs(noise, runs=8)
        again = spearmanr(both[:4].mean(0), both[4:].mean(0)).statistic
        halves = compare_halves(both[:4])
        assert again == pytest.approx(2 * halves / (1 + halves), abs=0.06)
        assert (halves < POOR) == (again < 0.5)


def test_what_cannot_be_compared_has_no_agreement():
    assert compare_halves(noisy_runs(1.0, runs=1)) is None
    assert compare_halves(np.zeros((4, 10))) is None
    assert compare_halves(noisy_runs(1.0, count=2)) is None


def test_a_poor_agreement_is_said_in_a_sentence():
    said = warn_of_disagreement({"runs": 4, "run_agreement": 0.21})
    assert said is not None and said.startswith("The 4 runs agree poorly on what is harmful")
    assert "0.21" in said and "runs=..." in said
    assert warn_of_disagreement({"runs": 4, "run_agreement": 0.6}) is None
    assert warn_of_disagreement({"runs": 4, "run_agreement": None}) is None
    assert warn_of_disagreement({"runs": 4}) is None  # a project of an earlier version

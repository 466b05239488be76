"""Each suggestion has a confidence of its own."""

import numpy as np
import pandas as pd
import pytest

from dross.cleanse.confidence.suggestions import harm_chance, suggestion_confidence

TABLE = pd.DataFrame(
    {
        "score": [-1.0, -1.0, 1.0, -1.0, 0.0],
        "spread": [0.1, 5.0, 0.1, 0.1, 0.0],
        "probability": [0.7, 0.7, 0.7, 0.7, 0.7],
        "label_probability": [0.1, 0.1, 0.1, 0.1, 0.1],
        "action": ["remove", "remove", "keep", "relabel", "keep"],
    }
)


def test_the_chance_of_harm_is_how_often_the_true_mean_is_below_zero():
    rng = np.random.default_rng(0)
    true = rng.normal(size=20_000)
    by_run = true + 2 * rng.normal(size=(4, 20_000))
    chance = harm_chance(by_run.mean(0), by_run.std(0), 4)
    for low, high in ((0.1, 0.3), (0.4, 0.6), (0.7, 0.9)):
        among = (chance > low) & (chance < high)
        # values near 0 are likelier than others here, so that chances are a little too extreme
        assert (true[among] < 0).mean() == pytest.approx(chance[among].mean(), abs=0.1)


def test_both_chances_count_and_a_new_label_must_be_right_too():
    sure, unsure, helpful, relabelled, idle = suggestion_confidence(TABLE, 4)
    assert sure == pytest.approx(0.9, abs=0.01) and relabelled == pytest.approx(0.7, abs=0.01)
    assert unsure == pytest.approx(0.9 * harm_chance(np.array([-1.0]), np.array([5.0]), 4)[0])
    assert 0.45 < unsure < sure and helpful < 0.01 and idle == pytest.approx(0.45)


def test_what_is_not_known_is_left_out():
    one_run = suggestion_confidence(TABLE, 1)
    assert one_run.tolist() == pytest.approx([0.9, 0.9, 0.9, 0.7, 0.9])
    numbers = TABLE.assign(probability=np.nan, label_probability=np.nan)
    harm = harm_chance(TABLE["score"].to_numpy(), TABLE["spread"].to_numpy(), 4)
    assert suggestion_confidence(numbers, 4).tolist() == pytest.approx(harm.tolist())
    assert np.isnan(suggestion_confidence(numbers, 1)).all()


def test_runs_that_all_say_the_same_are_sure():
    chances = harm_chance(np.array([-1e-4, 1e-4, 0.0]), np.zeros(3), 4)
    assert chances.tolist() == [1.0, 0.0, 0.5]

"""How numbers came to be wrong: against labels that are known to be wrong."""

import numpy as np
import pytest

from dross.cleanse.opinions import number_noise as noise_module
from dross.cleanse.opinions.number_noise import number_noise


def draw(share: float, seed: int, *, heavy: bool = False, count: int = 2000):
    rng = np.random.default_rng(seed)
    truth = rng.normal(3, 2, count)
    noise = rng.standard_t(3, count) if heavy else rng.normal(size=count)
    labels = truth + 0.3 * noise
    wrong = rng.random(count) < share
    labels[wrong] = rng.permutation(labels)[wrong]
    return truth, labels, wrong


@pytest.mark.parametrize("heavy", [False, True])
def test_swapped_numbers_are_found_and_counted(heavy):
    truth, labels, wrong = draw(0.15, 0, heavy=heavy)
    found = number_noise(truth, labels)
    assert np.isclose(found.sum(), wrong.sum(), rtol=0.15)
    among = found > 0.5  # what it says of them is true of them
    assert abs(wrong[among].mean() - found[among].mean()) < 0.05
    far = wrong & (np.abs(labels - truth) > 2)
    assert (found > 0.5)[far].mean() > 0.95


@pytest.mark.parametrize("heavy", [False, True])
def test_heavy_tails_are_not_called_wrong(heavy):
    truth, labels, _ = draw(0.0, 1, heavy=heavy)
    assert (number_noise(truth, labels) > 0.5).mean() < 0.005


def test_the_likelihood_is_that_of_the_chances(monkeypatch):
    """Also where the search ends early: as if it had been stopped after the same step."""
    truth, labels, _ = draw(0.15, 2)
    monkeypatch.setattr(noise_module, "_STEPS", 2)
    likelihood, wrong = noise_module._fit(truth, labels, 3.0)
    monkeypatch.setattr(noise_module, "_CLOSE_ENOUGH", 1e9)  # the second step is close enough
    early, same = noise_module._fit(truth, labels, 3.0)
    assert (wrong == same).all() and early == likelihood


def test_numbers_without_any_error_or_spread():
    exact = np.arange(20.0)
    assert (number_noise(exact, exact) < 0.5).all()
    assert np.isfinite(number_noise(np.zeros(20), np.zeros(20))).all()
    assert number_noise(np.append(exact, 3.0), np.append(exact, 18.0))[-1] > 0.5

"""How classes came to be mislabelled: against labels that are known to be wrong."""

import itertools

import numpy as np
import pytest
from scipy.special import softmax

from dross.cleanse.opinions.class_noise import fit_class_noise

CLASSES = 4


def draw(count: int, table: np.ndarray, *, sharpness: float, seed: int):
    """Chances that hesitate by `sharpness`, the true classes, and labels by the table."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 4, (count, CLASSES))
    truth = np.array([rng.choice(CLASSES, p=p) for p in softmax(logits, axis=1)])
    labels = np.array([rng.choice(CLASSES, p=table[t]) for t in truth])
    return softmax(logits / sharpness, axis=1), truth, labels


def mistakes(share: float, *, next_class: bool) -> np.ndarray:
    others = np.roll(np.eye(CLASSES), 1, axis=1) if next_class else (1 - np.eye(CLASSES)) / 3
    return (1 - share) * np.eye(CLASSES) + share * others


@pytest.mark.parametrize("share, next_class", [(0.1, False), (0.3, False), (0.2, True)])
def test_the_table_and_the_sharpness_are_found(share, next_class):
    table = mistakes(share, next_class=next_class)
    chances, truth, labels = draw(6000, table, sharpness=2.0, seed=0)
    found = fit_class_noise(chances, labels)
    assert np.allclose(found.mistakes, table, atol=0.04)
    assert np.isclose(found.sharpness, 2.0, rtol=0.15)
    wrong = 1 - found.posterior[np.arange(len(labels)), labels]
    assert np.isclose(wrong.sum(), (labels != truth).sum(), rtol=0.1)


def test_the_chance_to_be_wrong_is_calibrated():
    """Of those with a chance of about c to be wrong, a share of about c is wrong."""
    chances, truth, labels = draw(20_000, mistakes(0.2, next_class=False), sharpness=1.5, seed=1)
    wrong = 1 - fit_class_noise(chances, labels).posterior[np.arange(len(labels)), labels]
    for low, high in itertools.pairwise(np.linspace(0, 1, 6)):
        among = (wrong >= low) & (wrong < high)
        assert abs((labels != truth)[among].mean() - wrong[among].mean()) < 0.06


@pytest.mark.parametrize("sharpness", [0.7, 1.0, 2.0])
def test_classes_that_overlap_are_not_called_wrong(sharpness):
    chances, _, labels = draw(3000, np.eye(CLASSES), sharpness=sharpness, seed=2)
    assert (chances.argmax(1) != labels).mean() > 0.1  # models disagree with many labels
    wrong = 1 - fit_class_noise(chances, labels).posterior[np.arange(len(labels)), labels]
    assert (wrong > 0.5).mean() < 0.003 and wrong.mean() < 0.01


def test_the_posterior_is_bayes_rule():
    chances, _, labels = draw(300, mistakes(0.2, next_class=True), sharpness=1.0, seed=3)
    found = fit_class_noise(chances, labels)
    q = chances**found.sharpness
    joint = q / q.sum(1, keepdims=True) * found.mistakes[:, labels].T
    assert np.allclose(found.posterior, joint / joint.sum(1, keepdims=True), atol=1e-5)


@pytest.mark.parametrize("labels", [[0, 0, 0], [0, 1, 0], [1, 1, 1]])
def test_a_handful_of_instances_is_no_trouble(labels):
    chances = np.array([[0.9, 0.1], [1.0, 0.0], [0.5, 0.5]])
    found = fit_class_noise(chances, np.array(labels))
    assert np.isfinite(found.posterior).all() and np.allclose(found.posterior.sum(1), 1)


def test_one_class_and_very_many_classes():
    assert (
        fit_class_noise(np.ones((4, 1)), np.zeros(4, dtype=int)).posterior.tolist() == [[1.0]] * 4
    )
    rng = np.random.default_rng(4)
    truth = rng.integers(0, 150, 3000)
    labels = np.where(rng.random(3000) < 0.2, rng.integers(0, 150, 3000), truth)
    chances = softmax(6 * np.eye(150)[truth] + rng.normal(size=(3000, 150)), axis=1)
    wrong = 1 - fit_class_noise(chances, labels).posterior[np.arange(3000), labels]
    assert ((wrong > 0.5) == (labels != truth)).mean() > 0.98


@pytest.mark.parametrize("classes, share", [(3, 0.75), (4, 0.75), (4, 1.0), (10, 0.9)])
def test_where_most_labels_are_wrong_models_are_not_said_to_know_nothing(classes, share):
    """That would explain such labels, too, but not as well."""
    for seed in range(10):
        rng = np.random.default_rng(seed)
        truth = rng.integers(0, classes, 90)
        chances = softmax(rng.normal(0, 1, (90, classes)) + 4.5 * np.eye(classes)[truth], axis=1)
        labels = np.where(rng.random(90) < share, (truth + 1) % classes, truth)
        found = fit_class_noise(chances, labels)
        wrong = 1 - found.posterior[np.arange(90), labels]
        assert found.sharpness > 0.1 and ((wrong > 0.5) == (labels != truth)).mean() > 0.8, seed

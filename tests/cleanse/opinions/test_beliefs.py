"""What models think of labels: suspects, those that are sure, confident learning, other models."""

import numpy as np
import torch

from dross.cleanse.learning.recipe import Recipe
from dross.cleanse.learning.score import InstanceScores, cross_fit
from dross.cleanse.opinions.ask import ask_models
from dross.cleanse.opinions.beliefs import Beliefs, find_confused
from dross.cleanse.opinions.other_models import list_other_models

RECIPE = Recipe("linear", (2,), 3)


def test_an_instance_that_models_label_otherwise_is_a_suspect():
    outputs = torch.zeros(1, 4, 3)
    outputs[0, torch.arange(4), torch.tensor([0, 1, 0, 2])] = 4.0
    beliefs = Beliefs.of(RECIPE, outputs.numpy(), torch.tensor([0, 1, 2, 0]))
    assert beliefs.suspect.tolist() == [False, False, True, True]
    assert beliefs.predicted.tolist() == [0, 1, 0, 2]
    assert beliefs.doubt[2] > beliefs.doubt[0] and beliefs.wrong[3] > beliefs.wrong[1]


def test_a_number_far_from_its_prediction_is_a_suspect():
    recipe = Recipe("linear", (2,), 1, "squared_error")
    said = torch.randn(1, 50, 1, generator=torch.Generator().manual_seed(0))
    given = said[0] + 0.1 * torch.randn(50, 1, generator=torch.Generator().manual_seed(1))
    given[7] += 5
    beliefs = Beliefs.of(recipe, said.numpy(), given)
    assert beliefs.suspect[7] and beliefs.suspect.sum() <= 3 and beliefs.doubt.argmax() == 7
    assert beliefs.wrong[7] > 0.9 and beliefs.sure[7]


def test_the_confused_are_found_by_pairs_of_classes():
    """Oracle: a fifth of class 0 is labelled 1, and the models know it."""
    rng = np.random.default_rng(0)
    truth = rng.integers(0, 3, 600)
    labels, wrong = truth.copy(), (truth == 0) & (rng.random(600) < 0.2)
    labels[wrong] = 1
    chances = np.full((600, 3), 0.1) + 0.7 * np.eye(3)[truth] + rng.uniform(0, 0.05, (600, 3))
    chances /= chances.sum(1, keepdims=True)
    found = find_confused(chances, labels)
    assert not found[~wrong].any() and found[wrong].mean() > 0.4
    assert not find_confused(chances, truth).any()


def clusters(count: int, wrong: float, seed: int):
    """Three clusters; some of the labels are those of the next one."""
    rng = np.random.default_rng(seed)
    truth = rng.integers(0, 3, count)
    x = rng.normal(0, 1, (count, 5)) + 3.5 * np.eye(3, 5)[truth]
    flipped = rng.random(count) < wrong
    y = np.where(flipped, (truth + 1) % 3, truth)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y), torch.tensor(truth), flipped


def test_asking_again_finds_a_class_that_is_often_taken_for_another():
    x, y, truth, flipped = clusters(600, 0.3, 0)
    recipe = Recipe("linear", (5,), 3, rate=0.1, epochs=5, batch_size=16)
    outputs = cross_fit(recipe, (x, y), x[:1], repeats=1, seed=0, progress=False).outputs.numpy()
    validation = clusters(400, 0.2, 5)
    beliefs, of_validation = ask(recipe, (x, y), validation[:2])
    once = Beliefs.of(recipe, outputs, y)
    found, before = (b.wrong > 0.5 for b in (beliefs, once))
    assert (found == flipped).mean() > 0.95 and (found == flipped).mean() >= (
        before == flipped
    ).mean()
    assert (beliefs.predicted[found & flipped] == truth[found & flipped]).float().mean() > 0.95
    assert np.isclose(beliefs.wrong.sum(), flipped.sum(), rtol=0.1)
    assert ((of_validation.wrong > 0.5) == validation[3]).mean() > 0.95
    right = ask(recipe, (x, y), (validation[0], validation[2]))[1]
    assert right.wrong.mean() < 0.03  # labels that are right are not doubted


def ask(recipe, data, validation):
    asked = cross_fit(recipe, data, validation[0], repeats=1, seed=0, progress=False)
    nothing = np.zeros((1, 2, len(data[1])))
    said = (asked.outputs.numpy(), nothing[:, 0], asked.on_others.numpy())
    scored = InstanceScores(nothing, np.full(2, 0.5), nothing[:, 0], *said)
    answers = ask_models(recipe, data, validation, scored, seed=0, progress=False)
    return answers.training, answers.validation


def test_numbers_are_asked_about_too():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(400, 4)).astype(np.float32)
    y = x @ np.array([1, -1, 0.5, 0], dtype=np.float32)
    wrong = rng.random(400) < 0.15
    y[wrong] = rng.permutation(y)[wrong]
    recipe = Recipe("linear", (4,), 1, "squared_error", rate=0.03, epochs=10, batch_size=16)
    data = torch.from_numpy(x), torch.from_numpy(y)[:, None]
    beliefs, of_validation = ask(recipe, data, data)
    assert np.isfinite(of_validation.wrong).all()
    assert wrong[beliefs.wrong > 0.5].mean() > 0.9 and abs(beliefs.wrong.sum() - wrong.sum()) < 15


def test_other_models_suit_the_features():
    words = np.zeros((50, 200))
    words[np.arange(50), np.arange(50)] = 1
    names = lambda x, classes: [
        type(make()).__name__ for make in list_other_models(x, classes=classes).values()
    ]
    assert names(words, True) == ["LogisticRegression", "ComplementNB"]
    dense = np.random.default_rng(0).normal(size=(50, 4))
    assert names(dense, True) == ["LogisticRegression", "ExtraTreesClassifier"]
    assert names(dense, False) == ["Ridge", "ExtraTreesRegressor"]
    assert names(np.zeros((3, 5000)) - 1, True) == ["LogisticRegression"]


def test_a_class_with_one_instance_is_no_trouble():
    x, y, _, _ = clusters(60, 0.0, 2)
    y[:] = 0
    y[0] = 1
    recipe = Recipe("linear", (5,), 3, rate=0.1, epochs=2, batch_size=16)
    beliefs, of_validation = ask(recipe, (x, y), (x, y))
    assert np.isfinite(beliefs.wrong).all() and np.isfinite(of_validation.wrong).all()

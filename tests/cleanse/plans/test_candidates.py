"""The plans that compete."""

import numpy as np
import torch

from dross.cleanse.learning.recipe import Recipe
from dross.cleanse.plans.candidates import Beliefs, find_confused, list_plans, plan_sizes

RECIPE = Recipe("linear", (2,), 3)


def opinions(labels: list[int], said: list[int], sure: float = 4.0):
    """Beliefs of one model that says `said` of instances with these labels."""
    outputs = torch.zeros(1, len(labels), 3)
    outputs[0, torch.arange(len(labels)), torch.tensor(said)] = sure
    return Beliefs.of(RECIPE, outputs.numpy(), torch.tensor(labels))


def test_an_instance_that_models_label_otherwise_is_a_suspect():
    beliefs = opinions([0, 1, 2, 0], [0, 1, 0, 2])
    assert beliefs.suspect.tolist() == [False, False, True, True]
    assert beliefs.predicted.tolist() == [0, 1, 0, 2]
    assert beliefs.loss[2] > beliefs.loss[0]
    assert not opinions([0, 1, 2, 0], [0, 1, 0, 2], sure=1.0).sure.any()


def test_a_number_far_from_its_prediction_is_a_suspect():
    recipe = Recipe("linear", (2,), 1, "squared_error")
    said, given = (
        torch.randn(1, 50, 1, generator=torch.Generator().manual_seed(0)),
        torch.zeros(50, 1),
    )
    given[:] = said[0] + 0.1 * torch.randn(50, 1, generator=torch.Generator().manual_seed(1))
    given[7] += 5
    beliefs = Beliefs.of(recipe, said.numpy(), given)
    assert beliefs.suspect[7] and beliefs.suspect.sum() <= 3 and beliefs.loss.argmax() == 7


def test_plans_take_the_first_of_their_lists():
    beliefs = opinions([0, 0, 1, 1, 2, 2], [0, 1, 1, 0, 2, 0])
    harm = np.array([-3.0, -2.0, -1.0, 0.0, 1.0, 2.0])
    plans = {plan.name: plan for plan in list_plans(harm, beliefs, [2])}
    assert plans["harmful-2"].removed.tolist() == [0, 1]
    assert sorted(plans["mislabelled-2"].removed) == [1, 3]  # the first suspects of three
    assert plans["harmful-suspects-2"].removed.tolist() == [1, 3]
    assert plans["relabel-2"].relabelled.tolist() == [1, 3] and not len(plans["relabel-2"].removed)
    both = plans["relabel-or-remove-2"]
    assert sorted([*both.removed, *both.relabelled]) == [1, 3]
    assert "harmful-suspects-4" not in {p.name for p in list_plans(harm, beliefs, [4])}


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


def test_sizes_are_shares_and_the_number_of_suspects():
    beliefs = opinions([0] * 200, [0] * 187 + [1] * 13)
    assert plan_sizes(200, beliefs) == [1, 2, 4, 8, 13, 14, 20, 30, 40, 60]
    many = opinions([0] * 200, [1] * 200)
    assert 200 not in plan_sizes(200, many)

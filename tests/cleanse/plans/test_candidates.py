"""The plans that compete."""

import numpy as np
import torch

from dross.cleanse.learning.recipe import Recipe
from dross.cleanse.opinions.beliefs import Beliefs
from dross.cleanse.plans.candidates import Plan, list_plans, plan_sizes

RECIPE = Recipe("linear", (2,), 3)


def opinions(labels: list[int], said: list[int], sure: float = 4.0):
    """Beliefs of one model that says `said` of instances with these labels."""
    outputs = torch.zeros(1, len(labels), 3)
    outputs[0, torch.arange(len(labels)), torch.tensor(said)] = sure
    return Beliefs.of(RECIPE, outputs.numpy(), torch.tensor(labels))


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


def test_a_plan_says_only_what_it_does():
    some, none = np.arange(1200), np.zeros(0, dtype=np.int64)
    say = lambda removed, relabelled: Plan("likely-wrong", removed, relabelled).describe()
    assert say(some[:3], some) == "relabel 1,200 and remove 3 whose labels are likely wrong"
    assert say(none, some[:2]) == "relabel 2 whose labels are likely wrong"
    assert say(some[:2], none) == "remove 2 whose labels are likely wrong"


def test_the_likely_wrong_are_relabelled_where_models_are_sure_and_removed_elsewhere():
    labels, said = [0] * 90 + [1] * 90 + [2] * 90, [0] * 90 + [1] * 90 + [2] * 80 + [0] * 10
    beliefs = opinions(labels, said, sure=6.0)
    plan = next(p for p in list_plans(np.zeros(270), beliefs, []) if p.kind == "likely-wrong")
    touched = np.concatenate([plan.removed, plan.relabelled])
    assert sorted(touched) == list(range(260, 270)) and beliefs.sure[plan.relabelled].all()
    assert not beliefs.sure[plan.removed].any()
    right = opinions(labels, labels)
    assert all(plan.kind != "likely-wrong" for plan in list_plans(np.zeros(270), right, []))


def test_sizes_are_shares_and_estimates_of_how_many_are_wrong():
    beliefs = opinions([0] * 100 + [1] * 100, [0] * 100 + [1] * 87 + [0] * 13)
    sizes = plan_sizes(200, beliefs)
    assert set(sizes) >= {1, 2, 4, 8, 13, 14, 20, 30, 40, 60, round(beliefs.wrong.sum()) or 1}
    many = opinions([0] * 200, [1] * 200)
    assert 200 not in plan_sizes(200, many)

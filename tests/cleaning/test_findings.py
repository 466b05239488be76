"""What was found, in sentences that do not contradict each other."""

from dataclasses import replace
from typing import Any

import numpy as np
import pandas
import pytest

from dross.cleaning.findings import describe_harmful, list_findings
from dross.cleaning.plans import Recommendation
from tests.cleaning.test_recommendation import PLAN as MADE
from tests.review.review_project import make_info

PLAN = replace(MADE, relabeled={3: "cat"})


def make_instances(harmful_in, learned_in: Any = 4):
    return pandas.DataFrame(
        {"harmful_in": harmful_in, "learned_in": learned_in, "label": "cat", "score": 0.0}
    )


def find(state, plan=None, **changes):
    plans = [] if plan is None else [plan]
    recommended = None if plan is None else plan.name
    recommendation = Recommendation(plans, recommended, state, "The reason.")
    info = make_info(recommendation=recommendation, **changes)
    return list_findings(info, make_instances(np.zeros(60, dtype=int)))


def test_harmful_instances_are_compared_with_chance():
    """Signs drawn by chance are as frequent as the sentence expects."""
    rng = np.random.default_rng(0)
    learned = rng.integers(0, 5, 20_000)
    by_chance = make_instances(rng.binomial(learned, 0.4), learned)
    said = describe_harmful(make_info(), by_chance)
    counts = [int(word.replace(",", "")) for word in said.split() if word[0].isdigit()]
    found, _, expected = counts
    assert found == pytest.approx(expected, rel=0.05)
    assert "if the runs were independent" in said
    assert describe_harmful(make_info(), make_instances([1, 0], 1)).endswith("the recorded run.")


def test_labels_are_estimated_to_be_wrong_only_if_correcting_them_helps():
    """Otherwise the same labels may be right, where classes overlap: one message, not two."""
    found = find("recommended", PLAN)
    assert "Labels that look wrong: 2 of 60." in found[1]
    assert "about 3 labels are estimated to be wrong" in found[1]
    doubted = find("no gain")[1]
    assert doubted.startswith("Labels that models disagree with: 2 of 60.")
    assert "Either they are wrong or the classes overlap" in doubted
    assert "estimated" not in doubted
    undecided = find("undecided")  # its reason says the same, with the number of checks
    assert not any("contradict" in sentence for sentence in undecided)


def test_the_error_is_explained_where_labels_are_wrong():
    explained = "even a perfect model would have an error of about 5 %"
    assert explained in find("recommended", PLAN)[0]
    assert explained not in find("no gain")[0]
    training = make_info().training
    assert training is not None
    right = replace(training, noise=replace(training.noise, expected_wrong=0.1))
    assert explained not in find("recommended", PLAN, training=right)[0]


def test_more_runs_are_advised_only_where_the_recommendation_depends_on_them():
    for state, plan in (("recommended", PLAN), ("nothing wrong", None), ("no gain", None)):
        assert not any("repeats" in sentence for sentence in find(state, plan, run_agreement=0.1))
    chats = find("recommended", PLAN, run_agreement=0.1, kind="chats", task="fine-tuning")
    assert any("higher `repeats`" in sentence for sentence in chats)

"""A class that loses much of its data is named."""

import re

from dross.review.plan import class_warnings

LABELS = ["cat"] * 100 + ["dog"] * 11
REMOVE = ("remove", None)


def test_a_class_that_loses_a_fifth_is_named():
    assert class_warnings(LABELS, dict.fromkeys(range(19), REMOVE)) == []
    (warning,) = class_warnings(LABELS, dict.fromkeys(range(20), REMOVE))
    assert warning.startswith("Class cat would lose 20 of 100")


def test_a_class_that_keeps_fewer_than_ten_is_named():
    (warning,) = class_warnings(LABELS, {100: REMOVE, 101: REMOVE})
    assert warning.startswith("Class dog would lose 2 of 11 instances")
    one_moves = {100: ("relabel", "cat"), 101: ("relabel", "dog"), 0: ("keep", None)}
    assert class_warnings(LABELS, one_moves) == []


def test_the_numbers_of_a_warning_add_up():
    """As in 50 of 175 lost, 5 gained by relabeling, and 130 left."""
    labels = ["cat"] * 175 + ["dog"] * 200
    decisions = dict.fromkeys(range(20), REMOVE) | dict.fromkeys(range(20, 50), ("relabel", "dog"))
    decisions |= dict.fromkeys(range(175, 180), ("relabel", "cat"))
    (warning,) = class_warnings(labels, decisions)
    assert warning == (
        "Class cat would lose 50 of 175 instances (29\u00a0%) and gain 5 by relabeling; "
        "130 would be left."
    )
    lost, before, _, gained, left = map(int, re.findall(r"\d+", warning))
    assert before - lost + gained == left


def test_the_data_of_a_regression_are_one_class():
    decisions = dict.fromkeys(range(8), REMOVE)
    (warning,) = class_warnings(["1", "2"] * 20, decisions, regression=True)
    assert warning.startswith("The training data would lose 8")

"""A class that loses much of its data is named."""

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


def test_the_data_of_a_regression_are_one_class():
    decisions = dict.fromkeys(range(8), REMOVE)
    (warning,) = class_warnings(["1", "2"] * 20, decisions, regression=True)
    assert warning.startswith("The training data would lose 8")

"""Measures are rounded alike: what is shown before, after and as the change adds up."""

import re
from decimal import Decimal

import numpy as np
import pytest

from dross.cleaning.measures import show_change, tabulate_verdict


def number(words):
    return Decimal(re.findall(r"^[-+]?[\d,.]+", words)[0].replace(",", ""))


@pytest.mark.parametrize("name, size", [("error", 0.3), ("log loss", 0.7), ("absolute error", 3e4)])
def test_before_and_the_change_add_up_to_after(name, size):
    rng = np.random.default_rng(0)
    for _ in range(500):
        before, after = size * rng.random(2) ** rng.integers(1, 6)
        margin = abs(after - before) * rng.random()
        change = after - before
        shown = show_change(name, before, after, (change - margin, change + margin))
        assert number(shown.before) + number(shown.change) == number(shown.after), shown
        low, high = map(number, shown.interval.split(" to "))
        step = Decimal(1).scaleb(-shown.decimals)
        assert low - step <= number(shown.change) <= high + step, shown


def test_a_small_change_has_one_decimal_more():
    assert show_change("error", 0.113, 0.098, (-0.024, -0.007)).change == "-1.5 points"
    small = show_change("error", 0.1012, 0.1018, (-0.006, 0.008))
    assert (small.before, small.after, small.change) == ("10.1 %", "10.2 %", "+0.1 points")
    smaller = show_change("error", 0.1012, 0.1015, (-0.006, 0.008))
    assert (smaller.before, smaller.after, smaller.change) == ("10.12 %", "10.15 %", "+0.03 points")
    assert show_change("error", 0.1, 0.1, (0.0, 0.0)).change == "0.0 points"


def test_a_verdict_is_a_table_of_words():
    metric = {"before": [0.16, 0.14], "after": [0.15, 0.12], "interval": [-0.02, -0.01]}
    metric |= {"random_difference": 0.0004}
    verdict = {"metrics": {"error": metric}, "plain": {"log loss": metric}}
    first, second = tabulate_verdict(verdict)
    assert first == {
        "measure": "error",
        "before": "15.0 %",
        "after": "13.5 %",
        "change": "-1.5 points",
        "95 % confidence interval": "-2.0 to -1.0",
        "random control": "0.0 points",
    }
    assert second["measure"] == "log loss, counting all given labels as correct"

"""Values of JSON against the types that they should have."""

import pytest

from dross._checks import fit_together, fits


@pytest.mark.parametrize(
    "value, hint, expected",
    [
        ("x", str, True),
        (None, str, False),
        (None, str | None, True),
        (True, int, False),
        (True, bool, True),
        (3, float, True),
        (3.5, int, False),
        ([1, 2], list[int], True),
        ([1, "2"], list[int], False),
        ([[1, None]], list[list[float | None]], True),
        ({"a": 1}, dict[str, int], True),
        ({"a": "1"}, dict[str, int], False),
        ([], dict[str, int], False),
        ([{}], list, True),
    ],
)
def test_values_fit_their_types(value, hint, expected):
    assert fits(value, hint) is expected


def test_entries_that_are_missing_fit():
    hints = {"data": str, "seed": int}
    assert fit_together({"data": "x", "more": []}, hints)
    assert not fit_together({"data": "x", "seed": "1"}, hints)
    assert not fit_together(None, hints)

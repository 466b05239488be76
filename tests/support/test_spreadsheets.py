"""Cells that a spreadsheet would run."""

import pytest

from dross._text import disarm_cell


@pytest.mark.parametrize(
    "cell", ['=HYPERLINK("http://x")', "+cmd|' /C calc'!A0", "-1+1", "@SUM(A1)", "\t=1", "\r=1"]
)
def test_a_formula_becomes_a_text(cell):
    assert disarm_cell(cell) == f"'{cell}"


@pytest.mark.parametrize("cell", ["plain", "", "-1.5", "+3e-7", "-inf", "a=b", -2.5, None, "<=50K"])
def test_anything_else_stays(cell):
    assert disarm_cell(cell) is cell

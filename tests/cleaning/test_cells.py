"""How cells are written, ordered and called unusual."""

import numpy as np
import pandas
import pytest

from dross.cleaning.explain import Reasons, UnusualCells, format_cell, order_columns, show_cell
from dross.cleaning.modality import Column
from dross.cleaning.report import _look


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (63.0, "63"),
        (np.float32(-7.0), "-7"),
        ("63.0", "63"),
        ("63.00", "63.00"),
        (0.5, "0.5"),
        (1e300, "1e+300"),
        (63, "63"),
        ("1.0.0", "1.0.0"),
        (None, None),
        (np.nan, None),
        ("", ""),
    ],
)
def test_whole_numbers_are_shown_as_whole_numbers(value, text):
    assert format_cell(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-3.182273632759677, "-3.1823"),
        ("0.7744121926388899", "0.77441"),
        ("1234567.8901234", "1234567.9"),
        (1.2345678e-7, "1.2346e-07"),
        ("1234.56", "1234.56"),  # as somebody wrote it
        ("12345678901234567890", "12345678901234567890"),
        ("1.0.00000000", "1.0.00000000"),
        (None, None),
    ],
)
def test_numbers_with_many_decimals_are_rounded_where_people_look(value, text):
    assert show_cell(value) == text


def test_columns_that_matter_come_first_then_unusual_ones():
    weights = [["b", 0.1], ["d", -2.0], ["gone", 3.0]]
    assert order_columns(["a", "b", "c", "d"], weights, ["c", "b"]) == ["d", "b", "c", "a"]
    assert order_columns(["a", "b"], [], []) == ["a", "b"]


@pytest.fixture
def table():
    rng = np.random.default_rng(0)
    gain = np.zeros(1000)
    gain[:20] = 7000
    gain[20] = 99999
    content = pandas.DataFrame(
        {
            "size": rng.normal(size=1000),
            "evenly": rng.uniform(size=1000),
            "gain": gain,
            "colour": ["red"] * 995 + ["mauve"] * 4 + [None],
            "name": [str(k) for k in range(1000)],
        }
    )
    content.loc[0, "size"] = 1e9
    content.loc[1, "size"] = 8.0  # a deviation would be swallowed by the wild cell above it
    content.loc[2, "size"] = -8.0
    return content.astype(object)


def test_unusual_cells_are_named_in_words_and_few(table):
    kinds = dict.fromkeys(("size", "evenly", "gain"), "number") | {"colour": "category"}
    columns = [Column(name, kind) for name, kind in kinds.items()] + [Column("name", "text")]
    unusual = UnusualCells(table, columns)
    rows = [unusual(row) for _, row in table.iterrows()]
    assert rows[1]["size"] == "unusually high: only 0.2\u00a0% of rows are this high"
    assert rows[2]["size"] == "unusually low: only 0.1\u00a0% of rows are this low"
    assert "gain" not in rows[5] and rows[20]["gain"].startswith("unusually high: only 0.1")
    assert rows[996]["colour"] == "rare: only 0.4\u00a0% of rows have it"
    assert rows[999]["colour"] == "missing: only 0.1\u00a0% of rows have no value here"
    assert not any("evenly" in row for row in rows)  # its ends are not far from its middle
    assert sum(bool(row) for row in rows) < 20
    assert unusual(table.iloc[0].to_dict() | {"size": "no number", "colour": "new"}) == {
        "colour": "rare: only 0.1\u00a0% of rows have it"
    }


def test_short_tables_have_no_rare_categories():
    content = pandas.DataFrame({"colour": ["red", "blue", "green"]})
    assert UnusualCells(content, [Column("colour", "category")])({"colour": "red"}) == {}


def test_the_report_shows_the_cells_that_matter_first():
    row = pandas.Series({"age": 63.0, "gain": None, "work": "Private"}, dtype=object)
    why = Reasons(columns=[("work", -0.5)], unusual={"age": "unusually high"})
    cells = _look(row, None, why)["cells"]
    assert [cell["name"] for cell in cells] == ["work", "age", "gain"]
    assert [cell["value"] for cell in cells] == ["Private", "63", None]
    assert cells[1]["unusual"] == "unusually high"

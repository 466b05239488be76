"""What the columns of a table are taken for, and which of their cells are unusual."""

import numpy as np
import pandas

from dross.cleanse.inputs.columns import (
    Column,
    describe_columns,
    find_unusual_cells,
    infer_columns,
)


def test_given_kinds_take_precedence_over_inferred_ones():
    content = pandas.DataFrame({"code": ["1", "2"] * 20, "size": ["0.5", "1.5"] * 20})
    columns = infer_columns(content, {"code": "category"})
    assert [column.kind for column in columns] == ["category", "number"]
    assert describe_columns(columns) == ["Numbers: size.", "Categories: code."]


def test_cells_far_from_the_median_and_rare_categories_are_unusual():
    size = np.r_[np.random.default_rng(0).normal(size=198), 50.0, -60.0]
    colour = ["red"] * 199 + ["mauve"]
    content = pandas.DataFrame({"size": size.astype(str), "colour": colour})
    columns = [Column("size", "number"), Column("colour", "category")]
    plain, high, low = find_unusual_cells(content, np.array([0, 198, 199]), columns)
    assert plain == {}
    assert high == {"size": "unusually high: 0.50% of all are so high"}
    assert low["size"].startswith("unusually low") and low["colour"] == "rare: 0.50% of all rows"

"""The order of the rows decides nothing: sorted files are usual."""

import numpy as np
import pandas
import pytest

import dross
from tests.cleaning.made_inputs import QUICK, flipped


@pytest.mark.parametrize(
    "order",
    [
        "sorted by label",
        pytest.param("sorted by a column", marks=pytest.mark.slow),
        pytest.param("reversed", marks=pytest.mark.slow),
    ],
)
def test_wrong_labels_are_found_in_any_order(tmp_path, order):
    rng = np.random.default_rng(0)
    labels = np.array(["no", "yes"])[rng.integers(0, 2, 240)]
    given, wrong = flipped(labels, 0.1)
    x = rng.normal(size=(240, 3)) + 2.5 * (labels == "yes")[:, None]
    frame = pandas.DataFrame(x.round(3), columns=["a", "b", "c"]).assign(kind=given)
    orders = {"sorted by label": "kind", "sorted by a column": "a"}
    frame = frame.sort_values(orders[order]) if order in orders else frame[::-1]
    frame.to_csv(tmp_path / "t.csv", index=False)
    project = dross.clean(
        tmp_path / "t.csv", "kind", out=tmp_path / "run", model="linear", **QUICK | {"repeats": 1}
    )
    doubted = project.table.sort_values("wrong", ascending=False).index[: int(wrong.sum())]
    found = wrong[frame.index.to_numpy()][doubted].mean()
    assert found > 0.8

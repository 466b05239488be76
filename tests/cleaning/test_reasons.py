"""Why an instance is suggested: the columns that speak most for or against its label."""

from types import SimpleNamespace

import numpy as np
import pandas
import pytest

from dross.cleaning import explain
from dross.cleaning.explain import UnusualCells, find_reasons
from dross.cleaning.inputs import Request, prepare
from dross.cleaning.scoring import RunPart, record_run
from dross.cleaning.training import Recipe
from dross.engine.objective import Objective

ROWS = 80
COLUMNS = 150


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A wide table and a run on it: data, run, recipe."""
    folder = tmp_path_factory.mktemp("wide")
    rng = np.random.default_rng(0)
    labels = rng.integers(2, size=ROWS)
    cells = rng.normal(size=(ROWS, COLUMNS)) + labels[:, None] * np.linspace(0, 1, COLUMNS)
    table = pandas.DataFrame(cells.round(3)).add_prefix("c").astype(object)
    table["c7"] = np.where(rng.random(ROWS) < 0.5, "red", "blue")
    table["kind"] = np.where(labels, "yes", "no")
    table.to_csv(folder / "wide.csv", index=False)
    data = prepare(Request(str(folder / "wide.csv"), "kind"))
    recipe = Recipe("mlp", data.shape, 2, epochs=4)
    run = record_run(recipe, data.pair("train"), 0, folder / "tape", seed=0, progress=False)
    return data, run, recipe


def reasons(trained):
    part = RunPart(np.arange(ROWS), np.arange(5), "train")
    nothing = SimpleNamespace(verification=SimpleNamespace(instances=np.zeros(0, dtype=int)))
    data, run, recipe = trained
    return find_reasons(data, run, recipe, part, nothing, np.arange(0, ROWS, 2))


def test_of_many_columns_those_that_may_matter_are_tried(trained, monkeypatch):
    calls = []
    predict = Objective.predict
    counted = lambda *arguments: calls.append(1) or predict(*arguments)
    monkeypatch.setattr(Objective, "predict", counted)
    found = reasons(trained)
    assert len(calls) <= explain._MAX_REPLACED + 2 < COLUMNS
    monkeypatch.setattr(explain, "_MAX_REPLACED", COLUMNS)
    expected = reasons(trained)
    assert {k: why.columns for k, why in found.items()} == {
        k: why.columns for k, why in expected.items()
    }
    assert all(len(why.columns) == explain._MAX_COLUMNS for why in found.values())


def test_unusual_cells_are_those_of_the_row(trained):
    data = trained[0]
    content = data.part("train").content
    unusual = UnusualCells(content, data.columns)
    found = reasons(trained)
    assert {k: why.unusual for k, why in found.items()} == {
        k: unusual(content.iloc[k]) for k in found
    }
    assert any(why.unusual for why in found.values())

"""Table 1 in a small form, on made-up data that stands in for the real sets."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from dross import cli
from dross.datasets import paper
from dross.errors import InputChanged, InvalidInput
from dross.reproduce import table1


@pytest.fixture
def made_up(monkeypatch):
    """A two-class problem in place of each data set."""

    def problem(name):
        rng = np.random.default_rng(len(name))
        x = rng.standard_normal((900, 7))
        return x, (x[:, 0] + rng.standard_normal(900) > 0).astype(int)

    monkeypatch.setattr(paper, "two_class_problem", problem)
    table1._problem.cache_clear()
    yield
    table1._problem.cache_clear()


def test_a_repetition(made_up):
    result = table1.run_repetition("adult-dnn", 3)
    assert result["agreement"]["retrace"]["linear"]["tau"] > 0.4
    true = {of: np.array(values) for of, values in result["truth"].items()}
    assert np.corrcoef(true["change"], true["linear"])[0, 1] > 0.9
    assert len(result["estimated"]["k&l"]) == paper.SAMPLE_SIZE
    convex = table1.run_repetition("mnist-logreg", 3)
    assert convex["agreement"]["retrace"]["change"]["tau"] > 0.8


def test_the_command(made_up, tmp_path):
    command = [
        "reproduce",
        "table1",
        "--repetitions",
        "2",
        "--only",
        "adult-dnn",
        "--out",
        str(tmp_path),
        "--jobs",
        "1",
    ]
    result = CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert (
        result.exit_code == 0 and "retrace (proposed)" in result.output and "0.75" in result.output
    )
    assert (tmp_path / "summary.md").read_text().count("adult-dnn") >= 3
    assert (tmp_path / "scatter.svg").read_text().startswith("<?xml")
    # A damaged repetition is computed again, an intact one is not.
    (tmp_path / "adult-dnn-001.json").write_text('{"broken')
    stamp = (tmp_path / "adult-dnn-000.json").stat().st_mtime_ns
    CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert (tmp_path / "adult-dnn-000.json").stat().st_mtime_ns == stamp
    assert json.loads((tmp_path / "adult-dnn-001.json").read_text())["seed"] == 1
    other = json.loads((tmp_path / "adult-dnn-000.json").read_text()) | {"settings": 0}
    (tmp_path / "adult-dnn-000.json").write_text(json.dumps(other))
    with pytest.raises(InputChanged, match="other settings"):
        CliRunner().invoke(cli.app, command, catch_exceptions=False)


def test_unknown_cells():
    with pytest.raises(InvalidInput, match="Did you mean 'adult-dnn'"):
        table1.check_cells(["adult-dn"])


def test_the_reference_repetition(shared_oracle):
    """Repetition 0's data and penalty are the reference's; its batch order is our own."""
    for cell, name in (("adult-logreg", "adult_logreg"), ("mnist-logreg", "mnist_logreg")):
        known = np.load(shared_oracle / f"{name}_0.npz")
        problem = table1._problem(table1.CELLS[cell].data)
        alpha = table1.penalty_weight(table1.CELLS[cell], paper.draw(problem, 0))
        np.testing.assert_allclose(alpha, float(known["alpha"]), rtol=1e-12)
        rates = [table1.CELLS[cell].eta(t) for t in range(len(known["lr"]))]
        np.testing.assert_allclose(rates, known["lr"], rtol=1e-12)

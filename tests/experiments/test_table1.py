"""Table 1 in a small form, on made-up data that stands in for the real sets."""

import json

import numpy as np
import pytest

from experiments import problems, table1


@pytest.fixture
def made_up(monkeypatch):
    """A two-class problem in place of each dataset."""

    def problem(name):
        rng = np.random.default_rng(len(name))
        x = rng.standard_normal((900, 7))
        return x, (x[:, 0] + rng.standard_normal(900) > 0).astype(int)

    monkeypatch.setattr(problems, "two_class_problem", problem)
    table1._problem.cache_clear()
    yield
    table1._problem.cache_clear()


def test_a_repetition(made_up):
    result = table1.run_repetition("adult-dnn", 3)
    assert result["agreement"]["retrace"]["linear"]["tau"] > 0.4
    true = {of: np.array(values) for of, values in result["truth"].items()}
    assert np.corrcoef(true["change"], true["linear"])[0, 1] > 0.9
    assert len(result["estimated"]["k&l"]) == problems.SAMPLE_SIZE
    convex = table1.run_repetition("mnist-logreg", 3)
    assert convex["agreement"]["retrace"]["change"]["tau"] > 0.8


def test_a_report_and_its_repetitions(made_up, tmp_path):
    results = table1.run_all(tmp_path, ["adult-dnn"], repetitions=2, n_jobs=1)
    table1.write_report(tmp_path, table1.summarize(results), results)
    summary = (tmp_path / "summary.md").read_text()
    assert summary.count("adult-dnn") >= 3 and "retrace (proposed)" in summary and "0.75" in summary
    assert (tmp_path / "scatter.svg").read_text().startswith("<?xml")
    path = tmp_path / "adult-dnn-000.json"
    stamp = path.stat().st_mtime_ns
    again = table1.run_all(tmp_path, ["adult-dnn"], repetitions=2, n_jobs=1)
    assert path.stat().st_mtime_ns == stamp and table1.summarize(again) == table1.summarize(results)
    path.write_text(json.dumps(results[0] | {"settings": 0}))
    with pytest.raises(ValueError, match="other settings"):
        table1.run_all(tmp_path, ["adult-dnn"], repetitions=2, n_jobs=1)


def test_the_reference_repetition(shared_oracle):
    """Repetition 0's data and penalty are the reference's; its batch order is our own."""
    for cell, name in (("adult-logreg", "adult_logreg"), ("mnist-logreg", "mnist_logreg")):
        known = np.load(shared_oracle / f"{name}_0.npz")
        problem = table1._problem(table1.CELLS[cell].data)
        alpha = table1.penalty_weight(table1.CELLS[cell], problems.draw(problem, 0))
        np.testing.assert_allclose(alpha, float(known["alpha"]), rtol=1e-12)
        rates = [table1.CELLS[cell].eta(t) for t in range(len(known["lr"]))]
        np.testing.assert_allclose(rates, known["lr"], rtol=1e-12)

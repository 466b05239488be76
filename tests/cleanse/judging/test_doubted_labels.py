"""Verdicts with and without the test labels that the models doubt."""

import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import dross
from dross.cleanse import verdict
from dross.cleanse.judging.doubted_labels import doubt_test_labels
from dross.cleanse.learning.recipe import Recipe
from dross.cleanse.report import write_report
from dross.cli.app import app

RECIPE = Recipe("linear", (5,), 2)


def test_models_before_and_after_have_the_same_say():
    """What only one side would label otherwise is not doubted more readily for being its own."""
    rng = np.random.default_rng(0)
    y = torch.tensor(rng.integers(0, 2, 60))
    sure = 3.0 * (2.0 * torch.eye(2)[y] - 1)
    outputs = sure.expand(4, 3, 60, 2).clone()
    outputs[:, 1, :6] *= -1.0  # only those after the edits disagree, as surely as they agree
    outputs[:, :2, 6:9] *= -1.0  # both do
    outputs[:, 2, 9:] *= -1.0  # the control has no say
    doubted = doubt_test_labels(RECIPE, {"outputs": outputs}, y)
    swapped = doubt_test_labels(RECIPE, {"outputs": outputs[:, [1, 0, 2]]}, y)
    assert doubted[6:9].all() and not doubted[9:].any() and (doubted == swapped).all()
    assert not doubt_test_labels(RECIPE, {"predicted": torch.zeros(4, 3, 60)}, y).any()


def test_figures_without_the_doubted():
    rng = np.random.default_rng(1)
    off = rng.random((10, 3, 100)) * 0.01 + np.array([0.3, 0.2, 0.3])[None, :, None]
    doubted = np.arange(100) < 20
    off[:, 1, doubted] = 1.0  # only on these the edits do harm
    everything = verdict.decide_verdict({"error": verdict.compare_metric(off)})
    found = verdict.compare_without({"error": off}, doubted, everything)
    assert found is not None and found.doubted == 20 and found.verdict == "improved"
    assert found.metrics["error"].difference == pytest.approx(-0.1, abs=0.01)
    assert everything != "improved" and "the verdict would be: improved" in found.sentence
    assert "20 of 100 test labels" in found.sentence and "neither" not in found.sentence
    most = verdict.compare_without({"error": off}, np.arange(100) < 60, "worse")
    assert most is not None and "neither verdict tells much" in most.sentence
    assert verdict.compare_without({"error": off}, np.zeros(100, bool), "worse") is None
    assert verdict.compare_without({"error": off}, np.ones(100, bool), "worse") is None


def test_a_verdict_says_both(cleaned, clusters):
    wrong = clusters[3]
    found = dross.judge(cleaned.folder, seeds=4, quick=True, progress=False)
    without = found.without_doubted
    assert without is not None and without.tested == 90
    assert 0.6 * wrong.sum() < without.doubted < 1.5 * wrong.sum()
    for name, metric in without.metrics.items():
        assert np.mean(metric.before) < np.mean(found.metrics[name].before)
    kept = cleaned.verdicts()[-1]
    assert kept["without_doubted"]["doubted"] == without.doubted
    report = (cleaned.folder / "report.html").read_text()
    assert without.sentence in report and "error, without doubted labels" in report
    assert without.sentence in found._repr_html_()
    said = CliRunner().invoke(app, ["judge", str(cleaned.folder), "--seeds", "2", "--quick"])
    assert "Doubted by models before and after the change:" in " ".join(said.output.split())


def test_a_verdict_of_an_earlier_version_is_shown(cleaned):
    found = dross.judge(cleaned.folder, remove=5, seeds=2, quick=True, progress=False).to_json()
    del found["without_doubted"]
    for path in (cleaned.folder / "verdicts").iterdir():
        path.write_text(json.dumps(found))
    assert found["sentence"] in write_report(cleaned).read_text()

"""Plots of scores, verifications and projects: on new axes, or on those of the user."""

import matplotlib
import numpy as np
import pytest

from dross.errors import InvalidInput
from dross.influence.query import query_of_file
from dross.influence.scores import Scores
from dross.influence.verify import compare
from tests.review.review_project import make_project


@pytest.fixture(autouse=True)
def plt():
    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    yield plt
    plt.close("all")


def made_scores(*shape):
    values = np.random.default_rng(0).normal(size=shape)
    return Scores(values, values[..., None, :], query_of_file("cost in $ of <b>"))


def test_scores_are_plotted_from_the_most_harmful(plt):
    ax = made_scores(50).plot()
    harmful = int((made_scores(50).values < 0).sum())
    labels = [text.get_text() for text in ax.get_legend().get_texts()]
    assert labels == [f"harmful: {harmful}", f"helpful: {50 - harmful}"]
    ax.figure.savefig("/dev/null", format="png")  # the $ in the name is no formula
    _, mine = plt.subplots()
    assert made_scores(50).plot(ax=mine) is mine


def test_one_of_several_queries_is_plotted():
    assert made_scores(3, 20).plot(query=2).get_title().endswith("20 instances")
    with pytest.raises(InvalidInput, match="specify one"):
        made_scores(3, 20).plot()


def test_a_verification_is_plotted_against_the_line():
    rng = np.random.default_rng(0)
    actual = rng.normal(size=30)
    ax = compare(np.arange(30), actual + 0.1 * rng.normal(size=30), actual).plot()
    assert len(ax.collections[0].get_offsets()) == 30 and "tau 0." in ax.get_title()


def test_a_project_plots_its_plans(tmp_path):
    project = make_project(tmp_path / "made", planned=True)
    ax = project.plot()
    assert ax.get_xlabel() == "change in error (points)" and len(ax.lines) > 1
    ax.figure.savefig("/dev/null", format="png")


def test_scores_in_html():
    several = made_scores(3, 20)._repr_html_()
    assert several.count("<tr>") == 4 and "cost in $ of &lt;b&gt;" in several
    none = Scores(np.zeros(0), np.zeros((1, 0)), query_of_file("q"))
    assert "0 instances" in repr(none) and "<table>" in none._repr_html_()

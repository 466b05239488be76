"""Results in a real notebook kernel: tables, plots, and the progress bar."""

import nbformat
import pytest
from nbclient import NotebookClient

from dross import _figures as charts
from dross._text import named_values, table

BAR = """
import time
from dross._progress import progress_bar
bar = progress_bar("training <1>", 10)
advance = bar.__enter__()
time.sleep(0.25)
advance(4)
"""
TRAIN = """
import torch, dross
torch.manual_seed(0)
x, y = torch.randn(40, 3), torch.arange(40) % 2
model = torch.nn.Linear(3, 2)
run = dross.train(model, (x, y), "cross_entropy", torch.optim.SGD(model.parameters(), lr=0.1),
                  epochs=2, batch_size=10, path="tape", progress=False)
query = dross.mean_loss((x, y))
run
"""
DRAW = """
from dross import _figures as charts
with charts.house_style():
    svg = charts.as_svg(charts.panels(1, 1)[0])
scores.plot();
"""


@pytest.fixture(scope="module")
def cells(tmp_path_factory):
    """The outputs of a notebook's cells."""
    sources = [
        BAR,
        TRAIN,
        "scores = run.influence(query); scores",
        "run.verify(scores, n=8)",
    ]
    sources += [DRAW, "bar.__exit__(None, None, None)"]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(each) for each in sources])
    folder = str(tmp_path_factory.mktemp("notebook"))
    client = NotebookClient(book, timeout=120, resources={"metadata": {"path": folder}})
    with client.setup_kernel():
        for place, cell in enumerate(book.cells):
            client.execute_cell(cell, place)
    return [cell.outputs for cell in book.cells]


def test_a_bar_is_shown(cells):
    assert "training <1>:  40%" in "".join(output.get("text", "") for output in cells[0])


def test_results_show_themselves_as_tables(cells):
    outputs = cells
    run, scores, checked = (outputs[place][0]["data"]["text/html"] for place in (1, 2, 3))
    assert "8 trainable parameters" in run and "8 (complete)" in run
    assert "most harmful" in scores and scores.count("<tr>") == 6
    assert "Kendall&#x27;s tau" in checked and "Checked by retraining" in checked


def test_a_plot_is_shown_below_the_cell_though_a_report_was_drawn_before(cells):
    outputs = cells
    assert any("image/png" in output.get("data", {}) for output in outputs[4])


def test_tables_escape_what_they_show():
    shown = table(["<a>"], [["<b>", "\x1b[31m&"]]) + named_values({"<c>": "</td>"})
    assert "&lt;a&gt;" in shown and "&lt;b&gt;" in shown and "\\x1b[31m&amp;" in shown
    assert "&lt;c&gt;" in shown and "&lt;/td&gt;" in shown


def test_our_style_leaves_that_of_the_user_alone():
    import matplotlib

    before = dict(matplotlib.rcParams)
    with charts.house_style():
        assert matplotlib.rcParams["svg.hashsalt"] == "dross"
        assert "<svg" in charts.as_svg(charts.panels(3, 2)[0])
    assert dict(matplotlib.rcParams) == before

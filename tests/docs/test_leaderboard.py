"""The leaderboard: made of the benchmarks' tables, and open to a method in one file."""

import csv
import re
import subprocess
import sys

import pytest

from tests.docs.blocks import ROOT, read_blocks

CODE = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/src"]
from docs.tools import leaderboard
print(leaderboard.fill_tables(open(sys.argv[1] + "/docs/leaderboard.md").read()))
"""


@pytest.fixture(scope="module")
def page():
    command = [sys.executable, "-c", CODE, str(ROOT)]  # docs/ of the repository, not of the tests
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def rows_of(page, caption):
    table = re.search(rf'data-caption="{caption}">(.*?)</table>', page, re.DOTALL)[1]
    lines = re.findall(r"<tr[^>]*><th scope=\"row\">(.*?)</th>(.*?)</tr>", table)
    return {name: re.sub(r"<[^>]+>", " ", cells).split() for name, cells in lines}


def test_every_method_and_tool_of_the_tables_is_there(page):
    for caption, name in (("Estimators", "peers.csv"), ("Cleaning tools", "outcome.csv")):
        with (ROOT / "docs" / "results" / name).open(newline="") as file:
            rows = [row for row in csv.DictReader(file) if row.get("task") != "regression"]
        named = {row["method"] for row in rows}
        assert set(rows_of(page, caption)) == named - {"nothing", "exactly the wrong ones"}


def test_figures_are_those_of_the_pages_that_explain_them(page):
    error, loss = rows_of(page, "Cleaning tools")["dross"][:2]
    explained = (ROOT / "docs" / "results" / "outcome.md").read_text(encoding="utf-8")
    line = next(each for each in explained.splitlines() if re.match(r"\| \**dross\** \|", each))
    assert all(re.search(rf"(?<![-\d]){re.escape(each)}(?!\d)", line) for each in (error, loss))
    assert rows_of(page, "Estimators")["dross-retrace"][1] == "5"


def test_a_method_in_one_file_is_found(tmp_path, monkeypatch):
    blocks = read_blocks("docs/leaderboard.md")
    shown = next(block.code for block in blocks if "LIBRARY" in block.code)
    source, copy = ROOT / "benchmarks" / "peers", tmp_path / "benchmarks" / "peers"
    for path in (*source.glob("*.py"), source / "methods" / "__init__.py"):
        to = copy / path.relative_to(source)
        to.parent.mkdir(parents=True, exist_ok=True)
        to.write_text(path.read_text(encoding="utf-8"), encoding="utf-8")
    (copy / "methods" / "by_norm.py").write_text(shown, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    from benchmarks.peers.methods import METHODS, find

    method = METHODS["by-norm"]
    assert (method.library, method.what) == (
        "mine",
        "Scores by the norm of the last layer's gradient",
    )
    assert find("by-norm").__name__ == "score"
    for name in [name for name in sys.modules if name.split(".")[0] == "benchmarks"]:
        monkeypatch.delitem(sys.modules, name)


def test_rows_are_merged_by_their_keys(tmp_path):
    from benchmarks.tables import merge_rows

    path = tmp_path / "a.csv"
    path.write_text("model,method,x\na,one,1\nb,one,2\n")
    new = [{"model": "b", "method": "one", "x": 3}, {"model": "b", "method": "two"}]
    merge_rows(path, new, ("model", "method"))
    assert path.read_text() == "model,method,x\na,one,1\nb,one,3\nb,two,\n"

"""The tables of results: open to a method in one file, and merged row by row."""

import re
import sys

import pytest

from tests.docs.blocks import ROOT, list_pages, read_blocks


@pytest.fixture
def another_benchmarks():
    """Inside, `benchmarks` is imported anew, and afterwards it is what it was."""

    def take_out():
        names = [name for name in sys.modules if name.split(".")[0] == "benchmarks"]
        return {name: sys.modules.pop(name) for name in names}

    before = take_out()
    yield
    take_out()
    sys.modules.update(before)


def test_a_method_in_one_file_is_found(tmp_path, monkeypatch, another_benchmarks):
    blocks = read_blocks("docs/results/README.md")
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


def test_rows_are_merged_by_their_keys(tmp_path):
    from benchmarks.tables import merge_rows

    path = tmp_path / "a.csv"
    path.write_text("model,method,x\na,one,1\nb,one,2\n")
    new = [{"model": "b", "method": "one", "x": 3}, {"model": "b", "method": "two"}]
    merge_rows(path, new, ("model", "method"))
    assert path.read_text() == "model,method,x\na,one,1\nb,one,3\nb,two,\n"


def test_intervals_of_the_outcome_do_not_depend_on_the_order_of_the_cases():
    from benchmarks.outcome import summary

    lines = summary.read(ROOT / "docs/results/outcome.csv")
    page = (ROOT / "docs/results/outcome.md").read_text(encoding="utf-8")
    (row,) = [line for line in page.splitlines() if line.startswith("| dross | 0.82 [")]
    for each in (lines, lines[::-1]):
        cases = summary.by_case(each)
        cells = [
            summary._cell(summary.select(cases, situation), "dross", interval=True)
            for situation in summary.SITUATIONS
        ]
        assert row == f"| dross | {' | '.join(cells)} |"
    low, high = (f"{100 * float(end):.0f}" for end in row.split("[")[1].split("]")[0].split(", "))
    readme = " ".join((ROOT / "README.md").read_text(encoding="utf-8").split())
    assert f"{low} to {high} % for the first figure" in readme


def test_commands_of_a_checkout_say_where_dross_is():
    """`benchmarks` and `experiments` are not installed; without src they use another dross."""
    command = re.compile(r"python (?:-m (?:benchmarks|experiments)\b|experiments/|docs/figures/)")
    for page in list_pages():
        text = (ROOT / page).read_text(encoding="utf-8")
        for block in read_blocks(page):
            if command.search(block.code):
                assert block.code.startswith("export PYTHONPATH=src") or "pip install" in block.code
        inline = re.sub(r"^```.*?^```", "", text, flags=re.M | re.S)
        assert not re.search(rf"`{command.pattern}", inline), page

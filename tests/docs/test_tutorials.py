"""Tutorials: what a page shows is the script, and what the quick ones print is what they print."""

import importlib.util
import re
import sys
from pathlib import Path

import nbformat
import pytest

from tests.docs.blocks import ROOT, read_blocks

_spec = importlib.util.spec_from_file_location("tutorials", ROOT / "docs/tools/tutorials.py")
assert _spec is not None and _spec.loader is not None
tutorials = importlib.util.module_from_spec(_spec)
sys.modules["tutorials"] = tutorials
_spec.loader.exec_module(tutorials)

QUICK = ("object_storage",)  # tests/docs/test_code_blocks.py runs a loop


def cells_of(name):
    script = ROOT / tutorials.TUTORIALS[name].script
    return tutorials.read_cells(script.read_text(encoding="utf-8"))[2]


def without_numbers(text: str) -> str:
    return re.sub(r"-?\d[\d.,e-]*", "#", text)


@pytest.mark.parametrize("name", tutorials.TUTORIALS)
def test_a_page_is_its_script_with_outputs(name):
    page = (ROOT / f"docs/tutorials/{name}.md").read_text(encoding="utf-8")
    outputs, ran = tutorials.read_outputs(page, len(cells_of(name)))
    assert page == tutorials.write_page(name, outputs, ran)
    shown = [
        b.code.strip() for b in read_blocks(f"docs/tutorials/{name}.md") if b.language == "python"
    ]
    assert shown == [cell.code for cell in cells_of(name) if cell.code]
    assert any(outputs) and re.match(r"The output was produced on 2\d{3}-\d\d-\d\d in \d+ s", ran)


@pytest.mark.parametrize("name", tutorials.TUTORIALS)
def test_a_notebook_is_its_script_with_the_outputs_of_the_page(name):
    """`python docs/tools/tutorials.py --keep-outputs` writes it again."""
    path = ROOT / f"docs/tutorials/{name}.ipynb"
    page = (ROOT / f"docs/tutorials/{name}.md").read_text(encoding="utf-8")
    assert path.exists() == tutorials.TUTORIALS[name].has_notebook == (f"({path.name})" in page)
    if not path.exists():
        return
    text = path.read_text(encoding="utf-8")
    outputs, _ = tutorials.read_outputs(page, len(cells_of(name)))
    assert text == tutorials.write_notebook(name, outputs)
    notebook = nbformat.reads(text, as_version=nbformat.NO_CONVERT)
    nbformat.validate(notebook)
    shown = [cell.source for cell in notebook.cells if cell.cell_type == "code"]
    assert shown == [cell.code for cell in cells_of(name) if cell.code]
    printed = [output.text for cell in notebook.cells for output in cell.get("outputs", [])]
    assert printed == [output for output in outputs if output]
    assert len(text) < 100_000


def test_outputs_are_kept_only_if_the_code_is_unchanged(tmp_path, monkeypatch):
    monkeypatch.setattr(tutorials, "ROOT", tmp_path)
    monkeypatch.setattr(tutorials, "FOLDER", tmp_path)
    monkeypatch.setitem(tutorials.TUTORIALS, "one", tutorials.Tutorial("one.py"))
    script = tmp_path / "one.py"
    source = '"""Title."""\n\n# %% One\n# Text.\nprint(1)\n'
    script.write_text(source, encoding="utf-8")
    tutorials.write_files("one", ["1"], "The output was produced today.")
    script.write_text(source.replace("Text", "Another text"), encoding="utf-8")
    tutorials.keep_outputs("one")
    for name in ("one.md", "one.ipynb"):
        assert "Another text" in (tmp_path / name).read_text(encoding="utf-8")
    script.write_text(source.replace("print(1)", "print(2)"), encoding="utf-8")
    with pytest.raises(SystemExit, match=r"one\.py has changed"):
        tutorials.keep_outputs("one")


@pytest.mark.parametrize("name", QUICK)
def test_a_quick_tutorial_prints_what_its_page_shows(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    printed = tutorials.run_cells(cells_of(name), str(Path(name)))
    page = (ROOT / f"docs/tutorials/{name}.md").read_text(encoding="utf-8")
    shown, _ = tutorials.read_outputs(page, len(printed))
    assert [without_numbers(each) for each in printed] == [without_numbers(each) for each in shown]


def test_cells_are_found_with_their_text_and_lines(tmp_path):
    source = '"""Title.\n\nIntro.\n"""\n\nimport os\n\n# %% One\n# Text.\nx = 1\nprint(x)\n'
    title, intro, (first, one) = tutorials.read_cells(source)
    assert (title, intro) == ("Title", "Intro.")
    assert (first.heading, first.code) == ("", "import os")
    assert (one.heading, one.text, one.code, one.line) == ("One", "Text.", "x = 1\nprint(x)", 9)
    assert tutorials.run_cells([first, one], "x") == ["", "1"]

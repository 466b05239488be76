"""What makes the site: links that leave docs/, the navigation."""

import re

import pytest
import yaml
from docs.tools import reference
from docs.tools.repository import rewrite_links

import dross
from tests.docs.blocks import ROOT, list_pages, read_blocks


def test_every_public_name_is_on_a_page_of_the_reference():
    pages = (ROOT / "docs" / "reference").glob("*.md")
    shown = {name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)}
    assert not [name for name in dross.__all__ if f"dross.{name}" not in shown]


@pytest.mark.parametrize("page", reference.list_pages(), ids=lambda page: page.stem)
def test_the_lists_of_the_reference_are_as_the_docstrings(page):
    """`python docs/tools/reference.py` writes them again."""
    if page.stem == "integrations":
        for library in ("transformers", "lightning", "skorch"):
            pytest.importorskip(library, reason=f"{library} is not installed")
    text = page.read_text("utf-8")
    assert reference.with_list(text) == text
    listed = re.findall(r"^- `(\S+?)[`(].*?: (.+)$", text, re.M)
    assert listed and all(sentence.endswith(".") for _, sentence in listed)
    names = re.findall(r"^::: (\S+)", text, re.M)
    assert len(names) == len(set(names))


@pytest.mark.parametrize(
    "uri, link, expected",
    [
        ("scale.md", "[a](results/README.md)", "[a](results/README.md)"),
        ("scale.md", "[a](../CONTRIBUTING.md#x)", "[a](repository/CONTRIBUTING.md#x)"),
        ("how-to/a.md", "[a](../../SECURITY.md)", "[a](../repository/SECURITY.md)"),
        ("architecture.md", "[a](../examples)", "[a](repository/examples/index.md)"),
        ("repository/CONTRIBUTING.md", "[a](docs/derivations.md)", "[a](../derivations.md)"),
        ("start.md", "[a](../no-such-file.md)", "[a](../no-such-file.md)"),
        ("start.md", "```\n[a](../SECURITY.md)\n```\n", "```\n[a](../SECURITY.md)\n```\n"),
    ],
)
def test_links_that_leave_docs(uri, link, expected):
    assert rewrite_links(link, uri) == expected


def test_the_navigation_has_every_page():
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    named = re.findall(r"(\S+\.md)$", text[text.index("\nnav:") :], re.M)
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    generated = {"reference/command-line.md"}
    own = {name for name in named if not name.startswith("repository/")}
    assert own == pages | generated and len(named) == len(set(named))
    yaml.safe_load(text)
    assert "font: false" in text and "strict: true" in text  # nothing is fetched, nothing is let by


def test_the_site_asks_nothing_of_other_machines():
    assets = (ROOT / "docs" / "assets").iterdir()
    assert not [path.name for path in assets if re.search(r"https?://|@import", path.read_text())]


def test_every_module_that_a_page_names_is_there():
    folders = ("src", "tests", "docs", "examples", "benchmarks", "experiments")
    there = [path.as_posix() for folder in folders for path in (ROOT / folder).rglob("*.py")]
    missing = [
        f"{page}: {name}"
        for page in list_pages()
        for name in re.findall(r"`([a-z_/]+\.py)`", (ROOT / page).read_text(encoding="utf-8"))
        if not any(path.endswith("/" + name) for path in there)
    ]
    assert not missing


def test_the_bibtex_is_as_the_citation_file():
    about = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    (block,) = [block for block in read_blocks("docs/faq.md") if block.language == "bibtex"]
    entries = re.findall(r"^@\w+\{\w+,\n(.*?)^\}$", block.code, re.M | re.S)
    found = [
        {name: value.translate({123: None, 125: None}) for name, value in fields}
        for fields in (re.findall(r"^  (\w+) = \{(.*)\},?$", entry, re.M) for entry in entries)
    ]
    (paper,) = about["references"]
    people = [f"{person['family-names']}, {person['given-names']}" for person in paper["authors"]]
    assert found == [
        {
            "author": about["authors"][0]["name"],
            "title": about["title"],
            "note": f"Version {about['version']}, {about['license']} license",
        },
        {
            "author": " and ".join(people),
            "title": paper["title"],
            "booktitle": paper["collection-title"],
            "year": str(paper["year"]),
        },
    ]
    assert about["version"] == dross.__version__

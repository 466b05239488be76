"""What makes the site: the checks that let a build fail, links that leave docs/, the navigation."""

import re

import pytest
import yaml

import dross
from tests.docs.blocks import ROOT


@pytest.fixture
def tools(monkeypatch):
    monkeypatch.syspath_prepend(ROOT)
    from docs.tools import public_names, repository

    return public_names, repository


def test_every_public_name_is_on_a_page_of_the_reference(tools):
    pages = (ROOT / "docs" / "reference").glob("*.md")
    shown = {name for page in pages for name in re.findall(r"^::: (\S+)", page.read_text(), re.M)}
    assert not [name for name in dross.__all__ if f"dross.{name}" not in shown]


def test_a_name_without_entry_or_docstring_or_with_a_wrong_argument_is_found(tools, monkeypatch):
    public_names, _ = tools

    def silent(x): ...

    def wrong(x):
        """Do it.

        Arguments:
            x, z: two things.
        """

    everything = {name for name, _ in public_names.list_public()}
    assert public_names.find_missing(everything) == []
    monkeypatch.setattr(dross, "clean", silent)
    monkeypatch.setattr(dross, "judge", wrong)
    assert public_names.find_missing(everything - {"dross.Run.verify"}) == [
        "dross.Run.verify is on no page of docs/reference",
        "dross.clean has no docstring",
        "dross.judge explains an argument 'z' that it does not have",
    ]


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
def test_links_that_leave_docs(tools, uri, link, expected):
    assert tools[1].rewrite_links(link, uri) == expected


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

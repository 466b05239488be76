"""MkDocs calls these while it builds the site: pages that are generated, and what must be there.

`mkdocs.yml` names this file. Each function does its work by a module beside it.
"""

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "src"))  # this checkout's dross, whichever is installed

from docs.tools import command_line, leaderboard, public_names, repository  # noqa: E402

GENERATED = {
    "reference/command-line.md": command_line.write_page,
}

_shown: set[str] = set()


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made of code, of results, and of files outside of docs/."""
    for uri, write in GENERATED.items():
        files.append(File.generated(config, uri, content=write()))
    for uri, text in repository.make_pages().items():
        level = InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, uri, content=text, inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in tables; point links that leave docs/ to the pages made of their targets."""
    if page.file.src_uri == leaderboard.PAGE:
        markdown = leaderboard.fill_tables(markdown)
    return repository.rewrite_links(markdown, page.file.src_uri)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Note which names the reference shows."""
    _shown.update(public_names.find_anchors(html))
    return html


def on_post_build(config: MkDocsConfig) -> None:
    """Fail where a public name has no entry in the reference, or no docstring."""
    if missing := public_names.find_missing(_shown):
        raise PluginError("The reference is not complete:\n  " + "\n  ".join(missing))

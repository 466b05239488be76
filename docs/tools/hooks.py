"""MkDocs calls these while it builds the site: pages that are generated, links that leave docs/.

`mkdocs.yml` names this file. Each function does its work by a module beside it.
"""

import sys
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))
sys.path.insert(0, str(ROOT / "src"))  # this checkout's dross, whichever is installed

from docs.tools import command_line, repository  # noqa: E402


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page of the command line, and pages of files outside of docs/."""
    page = command_line.write_page()
    files.append(File.generated(config, "reference/command-line.md", content=page))
    for uri, text in repository.make_pages().items():
        level = InclusionLevel.NOT_IN_NAV
        files.append(File.generated(config, uri, content=text, inclusion=level))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/ to the pages made of their targets."""
    return repository.rewrite_links(markdown, page.file.src_uri)

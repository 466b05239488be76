"""Links that leave docs/, such as ../CONTRIBUTING.md, on a site that only has what is in docs/.

On the repository's host such a link works as it stands. For the site a page is made of each target:
of a Markdown file itself, of a source its text, of a folder the list of its files. Pages made so
lie under `repository/`, and links in them are followed likewise.
"""

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]
PREFIX = "repository/"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
FENCE = re.compile(r"^(```|~~~)")
ALWAYS = ("CONTRIBUTING.md", "SECURITY.md", "CODE_OF_CONDUCT.md", "LICENSE")
LANGUAGES = {".py": "python", ".toml": "toml", ".yml": "yaml", ".yaml": "yaml"}


def make_pages() -> dict[str, str]:
    """Return the pages to add, by their place on the site."""
    pages: dict[str, str] = {}
    waiting = [path for path in ALWAYS if (ROOT / path).exists()]
    for page in sorted((ROOT / "docs").rglob("*.md")):
        waiting += _targets_outside(page.relative_to(ROOT).as_posix())
    while waiting:
        path = waiting.pop()
        if site_place(path) not in pages:
            pages[site_place(path)] = _write_page(path)
            if path.endswith(".md"):
                waiting += _targets_outside(path)
            elif (ROOT / path).is_dir():
                waiting += [f"{path}/{name}" for name in _list_files(path)]
    return pages


def rewrite_links(markdown: str, uri: str) -> str:
    """Return a page with its links to files outside of docs/ pointing to pages of the site.

    Arguments:
        markdown: the page.
        uri: its place among the site's sources.
    """
    path = repository_place(uri)
    here = posixpath.dirname(uri)

    def rewrite(match: re.Match) -> str:
        target = _resolve(path, match.group(1))
        if target is None or (_is_in_docs(path) and _is_in_docs(target)):
            return match.group(0)
        return posixpath.relpath(site_place(target), here or ".") + (match.group(2) or "")

    lines, inside = [], False
    for line in markdown.splitlines(keepends=True):
        inside ^= bool(FENCE.match(line.lstrip()))
        lines.append(line if inside else LINK.sub(rewrite, line))
    return "".join(lines)


def site_place(path: str) -> str:
    """Return where a file of the repository is among the site's sources."""
    if _is_in_docs(path):
        return path.removeprefix("docs/")
    if (ROOT / path).is_dir():
        return f"{PREFIX}{path}/index.md"
    return f"{PREFIX}{path}" if path.endswith(".md") else f"{PREFIX}{path}.md"


def repository_place(uri: str) -> str:
    """Return which file of the repository a page of the site is made of."""
    if not uri.startswith(PREFIX):
        return f"docs/{uri}"
    path = uri.removeprefix(PREFIX)
    if (ROOT / path).is_file():
        return path
    return path.removesuffix("/index.md") + "/" if path.endswith("/index.md") else path[:-3]


def _targets_outside(path: str) -> Iterator[str]:
    inside = False
    for line in (ROOT / path).read_text(encoding="utf-8").splitlines():
        inside ^= bool(FENCE.match(line.lstrip()))
        for match in LINK.finditer("" if inside else line):
            target = _resolve(path, match.group(1))
            if target is not None and not _is_in_docs(target):
                yield target


def _resolve(path: str, link: str) -> str | None:
    """Return the file of the repository that a link on a page points to, if it is one."""
    if "://" in link or link.startswith(("mailto:", "/")):
        return None
    target = posixpath.normpath(posixpath.join(posixpath.dirname(path), link))
    is_there = not target.startswith("..") and (ROOT / target).exists()
    return target if is_there else None


def _is_in_docs(path: str) -> bool:
    return path.startswith("docs/") and not path.endswith(".py") and (ROOT / path).is_file()


def _list_files(folder: str) -> list[str]:
    files = sorted(path for path in (ROOT / folder).iterdir() if path.is_file())
    return [path.name for path in files if path.suffix in {".py", ".md"}]


def _write_page(path: str) -> str:
    """Return the text of a page that is made of a file or a folder."""
    file = ROOT / path
    if file.is_dir():
        return "\n".join([f"# {path}", "", *(f"- [{n}]({n})" for n in _list_files(path)), ""])
    text = file.read_text(encoding="utf-8")
    if path.endswith(".md"):
        return text
    language = LANGUAGES.get(PurePosixPath(path).suffix, "text")
    return f'# {path}\n\n```{language} title="{path}"\n{text.rstrip()}\n```\n'

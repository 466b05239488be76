"""The code blocks of the README and of every page of the site, and how they are run."""

import re
import shlex
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^(?P=indent)```", re.M | re.S
)
INDENTED = re.compile(r"^ {4}(pip |dross |python |make |import |from |run = |scores = )", re.M)
LANGUAGES = {"bibtex", "python", "sh", "text", "yaml"}


@dataclass(frozen=True)
class Block:
    """A fenced block: where it stands, its language and its text."""

    page: str
    line: int
    language: str
    code: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def list_pages() -> list[str]:
    """The README and the sources of the site, generated pages and tutorials aside."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
    names = [path.relative_to(ROOT).as_posix() for path in pages]
    return [name for name in names if not name.startswith("docs/tutorials/")]


def read_blocks(page: str, text: str | None = None) -> list[Block]:
    """The fenced blocks of a page, in their order."""
    text = (ROOT / page).read_text(encoding="utf-8") if text is None else text
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found["language"], found["code"])
        for found in FENCE.finditer(text)
    ]


def split_commands(code: str) -> list[list[str]]:
    """The commands of a shell block, without comments, as lists of words."""
    lines = code.replace("\\\n", " ").splitlines()
    words = [shlex.split(line, comments=True) for line in lines]
    return [each for each in words if each]

"""Every code block of the README and of the site is run, in the order of its page.

Python runs in a namespace that has what the page takes for granted. `dross ...` runs through the
real command line. What cannot run here is in one table, NOT_RUN, with the reason; commands of dross
in it are parsed all the same, so that no page shows an option that is not there.
"""

import re
import shlex
import sys
import warnings
from pathlib import Path

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from dross import cli
from tests.docs.blocks import (
    INDENTED,
    LANGUAGES,
    ROOT,
    Block,
    list_pages,
    read_blocks,
    split_commands,
)
from tests.docs.prepared import PREPARED, prepare_names, write_people

# What is not run here: a pattern of "page: command", or of "page: first lines of Python"; why not.
NOT_RUN = {
    r": (\.venv/bin/)?pip ": "installs packages",
    r": (git clone|cd|python3 -m venv|\.) ": "gets a checkout and an environment, as CI does",
    r": export ": "sets a variable of the shell",
    r": make ": "sets up an environment of its own; CI runs make test, check and docs",
    r": \.venv/bin/python tests/regression": "tests/regression/test_digests.py runs it",
    r": dross demo": "tests/test_package.py runs it",
    r": dross review": "serves until it is stopped; tests/review runs it",
    r": dross clean .*--repeats 8": "the same command as elsewhere, with twice the runs",
    r": dross judge .*mymodels:pipeline": "tests/cleaning/test_judge_project.py runs a user's own",
    r"command-line.md: dross clean": "examples of data that are not here; run with people.csv",
    r"faq.md: dross (clean|judge|export)": "the same; docs/how-to runs such commands",
    r"coming-from-cleanlab.md: from cleanlab": "cleanlab is not installed",
    r"command-line.md: dross judge": "minutes; docs/how-to runs the same on a smaller model",
    r": (\w+=\S+ )*python (benchmarks|experiments|-m benchmarks|-m experiments)": "hours, or a GPU; the page has "
    "the results",
    r"cleaning.md: .*CleaningClassifier": "tests/integrations/test_sklearn_docs.py runs it",
    r"cleaning.md: project = dross.clean": "tests/cleaning/test_given.py makes the same calls",
    r"cleaning.md: dross judge": "docs/how-to/reading-the-verdict.md runs it with another model",
    r"scale.md: changes =": "starts processes; tests/distributed/test_job_pool.py runs them",
    r"scale.md: run = .*group=": "needs a group of processes; tests/distributed/test_ranks.py",
    r"scale.md: # score.py": "needs torchrun; tests/distributed/test_ranks.py runs it",
    r"scale.md: # shards.py": "needs torchrun; tests/distributed runs such loops",
    r"groups-and-time.md: dross": "tests/cleaning/test_splits.py gives these options",
    r": dross compare": "tests/cleaning/test_compare.py gives such commands",
    r"judging-any-change.md: verdict": "tests/cleaning/test_compare.py makes this call",
    r"finetuning.md: dross": "minutes; tests/finetune gives these commands with a tiny model",
    r"finetuning.md: project": "minutes; tests/finetune makes these calls with a tiny model",
    r"install.md: dross": "needs jq; tests/cleaning/test_cli_results.py reads the JSON",
    r"following-progress.md: (from torch.utils.tensorboard|import mlflow)": "tensorboard and mlflow are not installed",
    r": docker ": "needs Docker, which the machines of the tests do not have",
    r"scale.md: with joblib": "needs Ray and Dask: make clusters runs the same calls",
}
TOGETHER = ("README.md", "docs/index.md", "docs/start.md", "docs/how-to/", "docs/explain/")
TOGETHER += ("docs/faq.md", "docs/coming-from-cleanlab.md")


def describe(page: str, code: str) -> str:
    return f"{page}: {' '.join(code.split())}"


def reason_not_to_run(page: str, code: str) -> str | None:
    said = describe(page, code)
    return next((why for pattern, why in NOT_RUN.items() if re.search(pattern, said)), None)


def read_command_line_page() -> list[Block]:
    """The page that is made at the build has blocks, too."""
    sys.path.insert(0, str(ROOT))
    try:
        from docs.tools.command_line import write_page
    finally:
        sys.path.remove(str(ROOT))
    return read_blocks("docs/reference/command-line.md", write_page())


def all_blocks() -> list[Block]:
    own = [block for page in list_pages() for block in read_blocks(page)]
    return own + read_command_line_page()


class Reader:
    """Somebody who follows pages: one folder, and each command given once."""

    def __init__(self, folder: Path):
        self.folder, self.given = folder, set()
        write_people(folder / "people.csv")

    def follow(self, page: str) -> tuple[int, int]:
        """Run the blocks of a page; return how many ran and how many did not."""
        names = None
        ran = left = 0
        for block in read_blocks(page):
            if block.language == "sh":
                for words in split_commands(block.code):
                    if self.give(page, words):
                        ran += 1
                    else:
                        left += 1
            elif block.language == "python":
                if reason_not_to_run(page, block.code):
                    left += 1
                    continue
                if names is None:
                    names = prepare_names(self.folder) | PREPARED.get(page, dict)()
                exec(compile(block.code, str(block), "exec"), names)
                ran += 1
        return ran, left

    def give(self, page: str, words: list[str]) -> bool:
        """Give a command, unless it was given before; False if it cannot run here."""
        command = shlex.join(words)
        if words[0] == "dross":
            parse(words)
        if reason_not_to_run(page, command):
            return False
        assert words[0] == "dross", f"{page}: nothing runs {command}, and NOT_RUN does not say why"
        if command not in self.given:
            done = CliRunner().invoke(cli.app, words[1:], catch_exceptions=False)
            assert done.exit_code == 0, (page, command, done.output)
            self.given.add(command)
        return True


def parse(words: list[str]) -> None:
    """Fail where a command or one of its options is not there. What a pipe leads to is left out."""
    words = words[: words.index("|")] if "|" in words else words
    command, arguments = get_command(cli.app), words[1:]
    while hasattr(command, "commands"):
        command, arguments = command.commands[arguments[0]], arguments[1:]
    command.make_context(words[0], arguments)


@pytest.fixture
def reader(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return Reader(tmp_path)


@pytest.mark.slow
def test_three_commands_lead_from_nothing_to_a_verdict(reader):
    """The newcomer's path, and then every page that tells of the same project."""
    (newcomer,) = [block for block in read_blocks("README.md") if "git clone" in block.code]
    *_, install, clean, judge = split_commands(newcomer.code)
    assert install[:2] == ["pip", "install"]
    assert reader.give("README.md", clean) and reader.give("README.md", judge)
    (verdict,) = (reader.folder / "runs" / "people" / "verdicts").glob("*.json")
    assert re.search(r'"verdict": "(improved|worse|inconclusive)"', verdict.read_text())
    table = (reader.folder / "runs" / "people" / "scores.csv").read_text().splitlines()[0]
    formats = (ROOT / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
    described = formats[formats.index("### Columns of scores.csv") : formats.index("## Scores\n")]
    assert re.findall(r"^\| `(\w+)` \|", described, re.M) == table.split(",")
    pages = [page for start in TOGETHER for page in list_pages() if page.startswith(start)]
    counted = [reader.follow(page) for page in pages]
    print(f"{sum(ran for ran, _ in counted)} ran, {sum(left for _, left in counted)} did not")
    assert len(pages) >= 15 and sum(ran for ran, _ in counted) >= 30


ALONE = [page for page in list_pages() if not page.startswith(TOGETHER) and read_blocks(page)]


@pytest.mark.parametrize("page", [page for page in ALONE if page != "docs/trainers.md"])
def test_a_page_of_its_own(reader, page):
    ran, left = reader.follow(page)
    assert ran + left == len(
        [1 for block in read_blocks(page) if block.language == "python"]
    ) + sum(len(split_commands(b.code)) for b in read_blocks(page) if b.language == "sh")


def test_the_page_of_trainers(reader):  # the imports take longer than what is run
    for library in ("transformers", "lightning", "skorch", "accelerate"):
        pytest.importorskip(library, reason=f"{library} is not installed")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what the libraries say of small loaders
        assert reader.follow("docs/trainers.md")[0] >= 4


def test_commands_on_every_page_have_options_that_exist():
    blocks = [block for block in all_blocks() if block.language == "sh"]
    found = [words for block in blocks for words in split_commands(block.code)]
    commands = [words for words in found if words[0] == "dross"]
    for words in commands:
        parse(words)
    assert len(commands) >= 50


def test_every_block_says_its_language_and_no_code_is_merely_indented():
    for block in all_blocks():
        assert block.language in LANGUAGES, f"{block}: ```{block.language}"
    for page in list_pages():
        text = re.sub(
            r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S
        )
        assert not INDENTED.search(text), (page, INDENTED.search(text))


def test_every_reason_not_to_run_is_used():
    said = [
        describe(block.page, part)
        for block in all_blocks()
        for part in (
            map(shlex.join, split_commands(block.code)) if block.language == "sh" else [block.code]
        )
    ]
    for pattern in NOT_RUN:
        assert any(re.search(pattern, each) for each in said), pattern

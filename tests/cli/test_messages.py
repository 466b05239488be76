"""What the commands print: no names of classes, and options as they are typed."""

import sys

import pytest

import dross.cli  # noqa: F401
from dross.cli.app import main
from dross.cli.output import name_options


@pytest.fixture
def run(monkeypatch, capsys, tmp_path):
    """Gives a command in an empty folder; the exit code, and what was printed as one line."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "400")

    def give(*words):
        monkeypatch.setattr(sys, "argv", ["dross", *map(str, words)])
        with pytest.raises(SystemExit) as ended:
            main()
        printed = capsys.readouterr()
        return ended.value.code, " ".join((printed.out + printed.err).split())

    return give


@pytest.mark.parametrize(
    ("message", "typed"),
    [
        ("Pass a smaller `lr`.", "Pass a smaller --lr."),
        ("`labels='observed'` changes this", "--labels observed changes this"),
        ("pass `overwrite=True`.", "pass --overwrite."),
        ("pass `text='my notes'`.", "pass --text 'my notes'."),
        ("`columns={'a b': 'text', 'c': 'date'}`", "--column 'a b=text' --column c=date"),
        ("pass `trust_code=['a:b', 'c:d']`", "pass --trust-code a:b --trust-code c:d"),
        ("`columns`, `n_jobs` and `make`", "--column, --jobs and --model"),
        ("Run `dross clean` on `messages`.", "Run `dross clean` on `messages`."),
        ("`lr=no literal`", "`lr=no literal`"),
    ],
)
def test_arguments_become_options(message, typed):
    assert name_options(message) == typed


def test_an_error_is_a_sentence_with_options(run, tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n" + "1,a\n2,b\n" * 30)
    code, printed = run("clean", "t.csv", "--label", "y", "--lr", -1)
    assert code == 1 and printed == "Error: --lr must be above 0, not -1.0."
    code, printed = run("clean", "t.csv", "--label", "y", "--labels", "obsreved")
    assert printed.startswith("Error: There is no kind of labels named 'obsreved'.")


def test_a_missing_project(run, tmp_path):
    (tmp_path / "t.csv").write_text("x,y\n")
    assert run("judge", "nowhere") == (
        1,
        "Error: There is no folder nowhere. Run dross clean first.",
    )
    (tmp_path / "runs" / "people").mkdir(parents=True)
    (tmp_path / "runs" / "people" / "project.json").write_text("{}")
    hint = "Pass one that dross clean made: runs/people."
    assert run("review", "t.csv")[1].endswith(f"not the folder that dross clean made of it. {hint}")
    assert run("export", "runs", "a.csv")[1].endswith(f"not a folder that dross clean made. {hint}")
    assert "There is no recorded run at nowhere" in run("info", "nowhere")[1]

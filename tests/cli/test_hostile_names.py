"""The command line with names, cells and places that look like something else."""

import os
import resource
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pandas
import pytest
from typer.testing import CliRunner

import dross
from dross import cli
from dross.cli.output import PlainConsole
from dross.errors import DrossError
from dross.influence.query import query_of_file
from dross.influence.scores import Scores
from tests.quick_cleaning import quick_cleaning


@pytest.fixture(autouse=True)
def _clean_quickly():
    with quick_cleaning():
        yield


QUICK = ["--repeats", "1", "--epochs", "2", "--lr", "0.1", "--check", "2"]
ODD_NAMES = ["rate [/s]", "weight [kg]", "[bold]x", ":warning:", "cost $a_b$"]


ROOT = Path(__file__).parents[2]
RUN = f"""
import sys
sys.path.append({str(ROOT)!r})
from dross.__main__ import main
from tests.quick_cleaning import quick_cleaning
with quick_cleaning():
    main()
"""


def run_dross(*arguments, cwd, **environment) -> subprocess.CompletedProcess:
    return subprocess.run(
        [sys.executable, "-c", RUN, *arguments],
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        timeout=300,
    )


def write_table(path, names=("x", "z"), kinds=("yes", "no"), count=80):
    rng = np.random.default_rng(0)
    frame = pandas.DataFrame({name: rng.normal(size=count).round(3) for name in names})
    frame["kind"] = [kinds[k % len(kinds)] for k in range(count)]
    frame.to_csv(path, index=False)
    return path


def test_names_that_look_like_markup_are_printed_as_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    write_table(tmp_path / "[red]t.csv", ODD_NAMES, ("[/a]", "\x1b[31mb"))
    command = ["clean", "[red]t.csv", "--label", "kind", "--out", "out [b]", *QUICK]
    said = CliRunner().invoke(cli.app, command, catch_exceptions=False)
    assert said.exit_code == 0 and f"Numbers: {', '.join(ODD_NAMES)}." in said.output
    assert "out [b]/report.html" in said.output and "\x1b[31m" not in said.output
    page = (tmp_path / "out [b]" / "report.html").read_bytes()
    assert b"\x1b" not in page and b"\\x1b[31mb" in page
    for option in ("--remove", "--relabel"):
        command = ["export", "out [b]", f"[b]{option}.csv", option, "2"]
        done = CliRunner().invoke(cli.app, command, catch_exceptions=False)
        assert f"[b]{option}.csv: " in done.output


@pytest.mark.parametrize("label", ["rate [/s]", "[/]", "\x1b[31m"])
def test_errors_are_printed_as_they_are(tmp_path, label):
    write_table(tmp_path / "t.csv", ODD_NAMES)
    done = run_dross("clean", "t.csv", "--label", label + "?", cwd=tmp_path)
    assert done.returncode == 1 and b"Traceback" not in done.stderr
    told = b" ".join(done.stderr.split())
    assert b"Error: There is no column named" in told and b"\x1b[31m" not in told
    assert b"rate [/s], weight [kg], [bold]x, :warning:, cost $a_b$" in told


def test_tables_and_texts_of_the_console_have_no_markup(capsys):
    from rich.table import Table

    table = Table("[red]head", title="[/title]")
    table.add_row("[/cell]\0")
    console = PlainConsole(width=80)
    console.print(table)
    console.print("[bold]text[/bold] :warning:")
    printed = capsys.readouterr().out
    for shown in ("[red]head", "[/title]", "[/cell]\\x00", "[bold]text[/bold] :warning:"):
        assert shown in printed


@pytest.mark.parametrize("option", [["--seed", "-1"], ["--out", "t.csv"], ["--separator", "xx"]])
def test_arguments_that_cannot_be_meant(tmp_path, option):
    write_table(tmp_path / "t.csv")
    done = run_dross("clean", "t.csv", "--label", "kind", *option, *QUICK, cwd=tmp_path)
    assert done.returncode in (1, 2) and done.stderr and b"Traceback" not in done.stderr


def test_a_file_name_that_is_not_utf8(tmp_path):
    os.rename(write_table(tmp_path / "t.csv"), os.fsencode(tmp_path) + b"/caf\xe9.csv")
    done = run_dross("clean", b"caf\xe9.csv", "--label", "kind", *QUICK, cwd=tmp_path)
    assert done.returncode == 1 and b"caf\\xe9.csvisnotUTF-8" in b"".join(done.stderr.split())
    os.rename(os.fsencode(tmp_path) + b"/caf\xe9.csv", tmp_path / "t.csv")
    command = ["clean", "t.csv", "--label", "kind", "--out", b"caf\xe9", *QUICK]
    done = run_dross(*command, cwd=tmp_path)
    assert done.returncode == 1 and b"is not UTF-8" in b" ".join(done.stderr.split())


@pytest.mark.slow
def test_a_locale_without_utf8(tmp_path):
    """As on Windows, text files are not UTF-8 unless somebody says so, and neither is stdout."""
    write_table(tmp_path / "größe.csv", ("größe", "水"), ("ja, früh", "nein"))
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    (tmp_path / "t.csv").write_bytes((tmp_path / "größe.csv").read_bytes())
    done = run_dross(
        "clean", "t.csv", "--label", "kind", "--out", "o", *QUICK, cwd=tmp_path, **plain
    )
    assert done.returncode == 0, done.stderr
    assert b"Numbers: gr\\xf6\\xdfe, \\u6c34." in done.stdout
    page = (tmp_path / "o" / "report.html").read_text(encoding="utf-8")
    assert "größe" in page and "ja, früh" in page
    judged = run_dross("judge", "o", "--remove", "3", "--seeds", "2", cwd=tmp_path, **plain)
    assert judged.returncode == 0, judged.stderr
    done = run_dross("export", "o", "c.csv", "--remove", "2", cwd=tmp_path, **plain)
    assert done.returncode == 0, done.stderr
    assert len(pandas.read_csv(tmp_path / "c.csv")["größe"]) == 78


@contextmanager
def full_disk(most_bytes: int):
    """Inside: no file can grow beyond a size, as on a disk that is nearly full."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (most_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_a_full_disk_while_scores_are_written(tmp_path):
    query = query_of_file("q")
    small, large = (
        Scores(np.random.default_rng(0).normal(size=n), np.zeros((1, n)), query) for n in (3, 9999)
    )
    path = small.save(tmp_path / "scores.safetensors")
    before = path.read_bytes()
    with full_disk(20_000), pytest.raises(DrossError, match="cannot be written"):
        large.save(path)
    assert path.read_bytes() == before and os.listdir(tmp_path) == [path.name]


def test_a_full_disk_while_a_project_and_a_copy_are_written(tmp_path):
    path = write_table(tmp_path / "t.csv", count=400)
    quick = {"repeats": 1, "epochs": 2, "lr": 0.1, "check": 2, "progress": False}
    clean = lambda out="o": dross.clean(path, "kind", out=tmp_path / out, **quick)
    clean("first")  # what is imported on the way writes files of its own
    for most in (0, 500, 3_000, 10_000, 20_000):
        with full_disk(most), pytest.raises(DrossError):
            clean()
    clean()
    with full_disk(1_000), pytest.raises(DrossError):
        dross.export(tmp_path / "o", tmp_path / "c.csv", remove=5)
    assert not (tmp_path / "c.csv").exists()
    assert dross.export(tmp_path / "o", tmp_path / "c.csv", remove=5, overwrite=True).written == 395


@pytest.mark.parametrize("suffix", [".csv", ".parquet"])
def test_a_full_disk_leaves_an_earlier_copy_and_its_list_as_they_were(tmp_path, suffix):
    """Also where one of the two would still fit: they are of the same decisions or not there."""
    quick = {"repeats": 1, "epochs": 2, "lr": 0.1, "check": 2, "progress": False}
    dross.clean(write_table(tmp_path / "t.csv", count=400), "kind", out=tmp_path / "o", **quick)
    export = lambda m: dross.export(
        tmp_path / "o", tmp_path / f"c{suffix}", remove=m, overwrite=True
    )
    files = sorted([(done := export(3)).cleaned, done.decisions])
    before = {path: path.read_bytes() for path in files}
    for most in (300, 1_000, 3_000, 6_000):
        for removed in (5, 200):  # the copy is the larger one, or the list
            with full_disk(most), suppress(DrossError):
                export(removed)
                before = {path: path.read_bytes() for path in files}
            assert {path: path.read_bytes() for path in files} == before
    assert sorted(tmp_path.glob("*c*")) == [*files, tmp_path / "t.csv"]

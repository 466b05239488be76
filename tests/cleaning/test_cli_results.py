"""What `dross clean`, `judge` and `info` print for people and for machines; exit codes."""

import json
import os
import shlex
import shutil
import subprocess
import sys

import pytest
from typer.testing import CliRunner

import dross
from dross import cli
from dross.cli.output import print_findings
from tests.cleaning.made_inputs import other_parts


def invoke(*arguments):
    return CliRunner().invoke(cli.app, [str(one) for one in arguments], catch_exceptions=False)


def clean_again(folder, *more):
    """The command that made the fixture: everything is there already."""
    parts = [
        word for part, path in other_parts(folder.parent).items() for word in (f"--{part}", path)
    ]
    options = dross.Project.open(folder).info.options
    names = ("model", "repeats", "lr", "epochs", "batch_size", "check")
    words = [(f"--{name.replace('_', '-')}", getattr(options, name)) for name in names]
    given = [word for pair in words if pair[1] is not None for word in pair]
    where = [folder.parent / "train.csv", "--label", "kind", "--out", folder]
    return invoke("clean", *where, *given, *parts, *more)


def test_the_result_of_clean_is_one_json_object(little):
    said = clean_again(little, "--json")
    assert said.exit_code == 0 and "There is nothing left to do" in said.stderr
    found, project = json.loads(said.stdout), dross.Project.open(little)
    assert found["folder"] == str(project.folder) and found["dross"] == dross.__version__
    assert found["classes"] == project.classes and found["counts"] == project.info.counts
    assert [plan["name"] for plan in found["plans"]] == [plan.name for plan in project.plans]
    recommended = project.recommended
    if recommended is None:
        assert found["recommended"] is None
    else:
        assert found["recommended"]["removed"] == recommended.removed.tolist()
    assert found["findings"][0].startswith("Recommended:")


def test_quiet_prints_nothing_and_quiet_json_only_the_result(little):
    assert clean_again(little, "--quiet").output == ""
    both = clean_again(little, "--quiet", "--json")
    assert both.stderr == "" and json.loads(both.stdout)["folder"]
    judged = invoke("judge", little, "--remove", "3", "--seeds", "2", "--quiet")
    assert judged.exit_code == 0 and judged.output == ""
    exported = invoke("export", little, little.parent / "out.csv", "--remove", "3", "-q")
    assert exported.output == "" and (little.parent / "out.csv").exists()


def test_a_verdict_is_json_without_nan(little):
    said = invoke("judge", little, "--remove", "3", "--seeds", "2", "--json")
    verdict = json.loads(said.stdout, parse_constant=pytest.fail)
    assert verdict["verdict"] in ("improved", "worse", "inconclusive") and verdict["removed"] == 3
    assert verdict["seeds"] == 2 and {"error", "log loss"} <= set(verdict["metrics"])
    assert verdict["report"] == str(little / "report.html")
    kept = dross.Project.open(little).verdicts()[-1]
    assert kept["sentence"] == verdict["sentence"]


def test_info_as_json(little):
    about = json.loads(invoke("info", little / "runs" / "run-0", "--json").stdout)
    assert about["complete"] is True and about["intact"] is True and about["steps"] > 0
    assert about["instances"] == 120 and about["planned_steps"] == about["steps"]


def test_exit_codes(little, tmp_path):
    def run(*arguments):
        command = [sys.executable, "-m", "dross", *map(str, arguments)]
        ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
        return ended.returncode, ended.stdout

    assert run("info", "nowhere", "--json") == (1, "")  # stdout stays clean
    assert run("clean")[0] == 2
    assert "Exit codes: 0" in " ".join(run("--help")[1].split())


def test_the_shell_can_complete_commands_and_options(tmp_path):
    environment = os.environ | {"_DROSS_COMPLETE": "complete_bash", "COMP_CWORD": "1"}
    script = "from dross.__main__ import main; import sys; sys.argv = ['dross']; main()"

    def complete(words, place):
        asked = environment | {"COMP_WORDS": words, "COMP_CWORD": str(place)}
        command = [sys.executable, "-c", script]
        return subprocess.run(command, env=asked, capture_output=True, text=True).stdout.split()

    assert complete("dross ju", 1) == ["judge"]
    assert {"--remove", "--relabel"} <= set(complete("dross judge --re", 2))
    install = subprocess.run(
        [sys.executable, "-m", "dross", "--show-completion", "bash"],
        env=os.environ | {"_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"},
        capture_output=True,
        text=True,
    )
    assert "complete" in install.stdout, install


def test_commands_to_copy_are_quoted(little, tmp_path, capsys):
    folder = tmp_path / "Teile Lager"
    shutil.copytree(little, folder)
    print_findings(dross.Project.open(folder))
    said = capsys.readouterr().out
    (line,) = [
        line for line in said.splitlines() if "dross review" in line and str(tmp_path) in line
    ]
    assert shlex.split(line)[-1] == str(folder)

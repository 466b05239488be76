"""Damage to a project is named and mended, never used; and what is unfinished is finished."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

import dross
from dross.cleaning import pipeline as pipeline
from dross.cleaning.project import DIGESTED, Project
from dross.cleaning.project_files import to_json
from dross.errors import CorruptFile, DrossError, InvalidInput
from tests.cleaning.made_inputs import QUICK, change_json, interrupted, other_parts, set_in_json
from tests.cleaning.test_untouched import contents
from tests.test_io import leave_temporary_files

LITTLE = QUICK | {"repeats": 1, "epochs": 3, "check": 2, "model": "linear"}


def clean(run, **options):
    """The command that made the project, again."""
    folder = run.parent
    given = {"out": run} | LITTLE | other_parts(folder) | options
    return dross.clean(folder / "train.csv", "kind", **given)


def use_everything(run):
    """Read all that a project has to say."""
    project = Project.open(run)
    rows = [table.to_csv() for table in (project.table, project.content, project.validation)]
    return to_json(project.info), rows, [project.why(id) for id in range(10)], project.verdicts()


@pytest.mark.parametrize("name", [*DIGESTED, "project.json", "verdicts/1-2.json"])
def test_no_flipped_bit_goes_unnoticed(little, name):
    project = Project.open(little)
    verdict = {"made": "today", "verdict": "improved", "metrics": {}}
    dross.cleaning.project_files.write_sealed(little / "verdicts" / "1-2.json", verdict)
    expected = use_everything(little)
    assert expected[3] == [verdict]
    raw, rng = (little / name).read_bytes(), np.random.default_rng(0)
    for place in rng.choice(len(raw), 60, replace=False):
        flipped = bytearray(raw)
        flipped[place] ^= 1 << int(rng.integers(8))
        (little / name).write_bytes(flipped)
        try:
            found = use_everything(little)
        except DrossError as error:
            assert str(little) in str(error)  # it says where
        else:
            assert found == expected  # white space in a JSON file, say
    assert project.info.digests.keys() == set(DIGESTED)


RUN_SCORES = "runs/run-0-scores.safetensors"
BEFORE_THE_END = ("checks.json", "search.json", RUN_SCORES)


@pytest.mark.parametrize("name", [*DIGESTED, "project.json", *BEFORE_THE_END])
@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_the_same_command_mends_a_damaged_project(little, name, damage):
    before = use_everything(little)
    Project.open(little).decisions.record({3: ("keep", None)})
    path = little / name
    raw = path.read_bytes()
    if damage == "missing":
        path.unlink()
    else:
        place = len(raw) - 1 if name == RUN_SCORES else len(raw) // 2  # the sign of a number
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 0x80]) + raw[place + 1 :])
    if name in BEFORE_THE_END:
        (little / "project.json").unlink()
    after = to_json(clean(little).info), *use_everything(little)[1:]
    same = lambda info: info | {"seconds": 0.0, "made": ""}
    assert same(after[0]) == same(before[0]) and after[1:] == before[1:]
    assert Project.open(little).decisions.current() == {3: ("keep", None)}


def test_a_clean_that_was_killed_while_reporting_is_finished_by_the_next(little, monkeypatch):
    expected = contents(little)
    for name in ("project.json", "report.html", "scores.csv", "scores.parquet"):
        (little / name).unlink()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(pipeline, "write_report", interrupted)
        clean(little)
    with pytest.raises(InvalidInput, match="has not finished"):
        Project.open(little)
    clean(little)
    assert contents(little).keys() == expected.keys()
    assert (little / "scores.csv").read_bytes() == expected["scores.csv"]


@pytest.mark.parametrize("name", ["report.html", "scores.csv", "scores.parquet"])
def test_what_is_missing_is_made_again(little, name):
    """As an earlier version left it when it was killed while reporting: project.json, no report."""
    (little / name).unlink()
    said = []
    clean(little, say=said.append)
    assert (little / name).exists() and not any("nothing left to do" in line for line in said)
    clean(little, say=said.append)
    assert "nothing left to do" in said[-1]


def test_a_project_whose_project_json_lacks_something_is_made_anew_and_keeps_its_decisions(little):
    Project.open(little).decisions.record({3: ("remove", None)})
    expected = use_everything(little)[1:]
    change_json(little / "project.json", lambda content: content.pop("recommendation"))
    with pytest.raises(CorruptFile, match="Run dross clean again; your decisions are kept"):
        Project.open(little)
    said = []
    clean(little, say=said.append)
    assert not any("nothing left to do" in line for line in said)
    assert use_everything(little)[1:] == expected
    assert Project.open(little).decisions.current() == {3: ("remove", None)}


def test_other_options_are_another_job(little):
    Project.open(little).decisions.record({3: ("remove", None)})
    with pytest.raises(InvalidInput, match="other settings"):
        clean(little, repeats=2)
    clean(little, repeats=2, overwrite=True)
    assert list(little.glob("decisions-*.sqlite"))  # set aside, not deleted


def test_project_json_that_lacks_something(little):
    for key in ("request", "training", "options", "classes"):
        about = json.loads((little / "project.json").read_text())
        set_in_json(little / "project.json", **{key: 3})
        with pytest.raises(CorruptFile, match=r"project\.json"):
            dross.judge(little, remove=3, seeds=2, progress=False)
        (little / "project.json").write_text(json.dumps(about))


# --- two at once ---

CLEAN = """
import sys
from pathlib import Path
import dross
from dross.cleaning import pipeline
def wait(*_):
    print("inside", flush=True)
    sys.stdin.read()
pipeline.find_recipe = wait
dross.clean(sys.argv[1], "kind", out=sys.argv[2], seed=5, progress=False)
"""


def test_two_cannot_clean_into_one_folder(little):
    out = little.parent / "out"
    other = subprocess.Popen(
        [sys.executable, "-c", CLEAN, str(little.parent / "train.csv"), str(out)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert other.stdout is not None and other.stdout.readline() == "inside\n"
        before = contents(out)
        for options in ({}, {"overwrite": True}, {"repeats": 2}):
            with pytest.raises(InvalidInput, match="writing to the folder"):
                clean(little, out=out, **options)
        assert contents(out) == before
    finally:
        other.kill()
        other.communicate()
    clean(little, out=out, overwrite=True)  # a killed one keeps nobody out
    assert not (out / "dross.lock").exists()


@pytest.mark.skipif(os.name == "nt", reason="kill -9 is another thing there")
@pytest.mark.parametrize("command", ["clean", "judge", "export"])
def test_what_a_killed_process_left_half_written_is_deleted(little, command):
    copy = little.parent / "copy.csv"
    run = little / "runs" / "run-0"
    within = [
        little / "report.html",
        run / "retrace-00ab00ab00ab00ab.safetensors",
        run / "manifest.json",
    ]
    beside = [copy, copy.with_name("copy-decisions.csv")]
    leave_temporary_files(*(beside if command == "export" else within))
    theirs = [little / ".notes.txt.12.tmp", little.parent / ".other.csv.0123abcd.tmp"]
    for path in theirs:
        path.write_text("of the user")
    if command == "clean":
        clean(little)
    elif command == "judge":
        dross.judge(little, remove=3, seeds=2, quick=True, progress=False)
    else:
        dross.export(little, copy, remove=3)
    assert sorted(little.parent.rglob("*.tmp")) == sorted(theirs)

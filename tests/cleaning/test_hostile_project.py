"""A project that somebody hands over: it runs no code, and its decisions lead nowhere else."""

import json
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

import pandas
import pytest
from typer.testing import CliRunner

import dross
from dross import cli
from dross.cleaning import export as export_module
from dross.cleaning import images
from dross.cleaning.project import Project
from dross.errors import CorruptFile, DrossError, InputChanged, InvalidInput
from tests.cleaning.made_inputs import set_in_json, small_table

EVIL = """import pathlib
pathlib.Path("was-run").write_text("!")
def load():
    return {}
"""


@pytest.fixture
def evil(little, monkeypatch):
    """A project beside an evil.py that says on disk when it is run."""
    folder = little.parent
    monkeypatch.chdir(folder)
    monkeypatch.setattr(sys, "path", list(sys.path))
    (folder / "evil.py").write_text(EVIL)
    yield little
    sys.modules.pop("evil", None)


@pytest.mark.parametrize(
    "forged",
    [
        {"request__data": "evil:load"},
        {"request__data": "evil:load", "kind": "custom"},
        {"options__make": "evil:load"},
        {"request__data": "evil:load", "options__make": "os:system"},
    ],
)
def test_a_project_causes_no_code_to_be_imported(evil, forged):
    set_in_json(evil / "project.json", **forged)
    with pytest.raises(InvalidInput, match=r"runs that code: evil:load.*`trust_code="):
        dross.judge(evil, remove=3, seeds=2, progress=False)
    judged = CliRunner().invoke(cli.app, ["judge", "run", "--remove", "3"])
    assert isinstance(judged.exception, InvalidInput)
    if "request__data" in forged:
        with pytest.raises(InvalidInput, match="no file to copy"):
            dross.export(evil, "copy.csv", remove=3)
    else:
        dross.export(evil, "copy.csv", remove=3)  # needs no model
    assert not os.path.exists("was-run") and "evil" not in sys.modules


def test_code_that_is_named_again_is_run(evil):
    set_in_json(evil / "project.json", request__data="evil:load")
    command = ["judge", "run", "--remove", "3", "--trust-code", "evil:load"]
    judged = CliRunner().invoke(cli.app, command)
    assert "must return a dict" in str(judged.exception) and os.path.exists("was-run")


def test_the_current_folder_is_not_searched_first_afterwards(tmp_path):
    """A colorsys.py that lies there is not taken for Python's own by what is imported later."""
    (tmp_path / "mine.py").write_text("def f(): ...\n")
    (tmp_path / "colorsys.py").write_text("raise SystemExit('hijacked')\n")
    code = (
        "import sys; sys.path[:] = [p for p in sys.path if p]\n"
        "from dross.cleaning.user_code import import_function\n"
        "import_function('mine:f')\n"
        "import colorsys; print(colorsys.__file__)"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert str(tmp_path) not in done.stdout


# --- decisions ---


def test_labels_that_are_no_classes_are_refused(album):
    for label in ("../../x", "/tmp/x", "bird", ""):
        Project.open(album).decisions.record({5: ("relabel", label)})
        with pytest.raises(InvalidInput, match="not a class in this data"):
            dross.export(album, album.parent / "copy")
        with pytest.raises(InvalidInput, match="not a class in this data"):
            dross.judge(album, decisions=True, seeds=2, progress=False)


def test_no_image_is_written_outside_of_the_export(album):
    """Even if the project says that it is a class."""
    before = sorted(str(path) for path in album.parent.rglob("*"))
    for label in ("../../x", "/tmp/dross-outside", "..", "."):
        set_in_json(album / "project.json", classes=["cat", "dog", label])
        Project.open(album).decisions.record({5: ("relabel", label)})
        with pytest.raises(DrossError, match="points outside the folder"):
            dross.export(album, album.parent / "copy")
    (album / "decisions.sqlite").unlink()
    assert sorted(str(path) for path in album.parent.rglob("*")) == before
    assert not os.path.exists("/tmp/dross-outside")


def test_decisions_about_instances_that_are_not_there(little):
    Project.open(little).decisions.record({3: ("remove", None), 10**6: ("keep", None)})
    for act in (
        lambda: dross.export(little, little.parent / "copy.csv"),
        lambda: dross.judge(little, decisions=True, seeds=2, progress=False),
    ):
        with pytest.raises(
            InputChanged, match="contains a decision about instance 1000000, but there are"
        ):
            act()


@pytest.mark.parametrize(
    "row",
    [
        ("decide", None, '[["remove", null, ["3"]]]'),
        ("decide", None, '[["remove", null, [-3]]]'),
        ("decide", None, '[["destroy", null, [3]]]'),
        ("decide", None, '[["relabel", 7, [3]]]'),
        ("decide", None, "[" * 100_000),
        ("undo", 1, "[]"),
        ("undo", 9, "[]"),
    ],
)
def test_rows_that_dross_did_not_write_are_damage(little, row):
    decisions = Project.open(little).decisions
    decisions.record({3: ("keep", None)})
    decisions.undo()
    decisions.close()
    connection = sqlite3.connect(little / "decisions.sqlite")
    with connection:
        connection.execute(
            "INSERT INTO events (made, who, kind, target, part, changes, why) "
            "VALUES ('', '', ?, ?, 'train', ?, '')",
            row,
        )
    connection.close()
    with pytest.raises(CorruptFile, match=r"Row 3 of .* has been changed since dross wrote it"):
        dross.export(little, little.parent / "copy.csv")


def test_copy_and_list_come_from_the_same_decisions(little, monkeypatch):
    project = Project.open(little)
    project.decisions.record(dict.fromkeys(range(5), ("remove", None)))
    real = export_module.digest_inputs

    def meanwhile(*given, **options):
        Project.open(little).decisions.record(dict.fromkeys(range(5, 20), ("remove", None)))
        return real(*given, **options)

    monkeypatch.setattr(export_module, "digest_inputs", meanwhile)
    done = dross.export(little, little.parent / "copy.csv")
    copy, listed = pandas.read_csv(done.cleaned), pandas.read_csv(done.decisions)
    assert done.removed == len(listed) == 5 and len(copy) == 120 - 5
    assert len(Project.open(little).decisions.current()) == 20


# --- numbers that nobody means ---


def test_more_than_could_ever_be_done_is_refused_at_once(evil):
    judge = lambda **options: dross.judge(evil, remove=3, progress=False, **options)
    with pytest.raises(
        InvalidInput, match=r"`seeds` must be at most 1,000, not 1.*: three models are trained"
    ):
        judge(seeds=10**40)
    for command in (
        ["judge", "run", "--remove", "3", "--seeds", "1000000"],
        ["clean", "train.csv", "--label", "kind", "--epochs", str(10**40), "--out", "other"],
        ["clean", "train.csv", "--label", "kind", "--repeats", str(10**40), "--out", "other"],
    ):
        asked = CliRunner().invoke(cli.app, command)
        assert isinstance(asked.exception, InvalidInput) and "must be at most" in str(
            asked.exception
        )
    assert not os.path.exists("other") and not (evil / "judging.json").exists()


# --- inputs and places ---


@pytest.mark.parametrize("name", ["train.csv", "validation.csv", "test.csv"])
def test_a_changed_cell_of_an_ignored_column_is_refused(little, name):
    assert "note" in str(Project.open(little).info.notes)  # it is ignored
    path = little.parent / name
    path.write_text(path.read_text().replace(",n17\n", ",changed\n"))
    with pytest.raises(InputChanged, match=rf"{name} has changed since"):
        dross.export(little, little.parent / "copy.csv", remove=3)
    assert not (little.parent / "copy.csv").exists()


def test_images_that_change_while_they_are_copied_are_refused(album, monkeypatch):
    real = images.place_images

    def meanwhile(names, edits):
        path = album.parent / "pics" / "cat" / "00.png"
        path.write_bytes(path.read_bytes() + b" ")
        return real(names, edits)

    monkeypatch.setattr(images, "place_images", meanwhile)
    with pytest.raises(InputChanged, match="has changed since"):
        dross.export(album, album.parent / "copy", remove=3)
    assert sorted(path.name for path in album.parent.iterdir()) == ["pics", "run"]


@contextmanager
def powerless():
    """Inside, files that others own cannot be written; the superuser becomes nobody."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.name == "nt", reason="permissions are other things there")
def test_a_read_only_project(little, monkeypatch):
    """Judging says so before it trains; exporting elsewhere works."""
    from dross.cleaning import judge

    monkeypatch.setattr(judge, "reopen_inputs", lambda *_: pytest.fail("too late"))
    with tempfile.TemporaryDirectory() as place:  # one that nobody else is kept out of
        os.chmod(place, 0o755)
        run = shutil.copytree(little, Path(place) / "run")
        Project.open(run).table  # noqa: B018 - what is imported late is imported now
        run.chmod(0o555)
        with powerless(), pytest.raises(DrossError) as caught:
            dross.judge(run, remove=3, seeds=2, progress=False)
        assert "judging.json cannot be written: Permission denied" in str(caught.value)
        with powerless(), pytest.raises(InvalidInput, match="No instance has been"):
            dross.judge(run, decisions=True, progress=False)  # no decisions, and no file for them
        run.chmod(0o755)
    dross.export(little, little.parent / "copy.csv", remove=3)
    assert not (little / "decisions.sqlite").exists()


def test_formulas_are_kept_in_the_copy_and_disarmed_in_lists(tmp_path):
    formula = '=HYPERLINK("http://x","y")'
    path = small_table(tmp_path / "t.csv", count=120)
    frame = pandas.read_csv(path, keep_default_na=False)
    frame["kind"] = frame["kind"].map({"yes": formula, "no": "-1"})
    frame.to_csv(path, index=False)
    project = dross.clean(
        path,
        "kind",
        task="classification",
        model="linear",
        out=tmp_path / "run",
        repeats=1,
        epochs=2,
        lr=0.1,
        check=2,
        progress=False,
    )
    assert set(project.table["label"]) == {formula, "-1"}
    scores = pandas.read_csv(tmp_path / "run" / "scores.csv", dtype=str)
    assert set(scores["label"]) == {f"'{formula}", "-1"}
    project.decisions.record(dict.fromkeys(range(10), ("relabel", formula)))
    done = dross.export(tmp_path / "run", tmp_path / "copy.csv")
    listed = pandas.read_csv(done.decisions, dtype=str)
    assert set(listed["new label"]) == {f"'{formula}"}
    copied = pandas.read_csv(done.cleaned, dtype=str)["kind"]
    assert formula in set(copied) and f"'{formula}" not in set(copied)
    assert json.loads((tmp_path / "run" / "project.json").read_text())["classes"][-1] == formula

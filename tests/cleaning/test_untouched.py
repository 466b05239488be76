"""Nothing is deleted or written over that dross did not write: folders, inputs, other outputs."""

import os
import shutil

import pytest

import dross
from dross.cleaning.project import Project
from dross.demo import load_flipped_digits, write_images
from dross.errors import DrossError, InvalidInput
from tests.cleaning.made_inputs import QUICK, small_table


def contents(folder):
    """{name: bytes} of every file in a folder."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (".", "contains"),
        ("pics", "the input itself"),
        ("pics/copy", "is inside"),
        ("run", "itself"),
        ("run/copy", "is inside"),
        ("theirs", "is an existing folder"),
        ("theirs/thesis.tex", "already exists"),
        ("link", "the input itself"),
        ("link/copy", "is inside"),
    ],
)
def test_an_export_of_images_replaces_no_folder_of_somebody_else(album, target, message):
    folder = album.parent
    (folder / "theirs").mkdir()
    (folder / "theirs" / "thesis.tex").write_text("years of work")
    (folder / "link").symlink_to(folder / "pics")
    before = contents(folder)
    with pytest.raises(InvalidInput, match=message):
        dross.export(album, folder / target, remove=3, overwrite=True)
    assert contents(folder) == before


def test_an_earlier_export_is_not_replaced(album):
    copy = album.parent / "copy"
    dross.export(album, copy, remove=3)
    before = contents(album.parent)
    for overwrite in (False, True):
        with pytest.raises(InvalidInput, match="is an existing folder"):
            dross.export(album, copy, remove=5, overwrite=overwrite)
    assert contents(album.parent) == before
    names = ["copy", "copy-decisions.csv", "pics", "run"]
    assert sorted(path.name for path in album.parent.iterdir()) == names


def test_an_export_that_was_killed_is_finished_by_the_next(album, monkeypatch):
    copy = album.parent / "copy"

    def killed(self, target):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr(type(copy), "rename", killed)
        patched.setattr(shutil, "rmtree", lambda *_, **__: None)  # nor does it tidy up
        dross.export(album, copy, remove=5)
    assert not copy.exists() and (album.parent / ".copy.dross-partial").exists()
    dross.export(album, copy, remove=3)
    assert len(list(copy.rglob("*.png"))) == 77 and len(list(album.parent.iterdir())) == 4


@pytest.mark.parametrize("name", ["train.csv", "validation.csv", "test.csv"])
@pytest.mark.parametrize("through", ["name", "link", "hard link"])
def test_no_input_is_written_over(little, name, through):
    folder = little.parent
    target = folder / name
    if through != "name":
        target = folder / "other.csv"
        make = target.symlink_to if through == "link" else target.hardlink_to
        make(folder / name)
    before = contents(folder)
    with pytest.raises(InvalidInput, match="which must not be changed"):
        dross.export(little, target, remove=3, overwrite=True)
    # the list of decisions is an output, too
    copy = folder / "copy.csv"
    (folder / "copy-decisions.csv").symlink_to(folder / name)
    with pytest.raises(InvalidInput, match="which must not be changed"):
        dross.export(little, copy, remove=3, overwrite=True)
    (folder / "copy-decisions.csv").unlink()
    assert contents(folder) == before


@pytest.mark.parametrize("name", ["scores.csv", "instances.parquet"])
def test_no_file_of_the_project_is_written_over(little, name):
    before = contents(little)
    with pytest.raises(InvalidInput, match="one of the project's own files"):
        dross.export(little, little / name, remove=3, overwrite=True)
    assert contents(little) == before
    dross.export(little, little / "cleaned.csv", remove=3)  # a name of its own is no harm


def test_names_that_are_no_names(album, little, monkeypatch):
    for project in (album, little):
        monkeypatch.chdir(project.parent)
        for target in (".", "..", "/", "run/.."):
            with pytest.raises(InvalidInput):
                dross.export("run", target, remove=3)
    (little.parent / "x.csv").mkdir()
    with pytest.raises(InvalidInput, match="is an existing folder"):
        dross.export(little, little.parent / "x.csv", remove=3, overwrite=True)


def test_a_full_disk_leaves_the_old_copy_and_the_old_list(little, monkeypatch):
    copy = little.parent / "copy.csv"
    dross.export(little, copy, remove=3)
    before = contents(little.parent)
    real, files = os.fsync, []

    def full(descriptor):
        files.append(descriptor)
        if len(files) > 1:
            raise OSError(28, "No space left on device")
        real(descriptor)

    with monkeypatch.context() as patched, pytest.raises(DrossError, match="No space left"):
        patched.setattr(os, "fsync", full)
        dross.export(little, copy, remove=9, overwrite=True)
    assert contents(little.parent) == before


@pytest.mark.parametrize("name", ["train/0/0000.png", "notes.txt", "train"])
def test_the_demo_replaces_nothing(tmp_path, name):
    folder = tmp_path / "mnist-digits"
    digits = load_flipped_digits()
    write_images(digits, folder)
    write_images(digits, folder)  # an earlier demo's
    place = folder / name
    if name == "train":
        place.rename(tmp_path / "moved")
        place.symlink_to(tmp_path / "moved")
    else:
        place.write_bytes(b"mine")
    before = contents(tmp_path)
    with pytest.raises(InvalidInput, match=f"{name} was not written by the demo"):
        write_images(digits, folder)
    assert contents(tmp_path) == before


# --- the folder of dross clean ---


def test_overwriting_deletes_only_what_dross_wrote(little):
    mine = {"thesis.tex": "years", "runs/notes.txt": "n", "images/cat.jpg": "c", "a/b/c.csv": "d"}
    for name, text in mine.items():
        (little / name).parent.mkdir(parents=True, exist_ok=True)
        (little / name).write_text(text)
    (little / "verdicts").mkdir()
    (little / "verdicts" / "20260101-000000-00.json").write_text("{}")
    elsewhere = little.parent / "elsewhere"
    shutil.copytree(little / "runs" / "run-0", elsewhere / "run-7")
    (little / "runs" / "mine").symlink_to(elsewhere / "run-7")
    kept = contents(elsewhere)
    Project.open(little).decisions.record({3: ("keep", None)})
    path = small_table(little.parent / "new.csv")
    dross.clean(path, "kind", out=little, overwrite=True, **QUICK | {"repeats": 1, "check": 2})
    assert {name: (little / name).read_text() for name in mine} == mine
    assert contents(elsewhere) == kept
    assert not list((little / "verdicts").glob("*")) and len(Project.open(little).table) == 150
    (aside,) = little.glob("decisions-*.sqlite")
    assert dross.cleaning.decisions.Decisions(aside).current() == {3: ("keep", None)}


def test_decisions_that_were_set_aside_are_not_replaced(little, monkeypatch):
    from dross.cleaning.decisions import set_decisions_aside

    monkeypatch.setattr("time.strftime", lambda *_: "20260101-000000")
    for text in ("one", "two"):
        (little / "decisions.sqlite").write_text(text)
        set_decisions_aside(little)
    assert sorted(path.read_text() for path in little.glob("decisions-*")) == ["one", "two"]


@pytest.mark.parametrize("place", [".", "train.csv/..", "sub/.."])
def test_a_folder_that_holds_an_input_is_refused(little, place):
    """As if a project had been made there: its files beside the input."""
    folder = little.parent
    (folder / "sub").mkdir()
    for path in little.iterdir():
        path.rename(folder / path.name)
    before = contents(folder)
    out = folder if place.startswith("train") else folder / place
    with pytest.raises(InvalidInput, match="must not be changed"):
        dross.clean(folder / "train.csv", "kind", out=out, overwrite=True, **QUICK)
    assert contents(folder) == before


def test_a_folder_inside_of_the_images_is_refused(album):
    images = album.parent / "pics"
    with pytest.raises(InvalidInput, match="is inside"):
        dross.clean(images, out=images / "runs" / "x", **QUICK)
    assert not (images / "runs").exists()


@pytest.mark.parametrize("begun", ['{"started": "today"}', "[]", "not JSON", '{"made_by": "me"}'])
def test_somebody_elses_begun_json_is_not_ours(tmp_path, begun):
    path = small_table(tmp_path / "t.csv")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "begun.json").write_text(begun)
    for more in ("", "scores.csv"):
        if more:
            (theirs / more).write_text("mine")
        before = contents(theirs)
        with pytest.raises(InvalidInput, match="not made by dross"):
            dross.clean(path, "kind", out=theirs, overwrite=True, **QUICK)
        assert contents(theirs) == before


# --- links in place of what dross writes ---


def spoil(folder):
    """A folder of somebody else, whose files have the names that dross gives."""
    names = ["train-000000.png", "20260101-000000-00.json", "manifest.json", "train.parquet"]
    names += ["segment-000000.safetensors", "run-0-scores.safetensors", "piece-000000.safetensors"]
    folder.mkdir()
    for name in names:
        (folder / name).write_text("theirs")
    return folder


@pytest.mark.parametrize("name", ["images", "data", "verdicts", "runs", "runs/run-0", "judging"])
@pytest.mark.parametrize("finished", [True, False])
def test_a_linked_folder_of_a_project_is_not_reached_through(little, name, finished):
    theirs = spoil(little.parent / "theirs")
    shutil.rmtree(little / name, ignore_errors=True)
    (little / name).symlink_to(theirs)
    if not finished:
        (little / "project.json").unlink()
    before = contents(little.parent)
    options = QUICK | {"repeats": 1, "check": 2}
    with pytest.raises(InvalidInput, match=f"{name} is a link to .*theirs"):
        dross.clean(little.parent / "train.csv", "kind", out=little, overwrite=True, **options)
    if finished:
        with pytest.raises(InvalidInput, match=f"{name} is a link to .*theirs"):
            dross.judge(little, remove=3, seeds=2, progress=False)
    assert contents(little.parent) == before


def test_a_project_may_itself_be_reached_through_a_link(little):
    (little.parent / "link").symlink_to(little)
    done = dross.export(little.parent / "link", little.parent / "copy.csv", remove=3)
    assert done.removed == 3
    Project.open(little.parent / "link").judge(remove=3, seeds=2, progress=False)
    assert len(list((little / "verdicts").iterdir())) == 1


@pytest.mark.parametrize("make", ["symlink_to", "hardlink_to"])
def test_decisions_are_not_written_through_a_link(little, make):
    theirs = little.parent / "theirs.sqlite"
    theirs.write_bytes(b"")
    getattr(little / "decisions.sqlite", make)(theirs)
    with pytest.raises(
        DrossError,
        match=r"decisions\.sqlite cannot be used: it is (a link|one of several hard links)",
    ):
        Project.open(little).decisions.record({3: ("keep", None)})
    assert theirs.read_bytes() == b""


def test_an_export_locks_nothing_of_somebody_else(little):
    copy = little.parent / "copy.csv"
    mine = little.parent / ".copy.csv.lock"
    mine.write_text("")
    dross.export(little, copy, remove=3)
    assert mine.exists()
    lock = little.parent / ".copy.csv.dross-lock"
    lock.symlink_to(little.parent / "train.csv")
    before = contents(little.parent)
    with pytest.raises(DrossError, match="it is a link"):
        dross.export(little, copy, remove=3, overwrite=True)
    assert contents(little.parent) == before


def test_an_export_of_images_is_not_made_through_a_link(album):
    theirs = spoil(album.parent / "theirs")
    (album.parent / ".copy.dross-partial").symlink_to(theirs)
    before = contents(album.parent)
    with pytest.raises(DrossError, match="File exists"):
        dross.export(album, album.parent / "copy", remove=3)
    assert contents(album.parent) == before

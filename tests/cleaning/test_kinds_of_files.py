"""Pipes, sockets, devices and broken links in place of files: nothing waits for ever."""

import os
import signal
import socket
from pathlib import Path

import pytest

import dross
from dross.cleaning.chats import read_chats
from dross.cleaning.images import digest_images, read_folder
from dross.errors import DrossError, InvalidInput
from dross.tape.reader import Tape
from tests.cleaning.made_inputs import QUICK


@pytest.fixture(autouse=True)
def _nothing_waits_for_ever():
    def fail(*_):
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(60)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


def make_unreadable(folder):
    """{name: why} of images that are no files."""
    os.mkfifo(folder / "pipe.png")
    (folder / "device.png").symlink_to("/dev/zero")
    (folder / "dangling.png").symlink_to("nowhere.png")
    (folder / "loop.png").symlink_to("loop.png")
    return ["device.png", "dangling.png", "loop.png", "pipe.png"]


def test_images_that_are_no_files_are_left_out_and_named(album, tmp_path):
    names = make_unreadable(album.parent / "pics" / "cat")
    source = read_folder(album.parent / "pics")
    assert len(source) == 80
    named = ", ".join(f"cat/{name}" for name in sorted(names)[:3])
    assert source.notes[0].startswith(f"4 images cannot be opened and are left out: {named}")
    options = QUICK | {"repeats": 1, "epochs": 2, "check": 2, "model": "mlp"}
    project = dross.clean(album.parent / "pics", out=tmp_path / "run", **options)
    done = dross.export(project, tmp_path / "copy", remove=3)
    assert done.written == 77 == len(list((tmp_path / "copy").rglob("*.png")))


def test_a_broken_link_that_is_mended_is_a_changed_input(album):
    before = digest_images(album.parent / "pics")
    (album.parent / "pics" / "cat" / "new.png").symlink_to("target")
    broken = digest_images(album.parent / "pics")
    (album.parent / "pics" / "cat" / "target").write_bytes(b"no image")
    assert len({before, broken, digest_images(album.parent / "pics")}) == 3


def make_pipe(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    return path


@pytest.mark.parametrize("part", ["data", "validation", "test", "features"])
def test_a_pipe_is_no_input(little, part):
    folder = little.parent
    arguments = {"data": folder / "train.csv", "label": "kind", "out": folder / "new"}
    arguments[part] = make_pipe(folder / "pipe.csv")
    with pytest.raises(InvalidInput, match=r"pipe\.csv is not a regular file"):
        dross.clean(**arguments, **QUICK)


def test_a_shell_pipe_is_no_input(little):
    read, write = os.pipe()
    with pytest.raises(InvalidInput, match=rf"/dev/fd/{read} is not a regular file"):
        dross.clean(f"/dev/fd/{read}", "kind", out=little.parent / "new", **QUICK)
    os.close(read)
    os.close(write)


def test_chats_in_a_pipe(tmp_path):
    with pytest.raises(InvalidInput, match="it is a pipe, not a regular file"):
        read_chats(make_pipe(tmp_path / "chats.jsonl"))


@pytest.mark.parametrize(
    "name", ["instances.parquet", "why.json", "verdicts/20260101-000000-00.json"]
)
def test_a_pipe_in_a_project_is_named(little, name):
    make_pipe(little / name)
    project = dross.Project.open(little)
    with pytest.raises(DrossError, match="it is a pipe, not a regular file"):
        project.check_files()
        project.verdicts()


def test_a_pipe_in_place_of_the_project_file_or_of_the_job(little):
    make_pipe(little / "begun.json")
    make_pipe(little / "project.json")
    with pytest.raises(DrossError):
        dross.Project.open(little)
    with pytest.raises(DrossError, match="not made by dross"):
        dross.clean(little.parent / "train.csv", "kind", out=little, **QUICK)


@pytest.mark.parametrize("make", ["pipe", "socket"])
def test_decisions_in_a_pipe_or_a_socket(little, monkeypatch, make):
    monkeypatch.chdir(little)
    if make == "pipe":
        make_pipe(Path("decisions.sqlite"))
    else:
        with socket.socket(socket.AF_UNIX) as unheard:
            unheard.bind("decisions.sqlite")
    with pytest.raises(DrossError, match=f"it is a {make}, not a regular file"):
        dross.Project.open(little).current_decisions()


@pytest.mark.parametrize("name", ["manifest.json", "segment-000000.safetensors"])
def test_a_pipe_in_a_tape(little, name):
    make_pipe(little / "runs" / "run-0" / name)
    with pytest.raises(DrossError, match="it is a pipe, not a regular file"):
        Tape(little / "runs" / "run-0").check_files()

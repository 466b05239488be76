"""Files that are replaced whole, locked, sealed and compared by digests."""

import errno
import json
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest

from dross import _io as atomic_files
from dross._io import (
    break_seal,
    digest_file,
    hold_lock,
    join_digests,
    open_in_place,
    read_file,
    seal,
    write_bytes,
    write_json,
)
from dross.errors import DrossError, InvalidInput

# --- Files are replaced whole, or stay as they were ---


@pytest.fixture
def full_disk(monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_files.os, "replace", fail)


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path, sync):
    path = tmp_path / "a.json"
    for raw in (b"old", b"new", b""):
        write_bytes(path, raw, sync=sync)
        assert path.read_bytes() == raw and os.listdir(tmp_path) == ["a.json"]


def test_sync_waits_for_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(atomic_files.os, "fsync", synced.append)
    write_bytes(tmp_path / "a", b"1", sync=False)
    assert synced == []
    write_bytes(tmp_path / "a", b"1")
    assert len(synced) == 2  # the file, and its name in the folder


def test_threads_do_not_share_a_temporary_file(tmp_path):
    path, written = tmp_path / "a", [bytes([65 + k]) * 100_000 for k in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda raw: write_bytes(path, raw, sync=False), written * 5))
    assert path.read_bytes() in written and os.listdir(tmp_path) == ["a"]


def test_a_link_is_replaced_and_not_written_through(tmp_path):
    (tmp_path / "theirs").write_bytes(b"old")
    (tmp_path / "a").symlink_to(tmp_path / "theirs")
    write_bytes(tmp_path / "a", b"new")
    assert (tmp_path / "theirs").read_bytes() == b"old" and not (tmp_path / "a").is_symlink()


def test_the_temporary_file_is_hidden_and_beside_the_file(tmp_path, monkeypatch):
    seen = []
    replace = os.replace

    def watch(source, target):
        seen.append(source)
        replace(source, target)

    monkeypatch.setattr(atomic_files.os, "replace", watch)
    write_bytes(tmp_path / "a.json", b"1")
    (temporary,) = seen
    assert temporary.parent == tmp_path
    assert temporary.name.startswith(".a.json.") and temporary.suffix == ".tmp"


def test_a_failure_leaves_the_old_file_alone(tmp_path, full_disk):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    with pytest.raises(DrossError, match=r"a\.json cannot be written: No space left on device"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.json"]


def leave_temporary_files(*paths):
    """What a process leaves that was killed two hours ago while it wrote these files."""
    for path in paths:
        left = path.with_name(f".{path.name}.0123abcd.tmp")
        left.write_bytes(b"half")
        long_ago = time.time() - 7200
        os.utime(left, (long_ago, long_ago))


def test_only_what_nobody_has_written_to_for_long_is_stale(tmp_path):
    leave_temporary_files(tmp_path / "a.json", tmp_path / "theirs.json")
    for name in (".a.json.tmp", ".a.json.12.tmp", "a.json.tmp"):
        (tmp_path / name).write_bytes(b"")
    with atomic_files.staged_file(tmp_path / "a.json", b"ours"):
        before = set(os.listdir(tmp_path))
        atomic_files.delete_stale(tmp_path, lambda name: name == "a.json")
        assert before - set(os.listdir(tmp_path)) == {".a.json.0123abcd.tmp"}


def test_a_missing_folder_is_made(tmp_path):
    write_bytes(tmp_path / "new" / "a", b"1")
    assert (tmp_path / "new" / "a").read_bytes() == b"1"


def test_json_is_indented_ascii(tmp_path):
    write_json(tmp_path / "a.json", {"a": "ü"})
    assert (tmp_path / "a.json").read_bytes() == b'{\n "a": "\\u00fc"\n}'


# --- A lock keeps other processes out, and a dead one keeps nobody out ---

HOLD = """
import sys
import time
from pathlib import Path
from dross._io import hold_lock
with hold_lock(Path(sys.argv[1]), "it"):
    print("held", flush=True)
    sys.stdin.read()
"""


def start_holder(path: Path) -> subprocess.Popen:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None and holder.stdout.readline() == "held\n"
    return holder


def test_another_process_is_kept_out(tmp_path):
    path = tmp_path / "lock"
    holder = start_holder(path)
    with pytest.raises(InvalidInput, match=r"writing to the folder x and has locked .*lock"):
        hold_lock(path, "the folder x").__enter__()
    holder.communicate()  # it ends
    assert not path.exists()
    with hold_lock(path, "it"):
        assert path.exists()
    assert os.listdir(tmp_path) == []


def test_a_killed_process_keeps_nobody_out(tmp_path):
    path = tmp_path / "lock"
    holder = start_holder(path)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert path.exists()  # its file is still there
    with hold_lock(path, "it"):
        pass


# --- A file that dross did not write is neither emptied nor deleted ---


@pytest.mark.parametrize("kind", ["link", "hard link", "hard link to nothing", "file", "pipe"])
def test_a_lock_that_dross_did_not_write_stays_as_it_is(tmp_path, kind):
    path, theirs = tmp_path / "lock", tmp_path / "input.csv"
    theirs.write_text("" if kind.endswith("nothing") else "a,b\n1,2\n")
    before = theirs.read_text()
    if kind == "link":
        path.symlink_to(theirs)
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "file":
        path.write_text("mine")
    else:
        path.hardlink_to(theirs)
    with pytest.raises(
        DrossError, match=r"lock (cannot be locked|is not a dross lock file): it is"
    ):
        hold_lock(path, "it").__enter__()
    assert theirs.read_text() == before and os.path.lexists(path)
    assert kind != "file" or path.read_text() == "mine"


def make_socket(path):
    with socket.socket(socket.AF_UNIX) as unheard:
        unheard.bind(str(path))


KINDS = {
    "pipe": ("a pipe", os.mkfifo),
    "socket": ("a socket", make_socket),
    "device": ("a device", lambda path: path.symlink_to("/dev/zero")),
    "loop": ("a link", lambda path: path.symlink_to(path)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_regular_files_are_opened(tmp_path, monkeypatch, kind):
    monkeypatch.chdir(tmp_path)  # the name of a socket must be short
    name, make = KINDS[kind]
    make(Path("x"))
    with pytest.raises(DrossError, match=f"x cannot be read: it is {name}, not a regular file"):
        digest_file(Path("x"))
    in_place = "a link" if Path("x").is_symlink() else name
    with pytest.raises(OSError, match=f"it is {in_place}, not a regular file"):
        open_in_place(Path("x"))


def test_a_file_is_read_through_a_link_and_not_written_through_one(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "link").symlink_to("a")
    assert read_file(tmp_path / "link") == b"1"
    with pytest.raises(OSError, match="it is a link"):
        open_in_place(tmp_path / "link")
    with open_in_place(tmp_path / "a") as file:
        file.write(b"22")
    assert (tmp_path / "a").read_bytes() == b"22"
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


# --- Digests notice every change, and a sealed object its own ---


def test_names_and_content_count(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    digest = digest_file(tmp_path / "a")
    (tmp_path / "a").write_bytes(b"2")
    assert len(digest) == 64 and digest_file(tmp_path / "a") != digest
    first = join_digests({"a": "1", "b": "2"})
    assert first not in (join_digests({"b": "1", "a": "2"}), join_digests({"a": "1", "b": "3"}))
    with pytest.raises(DrossError, match="cannot be read"):
        digest_file(tmp_path / "none")


def test_a_sealed_object_notices_every_change_of_a_character():
    value = {"a": [1, 2.5, float("inf")], "b": {1: (3, None)}, "c": "ü"}
    text = json.dumps(seal(value))
    assert break_seal(json.loads(text)) == json.loads(json.dumps(value))
    unnoticed = []
    for place, letter in enumerate(text):
        if letter.isalnum():
            other = text[:place] + ("7" if letter != "7" else "3") + text[place + 1 :]
            with suppress(ValueError):  # not JSON any more
                if break_seal(json.loads(other)) is not None:
                    unnoticed.append(other)
    assert unnoticed == []
    assert break_seal({"a": 1}) is None

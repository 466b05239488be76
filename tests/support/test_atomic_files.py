"""Files are replaced whole, or stay as they were."""

import errno
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dross import _io as atomic_files
from dross._io import (
    replace_file,
    write_bytes,
    write_json,
    write_table,
    write_text,
)
from dross.errors import DrossError


@pytest.fixture
def full_disk(monkeypatch):
    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(atomic_files.os, "replace", fail)


@pytest.mark.parametrize("sync", [True, False])
def test_a_file_is_replaced_and_nothing_else_is_left(tmp_path, sync):
    path = tmp_path / "a.json"
    for raw in (b"old", b"new", b""):
        replace_file(path, raw, sync=sync)
        assert path.read_bytes() == raw and os.listdir(tmp_path) == ["a.json"]


def test_sync_waits_for_the_disk(tmp_path, monkeypatch):
    synced = []
    monkeypatch.setattr(atomic_files.os, "fsync", synced.append)
    replace_file(tmp_path / "a", b"1", sync=False)
    assert synced == []
    replace_file(tmp_path / "a", b"1")
    assert len(synced) == 2  # the file, and its name in the folder


def test_threads_do_not_share_a_temporary_file(tmp_path):
    path, written = tmp_path / "a", [bytes([65 + k]) * 100_000 for k in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda raw: replace_file(path, raw, sync=False), written * 5))
    assert path.read_bytes() in written and os.listdir(tmp_path) == ["a"]


def test_a_link_is_replaced_and_not_written_through(tmp_path):
    (tmp_path / "theirs").write_bytes(b"old")
    (tmp_path / "a").symlink_to(tmp_path / "theirs")
    replace_file(tmp_path / "a", b"new")
    assert (tmp_path / "theirs").read_bytes() == b"old" and not (tmp_path / "a").is_symlink()


def test_the_temporary_file_is_hidden_and_beside_the_file(tmp_path, monkeypatch):
    seen = []
    replace = os.replace

    def watch(source, target):
        seen.append(source)
        replace(source, target)

    monkeypatch.setattr(atomic_files.os, "replace", watch)
    replace_file(tmp_path / "a.json", b"1")
    (temporary,) = seen
    assert temporary.parent == tmp_path
    assert temporary.name.startswith(".a.json.") and temporary.suffix == ".tmp"


def test_a_failure_leaves_the_old_file_alone(tmp_path, full_disk):
    path = tmp_path / "a.json"
    path.write_bytes(b"old")
    with pytest.raises(OSError, match="No space left") as caught:
        replace_file(path, b"new")
    assert not isinstance(caught.value, DrossError)
    with pytest.raises(DrossError, match=r"a\.json cannot be written: No space left on device"):
        write_bytes(path, b"new")
    assert path.read_bytes() == b"old" and os.listdir(tmp_path) == ["a.json"]


LEAVES_TEMPORARY_FILES = """
import os, signal, sys
from contextlib import ExitStack
from pathlib import Path
from dross._io import staged_file
with ExitStack() as stack:
    for name in sys.argv[2:]:
        stack.enter_context(staged_file(Path(name), b"half"))
    print("staged", flush=True)
    if sys.argv[1] == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    sys.stdin.read()
"""


def leave_temporary_files(*paths):
    """What a process leaves that is killed while it writes these files."""
    command = [sys.executable, "-c", LEAVES_TEMPORARY_FILES, "die", *map(str, paths)]
    assert subprocess.run(command, stdout=subprocess.DEVNULL).returncode != 0
    left = [temporary for path in paths for temporary in path.parent.glob(f".{path.name}.*.tmp")]
    assert len(left) == len(paths)


@pytest.mark.skipif(os.name == "nt", reason="kill -9 is another thing there")
def test_only_what_killed_processes_left_is_stale(tmp_path):
    leave_temporary_files(tmp_path / "a.json", tmp_path / "theirs.json")
    (left,) = tmp_path.glob(".a.json.*.tmp")
    number = left.name.split(".")[-2]
    other_host = f"{number[:-9]}{(int(number[-9:-4]) + 1) % 100_000:05d}{number[-4:]}"
    strangers = [".a.json.tmp", ".a.json.12.tmp", "a.json.tmp", f".a.json.{other_host}.tmp"]
    for name in strangers:
        (tmp_path / name).write_bytes(b"")
    command = [sys.executable, "-c", LEAVES_TEMPORARY_FILES, "wait", str(tmp_path / "a.json")]
    with (
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as alive,
        atomic_files.staged_file(tmp_path / "a.json", b"ours") as ours,
    ):
        assert alive.stdout.readline() == b"staged\n"
        before = set(os.listdir(tmp_path))
        atomic_files.delete_stale(tmp_path, lambda name: name == "a.json")
        assert before - set(os.listdir(tmp_path)) == {left.name} and ours.exists()
        alive.stdin.close()
    left = sorted(path.name for path in tmp_path.iterdir())
    assert [name for name in left if "theirs" not in name] == sorted(strangers)


def test_a_missing_folder_is_made_for_the_writers_only(tmp_path):
    with pytest.raises(FileNotFoundError):
        replace_file(tmp_path / "new" / "a", b"1")
    write_bytes(tmp_path / "new" / "a", b"1")
    assert (tmp_path / "new" / "a").read_bytes() == b"1"


def test_texts_are_utf8_and_keep_their_line_ends(tmp_path):
    write_text(tmp_path / "a.txt", "fünf\r\n😀\n")
    assert (tmp_path / "a.txt").read_bytes() == "fünf\r\n😀\n".encode()
    write_json(tmp_path / "a.json", {"a": "ü"})
    assert (tmp_path / "a.json").read_bytes() == b'{\n "a": "\\u00fc"\n}'


def test_a_table_is_csv(tmp_path):
    rows = [{"name": "a,b", "value": 1}, {"name": "ü", "value": 0.5}]
    assert write_table(tmp_path / "a.csv", rows) == tmp_path / "a.csv"
    assert (tmp_path / "a.csv").read_bytes() == 'name,value\r\n"a,b",1\r\nü,0.5\r\n'.encode()

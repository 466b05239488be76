"""Files that are replaced whole, locked, sealed and compared by digests."""

import errno
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest

from dross import _io as atomic_files
from dross._io import (
    break_seal,
    decode,
    digest_file,
    digest_files,
    hold_lock,
    replace_file,
    seal,
    write_bytes,
    write_json,
    write_table,
    write_text,
)
from dross.errors import CorruptFile, DrossError, InvalidInput

# --- Decoding ---


@dataclass(frozen=True)
class Inner:
    size: int
    name: str | None = None


@dataclass(frozen=True)
class Outer:
    kind: Literal["a", "b"]
    inner: Inner
    rate: float
    rows: list[Inner]
    shapes: dict[str, tuple[list[int], str]]
    pair: tuple[int, int] | None = None
    rest: Any = None
    flag: bool = False
    texts: tuple[str, ...] = ()
    either: int | str | list[int] = field(default=0)


GOOD = {
    "kind": "a",
    "inner": {"size": 3},
    "rate": 1,
    "rows": [{"size": 1, "name": "x"}],
    "shapes": {"w": [[2, 3], "float32"]},
    "pair": [1, 2],
    "texts": ["x"],
    "either": [1],
}


def test_decode_builds_nested_dataclasses_and_asdict_is_its_inverse():
    made = decode(Outer, GOOD, "file.json")
    assert made.inner == Inner(3) and made.rows == [Inner(1, "x")] and made.rate == 1.0
    assert made.shapes == {"w": ([2, 3], "float32")} and made.pair == (1, 2)
    assert decode(Outer, asdict(made), "file.json") == made


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kind": "c"}, "'kind' is \"c\""),
        ({"inner": {"size": True}}, "'inner.size' is true"),
        ({"inner": {}}, "it lacks 'inner.size'"),
        ({"inner": 3}, "'inner' is 3"),
        ({"rate": "1"}, "'rate'"),
        ({"rate": None}, "'rate'"),
        ({"rows": [{"size": 1}, {"size": 1.5}]}, r"'rows\[1\].size' is 1.5"),
        ({"shapes": {"w": [[2, "3"], "float32"]}}, r"'shapes.w\[0\]\[1\]'"),
        ({"shapes": {"w": [[2, 3]]}}, "'shapes.w'"),
        ({"pair": [1]}, "'pair'"),
        ({"flag": 1}, "'flag' is 1"),
        ({"either": [None]}, "'either"),
        ({"more": 1}, "the unknown entry 'more'"),
    ],
)
def test_decode_names_the_entry_that_is_wrong(change, message):
    with pytest.raises(CorruptFile, match=message):
        decode(Outer, GOOD | change, "file.json")


def test_decode_refuses_another_type_at_the_top():
    with pytest.raises(CorruptFile, match=r"file.json is damaged"):
        decode(Outer, [], "file.json")


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


# --- A lock keeps other processes out, and a dead one keeps nobody out ---

HOLD = """
import sys
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


def test_another_process_is_kept_out_and_named(tmp_path):
    path = tmp_path / "lock"
    holder = start_holder(path)
    with pytest.raises(InvalidInput, match=rf"writing to the folder x: process {holder.pid} on"):
        hold_lock(path, "the folder x").__enter__()
    holder.communicate()  # it ends
    assert not path.exists()
    with hold_lock(path, "it"):
        assert json.loads(path.read_text())["pid"] == os.getpid()
    assert os.listdir(tmp_path) == []


def test_a_killed_process_keeps_nobody_out(tmp_path):
    path = tmp_path / "lock"
    holder = start_holder(path)
    holder.send_signal(signal.SIGKILL)
    holder.communicate()
    assert json.loads(path.read_text())["pid"] == holder.pid  # its file is still there
    with hold_lock(path, "it"):
        pass


def test_the_lock_of_another_host_is_respected(tmp_path):
    path = tmp_path / "lock"
    path.write_text(json.dumps({"pid": 1, "host": "elsewhere", "since": "2026-01-01"}))
    with pytest.raises(InvalidInput, match=r"process 1 on elsewhere.*delete .*lock"):
        hold_lock(path, "it").__enter__()
    assert path.exists()


def test_a_half_written_lock_of_a_dead_process_is_taken_over(tmp_path):
    (tmp_path / "lock").write_text('{"pid": 1, "ho')
    with hold_lock(tmp_path / "lock", "it"):
        pass


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(DrossError, match="cannot be created"):
        hold_lock(tmp_path / "none" / "lock", "it").__enter__()


FULL = """
import resource, sys
from pathlib import Path
from dross._io import hold_lock
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
hold_lock(Path(sys.argv[1]), "it").__enter__()
"""


@pytest.mark.skipif(os.name == "nt", reason="the size of files cannot be limited there")
def test_a_lock_that_cannot_be_written_leaves_no_file(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", FULL, str(tmp_path / "lock")], capture_output=True, text=True
    )
    assert "DrossError" in done.stderr
    assert list(tmp_path.iterdir()) == []


# --- Digests notice every change, and a sealed object its own ---


def test_names_and_content_count(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    first = digest_files(tmp_path, ["a", "b"])
    assert first != digest_files(tmp_path, ["b", "a"]) and len(digest_file(tmp_path / "a")) == 64
    (tmp_path / "b").write_bytes(b"3")
    assert digest_files(tmp_path, ["a", "b"]) != first
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
    assert break_seal({"a": 1}) == {"a": 1}  # written by an earlier version

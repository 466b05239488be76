"""A lock keeps other processes out, and a dead one keeps nobody out."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dross._io import hold_lock
from dross.errors import DrossError, InvalidInput

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

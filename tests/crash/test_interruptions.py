"""The quick forms of kill_anytime.py and full_disk.py, in processes of their own: they fork."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

import dross

pytestmark = pytest.mark.slow
HERE = Path(__file__).parent


def run_script(name: str, *options: str) -> str:
    source = str(Path(dross.__file__).parents[1])
    command = [sys.executable, "-W", "ignore", str(HERE / name), *options]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": source}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_a_killed_job_gives_the_same_bits_when_it_is_started_again():
    said = run_script("kill_anytime.py", "--moments", "2", "--only", "record")
    assert "same bits" in said


def test_a_job_on_a_full_disk_gives_the_same_bits_once_there_is_room():
    said = run_script("full_disk.py", "--sizes", "1")
    for job in ("record", "clean", "judge", "export", "review"):
        assert f"{job}: full " in said and f"{job}: full 0 times" not in said

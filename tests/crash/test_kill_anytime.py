"""The quick form of kill_anytime.py: a few moments, in a process of its own because it forks."""

import os
import subprocess
import sys
from pathlib import Path

import dross

SCRIPT = Path(__file__).with_name("kill_anytime.py")


def test_a_killed_job_gives_the_same_bits_when_it_is_started_again():
    source = str(Path(dross.__file__).parents[1])
    command = [sys.executable, "-W", "ignore", str(SCRIPT), "--moments", "3", "--only", "record"]
    done = subprocess.run(
        command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": source}
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "same bits" in done.stdout

"""Progress is shown on a terminal, and nowhere else."""

import os
import pty
import subprocess
import sys

SCRIPT = """
import time
from dross._progress import progress_bar
with progress_bar('retracing', 30) as advance:
    for _ in range(30):
        time.sleep(0.02)
        advance(1)
"""


def read_all(terminal):
    shown = b""
    while True:
        try:
            part = os.read(terminal, 4096)
        except OSError:
            return shown
        if not part:
            return shown
        shown += part


def test_progress_is_shown_on_a_terminal_and_silent_elsewhere():
    command = [sys.executable, "-c", SCRIPT]
    silent = subprocess.run(command, capture_output=True, text=True, check=True)
    assert silent.stderr == "" and silent.stdout == ""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    shown = read_all(ours)
    os.close(ours)
    assert process.wait() == 0
    assert b"retracing" in shown and b"/30" in shown and b"steps/s" in shown

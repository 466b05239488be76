"""Standard streams that cannot be written: no traceback, and the work is done."""

import os
import subprocess
import sys
import threading

import pytest

import dross
from dross import _progress
from tests.cli.test_hostile_names import QUICK, RUN, write_table

CLEAN = " ".join(["clean t.csv --label kind --out run", *QUICK])


def run_shell(line, cwd):
    """Run a line of bash: its exit code, stdout and stderr.

    In it, `dross` is the command, and `quick` is the same with quick cleaning.
    """
    commands = 'dross() { "$PYTHON" -m dross "$@"; }; quick() { "$PYTHON" -c "$RUN" "$@"; }'
    script = f"{commands}; set -o pipefail; {line}"
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=cwd,
        env=os.environ | {"PYTHON": sys.executable, "RUN": RUN},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert "Traceback" not in done.stderr and "Exception" not in done.stderr, done.stderr
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        ("> /dev/full", 1, "Error: The output cannot be printed: No space left on device."),
        ("2> /dev/full", 0, ""),
        (">&-", 0, ""),
        ("2>&-", 0, ""),
        ("<&-", 0, ""),
        ("| head -1", 0, ""),
        ("| true", 0, ""),
        ("> /dev/full 2>&1", 1, ""),
        ("<&- >&- 2>&-", 0, ""),
    ],
)
def test_a_stream_that_cannot_be_written(tmp_path, redirection, code, said):
    ended, _, errors = run_shell(f"dross clean --help {redirection}", tmp_path)
    assert ended == code and said in errors


def test_an_error_has_its_code_where_nobody_can_read_it(tmp_path):
    assert run_shell("dross info nowhere >&- 2>&-", tmp_path)[0] == 1
    assert run_shell("dross nonsense 2> /dev/full", tmp_path)[0] == 2


def test_clean_keeps_its_project(tmp_path):
    write_table(tmp_path / "t.csv")
    code, _, _ = run_shell(f"quick {CLEAN} > /dev/full 2>&- <&-", tmp_path)
    assert code == 1 and dross.Project.open(tmp_path / "run").table.shape[0] == 80
    # it is finished, and says so again
    code, _, said = run_shell(f"quick {CLEAN} > /dev/full", tmp_path)
    assert code == 1 and "No space left on device. The command itself" in said
    code, out, _ = run_shell(f"quick {CLEAN} 2>&- <&- | head -1", tmp_path)
    assert code == 0 and out.count("\n") == 1


def test_nothing_is_lost_where_the_reader_is_slow(tmp_path):
    """A pipe that does not block, as some terminals and programs make it."""
    read, write = os.pipe()
    os.set_blocking(write, False)
    with subprocess.Popen(
        [sys.executable, "-m", "dross", "clean", "--help"],
        stdout=write,
        stderr=subprocess.PIPE,
        env=os.environ | {"COLUMNS": "400", "PYTHONUNBUFFERED": "1"},
    ) as process:
        os.write(write, b"x" * 65000)
        os.close(write)
        got = []

        def slowly():
            while part := os.read(read, 1000):
                got.append(part)

        reader = threading.Timer(2.0, slowly)
        reader.start()
        assert process.stderr is not None and process.stderr.read() == b""
        assert process.wait() == 0
        reader.join()
    os.close(read)
    assert b"--overwrite" in b"".join(got)


@pytest.mark.parametrize("stream", [None, "closed"])
def test_a_program_without_a_stderr_shows_no_bar(tmp_path, monkeypatch, stream):
    if stream == "closed":
        with open(tmp_path / "x", "w") as stream:
            pass
    monkeypatch.setattr(sys, "stderr", stream)
    with _progress.progress_bar("work", 3) as advance:
        advance(1)

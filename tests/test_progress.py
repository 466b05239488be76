"""Bars on a terminal, and numbers for a callback."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
import time

import numpy as np
import pytest

import dross
from dross import _progress
from dross._progress import hide_progress, overall_progress, progress_bar
from dross.distributed.jobs import sweep
from dross.errors import DrossWarning, InvalidInput
from tests import zoo
from tests.cleaning.made_inputs import QUICK
from tests.integrations.test_sklearn import made

SCRIPT = """
import time
from dross._progress import progress_bar
with progress_bar('retracing [/s] \\0', 30) as advance:
    for _ in range(30):
        time.sleep(0.02)
        advance(1)
"""


class Numbers:
    """A callback that keeps what it is called with."""

    def __init__(self):
        self.calls = []

    def __call__(self, values, step):
        self.calls += [(name, value, step) for name, value in values.items()]

    def of(self, name):
        return [(value, step) for known, value, step in self.calls if known == name]


@pytest.fixture
def numbers():
    return Numbers()


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
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 100, 0, 0))
    process = subprocess.Popen(command, stderr=theirs, stdout=subprocess.DEVNULL)
    os.close(theirs)
    shown = read_all(ours)
    os.close(ours)
    assert process.wait() == 0
    assert b"retracing [/s] \\x00" in shown and b"/30" in shown and b"steps/s" in shown


def test_no_bar_is_shown_in_a_file_even_if_ipykernel_is_imported(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with progress_bar("retracing", 10) as advance:
        advance(5)
    assert capsys.readouterr().err == ""


def test_one_bar_for_several_stages_never_runs_backwards(monkeypatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with overall_progress("dross clean", {"a": 1, "b": 3}, show=True) as stages:
        assert stages.remaining is None  # nothing was measured yet
        stages.begin("a", bars=2)
        shown = []
        for _ in range(3):  # one more than expected
            with progress_bar("training", 10) as advance:
                time.sleep(0.02)
                advance(10)
            shown.append(stages.line.bar.n)
        stages.begin("b")
        with progress_bar("training", 10) as advance:
            advance(5)
        shown.append(stages.line.bar.n)
        assert shown == sorted(shown) and shown[0] > 0 and shown[-1] < 1
        assert "left" in str(stages.line.bar)


def test_the_rest_is_expected_to_be_as_slow_as_what_was_measured():
    with overall_progress("dross clean", {"a": 1, "b": 3}, show=False) as stages:
        stages.begin("a")
        time.sleep(0.1)
        stages.advance(1)
        stages.begin("b")
        assert stages.remaining == pytest.approx(0.3, rel=0.3)
        stages.expect({"c": 0.1, "d": 0.9})  # better known now, in seconds
        stages.begin("c")
        assert stages.remaining == pytest.approx(1, rel=0.05)
        time.sleep(0.3)  # three times as long as expected
        stages.advance(1)
        assert 1.3 < stages.remaining < 3 * 0.9


def test_a_log_file_gets_lines_fewer_and_fewer(monkeypatch, capsys):
    monkeypatch.setattr(_progress, "_FIRST_LINE", 0.05)
    with overall_progress("dross judge", {"judging": 1}, show=True) as stages:
        stages.begin("judging")
        with progress_bar("models", 50) as advance:
            for _ in range(50):
                with progress_bar("training", 10) as inner:  # a part of what the outer one counts
                    time.sleep(0.01)
                    inner(10)
                advance(1)
        assert stages.remaining == 0
    lines = capsys.readouterr().err.splitlines()
    assert 2 <= len(lines) <= 6 and all(line.startswith("dross judge: ") for line in lines)
    assert all(line.endswith(" left") and "%, about " in line for line in lines)
    with hide_progress(), overall_progress("a", {"b": 1}, show=True) as stages:
        stages.begin("b")
        time.sleep(0.06)
        stages.advance(0.5)
    assert capsys.readouterr().err == ""


def test_progress_is_reported_once_for_each_percent_and_counts_on(numbers):
    with dross.on_progress(numbers):
        for _ in range(2):
            with progress_bar("looking, twice", 1000, show=False) as advance:
                for _ in range(500):
                    advance(2)
    with progress_bar("looking, twice", 10, show=False) as advance:
        advance(10)  # outside of the block
    calls = numbers.of("progress/looking_twice")
    assert len(calls) == len(numbers.calls) == 200
    assert calls[:2] == [(0.01, 10), (0.02, 20)] and calls[-1] == (1.0, 2000)


def test_hidden_progress_is_not_reported_and_callbacks_can_be_nested(numbers):
    inner = Numbers()
    with dross.on_progress(numbers):
        with hide_progress(), progress_bar("a", 2) as advance:
            advance(2)
        with dross.on_progress(inner), progress_bar("b", 1) as advance:
            advance(1)
        with progress_bar("c", 1) as advance:
            advance(1)
    assert numbers.calls == [("progress/c", 1.0, 1)] and inner.calls == [("progress/b", 1.0, 1)]


def test_training_and_scores_are_reported(record, numbers):
    problem = zoo.problem(model="linear")
    with dross.on_progress(numbers):
        run = record(problem)
        scores = run.influence(dross.mean_loss((problem.X, problem.Y)))
    assert numbers.of("progress/training")[-1] == (1.0, run.steps)
    assert numbers.of("progress/retracing")[-1] == (1.0, run.steps)
    assert numbers.of("scores/lowest") == [(np.nanmin(scores.values), run.steps)]
    assert numbers.of("scores/mean") == [(np.nanmean(scores.values), run.steps)]
    assert numbers.of("scores/harmful") == [((scores.values[:-1] < 0).mean(), run.steps)]


def test_the_plan_and_the_verdict_are_reported(numbers, tmp_path):
    x, y, _ = made()
    options = QUICK | {"repeats": 1, "check": 1, "model": "linear", "labels": "annotated"}
    with dross.on_progress(numbers):
        project = dross.clean(x, y, out=tmp_path / "run", **options)
        verdict = dross.judge(tmp_path / "run", remove=5, seeds=2, quick=True, progress=False)
    plan = project.recommended
    assert plan is not None and numbers.of("clean/removed") == [(len(plan.removed), 0)]
    assert numbers.of("clean/relabeled") == [(len(plan.relabeled), 0)]
    assert numbers.of("clean/error") == [(plan.figures["error"].change, 0)]
    error = verdict.metrics["error"]
    assert numbers.of("verdict/error/difference") == [(error.difference, 1)]
    assert numbers.of("verdict/error/before") == [(sum(error.before) / 2, 1)]
    assert numbers.of("verdict/error/highest") == [(error.interval[1], 1)]
    signs = {"improved": 1, "worse": -1, "inconclusive": 0}
    assert numbers.of("verdict/improved") == [(signs[verdict.verdict], 1)]


def test_a_sweep_counts_pieces_only_where_workers_take_them(numbers):
    with dross.on_progress(numbers):
        list(sweep(abs, [1, 2], what="adding"))
        assert numbers.calls == []  # in this process the work reports itself
        list(sweep(abs, [1, 2], what="adding", n_jobs=2))
    assert numbers.of("progress/adding") == [(0.5, 1), (1.0, 2)]


def test_a_callback_that_fails_costs_a_warning_and_nothing_else():
    calls = []

    def broken(values, step):
        calls.append(values)
        raise OSError("the server is gone")

    with pytest.warns(DrossWarning, match="the server is gone") as warned:
        with dross.on_progress(broken), progress_bar("a", 10) as advance:
            for _ in range(10):
                advance(1)
    assert len(calls) == 1 and len(warned) == 1


def test_what_cannot_be_called_is_refused():
    with pytest.raises(InvalidInput, match=r"callback\(values, step\)"):
        with dross.on_progress("tensorboard"):
            pass

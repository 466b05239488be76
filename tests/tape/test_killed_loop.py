"""A loop that is killed keeps its steps up to the last few seconds, whatever its tape keeps."""

import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import dross
from dross.tape import writer
from dross.tape.reader import Tape, describe_tape
from tests.tape.helpers import KEEP_SMALL, train
from tests.tape.killed_loop import KEEP
from tests.tape.killed_loop import train as run_loop
from tests.zoo import problem

needs_sigkill = pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")


def kill_loop(folder, keep, pause, seconds):
    """Kill a loop after so many seconds. How many steps it had taken then, and so long before."""
    command = [sys.executable, "-m", "tests.tape.killed_loop", str(folder), keep, str(pause)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    taken = []  # (when, steps)
    for line in process.stdout:
        taken.append((time.monotonic(), int(line)))
        if taken[-1][0] - taken[0][0] > seconds:
            break
    process.kill()
    process.communicate()
    return taken


def check_same_end(folder, keep, whole):
    """The loop continues from the tape and ends with the bits of a loop that was not killed."""
    steps = Tape(folder).steps
    with pytest.warns(dross.DrossWarning, match=f"continues at step {steps}"):
        continued = run_loop(folder, keep, resume=True)
    for name, value in run_loop(whole, keep).state_dict().items():
        assert torch.equal(continued.state_dict()[name], value), name
    run_files = [sorted(entry.first for entry in Tape(path).entries) for path in (folder, whole)]
    assert Tape(folder).complete and run_files[1][0] == run_files[0][0]


@needs_sigkill
def test_a_killed_loop_keeps_its_steps(tmp_path):
    taken = kill_loop(tmp_path / "killed", "one segment", 0.012, 3.2)
    tape = Tape(tmp_path / "killed")
    tape.check_files()
    assert 0 < tape.steps <= taken[-1][1] + 1 < 320 and not tape.complete
    described = describe_tape(tape)["steps"]
    assert described == f"{tape.steps} (interrupted: continue with resume=True)"
    check_same_end(tmp_path / "killed", KEEP["one segment"], tmp_path / "whole")


@needs_sigkill
@pytest.mark.slow
@pytest.mark.parametrize("keep", KEEP)
def test_a_killed_loop_loses_the_last_few_seconds(tmp_path, keep):
    taken = kill_loop(tmp_path / "killed", keep, 0.025, 6.0)
    steps = Tape(tmp_path / "killed").steps
    # the loop may have been killed after a step was kept and before it was printed
    killed = taken[-1][0]
    when = next((when for when, count in taken if count >= steps), killed)
    assert killed - when < 4
    check_same_end(tmp_path / "killed", KEEP[keep], tmp_path / "whole")


@pytest.fixture
def copy_at_every_step(monkeypatch):
    """These problems are over before two seconds are."""
    monkeypatch.setattr(writer, "seconds_between_copies", lambda took: 0.0)


@pytest.mark.parametrize("keep", KEEP_SMALL)
def test_copies_leave_the_files_of_a_run_as_they_are(tmp_path, monkeypatch, keep):
    p = problem("dropout", "adam", epochs=4)
    options = {"keep": keep, "epochs": p.epochs}
    undisturbed = train(p, tmp_path / "whole", **options)
    monkeypatch.setattr(writer, "seconds_between_copies", lambda took: 0.0)
    copied = train(p, tmp_path / "copied", **options)
    query = dross.mean_loss((p.X_val, p.Y_val))
    np.testing.assert_array_equal(
        copied.influence(query).values, undisturbed.influence(query).values
    )
    of_both = [Tape(tmp_path / name).entries for name in ("whole", "copied")]
    shapes = [[(e.first, e.steps, e.epochs, e.sha256) for e in entries] for entries in of_both]
    assert shapes[0] == shapes[1]
    names = {entry.file for entry in of_both[1]}
    assert {path.name for path in (tmp_path / "copied").glob("segment-*")} == names


def test_a_copy_is_a_tape_of_the_steps_so_far(tmp_path, copy_at_every_step, monkeypatch):
    """Before every step the tape on the disk opens and ends where the training is."""
    p = problem("mlp", "sgd", epochs=3)
    make_room = writer.TapeWriter.make_room
    behind = []

    def look(self, *given):
        make_room(self, *given)
        if self._writing is not None:
            self._writing.result(timeout=20)
        self._poll()
        tape = Tape(self.folder)
        tape.check_files()
        behind.append(self.next_step - tape.steps)
        end = load_file(self.folder / tape.end.file)
        if tape.steps == self.next_step:
            assert torch.equal(end["theta"], self.end_states[tape.steps].theta)

    monkeypatch.setattr(writer.TapeWriter, "make_room", look)
    train(p, tmp_path / "t", keep=dross.tape.Checkpoints(every=1000))
    assert len(behind) == len(p.batches) and set(behind) == {0}


def test_a_slow_step_is_committed_at_once(tmp_path, copy_at_every_step, monkeypatch):
    """What a thread writes is committed a step later: too late where a step takes long."""
    monkeypatch.setattr(writer, "_SECONDS_BETWEEN_COPIES", 0.0)
    p = problem("mlp", "sgd", epochs=2)
    make_room = writer.TapeWriter.make_room

    def look(self, *given):
        self._poll(wait_for_it=True)
        make_room(self, *given)
        assert self._writing is None and self.manifest.steps == self.next_step

    monkeypatch.setattr(writer.TapeWriter, "make_room", look)
    train(p, tmp_path / "t", keep=dross.tape.Checkpoints(every=1000))


@pytest.mark.parametrize("bad", [24, 25])
def test_a_run_that_diverges_keeps_what_the_message_says(tmp_path, bad):
    """The step has changed the optimizer's state, so the end of the open segment is not known."""
    torch.manual_seed(0)
    X = torch.randn(300, 10)
    Y = torch.randint(0, 3, (300,))
    model = torch.nn.Linear(10, 3)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options = {"path": tmp_path / "t", "keep": dross.tape.Checkpoints(every=8)}
    with (
        pytest.raises(dross.Diverged, match="complete up to step 24"),
        dross.Recorder(model, "cross_entropy", optimizer, **options) as recorder,
    ):
        for t in range(60):
            ids = torch.arange(30) + 30 * (t % 10)
            with recorder.step(ids, X[ids], Y[ids]) as losses:
                (losses.mean() * (float("nan") if t == bad else 1)).backward()
                optimizer.step()
                optimizer.zero_grad()
    tape = Tape(tmp_path / "t")
    tape.check_files()
    assert tape.steps == 24 and not tape.complete

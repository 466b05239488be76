"""Crashes, interrupts and full disks: the tape stays readable and continues to the same bits."""

import errno
import os
import runpy
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch

import dross
from dross.errors import DrossError
from dross.tape.reader import Tape
from tests.tape.helpers import KEEP_SMALL, reopen, train
from tests.zoo import problem

pytestmark = pytest.mark.usefixtures("commit_every_segment")


class Stop(Exception):
    """Raised in the middle of a training step."""


class MapStyle:
    """A dataset that is read instance by instance."""

    def __init__(self, pair):
        self.pair = pair

    def __len__(self):
        return len(self.pair[0])

    def __getitem__(self, i):
        return self.pair[0][i], self.pair[1][i]


def final(run):
    return run.recording.state_at(run.steps)


@pytest.mark.parametrize("keep", KEEP_SMALL)
def test_an_interrupted_run_continues_to_the_same_bits(tmp_path, keep):
    p = problem("dropout", "adam", epochs=4)

    def train_until(stop_at, folder, **options):
        model, optimizer = p.start()
        calls = iter(range(10**9))

        def loss(out, y):
            if stop_at is not None and next(calls) == stop_at:
                raise Stop
            return p.loss(out, y)

        loss.__module__, loss.__name__ = "tests", "loss"
        run = dross.train(
            model,
            MapStyle((p.X, p.Y)),
            loss,
            optimizer,
            path=tmp_path / folder,
            batches=p.batches,
            epochs=p.epochs,
            lr=lambda t: 0.02 / (1 + t),
            keep=keep,
            progress=False,
            **options,
        )
        return run, model

    undisturbed, model = train_until(None, "whole")
    with pytest.raises(Stop):
        train_until(9, "broken")
    assert not Tape(tmp_path / "broken").complete
    continued, same_model = train_until(None, "broken", resume=True)
    assert continued.complete and continued.steps == undisturbed.steps
    for name, value in final(undisturbed).tensors().items():
        assert torch.equal(final(continued).tensors()[name], value), name
    for one, other in zip(model.parameters(), same_model.parameters()):
        assert torch.equal(one, other)
    query = dross.mean_loss((p.X_val, p.Y_val))
    np.testing.assert_array_equal(
        continued.influence(query).values, undisturbed.influence(query).values
    )


SCRIPT = textwrap.dedent(
    """
    import sys, time, numpy as np, torch, dross
    torch.set_num_threads(1); torch.manual_seed(0)
    X = torch.randn(200, 6, dtype=torch.float64); Y = torch.randint(0, 3, (200,))
    layers = torch.nn.Linear(6, 7), torch.nn.Tanh(), torch.nn.Linear(7, 3)
    model = torch.nn.Sequential(*layers).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    print("ready", flush=True)
    run = dross.train(
        model, (X, Y), "cross_entropy", optimizer, path=sys.argv[1], epochs=40, batch_size=10,
        progress=False, resume="resume" in sys.argv, keep=dross.tape.Checkpoints(every=7),
    )
    print("finished")
    """
)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_kill_at_any_moment(tmp_path, monkeypatch):
    script = tmp_path / "loop.py"
    script.write_text(SCRIPT)

    def start(*arguments):
        command = [sys.executable, str(script), str(tmp_path / "killed"), *arguments]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def finish(folder, *arguments):
        """The same in this process, which takes no time to start: theta at the end."""
        monkeypatch.setattr(sys, "argv", ["loop.py", str(tmp_path / folder), *arguments])
        run = runpy.run_path(str(script))["run"]
        return run.recording.state_at(run.steps).theta

    rng = np.random.default_rng(0)
    killed = 0
    for attempt in range(2):  # `make fuzz` kills more often
        process = start(*(["resume"] if attempt else []))
        assert process.stdout is not None and process.stdout.readline().strip() == "ready"
        time.sleep(float(rng.uniform(0.02, 0.35)))
        process.kill()
        killed += not process.communicate()[0].strip()
        if (tmp_path / "killed" / "manifest.json").exists():
            tape = Tape(tmp_path / "killed")  # opens, and says how far it got
            assert tape.steps <= 800
            for index in range(len(tape.entries)):
                tape.read(index)
            tape.end_state()
    assert killed
    assert torch.equal(finish("killed", "resume"), finish("whole"))


@pytest.mark.parametrize("after", [True, False], ids=["after the rename", "before it"])
@pytest.mark.parametrize(
    "seconds, copies, nth",
    [(0.0, 60.0, nth) for nth in range(3, 15)]
    + [(60.0, 60.0, nth) for nth in range(3, 9)]
    + [(60.0, 0.0, nth) for nth in range(3, 8)],
)
def test_an_interrupt_while_the_tape_is_written(tmp_path, monkeypatch, seconds, copies, nth, after):
    """Ctrl-C just before or after a file appears: the tape opens, replays and continues."""
    p = problem("batchnorm", "adam", epochs=2)
    query, keep = dross.mean_loss((p.X_val, p.Y_val)), dross.tape.Checkpoints(every=2)
    expected = train(p, tmp_path / "whole", keep=keep).influence(query).values
    rename, calls = os.replace, iter(range(1000))
    # after every segment, or only at the end; copies of the open one at every step, or never
    monkeypatch.setattr("dross.tape.writer.seconds_between_commits", lambda took: seconds)
    monkeypatch.setattr("dross.tape.writer._SECONDS_BETWEEN_COPIES", copies)
    monkeypatch.setattr("dross.tape.writer.seconds_between_copies", lambda took: copies)

    def interrupted(source, target):
        strike = next(calls) == nth
        if strike and not after:
            raise KeyboardInterrupt
        rename(source, target)
        if strike:
            raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(p, tmp_path / "struck", keep=keep)
    monkeypatch.undo()
    tape = Tape(tmp_path / "struck")
    if tape.steps and not tape.complete:
        with pytest.warns(dross.DrossWarning, match="not complete"):
            part = reopen(p, tmp_path / "struck")
        used = part.recording.used_instances(0, part.steps)
        assert (np.isfinite(part.influence(query).values) == used).all() and used.any()
    continued = train(p, tmp_path / "struck", keep=keep, resume=True)
    np.testing.assert_array_equal(continued.influence(query).values, expected)


def test_keyboard_interrupt_leaves_a_usable_tape(tmp_path):
    p = problem("mlp", "sgd", epochs=4)
    model, optimizer = p.start()
    calls = iter(range(1000))

    def loss(out, y):
        if next(calls) == 10:
            raise KeyboardInterrupt
        return p.loss(out, y)

    with pytest.raises(KeyboardInterrupt):
        dross.train(
            model,
            (p.X, p.Y),
            loss,
            optimizer,
            path=tmp_path / "t",
            batches=p.batches,
            progress=False,
        )
    steps = Tape(tmp_path / "t").steps
    assert 0 < steps < len(p.batches)
    with pytest.warns(dross.DrossWarning, match=f"{steps} of {len(p.batches)} planned steps"):
        run = dross.load(tmp_path / "t", model, (p.X, p.Y), loss, progress=False)
    assert not run.complete
    assert run.influence(dross.mean_loss((p.X_val, p.Y_val))).values.any()


def test_a_full_disk_loses_nothing_that_was_there(tmp_path, monkeypatch):
    p, keep = problem("mlp", "sgd", epochs=4), dross.tape.Checkpoints(every=2)
    replace, calls = os.replace, iter(range(1000))

    def full(source, target):
        if next(calls) > 8:
            raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full)
    message = r"the disk is full.*The recorded run is complete up to step \d+"
    with pytest.raises(DrossError, match=message):
        train(p, tmp_path / "t", keep=keep)
    monkeypatch.undo()
    tape = Tape(tmp_path / "t")
    assert 0 < tape.steps < len(p.batches)
    assert not list(Path(tmp_path / "t").glob("*.tmp"))
    assert train(p, tmp_path / "t", keep=keep, resume=True).complete


def test_a_folder_that_may_not_be_written(tmp_path, monkeypatch):
    p = problem("mlp", "sgd")

    def denied(*arguments, **options):
        raise PermissionError(errno.EACCES, "Permission denied")

    # The tests may run as root, for whom every folder is writable.
    monkeypatch.setattr(Path, "mkdir", denied)
    with pytest.raises(DrossError, match="Permission denied"):
        train(p, tmp_path / "t")


@pytest.mark.parametrize("how", ["into a new folder", "resume", "overwrite"])
def test_the_temporary_files_of_a_killed_writer_are_removed(tmp_path, how):
    p, folder = problem("mlp", "sgd"), tmp_path / "t"
    folder.mkdir()
    if how != "into a new folder":
        train(p, folder)
    for name in ("segment-000009.safetensors", "state-000000000009.safetensors", "manifest.json"):
        (folder / f".{name}.0123abcd.tmp").write_bytes(b"half a fi")
    options = {}
    if how != "into a new folder":
        (folder / "notes.tmp").write_text("of the user")
        options[how] = True
    assert train(p, folder, **options).complete
    assert [file.name for file in folder.glob("*.tmp")] == ["notes.tmp"] * bool(options)

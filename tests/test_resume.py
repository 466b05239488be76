"""A retrace that is killed goes on where it was, to the same bits."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dross
from dross import bookmark
from dross.errors import StorageFailed, TapeDamaged
from zoo import problem

TESTS = Path(__file__).parent
CASES = {  # and after how many bookmarks the kill strikes
    "statistics, checkpoints": ("batchnorm_cnn", "adam", dross.Checkpoints(every=20), 3),
    "blocks within a segment": ("dropout", "adamw", dross.Checkpoints(every=90), 3),
}

KILLED = """
import sys, time, torch
torch.set_num_threads(1)
import dross
from dross import bookmark, replay
from zoo import problem

model, optimizer, tape, folder = sys.argv[1:]
p = problem(model, optimizer)
bookmark._SECONDS, bookmark._SHARE = 0, 0
replay._STATES_AT_ONCE = 1 << 14
write = bookmark.Bookmark.write

def slow(self, place, plans):
    write(self, place, plans)
    print(place.position, flush=True)
    time.sleep(0.2)  # for the hand that kills

bookmark.Bookmark.write = slow
run = dross.Run.open(tape, p.model(), (p.X, p.Y), p.loss, progress=False)
run.influence(dross.mean_loss((p.X_val, p.Y_val)), resume=folder)
print("finished")
"""


def query(p):
    return dross.mean_loss((p.X_val, p.Y_val))


def killed_at(arguments, bookmarks):
    """Start the retrace in a process of its own and kill it after so many bookmarks. Returns the step it had come to."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(TESTS), str(Path(dross.__file__).parents[1])])}
    child = subprocess.Popen(
        [sys.executable, "-c", KILLED, *map(str, arguments)], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert child.stdout is not None
    with child.stdout:
        lines = [child.stdout.readline() for _ in range(bookmarks)]
        child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    return int(lines[-1])


@pytest.mark.parametrize("case", CASES)
def test_a_killed_retrace_goes_on_to_the_same_bits(record, tmp_path, monkeypatch, case):
    monkeypatch.setattr("dross.replay._STATES_AT_ONCE", 1 << 14)
    model, optimizer, keep, bookmarks = CASES[case]
    p = problem(model, optimizer, epochs=30)
    run = record(p, keep=keep)
    expected = run.influence(query(p))
    folder = tmp_path / "progress"
    position = killed_at((model, optimizer, run.tape, folder), bookmarks)
    assert 0 < position < run.steps and len(list(folder.glob("retrace-*"))) == 1

    taken, pull = [], run.recording.objective.pull
    monkeypatch.setattr(run.recording.objective, "pull", lambda *args: taken.append(1) or pull(*args))
    found = run.influence(query(p), resume=folder)
    assert len(taken) == position  # what was left, and nothing twice
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.by_epoch, expected.by_epoch)
    assert list(folder.iterdir()) == []


class Stop(Exception):
    pass


def interrupted(run, asked, folder, monkeypatch, **options):
    """Retrace until the third bookmark."""
    write, count = bookmark.Bookmark.write, []

    def third(self, *args):
        write(self, *args)
        count.append(1)
        if len(count) == 3:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(bookmark, "_SECONDS", 0)
        patch.setattr(bookmark, "_SHARE", 0)
        patch.setattr(bookmark.Bookmark, "write", third)
        with pytest.raises(Stop):
            run.influence(asked, resume=folder, **options)


def test_another_question_is_another_bookmark(record, tmp_path, monkeypatch):
    """Another query, another window, other data of the same query, another tape: none takes this one's progress, none removes it."""
    p = problem("mlp", "sgd", epochs=10)
    run, twin = record(p, keep=dross.Checkpoints(every=4)), record(p, keep=dross.Checkpoints(every=4))
    interrupted(run, query(p), run.tape, monkeypatch)  # the tape's own folder will do
    kept = list(run.tape.glob("retrace-*"))
    assert len(kept) == 1
    Y_val = p.Y_val.clone()
    Y_val[0] = (Y_val[0] + 1) % 3
    others = [
        (run, dross.losses((p.X_val, p.Y_val)), {}),
        (run, dross.mean_loss((p.X_val, Y_val)), {}),
        (run, query(p), {"epochs": 3}),
        (run, query(p), {"at": run.steps - 1}),
        (twin, query(p), {}),
    ]
    for other, asked, options in others:
        expected = other.influence(asked, **options)
        np.testing.assert_array_equal(other.influence(asked, resume=run.tape, **options).values, expected.values)
        assert list(run.tape.glob("retrace-*")) == kept
    np.testing.assert_array_equal(run.influence(query(p), resume=run.tape).values, run.influence(query(p)).values)
    assert list(run.tape.glob("retrace-*")) == []


@pytest.mark.parametrize("keep", [dross.Checkpoints(every=4), dross.LastEpochs(4, dross.EveryStep())])
def test_many_queries_go_on_together(record, tmp_path, monkeypatch, keep):
    p = problem("batchnorm", "adam", epochs=10)
    run = record(p, keep=keep)
    asked = dross.losses((p.X_val, p.Y_val))
    interrupted(run, asked, tmp_path / "progress", monkeypatch)
    np.testing.assert_array_equal(run.influence(asked, resume=tmp_path / "progress").values, run.influence(asked).values)


def test_a_damaged_bookmark_and_a_folder_that_is_a_file(record, tmp_path, monkeypatch):
    p = problem("mlp", "sgd", epochs=10)
    run = record(p, keep=dross.Checkpoints(every=4))
    interrupted(run, query(p), tmp_path / "progress", monkeypatch)
    (kept,) = (tmp_path / "progress").iterdir()
    whole = kept.read_bytes()
    for damaged in (whole[:-9], whole[:-9] + b"\x01" * 9, b"", b"{}"):
        kept.write_bytes(damaged)
        with pytest.raises(TapeDamaged, match="Remove it to retrace from the beginning"):
            run.influence(query(p), resume=kept.parent)
    kept.unlink()
    np.testing.assert_array_equal(run.influence(query(p), resume=kept.parent).values, run.influence(query(p)).values)
    monkeypatch.setattr(bookmark, "_SECONDS", 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageFailed):
        run.influence(query(p), resume=tmp_path / "file")


def test_a_tape_that_is_replaced_takes_its_bookmarks_along(record, monkeypatch):
    p = problem("mlp", "sgd", epochs=10)
    run = record(p, keep=dross.Checkpoints(every=4))
    interrupted(run, query(p), run.tape, monkeypatch)
    record(p, tape=run.tape, overwrite=True)
    assert list(run.tape.glob("retrace-*")) == []


def test_a_short_retrace_writes_nothing(record, tmp_path):
    p = problem("mlp", "sgd")
    record(p).influence(query(p), resume=tmp_path / "progress")
    assert not (tmp_path / "progress").exists()

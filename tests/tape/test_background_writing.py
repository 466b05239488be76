"""A thread writes segments while the training goes on, and what fails there is not lost."""

import errno
import os
import threading

import numpy as np
import pytest

import dross
from dross.errors import DrossError
from dross.tape import writer
from dross.tape.reader import Tape
from tests.tape.helpers import train
from tests.zoo import problem

pytestmark = pytest.mark.usefixtures("commit_every_segment")
KEEP = dross.tape.Checkpoints(every=2)


def is_segment(path) -> bool:
    return os.path.basename(path).startswith("segment-")


def test_the_training_goes_on_while_a_segment_is_written(tmp_path, monkeypatch):
    """The second segment waits on the disk until a later step has been added."""
    p, added = problem("mlp", "sgd", epochs=2), threading.Event()
    replace, add, met = os.replace, writer.TapeWriter.add, []

    def wait_for_a_step(source, target):
        if str(target).endswith("segment-000001.safetensors"):
            met.append(added.wait(timeout=20))
        replace(source, target)

    def tell(self, *given):
        add(self, *given)
        if self.next_step > 4:
            added.set()

    monkeypatch.setattr(os, "replace", wait_for_a_step)
    monkeypatch.setattr(writer.TapeWriter, "add", tell)
    run = train(p, tmp_path / "t", keep=KEEP)
    assert met == [True] and run.complete


def test_a_write_that_failed_is_tried_again_at_the_end(tmp_path, monkeypatch):
    """The disk was full for a moment: training stops, and no step that was taken is lost."""
    p, replace, failed = problem("mlp", "sgd", epochs=4), os.replace, []

    def full_once(source, target):
        if is_segment(target) and len(failed) < 2:
            failed.append(target)
            if len(failed) == 2:
                raise OSError(errno.ENOSPC, "No space left on device")
        replace(source, target)

    monkeypatch.setattr(os, "replace", full_once)
    with pytest.raises(DrossError, match="the disk is full"):
        train(p, tmp_path / "t", keep=KEEP)
    monkeypatch.undo()
    tape = Tape(tmp_path / "t")
    assert tape.steps >= 4 and not tape.complete  # the segment that failed, too
    continued = train(p, tmp_path / "t", keep=KEEP, resume=True)
    query = dross.mean_loss((p.X_val, p.Y_val))
    expected = train(p, tmp_path / "whole", keep=KEEP).influence(query).values
    np.testing.assert_array_equal(continued.influence(query).values, expected)


def test_every_segment_is_named_at_the_next_step(tmp_path, monkeypatch):
    """A loop that is killed loses what is open, and a segment only while it is being written."""
    p, seen = problem("mlp", "sgd", epochs=4), []
    make_room = writer.TapeWriter.make_room

    def look(self, *given):
        if self._writing is not None:
            self._writing.result(timeout=20)
        make_room(self, *given)
        seen.append(self.next_step - self.manifest.steps)

    monkeypatch.setattr(writer.TapeWriter, "make_room", look)
    train(p, tmp_path / "t", keep=KEEP)
    assert len(seen) > 8 and max(seen) <= 2  # the steps that the manifest does not have


def test_no_thread_is_left_behind(tmp_path):
    train(problem("mlp", "sgd", epochs=4), tmp_path / "t", keep=KEEP)
    assert not [t for t in threading.enumerate() if t.name.startswith("dross")]

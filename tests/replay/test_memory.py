"""What does not fit: many queries, many states, data that stay on the host or on the disk."""

import threading

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import nn

import dross
from dross.errors import NotSupported
from dross.replay.segments import SegmentReplay
from dross.tape.reader import Tape
from tests.zoo import problem


def test_out_of_memory_halves_the_states_and_goes_on(record, monkeypatch):
    p = problem("mlp", "momentum", epochs=6)
    query = dross.mean_loss((p.X_val, p.Y_val))
    run = record(p, keep=dross.tape.Checkpoints(every=20))
    whole, replay = run.influence(query).values, SegmentReplay.replay_steps

    def limited(self, steps, *rest):
        if len(steps) > 3:
            raise torch.OutOfMemoryError("no memory for so many")
        return replay(self, steps, *rest)

    monkeypatch.setattr(SegmentReplay, "replay_steps", limited)
    with pytest.warns(dross.DrossWarning, match="states at a time"):
        found = run.influence(query).values
    np.testing.assert_array_equal(found, whole)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_table_on_the_disk_is_read_batch_by_batch(tmp_path, dtype):
    """As a numpy.memmap, in the model's type or another.

    With a budget smaller than the table, nothing of it is held in memory.
    """
    rng = np.random.default_rng(0)
    X, Y = rng.normal(size=(300, 5)), rng.integers(0, 2, 300)
    np.memmap(tmp_path / "x", dtype, "w+", shape=X.shape)[:] = X
    mapped = np.memmap(tmp_path / "x", dtype, "r", shape=X.shape)
    scores = []
    small = dross.tape.Budget(200_000, in_memory=1000)
    cases = [((mapped.copy(), Y), None), ((mapped, Y), small)]
    for k, (data, keep) in enumerate(cases):
        torch.manual_seed(0)
        model = nn.Linear(5, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        options = {"path": tmp_path / str(k), "epochs": 2, "batch_size": 16}
        options |= {"keep": keep, "progress": False}
        run = dross.train(model, data, "cross_entropy", optimizer, **options)
        query = dross.mean_loss((torch.from_numpy(X[:50]).float(), Y[:50]))
        opened = dross.load(tmp_path / str(k), model, data, "cross_entropy")
        scores.append(opened.influence(query).values)
        np.testing.assert_array_equal(run.influence(query).values, scores[-1])
        held = opened.recording.instances.stored[0]
        assert (held.dtype == torch.float32) == (k == 0 or dtype == np.float32)
    np.testing.assert_array_equal(*scores)


@pytest.mark.parametrize("memory, ahead", [(None, True), (1 << 20, False)])
def test_segments_are_read_ahead_unless_memory_is_bounded(record, monkeypatch, memory, ahead):
    p = problem("mlp", "sgd", epochs=10)
    run, read, by_others = record(p, keep=dross.tape.Checkpoints(every=5)), Tape.read, []
    tape = run.recording.tape
    tape.manifest = replace(tape.manifest, memory=memory)  # as a budget would have it

    def watched(self, index):
        if threading.current_thread() is not threading.main_thread():
            by_others.append(index)
        return read(self, index)

    monkeypatch.setattr(Tape, "read", watched)
    query = dross.mean_loss((p.X_val, p.Y_val))
    count = len(run.recording.tape.entries)
    run.influence(query)
    assert count > 3 and by_others == (list(range(count - 1))[::-1] if ahead else [])
    by_others.clear()
    run.counterfactual([[0]], epochs=2)
    assert bool(by_others) == ahead
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("dross-tape")]


def test_a_model_on_two_devices_is_refused(tmp_path):
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    model[0].requires_grad_(False)
    model[0].to("meta")
    data = (torch.randn(8, 3), torch.randint(0, 2, (8,)))
    optimizer = torch.optim.SGD(model[1].parameters(), lr=0.1)
    with pytest.raises(NotSupported, match="is not on cpu"):
        dross.Recorder(model, "cross_entropy", optimizer, path=tmp_path / "t", data=data)

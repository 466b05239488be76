"""What a tape keeps: every step, checkpoints, the last epochs, or what a budget allows."""

import weakref

import numpy as np
import pytest

import dross
from dross.errors import InvalidInput
from dross.replay.segments import SegmentReplay
from tests.zoo import problem

pytestmark = pytest.mark.usefixtures("commit_every_segment")


@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
def test_segments_too_long_for_memory_are_replayed_in_blocks(record, monkeypatch, optimizer):
    p = problem("batchnorm", optimizer, epochs=5)
    query = dross.mean_loss((p.X_val, p.Y_val))
    run = record(p, keep=dross.tape.Checkpoints(every=100))
    whole = run.influence(query)
    monkeypatch.setattr("dross.replay.segments._MAX_BYTES_OF_STATES", 1)
    for options in ({}, {"epochs": 2}, {"step": 13}):
        monkeypatch.setattr("dross.replay.segments._MAX_BYTES_OF_STATES", 1 << 30)
        expected = run.influence(query, **options).values
        monkeypatch.setattr("dross.replay.segments._MAX_BYTES_OF_STATES", 1)
        np.testing.assert_array_equal(run.influence(query, **options).values, expected)
    assert whole.values.any()


@pytest.mark.parametrize("in_states", [1, 3, 8, 20])
def test_a_budget_holds_in_memory(record, monkeypatch, in_states):
    p = problem("mlp", "momentum", epochs=40)
    query = dross.mean_loss((p.X_val, p.Y_val))
    expected = record(p, keep=dross.tape.EveryStep()).influence(query).values
    size = record(p).recording.state_at(0).nbytes
    keep = dross.tape.Budget(12_000 + 3 * (size + 4096), in_memory=in_states * size)
    run = record(p, keep=keep)
    assert len(run.recording.tape.entries) < run.steps / 30  # long segments
    made, most, replay = [], 0, SegmentReplay.replay_steps

    def watched(self, steps, state, feeds):
        nonlocal most
        states, gradients, end = replay(self, steps, state, feeds)
        made.extend(weakref.ref(s.theta) for s in [*states, end])
        most = max(most, len({id(theta) for theta in (ref() for ref in made) if theta is not None}))
        return states, gradients, end

    monkeypatch.setattr(SegmentReplay, "replay_steps", watched)
    np.testing.assert_array_equal(run.influence(query).values, expected)
    assert most <= in_states + 2  # and those before and after the step in hand


def test_last_epochs_keeps_exactly_those(record):
    p = problem("mlp", "momentum", epochs=4)
    query = dross.mean_loss((p.X_val, p.Y_val))
    whole = record(p).influence(query)
    for inside in (dross.tape.EveryStep(), dross.tape.Checkpoints(every=3)):
        run = record(p, keep=dross.tape.LastEpochs(2, inside))
        assert run.recording.tape.first == len(p.batches) // 2
        scores = run.influence(query)
        np.testing.assert_array_equal(scores.by_epoch, whole.by_epoch[2:])
        np.testing.assert_array_equal(scores.values, whole.last_epochs(2).values)
        with pytest.raises(InvalidInput, match="step=0: the tape contains the model after"):
            run.parameters(step=0)
        with pytest.raises(
            InvalidInput, match="keeps only the last 2 epochs, but epochs=3 was requested"
        ):
            run.influence(query, epochs=3)


def test_budgets_are_kept(record, tmp_path):
    p = problem("mlp", "adam", epochs=20)
    state = record(p).recording.state_at(0).nbytes
    for budget in (20_000, 60_000, 400_000):
        run = record(p, keep=dross.tape.Budget(budget))
        assert run.recording.tape.nbytes <= budget
    with pytest.raises(InvalidInput, match="must be at least"):
        record(p, keep=dross.tape.Budget(state))


@pytest.mark.parametrize(
    "bad, told",
    [
        (lambda: dross.tape.Checkpoints(every=0), "at least 1 step, not 0"),
        (lambda: dross.tape.LastEpochs(0), "at least 1 epoch, not 0"),
        (lambda: dross.tape.Budget(0), "positive number of bytes, not 0"),
        (lambda: dross.tape.Budget(100, in_memory=-3), "positive number of bytes, not -3"),
        (lambda: dross.tape.Budget("1 GB"), "A budget must be a number of bytes, not '1 GB'"),  # type: ignore[arg-type]
        (lambda: dross.tape.Budget(100, steps=0), r"steps=...\) needs at least 1 step, not 0"),
        (lambda: dross.tape.Budget(100, steps="all"), r"steps=...\) must be a whole number"),  # type: ignore[arg-type]
    ],
)
def test_policies_refuse_nonsense(bad, told):
    with pytest.raises(InvalidInput, match=told):
        bad()

"""A tape is reopened, continued and replayed only with what it was recorded with."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import dross
from dross.errors import InputChanged, InvalidInput
from tests.tape.helpers import reopen
from tests.zoo import MODELS, problem

pytestmark = pytest.mark.usefixtures("commit_every_segment")


@pytest.mark.parametrize("optimizer", ["momentum", "amsgrad", "nadam"])
def test_opened_in_another_process_it_says_the_same(record, optimizer):
    p = problem("batchnorm", optimizer, epochs=3)
    run = record(p)
    query = dross.mean_loss((p.X_val, p.Y_val))
    again = reopen(p, run.path)
    np.testing.assert_array_equal(again.influence(query).values, run.influence(query).values)
    assert again.steps == len(p.batches) and again.complete


def test_an_existing_tape_is_not_overwritten_unless_asked(record, tmp_path):
    p = problem("mlp", "sgd")
    run = record(p)
    with pytest.raises(InvalidInput, match=r"resume=True.*overwrite=True"):
        record(p, path=run.path)
    assert record(p, path=run.path, overwrite=True).complete
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("precious")
    for asked in ({}, {"overwrite": True}):
        with pytest.raises(InvalidInput, match="not a tape"):
            record(p, path=tmp_path / "mine", **asked)
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "precious"
    with pytest.raises(InvalidInput, match="mutually exclusive"):
        record(p, path=run.path, overwrite=True, resume=True)


def test_files_of_other_names_stay_in_an_overwritten_tape(record, tmp_path):
    p = problem("mlp", "sgd")
    run = record(p)
    names = ("state-final.safetensors", "average-mine.safetensors", "model.safetensors")
    for name in names:
        (Path(run.path) / name).write_text("precious")
    assert record(p, path=run.path, overwrite=True).complete
    assert all((Path(run.path) / name).read_text() == "precious" for name in names)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "state-final.safetensors").write_text("precious")
    with pytest.raises(InvalidInput, match="not a tape"):
        record(p, path=tmp_path / "mine", overwrite=True)


def test_a_tape_is_only_continued_with_the_settings_it_was_started_with(record):
    p = problem("mlp", "sgd")
    run = record(p)
    with pytest.raises(InputChanged, match="seed changed from 0 to 5"):
        record(p, path=run.path, resume=True, seed=5)
    with pytest.raises(InputChanged, match="optimizer"):
        p.optimizer = problem("mlp", "adam").optimizer
        record(p, path=run.path, resume=True)


def test_what_belongs_to_another_run_is_refused(record):
    def penalty(params):
        return sum((value**2).sum() for value in params.values())

    p = problem("mlp", "sgd")
    run = record(p)
    wider = torch.nn.Sequential(
        torch.nn.Linear(6, 8), torch.nn.Tanh(), torch.nn.Linear(8, 3)
    ).double()
    with pytest.raises(
        InputChanged, match=r"'0.weight' is \(7, 6\) float64 on the tape and \(8, 6\) float64 here"
    ):
        reopen(p, run.path, model=wider)
    with pytest.raises(InputChanged, match="float32"):
        reopen(p, run.path, model=MODELS["mlp"]())
    with pytest.raises(InputChanged, match="loss"):
        reopen(p, run.path, loss="cross_entropy")
    with pytest.raises(InputChanged, match="penalty"):
        reopen(p, run.path, penalty=penalty)
    changed = p.Y.clone()
    changed[3] = (changed[3] + 1) % 3
    with pytest.raises(InputChanged, match="dataset"):
        reopen(p, run.path, data=(p.X, changed))
    with pytest.raises(InputChanged, match="dataset"):
        reopen(p, run.path, data=(p.X[:-1], p.Y[:-1]))


def test_frozen_weights_must_be_the_recorded_ones(record):
    p = problem("partly_used", "sgd")
    run = record(p)
    other, _ = p.start()
    with torch.no_grad():
        other.frozen.weight.add_(1)
    with pytest.raises(InputChanged, match="frozen"):
        reopen(p, run.path, model=other)


@pytest.mark.parametrize("keep", [dross.tape.EveryStep(), dross.tape.Checkpoints()])
def test_what_is_changed_under_a_live_run_is_found_out(record, keep):
    p = problem("partly_used", "sgd")
    query = dross.mean_loss((p.X_val, p.Y_val))
    run = record(p, keep=keep)
    expected = run.influence(query).values
    p.Y[3] = (p.Y[3] + 1) % 3  # in place: the run holds the same tensor
    for ask in (
        lambda: run.influence(query),
        lambda: run.leave_one_out(query, [0]),
        lambda: run.parameter_influence([0]),
    ):
        with pytest.raises(InputChanged, match=r"changed in place|different inputs or labels"):
            ask()
    p.Y[3] = (p.Y[3] + 2) % 3
    np.testing.assert_array_equal(run.influence(query).values, expected)
    with torch.no_grad():
        run.recording.objective.model.frozen.weight.add_(1)
    with pytest.raises(InputChanged, match="do not change them afterwards"):
        run.influence(query)
    with torch.no_grad():
        run.recording.objective.model.frozen.weight.sub_(1)
    # The trained parameters are the user's to change.
    for parameter in run.recording.objective.model.head.parameters():
        parameter.data.zero_()
    np.testing.assert_array_equal(run.influence(query).values, expected)


def test_a_resumed_run_needs_the_same_frozen_weights(record):
    p = problem("partly_used", "sgd")
    run = record(p)
    start = p.start

    def other():
        model, optimizer = start()
        with torch.no_grad():
            model.frozen.weight.add_(1)
        return model, optimizer

    p.start = other
    with pytest.raises(InputChanged, match="model changed"):
        record(p, path=run.path, resume=True)


def test_a_replay_that_goes_elsewhere_names_the_step(record, monkeypatch):
    p = problem("mlp", "sgd")
    run = record(p, keep=dross.tape.Checkpoints(every=3))
    recording = run.recording
    # the same inputs, but a loss that is not the recorded one
    double = replace(recording.objective, loss=lambda out, y: 2 * p.loss(out, y))
    monkeypatch.setattr(recording.executor.splitter, "objective", double)
    with pytest.raises(
        InputChanged, match=r"step \d+ leads to a different theta \(largest difference"
    ):
        run.influence(dross.mean_loss((p.X_val, p.Y_val)))


def test_a_data_set_that_changes_between_two_looks_is_found_out(tmp_path, monkeypatch):
    class Drifting:
        """Gives the same instance twice in a row, and another one after the training."""

        def __init__(self, p):
            self.p, self.offset = p, 0.0

        def __len__(self):
            return len(self.p.X)

        def __getitem__(self, i):
            return self.p.X[i] + self.offset, self.p.Y[i]

    p = problem("mlp", "sgd")
    model, optimizer = p.start()
    # as if the set were too large to be read once
    monkeypatch.setattr("dross.data.dataset._MAX_BYTES_HELD", 0)
    drifting = Drifting(p)
    run = dross.train(
        model, drifting, p.loss, optimizer, path=tmp_path / "t", batches=p.batches, progress=False
    )
    drifting.offset = 1.0
    with pytest.raises(InputChanged, match="must return an instance unchanged every time"):
        run.influence(dross.mean_loss((p.X_val, p.Y_val)))

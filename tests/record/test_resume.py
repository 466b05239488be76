"""Runs that were interrupted continue where they were recorded."""

import os
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch

import dross
from dross.errors import Diverged, DrossError, InputChanged, InvalidInput
from dross.record.train import TrainingLoop
from dross.tape.reader import Tape
from tests.record.user_loops import query, recorded_loop, take_step
from tests.zoo import problem

# what resume= may be: each means the folder of the tape
SAME_FOLDER = {
    "True": lambda folder: True,
    "a Path": lambda folder: folder,
    "a string": str,
    "a relative path": os.path.relpath,
    "a roundabout path": lambda folder: folder / ".." / folder.name,
}


def crash_at_step(stop, p, model, optimizer, folder):
    with dross.Recorder(model, p.loss, optimizer, path=folder) as recorder:
        for t, ids in enumerate(p.batches):
            with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
                if t == stop:
                    raise ZeroDivisionError
                losses.mean().backward()
                optimizer.step()
                optimizer.zero_grad()


def train(p, folder, **options):
    model, optimizer = p.start()
    options |= {"batches": p.batches, "epochs": p.epochs, "progress": False}
    return dross.train(model, (p.X, p.Y), p.loss, optimizer, path=folder, **options), model


def stop_training_at(stop, p, folder, monkeypatch):
    """dross.train, interrupted at a step."""
    take_row = TrainingLoop.take

    def interrupted(self, state, steps, batches, first):
        if first == stop:
            raise KeyboardInterrupt
        return take_row(self, state, steps, batches, first)

    with monkeypatch.context() as patch:
        patch.setattr(TrainingLoop, "take", interrupted)
        with pytest.raises(KeyboardInterrupt):
            train(p, folder)
    assert Tape(folder).steps == stop and not Tape(folder).complete


def finish(p, recorder, model, optimizer, uninterrupted):
    """Take the steps that are left; the model is the one of a loop that was never interrupted."""
    for ids in p.batches[recorder.steps :]:
        take_step(recorder, optimizer, ids, p.X[ids], p.Y[ids])
    run = recorder.run((p.X, p.Y))
    assert run.complete and run.steps == len(p.batches)
    for one, other in zip(model.state_dict().values(), uninterrupted.state_dict().values()):
        assert torch.equal(one, other)
    return run


@pytest.mark.parametrize("how", SAME_FOLDER)
def test_train_resumes_for_true_and_for_the_folder_of_the_tape(tmp_path, monkeypatch, how):
    p = problem("batchnorm", "adam", epochs=3)
    whole, _ = train(p, tmp_path / "whole")
    stop_training_at(7, p, tmp_path / "tape", monkeypatch)
    taken, take_row = [], TrainingLoop.take

    def counted(self, state, steps, batches, first):
        taken.append(first)
        return take_row(self, state, steps, batches, first)

    monkeypatch.setattr(TrainingLoop, "take", counted)
    run, model = train(p, tmp_path / "tape", resume=SAME_FOLDER[how](tmp_path / "tape"))
    assert taken == list(range(7, len(p.batches)))
    assert run.complete and run.steps == len(p.batches)
    for name, value in whole.parameters().items():
        assert torch.equal(run.parameters()[name], value)
        assert torch.equal(dict(model.named_parameters())[name], value)
    expected = whole.influence(query(p)).values
    np.testing.assert_array_equal(run.influence(query(p)).values, expected)


def test_a_training_that_failed_at_once_leaves_nothing(tmp_path):
    p = problem("mlp", "sgd")
    with pytest.raises(Diverged, match="Step 0") as caught:
        train(replace(p, X=p.X * float("nan")), tmp_path / "tape")
    assert not hasattr(caught.value, "__notes__")  # there is nothing to continue
    assert not list((tmp_path / "tape").iterdir())
    assert train(p, tmp_path / "tape")[0].complete


def test_train_does_not_resume_from_another_folder(tmp_path, monkeypatch):
    p = problem("mlp", "sgd")
    for name in ("tape", "other"):
        stop_training_at(3, p, tmp_path / name, monkeypatch)
    for resume in (tmp_path / "other", str(tmp_path), "nowhere"):
        with pytest.raises(InvalidInput, match=r"is not the folder of the tape.*resume=True"):
            train(p, tmp_path / "tape", resume=resume)
    with pytest.raises(InvalidInput, match="resume=True"):
        train(p, tmp_path / "tape", resume=False)
    assert Tape(tmp_path / "tape").steps == 3 and Tape(tmp_path / "other").steps == 3


OTHER_OPTIMIZERS = {
    "of another model": (
        lambda model, other: [*other.parameters()],
        "does not belong to the model",
    ),
    "of fewer parameters": (
        lambda model, other: [*model.parameters()][1:],
        "parameter groups differ from those on the tape",
    ),
    "of other groups": (
        lambda model, other: [{"params": [parameter]} for parameter in model.parameters()],
        "in 1 group. Create it as it was",
    ),
}


@pytest.mark.parametrize("which", OTHER_OPTIMIZERS)
def test_a_recorder_does_not_resume_with_another_optimizer(tmp_path, which):
    p = problem("mlp", "adam")
    model, optimizer = p.start()
    with pytest.raises(ZeroDivisionError):
        crash_at_step(2, p, model, optimizer, tmp_path / "tape")
    choose, message = OTHER_OPTIMIZERS[which]
    again, _ = p.start()
    other, _ = p.start()
    wrong = type(optimizer)(choose(again, other), lr=0.01)
    with pytest.raises(DrossError, match=message):
        dross.Recorder(again, p.loss, wrong, path=tmp_path / "tape", resume=True)
    assert Tape(tmp_path / "tape").steps == 2


@pytest.mark.parametrize("how", SAME_FOLDER)
def test_a_recorder_resumes_for_true_and_for_the_folder_of_the_tape(tmp_path, how):
    p, folder = problem("batchnorm", "adam", epochs=3), tmp_path / "mine"
    _, finished = recorded_loop(p, tmp_path / "whole")
    with pytest.raises(ZeroDivisionError):
        crash_at_step(7, p, *p.start(), folder)
    model, optimizer = p.start()
    with pytest.warns(dross.DrossWarning, match="continues at step 7"):
        recorder = dross.Recorder(
            model.train(), p.loss, optimizer, path=folder, resume=SAME_FOLDER[how](folder)
        )
    assert recorder.steps == 7
    finish(p, recorder, model, optimizer, finished)


def test_a_recorder_does_not_resume_from_another_folder(tmp_path):
    p = problem("mlp", "sgd")
    for name in ("mine", "other"):
        with pytest.raises(ZeroDivisionError):
            crash_at_step(3, p, *p.start(), tmp_path / name)
    for resume in (tmp_path / "other", str(tmp_path), "nowhere"):
        model, optimizer = p.start()
        with pytest.raises(InvalidInput, match=r"is not the folder of the tape.*resume=True"):
            dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine", resume=resume)
    model, optimizer = p.start()
    with pytest.raises(InvalidInput, match="resume=True"):
        dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine", resume=False)
    assert Tape(tmp_path / "mine").steps == 3 and Tape(tmp_path / "other").steps == 3


def test_a_crash_in_the_middle_continues(tmp_path):
    p = problem("batchnorm", "adam", epochs=3)
    _, finished = recorded_loop(p, tmp_path / "whole")
    model, optimizer = p.start()
    model.train()
    with pytest.raises(ZeroDivisionError):
        crash_at_step(7, p, model, optimizer, tmp_path / "mine")
    assert Tape(tmp_path / "mine").steps == 7 and not Tape(tmp_path / "mine").complete
    with pytest.warns(dross.DrossWarning, match="7 steps"):
        part = dross.load(tmp_path / "mine", model, (p.X, p.Y), p.loss, progress=False)
    # the forward pass that had moved BatchNorm's statistics is undone
    assert part.influence(query(p)).values.any()

    model, optimizer = p.start()
    model.train()
    with pytest.warns(dross.DrossWarning, match="continues at step 7"):
        recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine", resume=True)
    assert recorder.steps == 7
    run, ids = finish(p, recorder, model, optimizer, finished), p.batches[-1]
    assert run.influence(query(p)).values.any()
    model, optimizer = p.start()
    with pytest.warns(dross.DrossWarning, match=f"continues at step {run.steps}"):
        other = dross.Recorder(
            model, p.loss, optimizer, path=tmp_path / "mine", resume=True, seed=9
        )
    with pytest.raises(InputChanged, match="seed changed from 0 to 9"):
        with other.step(ids, p.X[ids], p.Y[ids]):
            pass
    with pytest.raises(InputChanged, match="Continue it with the same"):
        model, _ = p.start()
        sgd = torch.optim.SGD(model.parameters(), lr=1)
        dross.Recorder(model, p.loss, sgd, path=tmp_path / "mine", resume=True)
    p.loss(model(p.X), p.Y).mean().backward()
    sgd.step()  # the recorder that could not be made does not listen


@pytest.mark.parametrize("left", ["nothing", "a tape without a step"])
def test_a_recorder_that_finds_no_step_to_continue_says_so(tmp_path, left):
    p, folder = problem("mlp", "sgd"), tmp_path / "mine"
    ids = p.batches[0]
    if left == "a tape without a step":
        model, optimizer = p.start()
        with pytest.raises(ZeroDivisionError):
            with dross.Recorder(model.train(), p.loss, optimizer, path=folder) as recorder:
                with recorder.step(ids, p.X[ids], p.Y[ids]):
                    raise ZeroDivisionError
    model, optimizer = p.start()
    with pytest.warns(dross.DrossWarning, match="no recorded step in .* starts at step 0"):
        recorder = dross.Recorder(model.train(), p.loss, optimizer, path=folder, resume=True)
    take_step(recorder, optimizer, ids, p.X[ids], p.Y[ids])
    recorder.close()
    assert Tape(folder).steps == 1


@pytest.mark.filterwarnings("ignore:The run in .* continues")
def test_epochs_go_on_after_a_resume(tmp_path):
    p, folder = problem("mlp", "sgd"), tmp_path / "mine"
    ids = p.batches[0]

    def record(epochs, **options):
        model, optimizer = p.start()
        recorder = dross.Recorder(model.train(), p.loss, optimizer, path=folder, **options)
        for epoch in epochs:
            with recorder.step(ids, p.X[ids], p.Y[ids], epoch=epoch) as losses:
                losses.mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        return recorder

    record([0, 1, 2]).close()
    record([None, None], resume=True).close()  # still in epoch 2
    with pytest.raises(InvalidInput, match="Epoch 1 came after epoch 2"):
        record([1], resume=True)
    run = record([3], resume=True).run((p.X, p.Y))
    taken = [step.epoch for _, step, _ in run.recording.recorded_steps(0, run.steps)]
    assert taken == [0, 1, 2, 2, 2, 3]


def test_an_abandoned_recorder_does_no_harm(tmp_path):
    p = problem("mlp", "sgd")
    model, optimizer = p.start()
    ids = p.batches[0]

    def steps(recorder, optimizer, count):
        for _ in range(count):
            take_step(recorder, optimizer, ids, p.X[ids], p.Y[ids])

    first = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine")
    steps(first, optimizer, 2)
    # on the same optimizer
    second = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine", overwrite=True)
    steps(second, optimizer, 5)
    # on another, in the same folder
    other, other_optimizer = p.start()
    third = dross.Recorder(other, p.loss, other_optimizer, path=tmp_path / "mine", overwrite=True)
    steps(third, other_optimizer, 4)
    third.close()
    with pytest.raises(InvalidInput, match="Another run"):
        second._save_what_there_is()  # what happens at exit
    assert Tape(tmp_path / "mine").steps == 4 and Tape(tmp_path / "mine").complete


def _steps(folder, count, *, lr, momentum=0.9, catch_up=False, resume=False):
    """Some steps of a loop whose learning rate is halved after every step."""
    p = problem("mlp", "sgd")
    model, _ = p.start()
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    recorder = dross.Recorder(model, p.loss, optimizer, path=folder, resume=resume)
    schedule = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5)
    if catch_up:
        for _ in range(recorder.steps):
            schedule.step()
    for ids in p.batches[recorder.steps :][:count]:
        take_step(recorder, optimizer, ids, p.X[ids], p.Y[ids])
        schedule.step()
    recorder._save_what_there_is()


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")
@pytest.mark.parametrize(
    ("again", "suspicious"),
    [
        ({"lr": 0.1, "catch_up": True}, []),
        ({"lr": 0.1}, ["lr 0.1 (the last recorded step used 0.025)"]),
        ({"lr": 0.1, "catch_up": True, "momentum": 0.3}, ["momentum 0.3 (the last recorded"]),
    ],
)
def test_a_schedule_that_starts_again_is_named(tmp_path, again, suspicious):
    _steps(tmp_path / "t", 3, lr=0.1)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        _steps(tmp_path / "t", 2, resume=True, **again)
    told = [str(one.message) for one in said if "the first after resuming" in str(one.message)]
    assert len(told) == len(suspicious)
    for message, part in zip(told, suspicious, strict=True):
        assert message.startswith("Step 3, ") and part in message

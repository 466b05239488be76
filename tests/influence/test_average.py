"""Averaged weights as the model that is asked, against finite differences and the unrolled run."""

import numpy as np
import pytest
import torch
from torch.optim.swa_utils import (
    AveragedModel,
    get_ema_avg_fn,
    get_ema_multi_avg_fn,
    update_bn,
)

import dross
from dross.errors import InvalidInput, NotSupported
from dross.influence.retrace import reverse_steps
from dross.replay.average import sum_weights
from dross.tape.reader import Tape
from dross.tape.writer import rewind
from tests.zoo import problem

pytestmark = pytest.mark.filterwarnings("ignore:The run in .* continues")

# what AveragedModel is built with, and after which steps it is updated
AVERAGES = {
    "swa": ({}, lambda t: t >= 3),
    "swa, every other": ({}, lambda t: t % 2 == 1),
    "ema": ({"avg_fn": get_ema_avg_fn(0.8)}, lambda t: True),
    "ema, many at once": ({"multi_avg_fn": get_ema_multi_avg_fn(0.7)}, lambda t: t != 4),
    "ema, with buffers": (
        {"multi_avg_fn": get_ema_multi_avg_fn(0.6), "use_buffers": True},
        lambda t: t > 0,
    ),
    "not at the end": ({}, lambda t: t < 5),
}


def query(p):
    return dross.mean_loss((p.X_val, p.Y_val))


def averaged_loop(p, options, when, weights=None, folder=None, **recording):
    """The problem's run with an average: literal, or recorded where a folder is given."""
    model, optimizer = p.start()
    model.train()
    averaged = AveragedModel(model, **options)
    recorder = None
    if folder is not None:
        recorder = dross.Recorder(model, p.loss, optimizer, path=folder, **recording)
        recorder.watch_average(averaged)
    weights = torch.ones(len(p.X), dtype=torch.float64) if weights is None else weights
    for t, ids in enumerate(map(torch.as_tensor, p.batches)):
        if recorder is None:
            losses = p.loss(model(p.X[ids]), p.Y[ids])
            ((losses * weights[ids]).sum() / len(ids)).backward()
            optimizer.step()
            optimizer.zero_grad()
        else:
            with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
                losses.mean().backward()
                optimizer.step()
                optimizer.zero_grad()
        if when(t):
            averaged.update_parameters(model)
    return averaged, recorder


def value(p, averaged):
    with torch.no_grad():
        return float(p.loss(averaged.module.eval()(p.X_val), p.Y_val).mean())


def slope(p, j, *given, h=2e-5):
    def at(offset):
        weights = torch.ones(len(p.X), dtype=torch.float64)
        weights[j] += offset
        return value(p, averaged_loop(p, *given, weights)[0])

    return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)


@pytest.mark.parametrize(
    "model, optimizer", [("mlp", "momentum"), ("batchnorm", "sgd"), ("mlp", "muon")]
)
@pytest.mark.parametrize("name", AVERAGES)
def test_scores_of_the_average(tmp_path, name, model, optimizer):
    p, given = problem(model, optimizer), AVERAGES[name]
    keep = dross.tape.Checkpoints(every=3)
    averaged, recorder = averaged_loop(p, *given, folder=tmp_path / "mine", keep=keep)
    run = recorder.run((p.X, p.Y))
    asked = query(p)
    np.testing.assert_allclose(
        run.evaluate(asked, weights="average"), value(p, averaged), rtol=1e-12
    )
    scores = run.influence(asked, weights="average")
    expected = [slope(p, j, *given) for j in p.used]
    largest = np.nanmax(np.abs(scores.values))
    np.testing.assert_allclose(-scores.values[p.used], expected, atol=1e-8 * largest)
    assert not np.allclose(scores.values, run.influence(asked).values)
    weights = torch.ones(len(p.X), dtype=torch.float64)
    weights[p.used[0]] = 0
    without = value(p, averaged_loop(p, *given, weights)[0]) - value(p, averaged)
    found = run.leave_one_out(asked, p.used[:1], weights="average")
    np.testing.assert_allclose(found, [without], rtol=1e-8, atol=1e-12)


def test_against_autograd_through_the_unrolled_run(tmp_path):
    p, rate = problem("mlp", "sgd"), 0.1
    options, when = AVERAGES["ema"]
    _, recorder = averaged_loop(p, options, when, folder=tmp_path / "mine")
    found = recorder.run((p.X, p.Y)).influence(query(p), weights="average").values
    model, _ = p.start()
    params = {name: q.detach().clone().requires_grad_() for name, q in model.named_parameters()}
    w, average = torch.ones(len(p.X), dtype=torch.float64, requires_grad=True), None
    for ids in map(torch.as_tensor, p.batches):
        outputs = torch.func.functional_call(model, params, (p.X[ids],))
        mean = (p.loss(outputs, p.Y[ids]) * w[ids]).sum() / len(ids)
        grads = torch.autograd.grad(mean, list(params.values()), create_graph=True)
        params = {name: q - rate * g for (name, q), g in zip(params.items(), grads)}
        if average is not None:
            average = {name: 0.8 * average[name] + 0.2 * q for name, q in params.items()}
        average = average or params
    outputs = torch.func.functional_call(model, average, (p.X_val,))
    (expected,) = torch.autograd.grad(p.loss(outputs, p.Y_val).mean(), w)
    used = np.unique(np.concatenate(p.batches))
    np.testing.assert_allclose(found[used], -expected.numpy()[used], rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize("model", ["mlp", "batchnorm"])
def test_one_run_after_the_other_and_only_the_last_epochs(tmp_path, model):
    """What was averaged before the epochs that are asked about is the same for all runs."""
    p = problem(model, "momentum", epochs=3)
    options, when = AVERAGES["swa, every other"]
    folder = tmp_path / "mine"
    _, recorder = averaged_loop(p, options, when, folder=folder)
    run = recorder.run((p.X, p.Y))
    asked, j = query(p), p.used[0]
    side_by_side = run.leave_one_out(asked, [j, 3], weights="average")
    in_pieces = run.leave_one_out(asked, [j, 3], weights="average", folder=tmp_path / "kept")
    np.testing.assert_allclose(in_pieces, side_by_side, rtol=1e-10)
    models = run.counterfactual([[j], [3]], weights="average")
    np.testing.assert_allclose(models.changes(asked), side_by_side, rtol=1e-10)
    own = run.scores(np.nan_to_num(run.influence(asked).values), asked, weights="average")
    np.testing.assert_allclose(run.verify(own, [j, 3]).actual, side_by_side, rtol=1e-10)
    if model == "batchnorm":  # a lone instance has no statistics: one run after the other
        alone = run.leave_one_out(asked, [j], weights="average", removal="data")
        assert np.isfinite(alone).all() and alone.any()
    scores = run.influence(asked, weights="average")
    assert run.verify(scores, n=len(p.X)).tau > 0.5
    with pytest.raises(InvalidInput, match="leave out `step`"):
        run.influence(asked, weights="average", step=2)
    with pytest.raises(InvalidInput, match="weights must be 'model' or 'average'"):
        run.influence(asked, weights="mean")


def test_a_retrace_of_the_average_that_is_resumed(tmp_path, monkeypatch):
    p = problem("mlp", "momentum", epochs=3)
    keep = dross.tape.Checkpoints(every=3)
    _, recorder = averaged_loop(p, *AVERAGES["ema"], folder=tmp_path / "mine", keep=keep)
    run = recorder.run((p.X, p.Y))
    expected = run.influence(query(p), weights="average").values
    monkeypatch.setattr("dross.influence.totals._SECONDS_BETWEEN_WRITES", 0)
    with monkeypatch.context() as context:
        seen = iter(range(100))

        def fail(*given):
            if next(seen) == 5:
                raise KeyboardInterrupt
            return real(*given)

        real = reverse_steps
        context.setattr("dross.influence.retrace.reverse_steps", fail)
        with pytest.raises(KeyboardInterrupt):
            run.influence(query(p), weights="average", resume=True)
    again = run.influence(query(p), weights="average", resume=True).values
    np.testing.assert_array_equal(again, expected)


@pytest.mark.filterwarnings("ignore:The run in .* continues at step")
def test_a_run_with_an_average_that_is_resumed(tmp_path):
    """The average goes on where the tape has it, though the process is another."""
    p, (options, when) = problem("batchnorm", "momentum"), AVERAGES["ema, with buffers"]
    whole, recorder = averaged_loop(p, options, when, folder=tmp_path / "whole")
    expected = recorder.run((p.X, p.Y)).influence(query(p), weights="average").values
    everything, p.batches = p.batches, p.batches[:5]
    _, recorder = averaged_loop(p, options, when, folder=tmp_path / "mine")
    recorder.close()
    model, optimizer = p.start()
    model.train()
    averaged = AveragedModel(model, **options)
    recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine", resume=True)
    recorder.watch_average(averaged)
    for t in range(recorder.steps, len(everything)):
        ids = everything[t]
        with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
        averaged.update_parameters(model)
    for one, other in zip(averaged.parameters(), whole.parameters()):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-13)
    found = recorder.run((p.X, p.Y)).influence(query(p), weights="average").values
    np.testing.assert_allclose(found, expected, atol=1e-10 * np.nanmax(np.abs(expected)))


@pytest.mark.filterwarnings("ignore:The run in .* continues at step")
def test_an_average_of_steps_that_are_forgotten_is_forgotten_too(tmp_path):
    p, options = problem("mlp", "sgd"), AVERAGES["ema"][0]
    keep = dross.tape.Checkpoints(every=2)
    averaged_loop(p, *AVERAGES["ema"], folder=tmp_path, keep=keep)[1].close()
    rewind(tmp_path, Tape(tmp_path).steps)  # nothing to forget
    assert Tape(tmp_path).average() is not None
    rewind(tmp_path, 4)
    tape = Tape(tmp_path)
    assert tape.steps == 4 and tape.average() is None and not [*tmp_path.glob("average-*")]
    model, optimizer = p.start()
    recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path, resume=True)
    averaged = AveragedModel(model, **options)
    averaged.update_parameters(model)
    with pytest.raises(NotSupported, match="these updates are not on the tape"):
        recorder.watch_average(averaged)


@pytest.mark.filterwarnings("ignore:The run in .* continues at step")
def test_an_average_that_does_not_know_the_last_steps_is_forgotten(tmp_path):
    """A run that went on and was killed: its steps are on the tape, the updates are not."""
    p = problem("mlp", "sgd")
    averaged_loop(p, *AVERAGES["ema"], folder=tmp_path)[1].close()
    model, optimizer = p.start()
    recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path, resume=True)
    recorder.watch_average(AveragedModel(model, **AVERAGES["ema"][0]))
    assert Tape(tmp_path).average() is not None
    ids = p.batches[0]
    with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
        losses.mean().backward()
        optimizer.step()
    before = Tape(tmp_path).steps
    recorder.save()  # and no close
    tape = Tape(tmp_path)
    assert tape.steps == before + 1 and tape.average() is None
    assert not [*tmp_path.glob("average-*")]


def test_statistics_that_were_computed_afterwards_are_constants(tmp_path):
    p = problem("batchnorm", "sgd")
    averaged, recorder = averaged_loop(p, *AVERAGES["swa"], folder=tmp_path / "mine")
    update_bn([p.X], averaged)
    with pytest.warns(dross.DrossWarning, match=r"running_mean.*update_bn"):
        run = recorder.run((p.X, p.Y))
    np.testing.assert_allclose(
        run.evaluate(query(p), weights="average"), value(p, averaged), rtol=1e-12
    )
    assert np.isfinite(run.influence(query(p), weights="average").values[p.used]).all()


def test_what_is_no_average(tmp_path):
    p = problem("mlp", "sgd")
    model, optimizer = p.start()
    model.train()
    take = lambda recorder, ids: averaged_step(recorder, optimizer, p, ids)
    with dross.Recorder(model, p.loss, optimizer, path=tmp_path / "a") as recorder:
        with pytest.raises(InvalidInput, match="AveragedModel, not Sequential"):
            recorder.watch_average(model)
        late = AveragedModel(model)
        late.update_parameters(model)
        with pytest.raises(NotSupported, match="updated 1 times before it was watched"):
            recorder.watch_average(late)
        take(recorder, p.batches[0])
    with pytest.raises(InvalidInput, match="no averaged weights"):
        recorder.run((p.X, p.Y)).influence(query(p), weights="average")

    other, _ = problem("mlp", "sgd", X=p.X + 1).start()
    torch.nn.init.normal_(other[0].weight)
    averaged = AveragedModel(model)
    recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "b")
    recorder.watch_average(averaged)
    for ids, source in zip(p.batches, (model, other)):
        take(recorder, ids)
        averaged.update_parameters(source)
    with pytest.raises(NotSupported, match="not an average of the recorded"):
        take(recorder, p.batches[2])

    squares = AveragedModel(model, avg_fn=lambda old, new, n: (old**2 + new**2).sqrt())
    recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "c")
    recorder.watch_average(squares)
    for ids in p.batches[:2]:
        take(recorder, ids)
        squares.update_parameters(model)
    with pytest.raises(NotSupported, match="not a weighted mean"):
        take(recorder, p.batches[2])


def test_an_update_before_the_step(tmp_path):
    """Between backward() and the step it averages the parameters before the step."""
    p = problem("mlp", "momentum")
    found = []
    for halfway in (True, False):
        model, optimizer = p.start()
        averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.7))
        recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path / str(halfway))
        recorder.watch_average(averaged)
        for ids in p.batches:
            if not halfway:
                averaged.update_parameters(model)
            with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
                losses.mean().backward()
                if halfway:
                    averaged.update_parameters(model)
                optimizer.step()
                optimizer.zero_grad()
        found.append(recorder.run((p.X, p.Y)).influence(query(p), weights="average").values)
    np.testing.assert_array_equal(*found)


def averaged_step(recorder, optimizer, p, ids):
    optimizer.zero_grad()
    with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
        losses.mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def test_weights_of_an_average_add_up():
    equal = sum_weights([(1, 1.0), (2, 1 / 2), (3, 1 / 3)])
    assert equal == pytest.approx({1: 1 / 3, 2: 1 / 3, 3: 1 / 3})
    twice = sum_weights([(1, 1.0), (4, 0.5), (4, 0.5)])
    assert twice == pytest.approx({1: 0.25, 4: 0.75})


def test_an_average_that_begins_in_the_middle_says_so(tmp_path):
    """A run that is killed leaves its steps and no average of them."""
    p = problem("mlp", "sgd")

    def record(steps, watch, **options):
        model, optimizer = p.start()
        recorder = dross.Recorder(
            model.train(), p.loss, optimizer, path=tmp_path / "mine", **options
        )
        averaged = AveragedModel(model)
        if watch:
            recorder.watch_average(averaged)
        for ids in p.batches[steps]:
            with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
                losses.mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            averaged.update_parameters(model)
        recorder.close()

    record(slice(0, 2), False)
    with pytest.warns(dross.DrossWarning, match="so this average begins at step 2"):
        record(slice(2, 4), True, resume=True)
    assert Tape(tmp_path / "mine").average().steps.tolist() == [3, 4]

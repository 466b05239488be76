"""Runs without some instances."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch

import dross
from dross.engine.executor import Executor
from dross.errors import Diverged, InvalidInput, NotSupported
from dross.influence import counterfactual
from tests.oracles import literal_run, validation_loss
from tests.zoo import ATTENTION_DRAWS_OTHERS, problem


def query(p):
    return dross.mean_loss((p.X_val, p.Y_val))


def without(p, group):
    weights = torch.ones(len(p.X), dtype=torch.float64)
    weights[list(group)] = 0
    return literal_run(p, weights)


@pytest.mark.parametrize("model", ["mlp", "batchnorm", "dropout", "embedding"])
@pytest.mark.parametrize("optimizer", ["sgd", "adamw", "rmsprop", "nadam", "asgd"])
def test_groups_side_by_side(record, model, optimizer):
    p = problem(model, optimizer)
    run = record(p)
    groups = [[0, 3, 5], [], range(len(p.X)), [1]]
    cf = run.counterfactual(groups)
    values = cf.evaluate(query(p))
    for k, group in enumerate(groups):
        expected = without(p, group)
        np.testing.assert_allclose(values[k], validation_loss(p, expected), rtol=1e-10)
        for name, value in expected.named_parameters():
            if name in cf.parameters(k):
                # a bias in front of BatchNorm has no gradient but rounding, which Adam and RMSprop
                # blow up by 1/eps
                absolute = 1e-8 if model == "batchnorm" else 1e-12
                found = cf.parameters(k)[name]
                np.testing.assert_allclose(found, value.detach(), rtol=1e-9, atol=absolute)
    assert cf.evaluate(dross.losses((p.X_val, p.Y_val))).shape == (9, 4)
    assert cf.changes(query(p))[1] == 0.0


def one_at_a_time(monkeypatch):
    def refuse(*_):
        raise RuntimeError("not side by side")

    monkeypatch.setattr(Executor, "gradients", refuse)


@pytest.mark.filterwarnings("ignore:Many copies of this model cannot run at once")
@pytest.mark.parametrize("model", ["batchnorm", "mlp"])
def test_cut_batches_side_by_side_are_those_of_each_run_alone(record, monkeypatch, model):
    p = problem(model, "momentum")
    run, groups = record(p), [[0, 3], [], [5]]
    together = run.counterfactual(groups, removal="data")
    one_at_a_time(monkeypatch)
    alone = run.counterfactual(groups, removal="data")
    np.testing.assert_allclose(together.evaluate(query(p)), alone.evaluate(query(p)), rtol=1e-11)
    for ours, theirs in zip(together.chunks, alone.chunks):
        for name, buffer in theirs.buffers.items():
            np.testing.assert_allclose(ours.buffers[name], buffer, rtol=1e-10)


class Centred(torch.nn.Module):
    """Mixes the instances of a batch, without a buffer that would tell."""

    def forward(self, x):
        return x - x.mean(0)


def test_a_layer_that_mixes_the_batch_is_found_out(tmp_path):
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Linear(4, 6), Centred(), torch.nn.Tanh(), torch.nn.Linear(6, 3)
    )
    data = (torch.randn(128, 4), torch.randint(0, 3, (128,)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"path": tmp_path / "tape", "epochs": 1, "batch_size": 64, "progress": False}
    run = dross.train(model, data, "cross_entropy", optimizer, **options)
    with pytest.warns(dross.DrossWarning, match="use the removed instances"):
        cut = run.counterfactual([[0], [5]], removal="data").changes(dross.mean_loss(data))
    weight = run.counterfactual([[0], [5]]).changes(dross.mean_loss(data))
    assert np.abs(cut - weight).max() > 0.1 * np.abs(weight).max()


@pytest.mark.filterwarnings("ignore:Many copies of this model cannot run at once")
@pytest.mark.parametrize("way", ["in chunks", "one by one", "one by one after an attempt"])
def test_the_bar_ends_at_the_end(record, monkeypatch, way):
    run, shown = record(problem("mlp", "sgd")), []

    @contextmanager
    def bar(title, total, **_):
        shown.append(total)
        yield shown.append

    monkeypatch.setattr(counterfactual, "progress_bar", bar)
    monkeypatch.setattr(counterfactual.CounterfactualRuns, "_count_fitting", lambda *_: 2)
    if way == "one by one":
        one_at_a_time(monkeypatch)
    elif way != "in chunks":
        steps = iter(range(3))

        def fails(self, *_):
            if next(steps, None) is None:
                raise counterfactual._NotSideBySide("not with these layers")
            return False

        monkeypatch.setattr(counterfactual.CounterfactualRuns, "_check_replica", fails)
    run.counterfactual([[k] for k in range(5)])
    total, *moved = shown
    assert total == 5 * run.steps == sum(moved) and max(np.cumsum(moved)) <= total


@pytest.mark.filterwarnings("ignore:Many copies of this model cannot run at once")
def test_with_nothing_removed_it_is_the_recorded_run_bit_for_bit(record, monkeypatch):
    p = problem("batchnorm", "momentum")
    run = record(p)
    with monkeypatch.context() as patched:
        one_at_a_time(patched)  # through the function that trained the model
        alone = run.counterfactual([[]])
    for name, value in run.parameters().items():
        assert torch.equal(alone.parameters(0)[name], value)
    together = run.counterfactual([[]])
    for name, value in run.parameters().items():
        np.testing.assert_allclose(together.parameters(0)[name], value, rtol=1e-13, atol=1e-15)


def test_a_batch_left_empty_is_a_step_with_zero_gradient(record):
    p = problem("mlp", "momentum")  # momentum goes on moving the parameters through the empty step
    run = record(p)
    emptied = p.batches[2]
    for removal in ("loss", "data"):
        cf = run.counterfactual([emptied], removal=removal)
        np.testing.assert_allclose(
            cf.evaluate(query(p))[0], validation_loss(p, without(p, emptied)), rtol=1e-11
        )


def test_the_divisor_stays(record):
    """Removing one of a batch of n leaves 1/n in front of the others, not 1/(n-1)."""
    p = problem("linear", "sgd", epochs=1)
    p.batches = [np.array([0, 1, 2, 3])]
    run = record(p)
    model = p.start()[0]
    losses = p.loss(model(p.X[:3]), p.Y[:3])
    g = [torch.autograd.grad(loss, model.weight, retain_graph=True)[0] for loss in losses]
    found = run.counterfactual([[3]]).parameters(0)["weight"]
    np.testing.assert_allclose(found, model.weight.detach() - 0.1 / 4 * sum(g), rtol=1e-12)


def test_two_ways_of_removal_differ_with_batchnorm_only(record):
    for model, same in (("mlp", True), ("batchnorm", False)):
        p = problem(model, "sgd")
        run = record(p)
        values = [
            run.counterfactual([[0, 3]], removal=removal).evaluate(query(p))[0]
            for removal in ("loss", "data")
        ]
        assert np.isclose(*values, rtol=1e-10) == same
    p = problem("batchnorm", "sgd", epochs=1)
    p.batches = [np.arange(6)]
    rate = 0.1 * 4 / 6  # the divisor stays 6
    smaller = problem("batchnorm", "sgd", epochs=1, rate=lambda t: rate)
    smaller.batches = [np.arange(4)]
    found = record(p).counterfactual([[4, 5]], removal="data").evaluate(query(p))[0]
    np.testing.assert_allclose(found, validation_loss(smaller, literal_run(smaller)), rtol=1e-11)


def test_batchnorm_with_one_instance_left_is_refused_by_name(record):
    p = problem("batchnorm", "sgd", epochs=1)
    p.batches = [np.arange(4)]
    with pytest.raises(NotSupported, match="Step 0 cannot be computed without"):
        record(p).counterfactual([[0, 1, 2]], removal="data")


def test_only_the_last_epochs(record):
    """Retrain Last: normal training first, counterfactual in the last epoch."""
    p = problem("mlp", "momentum", epochs=3)
    run = record(p)
    per_epoch = len(p.batches) // 3
    start = problem("mlp", "momentum")
    start.batches = p.batches[: 2 * per_epoch]
    last = run.counterfactual([[0, 3]], epochs=1)
    short = record(p, keep=dross.tape.LastEpochs(1))
    with pytest.warns(dross.DrossWarning, match="last 1 epoch: .* model after 8 steps"):
        kept = short.counterfactual([[0, 3]])
    np.testing.assert_allclose(last.evaluate(query(p)), kept.evaluate(query(p)), rtol=1e-12)
    with pytest.warns(dross.DrossWarning, match="keeps only the last 1 epoch"):
        warned = short.leave_one_out(query(p), [0])
    np.testing.assert_array_equal(short.leave_one_out(query(p), [0], epochs=1), warned)
    assert last.evaluate(query(p))[0] != run.counterfactual([[0, 3]]).evaluate(query(p))[0]


def test_the_models_after_a_step(record):
    p = problem("mlp", "momentum")
    run = record(p)
    found = run.counterfactual([[0], [3]], step=5).changes(query(p))
    np.testing.assert_allclose(found, run.leave_one_out(query(p), [0, 3], step=5), rtol=1e-12)


def test_chunks_give_the_same(record, monkeypatch):
    p = problem("batchnorm", "adam")
    run = record(p)
    whole = run.leave_one_out(query(p))
    monkeypatch.setattr("dross.influence.counterfactual.MAX_MODELS_AT_ONCE", 4)
    np.testing.assert_allclose(run.leave_one_out(query(p)), whole, rtol=1e-9, atol=1e-15)
    assert len(run.counterfactual([[j] for j in range(10)]).chunks) == 3
    models = run.counterfactual([[j] for j in range(10)])
    assert models.parameters(9).keys() == run.parameters().keys()


def test_a_budget_bounds_the_runs_side_by_side(record):
    p = problem("mlp", "momentum")
    run = record(p)
    bounded = record(
        p, keep=dross.tape.Budget(10 << 20, in_memory=40 * run.recording.state_at(0).nbytes)
    )
    assert len(run.counterfactual([[j] for j in range(10)]).chunks) == 1
    few = bounded.counterfactual([[j] for j in range(10)])
    assert 1 < len(few.chunks) < 10
    np.testing.assert_allclose(
        few.changes(query(p)), run.leave_one_out(query(p), np.arange(10)), rtol=1e-9, atol=1e-15
    )


def test_out_of_memory_halves_the_chunk_and_goes_on(record, monkeypatch):
    p = problem("mlp", "sgd")
    run = record(p)
    whole = run.leave_one_out(query(p), np.arange(8))
    gradients = Executor.gradients

    def limited(self, thetas, *rest):
        if len(thetas) > 4:
            raise torch.OutOfMemoryError("no memory for so many")
        return gradients(self, thetas, *rest)

    monkeypatch.setattr(Executor, "gradients", limited)
    with pytest.warns(dross.DrossWarning, match="continuing with [24] models"):
        found = run.leave_one_out(query(p), np.arange(8))
    np.testing.assert_allclose(found, whole, rtol=1e-9, atol=1e-15)


def test_a_query_that_fails_leaves_the_model_in_its_mode(record):
    p = problem("dropout", "sgd")
    run = record(p)
    model = run.recording.objective.model.eval()
    with pytest.raises(InvalidInput) as caught:
        run.leave_one_out(dross.mean_loss((p.X_val[:, :2], p.Y_val)), [0])
    assert caught.value is not None and not model.training and not model[2].training


@pytest.mark.skipif(not ATTENTION_DRAWS_OTHERS, reason="attention is right inside vmap here")
def test_warm_up_from_zero_does_not_blind_the_check_of_the_replica(record):
    """Attention draws other dropout inside vmap.

    At a rate of 0 its parameters do not show that; its gradient does.
    """
    p = problem("attention", "sgd", rate=lambda t: 0.0 if t == 0 else 0.1)
    with pytest.warns(dross.DrossWarning, match="one after the other"):
        found = record(p).leave_one_out(query(p), p.used[:2])
    from tests.oracles import literal_leave_one_out

    np.testing.assert_allclose(found, [literal_leave_one_out(p, j) for j in p.used[:2]], rtol=1e-9)


def test_bad_input(record):
    p = problem("mlp", "sgd")
    run = record(p)
    for flat in (3, [0, 3], np.array([0, 3]), {0, 3}, [[0], 3]):
        with pytest.raises(InvalidInput, match=r"one list of ids per run.*pass \[ids\]"):
            run.counterfactual(flat)
    with pytest.raises(InvalidInput, match="The tape has 2 epochs, but epochs=3 was requested"):
        run.influence(query(p), epochs=3)
    with pytest.raises(InvalidInput, match="at least one group"):
        run.counterfactual([])
    with pytest.raises(InvalidInput, match="between 0 and 14; found 15"):
        run.counterfactual([[15]])
    with pytest.raises(InvalidInput, match="found -1"):
        run.leave_one_out(query(p), [-1])
    with pytest.raises(InvalidInput, match="must be integers"):
        run.parameter_influence([0.5])
    with pytest.raises(InvalidInput, match="at least one instance"):
        run.leave_one_out(query(p), [])
    for step in (-1, 99):
        with pytest.raises(InvalidInput, match=f"step={step}"):
            run.leave_one_out(query(p), [0], step=step)
    with pytest.raises(InvalidInput, match="no removal named 'vanished'"):
        run.counterfactual([[0]], removal="vanished")
    with pytest.raises(InvalidInput, match="numbered from 0"):
        run.counterfactual([[0]]).parameters(1)


def test_a_run_that_diverges_without_an_instance(tmp_path):
    """A loss that explodes when an instance is gone."""
    model = torch.nn.Linear(1, 1, bias=False).double()

    def loss(out, y):
        return (1e200 * out[:, 0] ** 4) * y

    X, Y = torch.ones(2, 1, dtype=torch.float64), torch.tensor([1.0, -1.0], dtype=torch.float64)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    options = {"path": tmp_path / "t", "batches": [[0, 1]] * 4, "progress": False}
    run = dross.train(model, (X, Y), loss, optimizer, **options)
    with pytest.raises(Diverged, match="diverged"):
        run.counterfactual([[1]])

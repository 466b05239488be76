"""What can be asked, and what is refused."""

from copy import deepcopy
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.func import functional_call
from torch.utils.data import TensorDataset

import dross
from dross.engine.memory import MemorySplitter, VjpPlan
from dross.errors import Diverged, InvalidInput
from dross.estimators import WithoutHessian
from tests.oracles import literal_run
from tests.zoo import problem


@pytest.fixture
def case(record):
    p = problem("batchnorm", "momentum")
    return p, record(p), literal_run(p)


def test_values_are_those_of_the_model(case):
    p, run, model = case
    with torch.no_grad():
        outputs = model(p.X_val)
        losses = p.loss(outputs, p.Y_val)
    data = (p.X_val, p.Y_val)
    np.testing.assert_allclose(run.evaluate(dross.mean_loss(data)), losses.mean(), rtol=1e-12)
    np.testing.assert_allclose(run.evaluate(dross.losses(data)), losses, rtol=1e-12)
    np.testing.assert_allclose(run.evaluate(dross.outputs(p.X_val)), outputs.flatten(), rtol=1e-12)
    np.testing.assert_allclose(
        run.evaluate(dross.outputs(data, index=1)), outputs[:, 1], rtol=1e-12
    )
    norm = lambda params, buffers: params["0.weight"].norm() + buffers["1.running_var"].sum()
    expected = (model[0].weight.norm() + model[1].running_var.sum()).item()
    np.testing.assert_allclose(run.evaluate(dross.query(norm)), expected, rtol=1e-12)


def test_a_vector_query_is_its_rows(case):
    p, run, _ = case
    data = (p.X_val, p.Y_val)
    together = run.influence(dross.losses(data))
    assert together.values.shape == (9, len(p.X)) and together.by_epoch.shape == (9, 2, len(p.X))
    for q in (0, 4):
        alone = run.influence(dross.losses((p.X_val[q : q + 1], p.Y_val[q : q + 1])))
        np.testing.assert_allclose(together.values[q], alone.values[0], rtol=1e-9, atol=1e-14)
    mean = run.influence(dross.mean_loss(data)).values
    np.testing.assert_allclose(together.values.mean(0), mean, rtol=1e-9, atol=1e-14)
    logits = run.influence(dross.outputs(p.X_val, index=2))
    assert logits.values.shape == (9, len(p.X))
    assert run.influence(dross.outputs(p.X_val[:2])).values.shape == (6, len(p.X))


def test_many_queries_at_once_are_the_same_as_in_chunks(case, monkeypatch):
    p, run, _ = case
    query = dross.losses((p.X_val, p.Y_val))
    whole = run.influence(query).values
    monkeypatch.setattr(MemorySplitter, "_plan", lambda *_: VjpPlan(False, 2))
    np.testing.assert_allclose(run.influence(query).values, whole, rtol=1e-10, atol=1e-15)


def test_functions_of_parameters_and_buffers(case):
    p, run, _ = case
    scalar = dross.query(
        lambda params, buffers: params["0.weight"].pow(2).sum() + buffers["1.running_mean"].sum()
    )
    scores = run.influence(scalar)
    assert scores.values.shape == (len(p.X),)
    delta = run.parameter_influence([0, 3])
    by_hand = 2 * (run.parameters()["0.weight"] * delta["0.weight"]).sum((1, 2)) + delta.buffers[
        "1.running_mean"
    ].sum(1)
    np.testing.assert_allclose(scores.values[[0, 3]], by_hand, rtol=1e-8)
    vector = run.influence(dross.query(lambda params, buffers: params["3.bias"]))
    np.testing.assert_allclose(vector.values[:, [0, 3]], delta["3.bias"].T, rtol=1e-8, atol=1e-12)


def test_the_model_after_a_step(case, record):
    """`step` asks the model half way: the same as a run that ended there."""
    p, run, _ = case
    query = dross.mean_loss((p.X_val, p.Y_val))
    for step in (3, 5, 8):
        shorter = problem("batchnorm", "momentum")
        shorter.batches, shorter.epochs = p.batches[:step], 1
        expected = record(shorter)
        found, wanted = run.influence(query, step=step).values, expected.influence(query).values
        np.testing.assert_allclose(found, wanted, rtol=1e-10, atol=1e-15)
        np.testing.assert_allclose(
            run.evaluate(query, step=step), expected.evaluate(query), rtol=1e-12
        )
        found = run.leave_one_out(query, [0, 3], step=step)
        wanted = expected.leave_one_out(query, [0, 3])
        np.testing.assert_allclose(found, wanted, rtol=1e-8, atol=1e-15)
    assert np.isnan(run.influence(query, step=0).values).all()  # no step has used an instance
    with pytest.raises(InvalidInput, match="step=99"):
        run.influence(query, step=99)


def test_epochs_restrict_the_work_and_add_up(case):
    p, run, _ = case
    query = dross.mean_loss((p.X_val, p.Y_val))
    whole = run.influence(query)
    np.testing.assert_allclose(whole.by_epoch.sum(0), whole.values, rtol=1e-12)
    last = run.influence(query, epochs=1)
    np.testing.assert_array_equal(last.values, whole.by_epoch[-1])
    np.testing.assert_array_equal(last.values, whole.last_epochs(1).values)
    assert last.by_epoch.shape == (1, len(p.X)) and last.first_epoch == 1
    with pytest.raises(InvalidInput):
        run.influence(query, epochs=0)


def test_a_map_style_data_set_is_as_good_as_tensors(case, record):
    p, run, _ = case
    query = dross.mean_loss(TensorDataset(p.X_val, p.Y_val))
    np.testing.assert_array_equal(
        run.influence(query).values, run.influence(dross.mean_loss((p.X_val, p.Y_val))).values
    )


def test_loss_queries_measure_the_plain_loss(record):
    p = problem(
        "mlp", "sgd", penalty=lambda params: sum((value**2).sum() for value in params.values())
    )
    run, model = record(p), literal_run(p)
    plain = p.loss(model(p.X_val), p.Y_val).mean().item()
    np.testing.assert_allclose(run.evaluate(dross.mean_loss((p.X_val, p.Y_val))), plain, rtol=1e-12)


def test_bad_queries(case):
    p, run, _ = case
    with pytest.raises(InvalidInput, match="cannot be evaluated on this model"):
        run.influence(dross.mean_loss((torch.randn(4, 9), p.Y_val[:4])))
    with pytest.raises(InvalidInput, match=r"built with dross\.mean_loss"):
        run.influence(p.X_val)
    with pytest.raises(InvalidInput, match="empty"):
        run.influence(dross.mean_loss((p.X_val[:0], p.Y_val[:0])))
    with pytest.raises(InvalidInput, match="no output number 5"):
        run.influence(dross.outputs(p.X_val, index=5))
    with pytest.raises(InvalidInput, match="not a tensor"):
        run.influence(dross.query(lambda params, buffers: 3.0))
    with pytest.raises(InvalidInput, match="nothing"):
        run.influence(dross.query(lambda params, buffers: params["nothing"]))
    with pytest.raises(InvalidInput, match="Flatten the result"):
        run.influence(dross.query(lambda params, buffers: params["0.weight"]))
    with pytest.raises(Diverged, match="not finite"):
        run.influence(dross.query(lambda params, buffers: params["0.weight"].sum() * float("nan")))


BAD = {
    "one argument": (lambda params: 0, r"takes \(params\), but dross calls fn\(params, buffers\)"),
    "three": (lambda a, b, c: 0, r"takes \(a, b, c\), but .*two dicts of name -> tensor"),
    "no function": (None, "must be a function"),
    "a constant": (lambda params, _: torch.ones(()), "does not depend on the model's parameters"),
    "detached": (lambda params, _: params["0.weight"].detach().sum(), r"without detach\(\)"),
    "places": (lambda params, _: params["0.weight"].argmax(), "argmax"),
    "complex": (lambda params, _: params["0.weight"].sum() * 1j, "must be real"),
    "nothing": (lambda params, _: params["0.weight"].flatten()[:0], "an empty vector"),
    "an attribute": (lambda params, _: params.weight, "no attribute 'weight'"),
}


@pytest.mark.parametrize("what", BAD)
def test_functions_that_are_no_queries(case, what):
    fn, sentence = BAD[what]
    with pytest.raises(InvalidInput, match=sentence):
        case[1].influence(dross.query(fn))


class TestLiveModels:
    """A function that calls the model itself would have the same value at every recorded step."""

    @pytest.mark.parametrize(
        "use",
        [
            lambda model, params, x: model(x).mean(),
            lambda model, params, x: model(x).argmax(1).double(),
            lambda model, params, x: model[0].weight.sum() + params["0.weight"].sum(),
            lambda model, params, x: torch.stack([params["0.weight"].sum(), model(x).mean()]),
            lambda model, params, x: model[0].weight.data.sum() * params["0.weight"].sum(),
        ],
    )
    def test_refused_wherever_a_query_is_evaluated(self, record, use):
        p = problem("mlp", "sgd")
        run = record(p)
        model = run.recording.objective.model
        query = dross.query(lambda params, _: use(model, params, p.X_val))
        without = run.counterfactual([[0]])
        for evaluate in (
            lambda: run.influence(query),
            lambda: run.evaluate(query),
            lambda: run.leave_one_out(query, [0]),
            lambda: without.evaluate(query),
        ):
            with pytest.raises(InvalidInput, match=r"uses the live model.*functional_call\(model"):
                evaluate()

    def test_a_copy_alone_is_no_query_of_the_run(self, record):
        p = problem("mlp", "sgd")
        run = record(p)
        copy = deepcopy(run.recording.objective.model)
        with pytest.raises(InvalidInput, match="does not depend on the parameters that it is pas"):
            run.influence(dross.query(lambda params, _: copy(p.X_val).mean()))

    @pytest.mark.parametrize("name", ["batchnorm", "tied", "attention"])
    def test_a_functional_call_of_the_model_is_none(self, record, name):
        p = problem(name, "sgd")
        run = record(p)
        model = run.recording.objective.model
        x = p.X_val

        def mean_of_first(params, buffers):
            return functional_call(model, (params, buffers), (x,))[:, 0].mean()

        found = run.influence(dross.query(mean_of_first)).values
        expected = run.influence(dross.outputs(x, index=0)).values.mean(0)
        np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-13)


class TestWhatIsNotFinite:
    """The error blames the model, the query, its derivative or second derivatives, rightly."""

    def test_a_query_whose_formula_has_no_slope(self, case):
        root = dross.query(lambda params, _: (0 * params["0.weight"]).sum().sqrt())
        assert case[1].evaluate(root) == 0
        with pytest.raises(Diverged, match=r"derivative with respect to '0.weight' is not finite"):
            case[1].influence(root)

    def test_an_instance_of_the_query(self, case):
        p, run, _ = case
        inputs = p.X_val.clone()
        inputs[[2, 5]] = torch.inf
        for make in (dross.mean_loss, dross.losses, dross.expected_error):
            with pytest.raises(Diverged, match=r"inf or nan for instances 2, 5 of its data"):
                run.influence(make((inputs, p.Y_val)))

    def test_the_query(self, case):
        with pytest.raises(
            Diverged, match=r"although the model's parameters are\. Check its formula"
        ):
            case[1].influence(dross.query(lambda params, _: params["0.weight"].sum() / 0))

    def test_the_model(self, case):
        p, run, _ = case
        objective, state = run.recording.objective, run.recording.state_at(run.steps)
        theta = state.theta.clone()
        theta[0] = torch.nan
        with pytest.raises(Diverged, match=r"non-finite parameters: '\S+' contains inf or nan"):
            query = dross.mean_loss((p.X_val, p.Y_val))
            query.derivative(objective, replace(state, theta=theta))

    def test_second_derivatives_of_the_loss(self, record):
        """abs(x)**1.5 has a slope at 0, and no second derivative."""

        def loss(outputs, y):
            return (outputs - outputs.detach()).abs().pow(1.5).sum(1) + outputs.square().sum(1)

        p = problem("mlp", "sgd", loss=loss)
        run = record(p)
        with pytest.raises(
            Diverged, match="second derivatives of the loss are not finite"
        ) as found:
            run.influence(dross.mean_loss((p.X_val, p.Y_val)))
        assert found.value.step == run.steps - 1
        scores = WithoutHessian().score(run, dross.mean_loss((p.X_val, p.Y_val)))
        assert np.isfinite(scores.values[:-1]).all()


def test_labels_of_a_query_out_of_range(record, tmp_path):
    p = problem("mlp", "sgd")
    model, optimizer = p.start()
    options = {"path": tmp_path / "t", "batches": p.batches, "progress": False}
    run = dross.train(model, (p.X, p.Y), "cross_entropy", optimizer, **options)
    with pytest.raises(InvalidInput, match=r"Labels run from \d to 9, but the model has 3 outputs"):
        run.influence(dross.mean_loss((p.X_val, p.Y_val + 7)))

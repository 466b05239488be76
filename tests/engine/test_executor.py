"""The executor: the eager way and the fast ways give the same bits; memory may run out."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import dross
from dross.data.batch import Batch
from dross.engine.executor import Executor
from dross.engine.memory import VjpPlan
from dross.engine.objective import Objective
from dross.engine.state import Layout
from dross.errors import InvalidInput
from tests.zoo import problem

# 12 epochs have 36 steps of the same size, and a pass is written down at its 16th call
EPOCHS = 12


def ask_everything(run: dross.Run, p) -> dict[str, np.ndarray]:
    query, many = dross.mean_loss((p.X_val, p.Y_val)), dross.losses((p.X_val, p.Y_val))
    models = run.counterfactual([[0], [1, 2], [5, 8, 13]])
    return {
        "theta": run.recording.state_at(run.steps).theta.numpy(),
        "scores": run.influence(query).values,
        "scores of many queries": run.influence(many).values,
        "counterfactual losses": models.evaluate(many),
        "counterfactual changes": models.changes(query),
        "parameter influence": run.parameter_influence([0, 3, 14]).flat.numpy(),
    }


@pytest.mark.parametrize(
    "model, optimizer",
    [
        ("linear", "sgd"),
        ("mlp", "momentum"),
        ("mlp", "adam"),
        ("cnn", "nesterov"),
        ("batchnorm", "momentum"),
        ("groupnorm", "sgd"),
        ("tied", "adamw"),
        ("embedding", "rmsprop"),
    ],
)
def test_eager_and_default_give_the_same_bits(model, optimizer, record, monkeypatch):
    p = problem(model, optimizer, epochs=EPOCHS)
    monkeypatch.setenv("DROSS_EXECUTOR", "eager")
    run = record(p, keep=dross.tape.Checkpoints(every=7))
    eager = ask_everything(run, p)
    executor = run.recording.executor
    assert not executor.programs._written and not executor.programs._calls
    assert not executor.graphs._graphs and not executor.graphs._calls

    monkeypatch.delenv("DROSS_EXECUTOR")
    run = record(p, keep=dross.tape.Checkpoints(every=7))
    default = ask_everything(run, p)
    written = run.recording.executor.programs._written.items()
    used = {name for ((name, _), *_), program in written if program and program.trusted}
    assert used == {"training step", "reverse step", "step of many models"}
    for name, value in eager.items():
        np.testing.assert_array_equal(default[name], value, err_msg=name, strict=True)


def test_a_run_that_was_trained_eagerly_is_retraced_by_programs(record, monkeypatch):
    """The two executors may be mixed: the replay arrives at the recorded bits."""
    p = problem("mlp", "momentum", epochs=EPOCHS)
    query = dross.mean_loss((p.X_val, p.Y_val))
    monkeypatch.setenv("DROSS_EXECUTOR", "eager")
    run = record(p, keep=dross.tape.Checkpoints(every=48))
    expected = run.influence(query).values
    monkeypatch.setenv("DROSS_EXECUTOR", "auto")
    found = run.influence(query).values
    assert run.recording.executor.programs._written
    np.testing.assert_array_equal(found, expected)


def test_an_unknown_executor_is_refused_with_the_choices(record, monkeypatch):
    p = problem("mlp", "sgd")
    run = record(p)
    monkeypatch.setenv("DROSS_EXECUTOR", "egaer")
    message = "DROSS_EXECUTOR must be auto or eager, not 'egaer'"
    with pytest.raises(InvalidInput, match=message):
        record(p)
    with pytest.raises(InvalidInput, match=message):
        run.influence(dross.mean_loss((p.X_val, p.Y_val)))


def linear_executor() -> Executor:
    model = nn.Linear(2, 1)
    layout = Layout(("weight", "bias"), (torch.Size([1, 2]), torch.Size([1])), (3,), ())
    return Executor(Objective(model, layout, lambda outputs, y: outputs.squeeze(-1)))


def test_on_a_cpu_a_pass_is_the_function_itself():
    executor, batch = linear_executor(), Batch(torch.ones(2), torch.ones(2), torch.ones(2), 0)
    with executor.training():
        assert executor.run("pass", lambda batch, x: batch.x.sum() + x, batch, 3.0) == 5.0
    assert not executor.graphs._graphs and not executor.programs._written


def test_a_graph_is_forgotten_when_a_frozen_tensor_is_replaced():
    executor = linear_executor()
    graphs, layer = executor.graphs, executor.objective.model
    layer.register_buffer("frozen", torch.ones(2))
    with executor.training():
        graphs._graphs["captured"] = object()  # type: ignore[assignment]
    with executor.training():
        assert graphs._graphs
    layer.frozen = torch.ones(2)
    with executor.training():
        assert not graphs._graphs


def test_out_of_memory_halves_the_queries_and_goes_on(record, monkeypatch):
    p = problem("mlp", "momentum")
    run = record(p)
    query = dross.losses((p.X_val, p.Y_val))
    whole = run.influence(query).values
    vjp = Objective.vjp_reverse

    def limited(self, theta, buffers, batch, a_g, *rest):
        if len(a_g) > 2:
            raise torch.OutOfMemoryError("no memory for so many")
        return vjp(self, theta, buffers, batch, a_g, *rest)

    monkeypatch.setattr(Objective, "vjp_reverse", limited)
    with pytest.warns(dross.DrossWarning, match="continuing with . of the queries"):
        found = run.influence(query).values
    np.testing.assert_allclose(found, whole, rtol=1e-10, atol=1e-16)

    def impossible(*_):
        raise torch.OutOfMemoryError("none at all")

    monkeypatch.setattr(Objective, "vjp_reverse", impossible)
    with (
        pytest.warns(dross.DrossWarning, match="continuing with 1 instances"),
        pytest.raises(torch.OutOfMemoryError) as error,
    ):
        run.influence(dross.mean_loss((p.X_val, p.Y_val)))
    assert "an instance and one query do not fit" in error.value.__notes__[0]


@pytest.mark.parametrize("kind", ["gradient", "vjp_reverse", "vjp_forward"])
def test_a_batch_that_does_not_fit_is_cut(kind, record, monkeypatch):
    """The sums of its parts are those of the whole, to rounding; one query at a time by then."""
    p = problem("cnn", "adam")
    run = record(p, keep=dross.tape.Checkpoints(every=4))
    query = dross.losses((p.X_val[:3], p.Y_val[:3]))
    size = max(len(step.ids) for step in run.recording.segment(0).steps)
    if kind == "vjp_forward":
        for count in range(1, size + 1):
            run.recording.executor.splitter.plans[count.bit_length()] = VjpPlan(True, 8)
    whole, pass_ = run.influence(query).values, getattr(Objective, kind)

    def limited(self, theta, buffers, batch, *rest):
        if len(batch.c) > 3:
            raise torch.OutOfMemoryError("no memory for so many")
        return pass_(self, theta, buffers, batch, *rest)

    monkeypatch.setattr(Objective, kind, limited)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        found = run.influence(query).values
    assert any("instances of a batch at a time" in str(warning.message) for warning in said)
    assert np.nanmax(np.abs(whole)) > 1e-8
    np.testing.assert_allclose(found, whole, rtol=1e-9, atol=1e-13)
    assert {name for name, _ in run.recording.executor.splitter.max_rows} == {kind.split("_")[0]}


@pytest.mark.parametrize("model", ["batchnorm", "dropout"])
def test_a_batch_whose_instances_share_something_is_not_cut(model, record, monkeypatch):
    p = problem(model, "sgd")
    run, vjp = record(p), Objective.vjp_reverse

    def limited(self, theta, buffers, batch, *rest):
        if len(batch.c) > 3:
            raise torch.OutOfMemoryError("no memory for so many")
        return vjp(self, theta, buffers, batch, *rest)

    monkeypatch.setattr(Objective, "vjp_reverse", limited)
    with pytest.raises(torch.OutOfMemoryError) as error:
        run.influence(dross.mean_loss((p.X_val, p.Y_val)))
    assert "cannot be split" in error.value.__notes__[0]

"""What a retrace takes, planned before it is begun, against what it takes."""

import pytest
import torch
from torch import nn

import dross
from dross.engine.device import measure_peak
from dross.engine.executor import Executor
from dross.influence.retrace import retrace
from tests.zoo import problem

KEEPS = {
    "every": dross.tape.EveryStep(),
    "checkpoints": dross.tape.Checkpoints(every=8),
    "two states": dross.tape.Budget(60_000, in_memory=4_000),
    "last": dross.tape.LastEpochs(2),
}


def count_gradients(monkeypatch) -> list:
    taken, gradient = [], Executor.gradient

    def watched(self, *given):
        taken.append(1)
        return gradient(self, *given)

    monkeypatch.setattr(Executor, "gradient", watched)
    return taken


@pytest.mark.parametrize("epochs", [None, 2])
@pytest.mark.parametrize("optimizer", ["momentum", "adam"])
@pytest.mark.parametrize("keep", list(KEEPS))
def test_the_steps_that_are_taken_again_are_counted_exactly(
    keep, optimizer, epochs, record, monkeypatch
):
    p = problem("mlp", optimizer, epochs=6)
    run, query = record(p, keep=KEEPS[keep]), dross.mean_loss((p.X_val, p.Y_val))
    plan = run.plan(query, epochs=epochs)
    taken = count_gradients(monkeypatch)
    run.influence(query, epochs=epochs)
    assert plan.taken_again == len(taken)
    asked = 2 if keep == "last" or epochs == 2 else 6
    assert plan.steps == asked * run.steps / 6


@pytest.mark.parametrize("keep", [dross.tape.EveryStep(), dross.tape.Checkpoints(every=5)])
def test_those_of_a_loop_of_ones_own_too(keep, tmp_path, monkeypatch):
    torch.manual_seed(0)
    x, y = torch.randn(12, 4), torch.randint(0, 3, (12,))
    model = nn.Linear(4, 3)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=tmp_path / "t", keep=keep)
    for t in range(12):
        ids = torch.arange(t % 3, 12, 3)
        with recorder.step(ids, x[ids], y[ids]) as losses:
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    run, query = recorder.run((x, y)), dross.mean_loss((x, y))
    plan, taken = run.plan(query), count_gradients(monkeypatch)
    run.influence(query)
    assert plan.taken_again == len(taken) == 12


def test_the_peak_is_that_of_all_tensors_that_a_retrace_holds(tmp_path):
    """A model so large that states and adjoints are what counts."""
    torch.manual_seed(0)
    x, y = torch.randn(12, 400), torch.randint(0, 400, (12,))
    model = nn.Linear(400, 400)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    options = {"path": tmp_path / "t", "epochs": 6, "batch_size": 6, "progress": False}
    keep = dross.tape.Checkpoints(every=6)
    run = dross.train(model, (x, y), "cross_entropy", optimizer, keep=keep, **options)
    query = dross.losses((x[:3], y[:3]))
    plan = run.plan(query)
    _, counted = measure_peak(lambda: retrace(run.recording, query), torch.device("cpu"))
    theta_bytes = 4 * 400 * 401
    assert plan.state_bytes == 4 * theta_bytes  # theta, two moments, the gradient
    assert plan.adjoint_bytes == 3 * 3 * theta_bytes
    assert plan.states_at_once == 7
    assert 0.85 * counted < plan.peak_bytes < 1.2 * counted


def test_a_plan_fits_on_eighty_columns(record):
    p = problem("mlp", "adam", epochs=6)
    run = record(p, keep=dross.tape.Checkpoints(every=8))
    plan = run.plan(dross.losses((p.X_val, p.Y_val)))
    assert max(map(len, str(plan).splitlines())) <= 80 and len(repr(plan)) <= 80
    assert plan.seconds > 0 and plan.training_steps > 1
    assert "replayed" in str(plan) and "to read" in str(plan)

"""One repetition of each cell of Table 1 against numbers computed elsewhere, to 1e-9."""

import numpy as np
import pytest
import torch
from experiments.networks import dense

import dross

CELLS = [
    "adult_logreg",
    "adult_dnn",
    "20news_logreg",
    pytest.param("20news_dnn", marks=pytest.mark.slow),  # two minutes
    "mnist_logreg",
    "mnist_dnn",
]


def assert_close(found, expected):
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9 * np.nanmax(np.abs(expected)))


@pytest.mark.parametrize("cell", CELLS)
def test_cell(shared_oracle, tmp_path, cell):
    known = np.load(shared_oracle / f"{cell}_0.npz")
    model = dense(known["x_tr"].shape[1], *([8, 8] if cell.endswith("dnn") else []), 1).double()
    with torch.no_grad():
        for k, parameter in enumerate(model.parameters()):
            parameter.copy_(torch.from_numpy(known[f"init_{k}"]))
    alpha = float(known["alpha"])
    data = [
        tuple(torch.from_numpy(known[f"{kind}_{part}"]).double() for kind in "xy")
        for part in ("tr", "val")
    ]
    run = dross.train(
        model,
        data[0],
        "binary_cross_entropy",
        torch.optim.SGD(model.parameters(), lr=0.1),
        path=tmp_path / "tape",
        batches=list(known["batches"]),
        lr=known["lr"],
        progress=False,
        penalty=lambda params: alpha / 2 * sum((value**2).sum() for value in params.values()),
    )
    query = dross.mean_loss(data[1])
    for k, parameter in enumerate(model.parameters()):
        assert_close(parameter.detach().numpy(), known[f"f64_final_{k}"])
    assert_close(run.influence(query).values, known["f64_infl_sgd"])
    assert_close(
        dross.estimators.WithoutHessian().score(run, query).values, known["f64_infl_nohess"]
    )
    solver = dross.estimators.MomentumSGD(100, 0.01, 0.9)
    damping = alpha if cell.endswith("logreg") else 1.0
    published = dross.estimators.InfluenceFunction(solver, damping)
    assert_close(published.score(run, query).values, known["f64_infl_icml"])
    assert_close(run.leave_one_out(query), known["f64_infl_true"])
    instances = np.arange(0, 200, 40)
    linear = run.counterfactual([[j] for j in instances])
    seed, _ = query.derivative(run.recording.objective, run.recording.state_at(run.steps))
    theta, layout = run.recording.state_at(run.steps).theta, run.recording.objective.layout
    moved = (
        torch.stack([layout.flatten(linear.parameters(k)) for k in range(len(instances))]) - theta
    )
    np.testing.assert_allclose(
        (moved @ seed.theta[0]).numpy(),
        known["f64_infl_true_linear"][instances],
        rtol=0,
        atol=1e-9 * np.abs(known["f64_infl_true_linear"]).max(),
    )

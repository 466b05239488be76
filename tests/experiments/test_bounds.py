"""The paper's theorems against what happens."""

import numpy as np
import pytest
import torch
from torch import nn

import dross
from experiments import bounds

ALPHA = 0.5


def logistic_run(tmp_path, epochs: int, optimizer=None):
    """Logistic regression with a penalty: lambda = alpha, Lambda = alpha + max |x|^2 / 4."""
    rng = torch.Generator().manual_seed(0)
    X = torch.randn(40, 3, dtype=torch.float64, generator=rng)
    Y = (X[:, 0] + 0.5 * torch.randn(40, dtype=torch.float64, generator=rng) > 0).double()
    model = nn.Linear(3, 1, bias=False).double()
    with torch.no_grad():
        model.weight.zero_()
    smooth = ALPHA + float((X**2).sum(1).max()) / 4
    optimizer = optimizer or torch.optim.SGD(model.parameters(), lr=1 / smooth)
    optimizer.param_groups[0]["params"] = list(model.parameters())
    penalty = lambda p: ALPHA / 2 * p["weight"].pow(2).sum()
    run = train(model, (X, Y), optimizer, tmp_path, epochs=epochs, penalty=penalty)
    return run, smooth


def train(model, data, optimizer, folder, epochs=1, **options):
    options |= {"path": folder / "t", "epochs": epochs, "batch_size": 4}
    options |= {"progress": False, "overwrite": True}
    return dross.train(model, data, "binary_cross_entropy", optimizer, **options)


@pytest.mark.parametrize("epochs", [1, 3])
def test_the_actual_error_is_below_theorem_1(tmp_path, epochs):
    run, smooth = logistic_run(tmp_path, epochs)
    everyone = np.arange(len(run))
    estimated = run.parameter_influence(everyone)["weight"].flatten(1)
    cf = run.counterfactual([[j] for j in everyone])
    weights = torch.stack([cf.parameters(j)["weight"].flatten() for j in everyone])
    actual = weights - run.parameters()["weight"].flatten()
    bound = bounds.theorem1(run, ALPHA, smooth)
    error = (actual - estimated).norm(dim=1).numpy()
    assert (bound.visits == epochs).all()
    assert (error <= bound.bound).all() and error.max() > 0
    assert (estimated.norm(dim=1).numpy() <= bound.largest * (1 + 1e-12)).all()
    # the bound says something: the truth itself is not far below it
    assert (actual.norm(dim=1).numpy() > bound.bound / 50).all()


def test_theorem_1_by_hand(tmp_path):
    """An instance used at step 0 of T: h(a) = eta/|S| (1 - eta a)^(T-1) |g|."""
    run, smooth = logistic_run(tmp_path, 1)
    bound = bounds.theorem1(run, ALPHA, smooth)
    segment = run.recording.tape.read(0)
    j, eta = int(segment.steps[0].ids[0]), 1 / smooth
    x, y = run.recording.instances[np.array([j])]
    g = float(((torch.sigmoid(torch.zeros(1)) - y) * x).norm())  # theta is 0 at the start
    h = [eta / 4 * (1 - eta * a) ** (run.steps - 1) * g for a in (ALPHA, smooth)]
    np.testing.assert_allclose(bound.bound[j], np.sqrt(2 * (h[0] ** 2 + h[1] ** 2)), rtol=1e-10)


def test_theorem_2_is_the_sum_in_the_proof():
    eta, steps, smooth, gradient, lipschitz = 0.01, 50, 3.0, 2.0, 1.5
    by_hand = sum(
        (1 + eta * smooth) ** (steps - s - 1) * eta * lipschitz * (2 * eta * gradient * steps) ** 2
        for s in range(1, steps)
    )
    np.testing.assert_allclose(
        bounds.theorem2(eta, steps, smooth, gradient, lipschitz), by_hand, rtol=1e-12
    )
    assert bounds.theorem2(eta, 2 * steps, smooth, gradient, lipschitz) > 4 * by_hand
    assert bounds.theorem2(1.0, 10**6, 10.0, 1.0, 1.0) == float("inf")
    np.testing.assert_allclose(
        bounds.theorem2(eta, steps, 0, gradient, lipschitz),
        4 * eta**3 * 49 * steps**2 * 4 * 1.5,
    )
    with pytest.raises(ValueError):
        bounds.theorem2(-1, 5, 1, 1, 1)


def test_several_rates_weights_or_clipping_are_refused(tmp_path):
    X, Y = torch.randn(8, 3, dtype=torch.float64), torch.ones(8, dtype=torch.float64)
    model = nn.Linear(3, 1).double()
    groups = [{"params": [model.weight], "lr": 0.1}, {"params": [model.bias], "lr": 0.2}]
    for optimizer, options in (
        (torch.optim.SGD(groups), {}),
        (torch.optim.SGD(model.parameters(), lr=0.1), {"clip_norm": 0.1}),
    ):
        run = train(model, (X, Y), optimizer, tmp_path, **options)
        with pytest.raises(ValueError, match="one rate and the plain mean"):
            bounds.theorem1(run, 0.1, 2.0)


def test_where_the_theorem_does_not_apply(tmp_path):
    run, smooth = logistic_run(tmp_path, 1)
    with pytest.raises(ValueError, match="at most 1/Lambda"):
        bounds.theorem1(run, ALPHA, 2 * smooth)
    with pytest.raises(ValueError, match="0 < lambda"):
        bounds.theorem1(run, 0.0, smooth)
    momentum = torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9)
    decayed = torch.optim.SGD([torch.zeros(1)], lr=0.1, weight_decay=0.1)
    for optimizer, message in ((momentum, "no momentum"), (decayed, "weight_decay")):
        run, smooth = logistic_run(tmp_path, 1, optimizer)
        with pytest.raises(ValueError, match=message):
            bounds.theorem1(run, ALPHA, smooth)

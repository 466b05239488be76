"""Every estimator: what it computes, its sign, its protocol."""

import numpy as np
import pytest
import torch
from torch import nn

import dross
from dross import estimators
from dross.errors import Diverged, InvalidInput
from tests.zoo import problem


@pytest.fixture(scope="module")
def convex(tmp_path_factory):
    """Penalized logistic regression trained nearly to its minimum: influence functions hold."""
    rng = torch.Generator().manual_seed(0)
    X = torch.randn(40, 4, dtype=torch.float64, generator=rng)
    Y = (X[:, 0] + 0.7 * torch.randn(40, dtype=torch.float64, generator=rng) > 0).double()
    model = nn.Linear(4, 1).double()
    run = dross.train(
        model,
        (X, Y),
        "binary_cross_entropy",
        torch.optim.SGD(model.parameters(), lr=0.5),
        epochs=300,
        batch_size=40,
        path=tmp_path_factory.mktemp("convex") / "t",
        progress=False,
        keep=dross.tape.Checkpoints(),
        penalty=lambda p: 0.05 / 2 * sum((v**2).sum() for v in p.values()),
    )
    X_val = torch.randn(30, 4, dtype=torch.float64, generator=rng)
    return run, dross.mean_loss((X_val, (X_val[:, 0] > 0).double()))


def dense_solution(run, query, damping):
    recording = run.recording
    state = recording.state_at(run.steps)
    x, y = recording.instances[np.arange(len(run))]
    loss = lambda theta: recording.objective.loss(recording.objective.predict(theta, {}, x), y)
    H = torch.func.hessian(lambda theta: loss(theta).mean())(state.theta)
    u = query.derivative(recording.objective, state)[0].theta[0]
    v = torch.linalg.solve(H + damping * torch.eye(len(H), dtype=H.dtype), u)
    return (torch.func.jacrev(loss)(state.theta) @ v / len(run)).numpy()


def test_influence_functions_against_a_dense_solve(convex):
    run, query = convex
    expected = dense_solution(run, query, 0.05)
    for solver, tolerance in (
        (estimators.ConjugateGradients(), 1e-6),
        (estimators.MomentumSGD(steps=2000, rate=0.1), 1e-6),
        (estimators.LiSSA(steps=400, batch_size=40, scale=2.0), 1e-6),
        (estimators.LiSSA(steps=4000, batch_size=20, scale=4.0), 0.3),
    ):
        scores = estimators.InfluenceFunction(solver, damping=0.05).score(run, query)
        np.testing.assert_allclose(
            scores.values, expected, atol=tolerance * np.nanmax(np.abs(expected))
        )
        assert scores.details["converged"] == (tolerance < 1e-3)
    short = estimators.InfluenceFunction(estimators.MomentumSGD(5), damping=0.05).score(run, query)
    assert not short.details["converged"] and short.details["residual"] > 1e-2


def test_near_a_minimum_all_ways_agree_with_the_truth(convex):
    run, query = convex
    truth = run.leave_one_out(query)
    solver = estimators.ConjugateGradients()
    exact = estimators.InfluenceFunction(solver, damping=0.0, penalty=True).score(run, query)
    for scores in (exact, estimators.Retrace().score(run, query)):
        check = np.corrcoef(scores.values, truth)[0, 1]
        assert check > 0.95, check
    # TracIn looks at gradients only: the sign is right, the size is not
    assert np.corrcoef(estimators.TracIn().score(run, query).values, truth)[0, 1] > 0.5


def test_solvers_that_cannot_succeed_say_so(convex):
    run, query = convex
    too_quick = estimators.LiSSA(steps=5000, batch_size=40, scale=0.01)
    with pytest.raises(Diverged, match="diverged"):
        estimators.InfluenceFunction(too_quick, damping=0.1).score(run, query)
    with pytest.raises(InvalidInput, match="negative"):
        estimators.InfluenceFunction(damping=-1.0).score(run, query)
    exact = estimators.InfluenceFunction(estimators.ConjugateGradients(), damping=0.1)
    weights = dross.query(lambda params, buffers: params["weight"].sum())
    assert exact.score(run, weights).details["converged"]


def test_a_solved_query_waits_for_the_others():
    """One that has nothing left to solve has no curvature, and is not taken for a saddle."""
    H = torch.diag(torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64))
    u = torch.stack([torch.zeros(3), torch.ones(3)]).double()
    solver = estimators.ConjugateGradients()
    v = solver.solve(lambda direction, batch: direction @ H, u, lambda steps: None)
    torch.testing.assert_close(v @ H, u)


def test_negative_curvature_is_named(record):
    p = problem("mlp", "maximize", epochs=6)
    run = record(p)
    with pytest.raises(Diverged, match="negative curvature"):
        estimators.InfluenceFunction(estimators.ConjugateGradients(), damping=0.0).score(
            run, dross.mean_loss((p.X_val, p.Y_val))
        )


def test_tracin_by_hand(record):
    p = problem("mlp", "sgd")
    run, query = record(p), dross.mean_loss((p.X_val, p.Y_val))
    scores = estimators.TracIn().score(run, query)
    assert scores.by_epoch.shape == (2, len(p.X))
    model, _ = p.start()
    for epoch, last in enumerate((3, 7)):
        with torch.no_grad():
            for name, value in run.parameters(step=last + 1).items():
                dict(model.named_parameters())[name].copy_(value)
        parameters = list(model.parameters())
        u = torch.autograd.grad(p.loss(model(p.X_val), p.Y_val).mean(), parameters)
        g = torch.autograd.grad(p.loss(model(p.X[[5]]), p.Y[[5]]).sum(), parameters)
        by_hand = 0.1 / len(p.batches[last]) * sum((a * b).sum() for a, b in zip(u, g))
        np.testing.assert_allclose(scores.by_epoch[epoch, 5], float(by_hand), rtol=1e-9)


def test_retrace_and_without_hessian_are_the_runs_own(record):
    p = problem("mlp", "sgd")
    run, query = record(p), dross.mean_loss((p.X_val, p.Y_val))
    np.testing.assert_array_equal(
        estimators.Retrace(epochs=1).score(run, query).values, run.influence(query, epochs=1).values
    )
    without = estimators.WithoutHessian().score(run, query)
    np.testing.assert_array_equal(
        without.by_epoch[-1], estimators.WithoutHessian(epochs=1).score(run, query).values
    )
    assert not without.hessian


def test_the_loss_is_the_loss(record):
    p = problem(
        "batchnorm", "sgd", penalty=lambda params: sum((v**2).sum() for v in params.values())
    )
    run, query = record(p), dross.mean_loss((p.X_val, p.Y_val))
    found = estimators.TrainingLoss().score(run, query).values
    expected = -run.evaluate(dross.losses((p.X, p.Y)))
    np.testing.assert_allclose(found[:-1], expected[:-1], rtol=1e-12)
    assert np.isnan(found[-1])  # never used


@pytest.mark.parametrize("name", ["InfluenceFunction", "TracIn", "TrainingLoss", "Random"])
def test_of_a_tape_of_the_last_epochs(record, name):
    """The scores are compared with runs that lack the instances in the epochs that are kept."""
    p = problem("mlp", "sgd", epochs=3)
    run, query = record(p, keep=dross.tape.LastEpochs(2)), dross.mean_loss((p.X_val, p.Y_val))
    scores = getattr(estimators, name)().score(run, query)
    expected = run.leave_one_out(query, [0, 3], epochs=2)
    np.testing.assert_array_equal(run.verify(scores, [0, 3]).actual, expected)


@pytest.fixture(scope="module")
def blobs(tmp_path_factory):
    rng = torch.Generator().manual_seed(0)
    X, X_val = torch.randn(120, 8, generator=rng), torch.randn(200, 8, generator=rng)
    Y, Y_val = (X[:, 0] > 0).long(), (X_val[:, 0] > 0).long()
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 2))
    run = dross.train(
        model,
        (X, Y),
        "cross_entropy",
        torch.optim.SGD(model.parameters(), lr=0.05),
        epochs=3,
        batch_size=20,
        path=tmp_path_factory.mktemp("blobs") / "t",
        progress=False,
    )
    return run, dross.mean_loss((X_val, Y_val))


@pytest.mark.parametrize(
    "estimator",
    [
        estimators.Retrace(),
        estimators.Retrace(epochs=1),
        estimators.WithoutHessian(),
        estimators.TracIn(),
        estimators.InfluenceFunction(),
        estimators.TrainingLoss(),
        estimators.Random(),
    ],
    ids=repr,
)
def test_the_protocol(blobs, estimator):
    run, query = blobs
    before = [value.clone() for value in run.recording.objective.model.state_dict().values()]
    scores = estimator.score(run, query)
    assert isinstance(scores, dross.Scores)
    assert scores.values.shape == (120,) and scores.values.dtype == np.float64
    assert np.isfinite(scores.values).all()
    x, y = query.data
    several = estimator.score(run, dross.losses((x[:3], y[:3])))
    assert several.values.shape == (3, 120) and several.query_value.shape == (3,)
    after = run.recording.objective.model.state_dict().values()
    assert all(torch.equal(a, b) for a, b in zip(before, after))

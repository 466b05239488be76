"""The expected error: a bounded loss, which wrong labels among the data do not turn around."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import dross
from dross.engine.losses import binary_cross_entropy, cross_entropy, squared_error
from dross.errors import InvalidInput
from tests.oracles import literal_run
from tests.zoo import F64, problem

TASKS = ("classes", "binary", "regression")


def make_problem(task, **changes):
    """A small run, and the scale that its expected error is asked with."""
    if task == "classes":
        return problem("mlp", "momentum", **changes), 1.0
    generator = torch.Generator().manual_seed(3)
    if task == "binary":
        draw = lambda n: torch.randint(0, 2, (n, 1), generator=generator).to(F64)
        loss, scale = binary_cross_entropy, 1.0
    else:
        draw = lambda n: torch.randn(n, 1, dtype=F64, generator=generator)
        loss, scale = squared_error, 2.0
    model = lambda: nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 1)).to(F64)
    p = problem("mlp", "momentum", **changes)
    return replace(p, model=model, loss=loss, Y=draw(15), Y_val=draw(9)), scale


def slow_expected_error(task, p, model, scale):
    """Instance by instance, from probabilities and distances: no loss in sight."""
    total = 0.0
    with torch.no_grad():
        for x, y in zip(p.X_val, p.Y_val):
            (out,) = model(x[None])
            if task == "classes":
                total += 1 - float(torch.softmax(out, 0)[y])
            elif task == "binary":
                yes = float(torch.sigmoid(out))
                total += 1 - (yes if y else 1 - yes)
            else:
                total += 1 - np.exp(-(float(out - y) ** 2) / scale)
    return total / len(p.X_val)


@pytest.mark.parametrize("task", TASKS)
def test_the_value_is_that_of_a_slow_oracle(record, task):
    p, scale = make_problem(task)
    found = record(p).evaluate(dross.expected_error((p.X_val, p.Y_val), scale=scale))
    expected = slow_expected_error(task, p, literal_run(p), scale)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("task", TASKS)
def test_scores_are_derivatives_in_the_weight(record, task):
    """Finite differences over literal runs (five points)."""
    p, scale = make_problem(task)
    scores = record(p).influence(dross.expected_error((p.X_val, p.Y_val), scale=scale)).values

    def at(j, offset):
        weights = torch.ones(len(p.X), dtype=F64)
        weights[j] += offset
        return slow_expected_error(task, p, literal_run(p, weights), scale)

    h = 1e-4
    for j in p.used:
        slope = (8 * (at(j, h) - at(j, -h)) - (at(j, 2 * h) - at(j, -2 * h))) / (12 * h)
        np.testing.assert_allclose(scores[j], -slope, rtol=1e-6, atol=1e-12)


@pytest.mark.parametrize("task", TASKS)
def test_scores_agree_with_leaving_one_out(record, task):
    p, scale = make_problem(task)
    run = record(p)
    query = dross.expected_error((p.X_val, p.Y_val), scale=scale)
    truth = run.leave_one_out(query, range(14))
    assert np.corrcoef(run.influence(query).values[:14], truth)[0, 1] > 0.95
    weights = torch.ones(len(p.X), dtype=F64)
    weights[2] = 0
    without, whole = (literal_run(p, w) for w in (weights, None))
    literal = [slow_expected_error(task, p, model, scale) for model in (without, whole)]
    np.testing.assert_allclose(truth[2], literal[0] - literal[1], rtol=1e-8, atol=1e-14)


def test_labels_that_are_wrong_at_random_keep_its_derivative_and_not_that_of_the_loss():
    """Every label in turn, with its probability: the expectation over wrong labels itself."""
    generator = torch.Generator().manual_seed(0)
    labels, wrong = torch.randint(0, 4, (20,), generator=generator), 0.3
    outputs = torch.randn(20, 4, dtype=F64, generator=generator) + 5 * torch.eye(4)[labels]

    def slope(bounded, chance_of_wrong):
        z = outputs.clone().requires_grad_()
        total = torch.zeros((), dtype=F64)
        for label in range(4):
            right = (labels == label).to(F64)
            chance = right * (1 - chance_of_wrong) + (1 - right) * chance_of_wrong / 3
            losses = cross_entropy(z, torch.full_like(labels, label))
            total = total + (chance * (1 - torch.exp(-losses) if bounded else losses)).sum()
        return torch.autograd.grad(total, z)[0].flatten()

    clean, noisy = slope(True, 0.0), slope(True, wrong)
    torch.testing.assert_close(noisy, (1 - wrong * 4 / 3) * clean)
    clean, noisy = slope(False, 0.0), slope(False, wrong)
    assert torch.cosine_similarity(clean, noisy, dim=0) < 0  # the model is right, and sure of it


@pytest.mark.parametrize("scale", [0, -1.0, float("nan"), float("inf"), "wide", None])
def test_a_scale_that_is_not_above_zero_is_refused(scale):
    data = (torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(InvalidInput, match="scale must be"):
        dross.expected_error(data, scale=scale)


def test_small_losses_keep_their_digits_and_large_ones_count_at_most_one(record):
    p, _ = make_problem("regression")
    run = record(p)
    wide = run.evaluate(dross.expected_error((p.X_val, p.Y_val), scale=1e12))
    mean = run.evaluate(dross.mean_loss((p.X_val, p.Y_val)))
    np.testing.assert_allclose(wide, mean / 1e12, rtol=1e-9)
    far = dross.expected_error((p.X_val, p.Y_val + 1e6))
    assert float(run.evaluate(far)) == 1.0
    with pytest.warns(dross.DrossWarning, match="derivative of the query expected_error is 0"):
        assert not run.influence(far).values[p.used].any()

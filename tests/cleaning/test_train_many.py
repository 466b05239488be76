"""Training many models side by side, and the search of a rate."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dross.cleaning import training as module
from dross.cleaning.training import ModelSpec, Recipe, default_batch_size, search_rate, train_many
from dross.data.seeds import mix_seeds
from dross.errors import Diverged, InvalidInput

EVERYONE = np.arange(240)
MLP = Recipe("mlp", (5,), 3, batch_size=16)


def blobs(count=240, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, 3, count)
    x = rng.normal(size=(count, 5)) + 1.5 * np.eye(5)[y]
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_side_by_side_is_what_each_is_alone(model):
    x, y = blobs()
    recipe = Recipe(model, (5,), 3, epochs=3, batch_size=16)
    other = torch.where(torch.arange(240) < 20, (y + 1) % 3, y)
    specs = [
        ModelSpec(1, EVERYONE, 0.1),
        ModelSpec(2, np.arange(100), 0.05),
        ModelSpec(3, EVERYONE, labels=other),
    ]
    together = train_many(recipe, x, y, specs)
    for k, spec in enumerate(specs):
        alone = train_many(recipe, x, y, [spec])
        for name, value in alone.parameters.items():
            np.testing.assert_allclose(together.parameters[name][k], value[0], atol=2e-5)
    outputs = together.outputs(x)
    assert outputs.shape == (3, 240, 3)


class Tied(nn.Module):
    """Encodes and decodes with one weight."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(5, 5), nn.Linear(5, 5)
        self.second.weight, self.last = self.first.weight, nn.Linear(5, 3)

    def forward(self, x):
        return self.last(torch.tanh(self.second(torch.tanh(self.first(x)))))


def test_tied_weights_stay_tied_side_by_side():
    x, y = blobs()
    recipe = Recipe("custom", (5,), 3, epochs=3, batch_size=16, make=Tied)
    specs = [ModelSpec(seed, EVERYONE, 0.1) for seed in (1, 2)]
    together = train_many(recipe, x, y, specs)
    assert "second.weight" not in together.parameters
    for k, spec in enumerate(specs):
        alone = train_many(recipe, x, y, [spec])
        for name, value in alone.parameters.items():
            np.testing.assert_allclose(together.parameters[name][k], value[0], atol=2e-5)
    np.testing.assert_allclose(
        together.outputs(x)[0], train_many(recipe, x, y, specs[:1]).outputs(x)[0], atol=1e-4
    )


def test_one_model_is_trained_by_the_plain_loop():
    """The oracle: torch's own optimizer and schedule on the same batches."""
    x, y = blobs()
    recipe = Recipe("linear", (5,), 3, epochs=2, batch_size=32)
    found = train_many(recipe, x, y, [ModelSpec(5, np.arange(200), 0.1)])
    model = recipe.build(mix_seeds(5, 1))
    order = module._BatchOrder(np.arange(200), mix_seeds(5, 2), 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 2 * 8)
    for _ in range(2 * 8):
        ids = torch.from_numpy(order.next())
        assert len(ids) == 32 and ids.max() < 200
        nn.functional.cross_entropy(model(x[ids]), y[ids]).backward()
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(found.parameters[name][0], p.detach(), atol=1e-6)


def test_models_with_chance_or_memory_are_trained_one_by_one():
    x, y = blobs()
    make = lambda: nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    recipe = Recipe("custom", (5,), 3, epochs=1, batch_size=32, make=make)
    trained = train_many(recipe, x, y, [ModelSpec(k, EVERYONE, 0.1) for k in range(2)])
    assert trained.buffers["1.running_mean"].shape == (2, 8)
    assert trained.outputs(x).shape == (2, 240, 3)


def test_frozen_weights_stay_frozen():
    def make():
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        model[0].requires_grad_(False)
        return model

    x, y = blobs()
    recipe = Recipe("custom", (5,), 3, epochs=1, batch_size=32, make=make)
    trained = train_many(recipe, x, y, [ModelSpec(k, EVERYONE, 0.1) for k in (1, 1)])
    initial = recipe.build(mix_seeds(1, 1))[0].weight
    np.testing.assert_array_equal(trained.parameters["0.weight"][0], initial)


def test_the_rate_decays_to_nothing_along_a_cosine():
    factors = [MLP.rate_factor(step, 40) for step in range(41)]
    assert factors[0] == 1 and factors[20] == pytest.approx(0.5) and factors[40] == 0
    assert all(np.diff(factors) < 0) and factors[1] > 0.99


def test_the_search_finds_a_rate_that_learns_and_survives_those_that_do_not():
    x, y = blobs()
    validation, rates = (x[160:], y[160:]), (1e6, 0.1, 1e-7)
    found = search_rate(MLP, x[:160], y[:160], validation, rates=rates, epochs=5)
    assert found.recipe.rate == 0.1 and found.recipe.epochs == 5
    assert set(found.curves) == set(rates) and found.epochs == [5]
    with pytest.raises(Diverged, match="diverges at every learning rate"):
        search_rate(MLP, 1e20 * x, y, (x, y), rates=(1e10,), epochs=2)


def test_every_pair_of_the_search_is_trained_to_its_own_end():
    x, y = blobs()
    train, validation = (x[:160], y[:160]), (x[160:], y[160:])
    found = search_rate(MLP, *train, validation, rates=(0.03,), seed=4)
    assert found.epochs == list(module.SEARCHED_EPOCHS)
    for epochs, loss in zip(found.epochs[:2], found.curves[0.03]):
        recipe = replace(MLP, epochs=epochs)
        alone = train_many(recipe, *train, [ModelSpec(4, np.arange(160), 0.03)])
        expected = recipe.loss_function(alone.outputs(validation[0])[0], validation[1]).mean()
        assert loss == pytest.approx(float(expected), rel=1e-5)


def test_the_search_takes_the_least_training_that_is_about_as_good():
    tried = [5, 10, 20]
    curves = {0.1: [0.50, 0.51, 0.6], 0.03: [0.9, 0.514, 0.50], 0.01: [0.9, 0.7, 0.514]}
    assert module._choose_rate(curves, tried) == (0.01, 20)  # 0.2, before 0.3 and 0.5
    assert module._choose_rate(curves | {0.01: [0.9, 0.7, 0.56]}, tried) == (0.03, 10)
    assert module._choose_rate(curves | {0.01: [0.5, 0.5, float("nan")]}, tried) == (0.03, 10)
    assert module._choose_rate({0.02: [0.5, 0.5], 0.01: [0.6, 0.5]}, [5, 10]) == (0.01, 10)


def test_of_a_large_set_a_sample_is_searched_for_as_many_steps(monkeypatch):
    x, y = blobs()
    monkeypatch.setattr(module, "MAX_SEARCHED_INSTANCES", 80)
    found = search_rate(MLP, x[:160], y[:160], (x[160:], y[160:]), rates=(0.03,))
    steps = found.recipe.epochs * 10  # of the whole: 160 in batches of 16
    assert steps in {5 * epochs + 5 * (epochs % 2) for epochs in found.epochs}
    given = search_rate(MLP, x[:160], y[:160], (x[160:], y[160:]), rates=(0.03,), epochs=3)
    assert given.recipe.epochs == 3 and given.epochs == [6]


def test_the_search_survives_models_that_do_not_fit_side_by_side(monkeypatch):
    x, y = blobs()
    bytes_of_three = 3 * module._bytes_per_model(MLP, x)
    monkeypatch.setattr(module, "_MAX_BYTES_SIDE_BY_SIDE", bytes_of_three)
    found = search_rate(MLP, x[:160], y[:160], (x[160:], y[160:]), epochs=2)
    assert all(len(curve) == 1 for curve in found.curves.values()) and len(found.curves) == 4


def test_the_default_batch_size_grows_with_the_data_within_bounds():
    assert default_batch_size(100) == 16 and default_batch_size(10**6) == 1024


def test_a_cnn_refuses_what_is_no_image():
    with pytest.raises(InvalidInput, match="takes images"):
        Recipe("cnn", (5,), 3).build(0)

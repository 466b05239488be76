"""Training many models side by side, and the statistics of the verdict."""

import numpy as np
import pytest
import torch
from torch import nn

from dross.cleanse import plan, verdict
from dross.cleanse.train_many import Fit, Recipe, default_batch, fit, losses, search, wrong
from dross.errors import BadInput, NotFinite


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
    fits = [
        Fit(1, np.arange(240), 0.1),
        Fit(2, np.arange(100), 0.05),
        Fit(3, np.arange(240), 0.1, other),
    ]
    together = fit(recipe, x, y, fits)
    for k, one in enumerate(fits):
        alone = fit(recipe, x, y, [one])
        for name, value in alone.parameters.items():
            np.testing.assert_allclose(together.parameters[name][k], value[0], atol=2e-5)
    assert together.outputs(x).shape == (3, 240, 3)
    assert (
        losses(recipe, together.outputs(x), y).shape
        == wrong(together.outputs(x), y).shape
        == (3, 240)
    )


def test_it_is_the_plain_loop():
    """The oracle: torch's own optimizer on the same batches."""
    x, y = blobs()
    recipe = Recipe("linear", (5,), 3, epochs=2, batch_size=32)
    found = fit(recipe, x, y, [Fit(5, np.arange(200), 0.1)])
    from dross.cleanse.train_many import _Order
    from dross.data.seeds import mixed

    model, order = recipe.build(mixed(5, 1)), _Order(np.arange(200), mixed(5, 2), 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(2 * 8):
        ids = torch.from_numpy(order.next())
        assert len(ids) == 32 and ids.max() < 200
        nn.functional.cross_entropy(model(x[ids]), y[ids]).backward()
        optimizer.step()
        optimizer.zero_grad()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(found.parameters[name][0], p.detach(), atol=1e-6)


def test_models_with_chance_or_memory_are_trained_one_by_one():
    x, y = blobs()
    make = lambda: nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 3))
    trained = fit(
        Recipe("custom", (5,), 3, epochs=1, batch_size=32, make=make),
        x,
        y,
        [Fit(k, np.arange(240), 0.1) for k in range(2)],
    )
    assert trained.buffers["1.running_mean"].shape == (2, 8) and trained.outputs(x).shape == (
        2,
        240,
        3,
    )


def test_the_search_finds_a_rate_that_learns_and_survives_those_that_do_not():
    x, y = blobs()
    found = search(
        Recipe("mlp", (5,), 3, batch_size=16),
        x[:160],
        y[:160],
        (x[160:], y[160:]),
        rates=(1e6, 0.1, 1e-7),
        epochs=5,
    )
    assert (
        found.recipe.rate == 0.1
        and found.recipe.epochs == 5
        and set(found.curves) == {1e6, 0.1, 1e-7}
    )
    with pytest.raises(NotFinite, match="diverges at every rate"):
        search(Recipe("mlp", (5,), 3, batch_size=16), 1e20 * x, y, (x, y), rates=(1e10,), epochs=2)
    assert default_batch(100) == 16 and default_batch(10**6) == 1024
    with pytest.raises(BadInput, match="takes pictures"):
        Recipe("cnn", (5,), 3).build(0)


def test_a_ranking_that_knows_nothing_is_rarely_suggested():
    """Seeds and halves are not independent trials, and several sizes are tried: the threshold has to bear both."""
    rng, suggested = np.random.default_rng(0), 0
    for _ in range(300):
        shared = rng.normal(0, 0.3, (1, 7, 150)) + rng.normal(
            0, 0.3, (1, 1, 150)
        )  # what all seeds have in common on these instances
        found = shared + rng.normal(0, 0.02, (5, 7, 1)) + rng.normal(0, 0.1, (5, 7, 150))
        suggested += plan._chosen(list(range(7)), found, np.zeros_like(found))[0] > 0
    assert suggested <= 24


def test_the_search_survives_models_that_do_not_fit_side_by_side(monkeypatch):
    import dross.cleanse.train_many as learn

    monkeypatch.setattr(
        learn,
        "_BYTES_SIDE_BY_SIDE",
        3 * learn._bytes(Recipe("mlp", (5,), 3, batch_size=16), blobs()[0]),
    )
    x, y = blobs()
    found = search(
        Recipe("mlp", (5,), 3, batch_size=16), x[:160], y[:160], (x[160:], y[160:]), epochs=2
    )
    assert all(len(curve) == 2 for curve in found.curves.values()) and len(found.curves) == 5


def test_frozen_weights_stay_frozen():
    def make():
        model = nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3))
        model[0].requires_grad_(False)
        return model

    x, y = blobs()
    recipe = Recipe("custom", (5,), 3, epochs=1, batch_size=32, make=make)
    trained = fit(recipe, x, y, [Fit(k, np.arange(240), 0.1) for k in (1, 1)])
    from dross.data.seeds import mixed

    np.testing.assert_array_equal(
        trained.parameters["0.weight"][0], recipe.build(mixed(1, 1))[0].weight
    )


def test_sign_flips_are_counted_exactly():
    assert verdict.sign_flip_test(np.array([1.0, 1.0, 1.0])) == pytest.approx(2 / 8)
    assert verdict.sign_flip_test(np.array([1.0, -1.0])) == 1.0
    differences = np.random.default_rng(0).normal(0.3, 1, 12)
    exact = verdict.sign_flip_test(differences)
    more = verdict.sign_flip_test(np.append(differences, [1e-9] * 2))  # above 12 they are sampled
    assert more == pytest.approx(exact, abs=0.02)


def values(before, after, control, spread=0.02, seeds=10, tested=400):
    """Per instance losses [seeds, 3, tested] with these means."""
    rng = np.random.default_rng(0)
    noise = rng.normal(0, spread, (seeds, 3, 1)) + rng.normal(0, 0.3, (1, 1, tested))
    return (
        np.array([before, after, control])[None, :, None]
        + noise
        + rng.normal(0, 0.05, (seeds, 3, tested))
    )


def test_what_is_measured_and_what_is_decided():
    better = verdict.compare_metric(values(1.0, 0.8, 1.0))
    assert (
        better.difference == pytest.approx(-0.2, abs=0.02)
        and better.interval[1] < 0
        and better.significant
    )
    assert (
        better.interval[0] < better.difference < better.interval[1]
        and better.p_t < 1e-5
        and better.p_signs < 0.01
    )
    assert (
        abs(better.random_difference) < 0.02
        and better.random_interval[0] < 0 < better.random_interval[1]
    )
    unclear = verdict.compare_metric(values(1.0, 0.999, 1.0))
    worse = verdict.compare_metric(values(1.0, 1.3, 1.0))
    assert verdict.decide_verdict({"error": better, "loss": unclear}) == "improved"
    assert verdict.decide_verdict({"error": unclear, "loss": unclear}) == "cannot tell"
    assert verdict.decide_verdict({"error": unclear, "loss": worse}) == "worse"
    assert verdict.decide_verdict({"error": better, "loss": worse}) == "cannot tell"
    assert verdict.advise("improved", {"loss": better}, 10, 400) == ""
    assert "probably smaller than" in verdict.advise("cannot tell", {"loss": unclear}, 10, 400)
    few = verdict.compare_metric(values(1.0, 0.98, 1.0, spread=0.03, seeds=4))
    assert "seeds would show it" in verdict.advise("cannot tell", {"loss": few}, 4, 400)


def test_a_test_part_of_ten_proves_nothing():
    """All seeds agree, but on ten instances: another ten might say otherwise, and the interval knows."""
    rng = np.random.default_rng(0)
    base = np.zeros((10, 3, 10))
    base[:, 1] = (rng.random(10) < 0.5) * -1.0 + (rng.random(10) < 0.4) * 1.0
    found = verdict.compare_metric(base + rng.normal(0, 1e-3, base.shape))
    assert found.p_t < 0.05 and not found.significant
    assert "The seeds agree" in verdict.advise("cannot tell", {"loss": found}, 10, 10)


def test_how_many_to_remove_is_more_than_chance_or_none():
    sizes, rng = [5, 10, 20], np.random.default_rng(0)
    around = lambda means: np.array(means)[None, :, None] + rng.normal(0, 0.2, (5, 3, 200))
    still = np.zeros((5, 3, 200))
    m, reason = plan._chosen(sizes, around([-0.1, -0.299, -0.3]), still)
    assert m == 10 and "removing 10" in reason  # the smallest that is about as good as the best
    assert plan._chosen(sizes, around([0.0, 0.0, 0.0]), still)[0] == 0
    rising = still + np.array([0.0, 0.01, 0.02])[None, :, None]
    assert (
        plan._chosen(sizes, around([-0.1, -0.299, -0.3]), rising)[0] == 5
    )  # a lower loss with more mistakes is only confidence
    m, reason = plan._chosen(sizes, around([-0.1, -0.299, -0.3]), still + 0.01)
    assert m == 0 and "not right more often" in reason
    wide = around([-0.04, -0.05, 0.0])
    wide[:, 0] += rng.normal(
        0, 5, (5, 200)
    )  # the smaller one is within reach of the best, but itself not sure
    assert plan._chosen(sizes, wide, still)[0] == 10
    assert plan.grid(1000)[0] == 5 and plan.grid(40) == [1, 2, 3, 6, 10]

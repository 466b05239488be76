"""Recorded runs, and the scores that they give."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from dross.cleanse.learning.recipe import Recipe
from dross.cleanse.learning.score import error_scale, record_run, score, validation_halves, verify
from dross.data.seeds import mix_seeds
from dross.errors import NotFinite
from dross.influence.query_makers import expected_error, mean_loss
from dross.influence.scores import Scores


def make_data(count=50):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(count, 4, generator=generator)
    return x, (x[:, 0] > 0).long()


@pytest.mark.parametrize("decay", [True, False])
def test_a_recorded_run_is_the_plain_loop_with_its_schedule(tmp_path, decay):
    x, y = make_data()
    recipe = Recipe("linear", (4,), 2, rate=0.1, epochs=3, batch_size=16, decay=decay)
    run = record_run(recipe, (x, y), 1, tmp_path / "run", seed=7, progress=False)
    model = recipe.build(mix_seeds(7, 1, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 3 * 4)
    for epoch in range(3):
        order = np.random.default_rng(mix_seeds(mix_seeds(7, 1, 2), epoch)).permutation(50)
        for ids in np.split(order, range(16, 50, 16)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x[ids]), y[ids]).backward()
            optimizer.step()
            if decay:
                schedule.step()
    for name, p in model.named_parameters():
        np.testing.assert_allclose(run.parameters()[name], p.detach(), atol=1e-6)


def make_numbers(count=60, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(count, 4, generator=generator)
    return x, x[:, :1] + 0.3 * torch.randn(count, 1, generator=generator)


CLASSES = Recipe("linear", (4,), 2, rate=0.05, epochs=4, batch_size=16)
NUMBERS = Recipe("linear", (4,), 1, "squared_error", rate=0.02, epochs=4, batch_size=16)
CASES = {"classes": (CLASSES, make_data), "numbers": (NUMBERS, make_numbers)}


@pytest.mark.parametrize("kind", CASES)
def test_scores_are_for_the_expected_error_of_either_half(tmp_path, kind):
    recipe, make = CASES[kind]
    data, validation = make(60), make(31)
    runs, found = score(recipe, data, validation, 2, tmp_path, seed=3, progress=False)
    whole = expected_error(validation, scale=found.scale)
    np.testing.assert_allclose(found.by_run[1], runs[1].influence(whole).values, atol=1e-7)
    half = validation_halves(validation, 3)[0]
    query = expected_error((validation[0][half], validation[1][half]), scale=found.scale)
    np.testing.assert_allclose(found.halves[0, 0], runs[0].influence(query).values, atol=1e-7)
    given = {"scale": found.scale, "at_random": 5, "seed": 0, "progress": False}
    checked = verify(runs[0], found.by_run[0], validation, np.arange(4), **given).verification
    truth = runs[0].leave_one_out(whole, checked.instances)
    np.testing.assert_allclose(checked.actual, truth, atol=1e-7)
    assert checked.tau > 0.8


def test_the_scale_is_one_for_classes_and_that_of_the_usual_miss_for_numbers():
    generator = torch.Generator().manual_seed(0)
    y = torch.randn(5000, 1, generator=generator)
    outputs = (y + 0.2 * torch.randn(5000, 1, generator=generator))[None]
    assert error_scale(NUMBERS, outputs, y) == pytest.approx(2 * 0.2**2, rel=0.1)
    wild = torch.where(torch.arange(5000)[:, None] % 10 == 0, y + 1000, y)  # a tenth is nonsense
    assert error_scale(NUMBERS, outputs, wild) == pytest.approx(2 * 0.2**2, rel=0.4)
    assert error_scale(NUMBERS, y[None], y) > 0
    assert error_scale(CLASSES, torch.zeros(1, 9, 2), torch.zeros(9).long()) == 1
    with pytest.raises(NotFinite, match="diverged"):
        error_scale(NUMBERS, outputs * float("nan"), y)


def test_scores_that_an_earlier_attempt_kept_are_used_unless_they_answer_another_question(tmp_path):
    data, validation = make_data(60), make_data(31)
    ask = lambda: score(CLASSES, data, validation, 1, tmp_path, seed=3, progress=False)
    runs, found = ask()
    kept = tmp_path / "run-0-scores.safetensors"
    before = kept.stat().st_mtime_ns
    np.testing.assert_array_equal(ask()[1].halves, found.halves)
    assert kept.stat().st_mtime_ns == before
    loss = runs[0].influence(mean_loss(validation))  # as earlier versions asked
    Scores(np.stack([loss.values] * 2), np.stack([loss.by_epoch] * 2), "mean_losses").save(kept)
    np.testing.assert_array_equal(ask()[1].halves, found.halves)


def test_wrong_validation_labels_do_not_turn_the_scores_around(tmp_path):
    """A third of the validation labels are wrong. The mean loss blames what is right."""
    x, y = make_data(200)
    wrong = torch.arange(200) % 10 == 0
    given = torch.where(wrong, 1 - y, y)
    x_val, y_val = x.flip(0) + 0.1, y.flip(0)
    y_val = torch.where(torch.arange(200) % 3 == 0, 1 - y_val, y_val)
    recipe = replace(CLASSES, epochs=20, rate=0.1)
    _, found = score(recipe, (x, given), (x_val, y_val), 1, tmp_path, seed=0, progress=False)
    ranks = np.argsort(np.argsort(found.scores))
    assert ranks[wrong.numpy()].mean() < 0.3 * 200

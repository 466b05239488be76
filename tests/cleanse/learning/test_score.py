"""Recorded runs, and the scores that they give."""

import numpy as np
import pytest
import torch
from torch import nn

from dross.cleanse.learning.recipe import Recipe
from dross.cleanse.learning.score import record_run
from dross.data.seeds import mix_seeds


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

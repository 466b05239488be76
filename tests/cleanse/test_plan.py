"""How many removals are suggested."""

import numpy as np

from dross.cleanse import plan


def test_a_ranking_that_knows_nothing_is_rarely_suggested():
    """Seeds and halves are not independent trials, and several sizes are tried."""
    rng, suggested = np.random.default_rng(0), 0
    for _ in range(300):
        # what all seeds have in common on these instances
        shared = rng.normal(0, 0.3, (1, 7, 150)) + rng.normal(0, 0.3, (1, 1, 150))
        found = shared + rng.normal(0, 0.02, (5, 7, 1)) + rng.normal(0, 0.1, (5, 7, 150))
        suggested += plan._choose_size(list(range(7)), found, np.zeros_like(found))[0] > 0
    assert suggested <= 24


def test_how_many_to_remove_is_more_than_chance_or_none():
    sizes, rng = [5, 10, 20], np.random.default_rng(0)
    around = lambda means: np.array(means)[None, :, None] + rng.normal(0, 0.2, (5, 3, 200))
    still = np.zeros((5, 3, 200))
    m, reason = plan._choose_size(sizes, around([-0.1, -0.299, -0.3]), still)
    assert m == 10 and "removing 10" in reason  # the smallest that is about as good as the best
    assert plan._choose_size(sizes, around([0.0, 0.0, 0.0]), still)[0] == 0
    rising = still + np.array([0.0, 0.01, 0.02])[None, :, None]
    # a lower loss with more mistakes is only confidence
    assert plan._choose_size(sizes, around([-0.1, -0.299, -0.3]), rising)[0] == 5
    m, reason = plan._choose_size(sizes, around([-0.1, -0.299, -0.3]), still + 0.01)
    assert m == 0 and "not right more often" in reason
    wide = around([-0.04, -0.05, 0.0])
    # the smaller one is within reach of the best, but itself not sure
    wide[:, 0] += rng.normal(0, 5, (5, 200))
    assert plan._choose_size(sizes, wide, still)[0] == 10


def test_the_numbers_that_are_tried_are_shares_of_the_training_part():
    assert plan.removal_sizes(1000)[0] == 5 and plan.removal_sizes(40) == [1, 2, 3, 6, 10]

"""Nearest neighbors, and which are nearer than chance explains."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_breast_cancer, load_digits, load_iris, load_wine
from sklearn.neighbors import NearestNeighbors
from sklearn.preprocessing import StandardScaler

from dross.cleaning import duplicates
from dross.cleaning.duplicates import find_neighbors


def draw(count: int, width: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("block_bytes", [1 << 28, 4 * 300 * 7])
def test_neighbors_are_those_of_brute_force(monkeypatch, block_bytes):
    monkeypatch.setattr(duplicates, "_BLOCK_BYTES", block_bytes)  # one block, and many
    rows = draw(300, 12) + 100  # far from zero: squares would cancel
    found = find_neighbors(rows, count=5)
    distances, places = NearestNeighbors(n_neighbors=6).fit(rows.numpy()).kneighbors(rows.numpy())
    assert np.array_equal(found.places.numpy(), places[:, 1:])
    assert np.allclose(found.distances.numpy(), distances[:, 1:], rtol=1e-5)


def test_what_is_near_is_found_through_the_projection_at_its_real_distance():
    rows = draw(400, 900)
    rows[7] = rows[300] + 0.05 * draw(1, 900, seed=1)[0]
    found = find_neighbors(rows)
    assert found.places[7, 0] == 300 and found.places[300, 0] == 7
    assert float(found.distances[7, 0]) == pytest.approx(float((rows[7] - rows[300]).norm()))


@pytest.mark.parametrize("width", [1, 2, 5, 10])
def test_the_dimension_is_that_of_the_data_with_and_without_copies(width):
    rows = draw(1500, width) @ draw(width, 40, seed=1)  # in a corner of 40 dimensions
    alone = find_neighbors(rows).dimension
    assert 0.8 * width < alone < 1.25 * width
    rows[:300] = rows[300:600] + 1e-4  # a fifth are copies of others
    assert 0.7 * width < find_neighbors(rows).dimension < 1.25 * width


@pytest.mark.parametrize("width", [2, 5, 20, 300])
@pytest.mark.parametrize("seed", range(3))
def test_chance_makes_no_near_pair_and_copies_are_found(width, seed):
    rows = draw(800, width, seed)
    assert find_neighbors(rows).near_pairs() == []
    planted = [(k, 400 + k) for k in range(20)]
    for one, other in planted:
        rows[other] = rows[one] + 1e-6 * draw(1, width, seed=other)[0]
    pairs = find_neighbors(rows).near_pairs()
    assert {(one, other) for one, other, _ in pairs} == set(planted)
    assert all(0 <= share < 0.01 for _, _, share in pairs)


@pytest.mark.parametrize("load", [load_iris, load_wine, load_breast_cancer, load_digits])
def test_real_tables_without_copies_have_no_near_pairs(load):
    rows = np.unique(StandardScaler().fit_transform(load().data), axis=0)
    assert find_neighbors(torch.from_numpy(rows).float()).near_pairs() == []


def test_two_that_lie_apart_from_everything_are_no_copies_for_that():
    rows = draw(500, 10)
    rows[0, 3] = rows[1, 3] = 200.0
    assert find_neighbors(rows).near_pairs() == []

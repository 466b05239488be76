"""Batches, and the ids they are known by."""

import numpy as np
import pytest
import torch

from dross.data.batch import Batch, MicroBatch
from dross.data.dataset import check_ids
from dross.errors import InvalidInput


def batch() -> Batch:
    x = {"a": torch.arange(8.0).reshape(4, 2), "b": torch.arange(4)}
    return Batch(x, torch.tensor([0, 1, 0, 1]), torch.full((4,), 0.25), seed=3)


def test_equal_coefficients_are_left_out():
    ids = np.arange(4)
    assert MicroBatch(ids, np.full(4, 0.25)).simplify().coefficients is None
    unequal = MicroBatch(ids, np.array([0.1, 0.2, 0.3, 0.4]))
    assert unequal.simplify() is unequal
    np.testing.assert_array_equal(MicroBatch(ids).weights, np.full(4, 0.25))


def test_rows_and_chosen_instances_keep_their_coefficients():
    part, chosen = batch().rows(slice(1, 3)), batch().select(np.array([False, True, True, False]))
    for found in (part, chosen):
        assert found.x["b"].tolist() == [1, 2] and found.y.tolist() == [1, 0]
        assert found.c.tolist() == [0.25, 0.25] and found.seed == 3


def test_a_batch_is_rebuilt_from_its_tensors():
    tensors, build, _ = batch().to_tensors()
    rebuilt = build([tensor + 1 for tensor in tensors])
    assert rebuilt.x["b"].tolist() == [1, 2, 3, 4] and rebuilt.y.tolist() == [1, 2, 1, 2]
    assert rebuilt.c.tolist() == [1.25] * 4 and rebuilt.seed == 3


def test_ids_that_are_no_instances():
    assert check_ids(torch.tensor([2, 0]), 3, "Ids").tolist() == [2, 0]
    with pytest.raises(InvalidInput, match="Ids must be between 0 and 2; found 3"):
        check_ids([0, 3], 3, "Ids")
    with pytest.raises(InvalidInput, match="Ids must be integers, not floating-point numbers"):
        check_ids([0.5], 3, "Ids")

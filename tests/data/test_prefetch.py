"""Batches that are looked up while the step before is computed."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import dross
from dross.data.batch import Prefetcher
from dross.data.dataset import Instances
from tests.zoo import problem

CPU = torch.device("cpu")


def test_batches_are_looked_up_ahead_in_the_direction_of_travel():
    looked_up = []

    def look_up(ids):
        looked_up.append(int(ids[0]))
        return ids.float(), ids

    ids = [torch.tensor([k]) for k in range(10)]
    with ThreadPoolExecutor(1) as reader:
        ahead = Prefetcher(look_up, ids, CPU, reader)
        for k in [0, 1, 2, 3, 9, 8, 7, 6, 2]:
            x, y = ahead(k)
            assert float(x) == int(y) == k
    assert looked_up[:6] == [0, 1, 2, 3, 4, 5]
    assert len(looked_up) < 20


def test_an_error_while_looking_ahead_reaches_the_caller():
    def look_up(ids):
        if int(ids[0]) == 2:
            raise OSError("the disk is gone")
        return ids, ids

    with ThreadPoolExecutor(1) as reader:
        ahead = Prefetcher(look_up, [torch.tensor([k]) for k in range(4)], CPU, reader)
        ahead(0), ahead(1)
        with pytest.raises(OSError, match="the disk is gone"):
            ahead(2)


def test_data_that_travel_to_the_device_give_the_same_scores(record, monkeypatch):
    p = problem("mlp", "momentum")
    query = dross.mean_loss((p.X_val, p.Y_val))
    expected = record(p).influence(query).values
    monkeypatch.setattr(Instances, "_is_sent_batch_by_batch", lambda self: self.stored is not None)
    np.testing.assert_array_equal(record(p).influence(query).values, expected)

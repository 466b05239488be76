"""Batches that are looked up together are those that are looked up one by one."""

import pytest
import torch
from experiments.augment import ShiftAndFlip
from torch.utils._pytree import tree_leaves

from dross.data.batch import BatchSource


@pytest.mark.parametrize(
    "augment",
    [
        ShiftAndFlip(1, flip=True),
        lambda x, g: x + torch.rand(len(x), generator=g)[:, None, None, None],
        None,
    ],
)
def test_a_row_of_batches_is_what_each_batch_is_by_itself(augment):
    x, y = torch.randn(30, 1, 5, 5), torch.arange(30)
    assert_same_rows(lambda ids: (x[ids], y[ids]), augment)


def test_a_row_of_batches_of_several_tensors():
    x, y = {"a": torch.randn(30, 3), "b": torch.randn(30, 4)}, torch.arange(30)
    assert_same_rows(lambda ids: ({name: value[ids] for name, value in x.items()}, y[ids]), None)


def assert_same_rows(look_up, augment):
    source = BatchSource(look_up, augment, torch.device("cpu"), True)
    ids = torch.randint(0, 30, (6, 4))
    single = []
    for place, row in enumerate(ids):
        source.generator(place).manual_seed(place)
        single.append(source.apply_augment(look_up(row), place))
    for place in range(6):
        source.generator(place).manual_seed(place)
    for one, other in zip(tree_leaves(source.load_many(ids)), tree_leaves(single), strict=True):
        assert torch.equal(one, other)

"""Nested values, taken apart into tensors and put together again."""

import torch

from dross.data.pytree import flatten, unflatten


def test_values_come_back_in_their_form():
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    tensors, form = flatten((a, {"z": b, "a": c}, None, True))
    assert [len(t) for t in tensors] == [1, 3, 2]  # dicts by name, whatever their order
    assert form == flatten((a, {"a": c, "z": b}, None, True))[1]
    assert form != flatten((a, {"a": c, "z": b}, None, False))[1]
    one, two, three, four = unflatten(tensors, form)
    assert one is a and two["z"] is b and two["a"] is c and three is None and four is True

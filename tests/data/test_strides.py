"""The order of a tensor's numbers in memory, and tensors put in an order."""

import pytest
import torch

from dross.data.strides import memory_order, orders_of, put_all_in_order, put_in_order

LAST = torch.channels_last


@pytest.mark.parametrize(
    "shape", [(2, 3, 4, 5), (1, 3, 4, 5), (2, 1, 4, 5), (2, 3, 1, 1), (1,) * 4]
)
@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST])
def test_a_tensor_is_put_in_its_order_again_with_all_its_strides(shape, layout):
    # kernels look at the strides of dimensions of one number, too
    t = torch.randn(shape).contiguous(memory_format=layout).clone(memory_format=layout)
    again = put_in_order(torch.randn(shape).clone(), memory_order(t))
    assert again.stride() == t.stride()


def test_orders():
    t = torch.randn(2, 3, 4)
    assert memory_order(t) == () and memory_order(t.permute(2, 0, 1)) == (1, 2, 0)
    assert memory_order(t.mT) == (0, 2, 1)
    assert memory_order(t[:, :2]) == () and memory_order(t[:1].expand(2, 3, 4)) == ()  # with gaps
    assert memory_order(torch.tensor(1.0)) == ()
    assert orders_of((t, {"y": t})) == () and orders_of((t, {"y": t.mT})) == ((), (0, 2, 1))


def test_a_batch_is_put_in_order():
    x, y = torch.randn(2, 3, 4, 4), torch.randn(5, 3)
    again = put_all_in_order((x, y, "name"), ((0, 2, 3, 1), (1, 0)))
    assert again[0].is_contiguous(memory_format=LAST) and again[1].stride() == (1, 5)
    assert torch.equal(again[0], x) and torch.equal(again[1], y) and again[2] == "name"
    (back, _, _) = put_all_in_order(again, ())
    assert back.is_contiguous() and put_all_in_order((x,), ())[0] is x

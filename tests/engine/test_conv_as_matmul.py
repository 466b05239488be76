"""A convolution as a matrix product is the convolution, with its derivatives of every order."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from dross.engine.conv import ConvAsMatmul


@pytest.mark.parametrize(
    "how, channels", [({}, 3), ({"many": True}, 3), ({"wide": 8}, 3), ({"wide": 8}, 8)]
)
@pytest.mark.parametrize(
    "options",
    [{}, {"padding": 1}, {"stride": 2}, {"padding": (2, 1), "stride": (1, 2)}, {"bias": False}],
)
def test_a_convolution_as_a_product_is_the_convolution(options, how, channels):
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, 2, (3, 2), dtype=torch.float64, **options)
    x = torch.randn(2, channels, 7, 6, dtype=torch.float64, requires_grad=True)
    plain = layer(x)
    with ConvAsMatmul(**how):
        product = layer(x)
    np.testing.assert_allclose(product.detach(), plain.detach(), rtol=1e-12, atol=1e-13)
    inputs = [x, *layer.parameters()]
    gradients = lambda y: torch.autograd.grad((y**2).sum(), inputs, create_graph=True)
    ours, theirs = gradients(product), gradients(plain)
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(one.detach(), other.detach(), rtol=1e-11, atol=1e-12)
    second = lambda first: torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
    for one, other in zip(second(ours), second(theirs)):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_a_product_for_many_directions_is_one_for_each(recwarn):
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 2, 3, padding=1, stride=2, dtype=torch.float64)
    x = torch.randn(2, 3, 7, 6, dtype=torch.float64)
    directions = torch.randn(4, 2, 3, 7, 6, dtype=torch.float64)

    def second(direction):
        """The derivative of a directional derivative uses windows and sums of windows."""
        cube = lambda x: (layer(x) ** 3).sum()
        return grad(lambda x: (grad(cube)(x) * direction).sum())(x)

    plain = torch.stack([second(direction) for direction in directions])
    with ConvAsMatmul():
        together = vmap(second)(directions)
    np.testing.assert_allclose(together.detach(), plain.detach(), rtol=1e-10, atol=1e-11)
    assert not [warning for warning in recwarn if "performance drop" in str(warning.message)]


def test_what_is_no_plain_convolution_is_convolved_by_torch():
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    for layer in (
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv1d(4, 2, 2),
    ):
        given = x if isinstance(layer, nn.Conv2d) else x[..., 0]
        plain = layer.double()(given)
        with ConvAsMatmul():
            np.testing.assert_allclose(
                layer(given).detach(), plain.detach(), rtol=1e-12, atol=1e-14
            )

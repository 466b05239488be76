"""The forward-mode rules: directional derivatives, and their derivatives, against reverse mode twice."""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap
from torch.utils.flop_counter import FlopCounterMode

from dross.autodiff.forward_rules import ForwardRules

X2, X3 = (6, 4), (6, 3, 4)  # [B, features], [B, T, features]
PICTURES = (5, 4, 6, 6)
LABELS = torch.tensor([0, 2, 1, 2, 0, 1])

MODELS = {
    "linear": (lambda: nn.Linear(4, 3), X2),
    "linear without bias": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)),
        X2,
    ),
    "linear on sequences": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2), nn.Flatten()),
        X3,
    ),
    "conv1d": (
        lambda: nn.Sequential(
            nn.Conv1d(3, 2, 2), nn.Tanh(), nn.Conv1d(2, 2, 2, padding=1), nn.Flatten()
        ),
        X3,
    ),
    "conv2d": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 2, 3), nn.Tanh(), nn.Conv2d(2, 3, 2, stride=2), nn.Flatten()
        ),
        PICTURES,
    ),
    "conv2d in groups": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 4, 1), nn.Tanh(), nn.Conv2d(4, 4, 3, groups=2, bias=False), nn.Flatten()
        ),
        PICTURES,
    ),
    "conv3d": (
        lambda: nn.Sequential(nn.Conv3d(2, 2, 2), nn.Tanh(), nn.Conv3d(2, 1, 2), nn.Flatten()),
        (3, 2, 3, 3, 3),
    ),
    "relu": (
        lambda: nn.Sequential(
            nn.Conv2d(4, 3, 3),
            nn.ReLU(),
            nn.Conv2d(3, 3, 2),
            nn.ReLU(inplace=True),
            nn.Flatten(),
            nn.Linear(27, 3),
        ),
        PICTURES,
    ),
    "batch norm": (
        lambda: nn.Sequential(nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2), nn.Tanh(), nn.Flatten()),
        PICTURES,
    ),
    "batch norm of the data": (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), X2),
    "batch norm without weights": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False), nn.Tanh()),
        X2,
    ),
    "layer norm": (
        lambda: nn.Sequential(
            nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh(), nn.LayerNorm([3, 4]), nn.Flatten()
        ),
        X3,
    ),
    "group norm": (
        lambda: nn.Sequential(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), nn.Flatten()),
        PICTURES,
    ),
    "log softmax": (lambda: nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1)), X2),
}


def recast(model: nn.Module, shape: tuple[int, ...], frozen: str):
    """outputs(theta) for the parameters that are not frozen, and a random theta."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator, dtype=torch.float64)
    parameters = {
        name: torch.randn(p.shape, generator=generator, dtype=torch.float64)
        for name, p in model.named_parameters()
    }
    free = {name: p for name, p in parameters.items() if not frozen or not name.endswith(frozen)}
    sizes, fixed = (
        [p.numel() for p in free.values()],
        {n: p for n, p in parameters.items() if n not in free},
    )

    def outputs(theta):
        pieces = {
            name: part.reshape(p.shape) for (name, p), part in zip(free.items(), theta.split(sizes))
        }
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        return functional_call(model, {**buffers, **fixed, **pieces}, (x,))

    return outputs, torch.cat([p.reshape(-1) for p in free.values()])


def by_rules(function, theta, direction, joined=False, several=False):
    def directional(theta):
        with ForwardRules(joined, several):
            return jvp(function, (theta,), (direction,))[1]

    d, back = vjp(directional, theta)
    return d, back(torch.ones(d.shape, dtype=d.dtype))[
        0
    ]  # the same for all directions, as in a retrace


def expected(function, theta, direction):
    """By reverse mode alone, whose rules are torch's own, one output after the other: many at once are wrong in torch for some norms."""
    theta = theta.clone().requires_grad_()
    values = function(theta)
    d = torch.stack(
        [torch.autograd.grad(value, theta, retain_graph=True)[0] @ direction for value in values]
    )
    (g,) = torch.autograd.grad(values.sum(), theta, create_graph=True)
    return d, torch.autograd.grad(g, theta, direction)[0]


def agree(function, theta, **how):
    direction = torch.randn(
        len(theta), dtype=torch.float64, generator=torch.Generator().manual_seed(1)
    )
    for found, wanted in zip(
        by_rules(function, theta, direction, **how), expected(function, theta, direction)
    ):
        np.testing.assert_allclose(found.detach(), wanted.detach(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("frozen", ["", "weight", "bias"])
@pytest.mark.parametrize("name", MODELS)
def test_a_layer_and_its_second_derivative(name, frozen, joined):
    make, shape = MODELS[name]
    model = make().double()
    outputs, theta = recast(model, shape, frozen)
    weights = torch.linspace(0.5, 1.5, outputs(theta).numel(), dtype=torch.float64).reshape(
        outputs(theta).shape
    )
    agree(lambda theta: (weights * outputs(theta).square()).flatten(1).sum(1), theta, joined=joined)


@pytest.mark.parametrize("several", [False, True])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"weight": torch.tensor([0.5, 2.0, 1.0], dtype=torch.float64)},
        {"ignore_index": 2},
        {"label_smoothing": 0.1},
        {"reduction": "sum"},
    ],
    ids=str,
)
def test_cross_entropy_as_torch_has_it(options, several):
    outputs, theta = recast(nn.Linear(4, 3).double(), X2, "")
    agree(
        lambda theta: F.cross_entropy(
            outputs(theta), LABELS, **{"reduction": "none", **options}
        ).reshape(-1),
        theta,
        several=several,
    )


def test_labels_of_bytes():
    outputs, theta = recast(nn.Linear(4, 3).double(), X2, "")
    agree(
        lambda theta: F.cross_entropy(outputs(theta), LABELS.to(torch.uint8), reduction="none"),
        theta,
        several=True,
    )


@pytest.mark.parametrize("several", [False, True])
def test_cross_entropy_of_probabilities_and_of_many_outputs_per_instance(several):
    outputs, theta = recast(nn.Linear(4, 3).double(), X2, "")
    shares = torch.softmax(torch.arange(18, dtype=torch.float64).reshape(6, 3).sin(), 1)
    agree(
        lambda theta: F.cross_entropy(outputs(theta), shares, reduction="none"),
        theta,
        several=several,
    )
    each = LABELS.reshape(3, 2)
    agree(
        lambda theta: F.cross_entropy(outputs(theta).reshape(3, 3, 2), each, reduction="none").mean(
            1
        ),
        theta,
        several=several,
    )


def test_many_directions_at_once_are_each_by_itself():
    outputs, theta = recast(MODELS["batch norm"][0]().double(), PICTURES, "")
    directions = torch.randn(
        3, len(theta), dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    together = vmap(lambda direction: by_rules(outputs, theta, direction, several=True))(directions)
    for k, direction in enumerate(directions):
        for found, wanted in zip(together, by_rules(outputs, theta, direction, joined=True)):
            np.testing.assert_allclose(found[k].detach(), wanted.detach(), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    "loss",
    [
        F.cross_entropy,
        lambda out, y, reduction: F.nll_loss(out.log_softmax(1), y, reduction=reduction),
    ],
)
def test_directions_share_what_goes_backwards_through_the_tangents(loss):
    """Two of seven products of a layer are the same for all: forward, and back through the tangents."""
    layers = [nn.Linear(4, 64), nn.Tanh(), *[nn.Linear(64, 64), nn.Tanh()] * 3, nn.Linear(64, 3)]
    outputs, theta = recast(
        nn.Sequential(*[copy.deepcopy(layer) for layer in layers]).double(), X2, ""
    )
    losses = lambda theta: loss(outputs(theta), LABELS, reduction="none")
    work = []
    for count in (1, 16):
        with FlopCounterMode(display=False) as counted:
            vmap(lambda direction: by_rules(losses, theta, direction, several=True))(
                torch.ones(count, len(theta), dtype=torch.float64)
            )
        work.append(counted.get_total_flops() / count)
    assert work[1] == pytest.approx((5 + 2 / 16) / 7 * work[0], rel=0.05)


@pytest.mark.parametrize("relu", [nn.ReLU(), torch.relu, Tensor.relu])
def test_nobody_asks_where_a_relu_would_change(relu):
    """The tangent of the data's layer is the same for all parameters while no ReLU switches: the way back to it, one product of the second layer, is not gone."""
    work = {}
    for name, activation in {"relu": relu, "tanh": torch.tanh}.items():
        model = TwoLayers(activation).double()
        outputs, theta = recast(model, X2, "")
        with FlopCounterMode(display=False) as counted:
            by_rules(
                lambda theta, outputs=outputs: outputs(theta).sum(1), theta, torch.ones_like(theta)
            )
        work[name] = counted.get_total_flops()
    assert work["tanh"] - work["relu"] == 2 * 6 * 64 * 32


class TwoLayers(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.first, self.second, self.activation = nn.Linear(4, 64), nn.Linear(64, 32), activation

    def forward(self, x):
        return self.second(self.activation(self.first(x)))


class PictureByPicture(nn.Module):
    """Its layers see one picture at a time, without the axis of the batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(4, 6, 1)

    def forward(self, x):
        return torch.stack([torch.tanh(self.layer(picture)) for picture in x]).flatten(1)


class OneByOne(PictureByPicture):
    """The same by a vmap of the model's own."""

    def forward(self, x):
        return vmap(lambda picture: torch.tanh(self.layer(picture)))(x).flatten(1)


@pytest.mark.parametrize("make", [PictureByPicture, OneByOne])
@pytest.mark.parametrize("frozen", ["", "weight"])
def test_models_that_look_at_one_instance_after_the_other(make, frozen):
    outputs, theta = recast(make().double(), PICTURES, frozen)
    for joined in (False, True):
        agree(lambda theta: outputs(theta).square().sum(1), theta, joined=joined)


def test_a_norm_in_eval_mode_is_left_to_torch():
    model = MODELS["batch norm"][0]().double().eval()
    outputs, theta = recast(model, PICTURES, "")
    agree(lambda theta: outputs(theta).square().sum(1), theta)

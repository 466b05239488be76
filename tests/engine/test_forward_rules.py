"""The forward-mode rules against reverse mode twice.

Checked are directional derivatives, and the derivatives of those.
"""

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, jvp, vjp, vmap
from torch.utils.flop_counter import FlopCounterMode

from dross.engine.forward_rules import ForwardRules

X2, X3 = (6, 4), (6, 3, 4)  # [B, features], [B, T, features]
IMAGES = (5, 4, 6, 6)
LABELS = torch.tensor([0, 2, 1, 2, 0, 1])


def flat(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten())


def relu_network() -> nn.Module:
    first = (nn.Conv2d(4, 3, 3), nn.ReLU(), nn.Conv2d(3, 3, 2), nn.ReLU(inplace=True))
    return nn.Sequential(*first, nn.Flatten(), nn.Linear(27, 3))


MODELS = {
    "linear": (lambda: nn.Linear(4, 3), X2),
    "linear without bias": (
        lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 3, bias=False)),
        X2,
    ),
    "linear on sequences": (lambda: flat(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 2)), X3),
    "conv1d": (lambda: flat(nn.Conv1d(3, 2, 2), nn.Tanh(), nn.Conv1d(2, 2, 2, padding=1)), X3),
    "conv2d": (
        lambda: flat(nn.Conv2d(4, 2, 3), nn.Tanh(), nn.Conv2d(2, 3, 2, stride=2)),
        IMAGES,
    ),
    "conv2d in groups": (
        lambda: flat(nn.Conv2d(4, 4, 1), nn.Tanh(), nn.Conv2d(4, 4, 3, groups=2, bias=False)),
        IMAGES,
    ),
    "conv3d": (lambda: flat(nn.Conv3d(2, 2, 2), nn.Tanh(), nn.Conv3d(2, 1, 2)), (3, 2, 3, 3, 3)),
    "relu": (relu_network, IMAGES),
    "batch norm": (lambda: flat(nn.Conv2d(4, 2, 3), nn.BatchNorm2d(2), nn.Tanh()), IMAGES),
    "batch norm of the data": (lambda: nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 3)), X2),
    "batch norm without weights": (
        lambda: nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, affine=False), nn.Tanh()),
        X2,
    ),
    "layer norm": (
        lambda: flat(nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh(), nn.LayerNorm([3, 4])),
        X3,
    ),
    "group norm": (lambda: flat(nn.Conv2d(4, 4, 3), nn.GroupNorm(2, 4), nn.Tanh()), IMAGES),
    "log softmax": (lambda: nn.Sequential(nn.Linear(4, 3), nn.LogSoftmax(1)), X2),
}


def recast(model: nn.Module, shape: tuple[int, ...], frozen: str):
    """outputs(theta) for the parameters that are not frozen, and a random theta."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda shape: torch.randn(shape, generator=generator, dtype=torch.float64)
    x = draw(shape)
    parameters = {name: draw(p.shape) for name, p in model.named_parameters()}
    free = {name: p for name, p in parameters.items() if not frozen or not name.endswith(frozen)}
    fixed = {name: p for name, p in parameters.items() if name not in free}
    sizes = [p.numel() for p in free.values()]

    def outputs(theta):
        parts = zip(free.items(), theta.split(sizes))
        pieces = {name: part.reshape(p.shape) for (name, p), part in parts}
        buffers = {name: b.clone() for name, b in model.named_buffers()}
        return functional_call(model, {**buffers, **fixed, **pieces}, (x,))

    return outputs, torch.cat([p.reshape(-1) for p in free.values()])


def by_rules(function, theta, direction, joined=False, several=False):
    """The directional derivatives by the rules, and the derivative of their sum."""

    def directional(theta):
        with ForwardRules(joined, several):
            return jvp(function, (theta,), (direction,))[1]

    d, back = vjp(directional, theta)
    weights = torch.ones(d.shape, dtype=d.dtype)  # the same for all directions, as in a retrace
    return d, back(weights)[0]


def by_reverse_mode(function, theta, direction):
    """The same by reverse mode alone, whose rules are torch's own.

    One output after the other: many at once are wrong in torch for some norms.
    """
    theta = theta.clone().requires_grad_()
    values = function(theta)
    rows = [torch.autograd.grad(value, theta, retain_graph=True)[0] for value in values]
    (g,) = torch.autograd.grad(values.sum(), theta, create_graph=True)
    d = torch.stack([row @ direction for row in rows])
    return d, torch.autograd.grad(g, theta, direction)[0]


def draw_directions(*shape: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def check_rules(function, theta, **how):
    direction = draw_directions(len(theta), seed=1)
    expected = by_reverse_mode(function, theta, direction)
    for found, wanted in zip(by_rules(function, theta, direction, **how), expected):
        np.testing.assert_allclose(found.detach(), wanted.detach(), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("joined", [False, True])
@pytest.mark.parametrize("frozen", ["", "weight", "bias"])
@pytest.mark.parametrize("name", MODELS)
def test_a_layer_and_its_second_derivative(name, frozen, joined):
    make, shape = MODELS[name]
    model = make().double()
    outputs, theta = recast(model, shape, frozen)
    shape = outputs(theta).shape
    weights = torch.linspace(0.5, 1.5, shape.numel(), dtype=torch.float64).reshape(shape)
    losses = lambda theta: (weights * outputs(theta).square()).flatten(1).sum(1)
    check_rules(losses, theta, joined=joined)


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
    options = {"reduction": "none", **options}
    losses = lambda theta: F.cross_entropy(outputs(theta), LABELS, **options).reshape(-1)
    check_rules(losses, theta, several=several)


def test_labels_of_bytes():
    outputs, theta = recast(nn.Linear(4, 3).double(), X2, "")
    labels = LABELS.to(torch.uint8)
    losses = lambda theta: F.cross_entropy(outputs(theta), labels, reduction="none")
    check_rules(losses, theta, several=True)


@pytest.mark.parametrize("several", [False, True])
def test_cross_entropy_of_probabilities(several):
    outputs, theta = recast(nn.Linear(4, 3).double(), X2, "")
    shares = torch.softmax(torch.arange(18, dtype=torch.float64).reshape(6, 3).sin(), 1)
    losses = lambda theta: F.cross_entropy(outputs(theta), shares, reduction="none")
    check_rules(losses, theta, several=several)


@pytest.mark.parametrize("several", [False, True])
def test_cross_entropy_of_many_outputs_per_instance(several):
    outputs, theta = recast(nn.Linear(4, 3).double(), X2, "")
    labels = LABELS.reshape(3, 2)

    def losses(theta):
        return F.cross_entropy(outputs(theta).reshape(3, 3, 2), labels, reduction="none").mean(1)

    check_rules(losses, theta, several=several)


def test_many_directions_at_once_are_each_by_itself():
    outputs, theta = recast(MODELS["batch norm"][0]().double(), IMAGES, "")
    directions = draw_directions(3, len(theta), seed=2)
    together = vmap(lambda direction: by_rules(outputs, theta, direction, several=True))(directions)
    for k, direction in enumerate(directions):
        for found, wanted in zip(together, by_rules(outputs, theta, direction, joined=True)):
            np.testing.assert_allclose(found[k].detach(), wanted.detach(), rtol=1e-9, atol=1e-11)


def likelihood(outputs, labels, reduction):
    return F.nll_loss(outputs.log_softmax(1), labels, reduction=reduction)


@pytest.mark.parametrize("loss", [F.cross_entropy, likelihood])
def test_directions_share_what_goes_backwards_through_the_tangents(loss):
    """Two of a layer's seven products are the same for all: forward, and back through tangents."""
    layers = [nn.Linear(4, 64), nn.Tanh(), *[nn.Linear(64, 64), nn.Tanh()] * 3, nn.Linear(64, 3)]
    model = nn.Sequential(*[copy.deepcopy(layer) for layer in layers]).double()
    outputs, theta = recast(model, X2, "")
    losses = lambda theta: loss(outputs(theta), LABELS, reduction="none")
    work = []
    for count in (1, 16):
        directions = torch.ones(count, len(theta), dtype=torch.float64)
        with FlopCounterMode(display=False) as counted:
            vmap(lambda direction: by_rules(losses, theta, direction, several=True))(directions)
        work.append(counted.get_total_flops() / count)
    assert work[1] == pytest.approx((5 + 2 / 16) / 7 * work[0], rel=0.05)


@pytest.mark.parametrize("relu", [nn.ReLU(), torch.relu, Tensor.relu])
def test_the_mask_of_a_relu_is_not_differentiated(relu):
    """One product of the second layer is spared, on the way back to the tangent of the first.

    That tangent is the same for all parameters while no ReLU switches.
    """
    work = {}
    for name, activation in {"relu": relu, "tanh": torch.tanh}.items():
        model = TwoLayers(activation).double()
        outputs, theta = recast(model, X2, "")
        with FlopCounterMode(display=False) as counted:
            sums = lambda theta, outputs=outputs: outputs(theta).sum(1)
            by_rules(sums, theta, torch.ones_like(theta))
        work[name] = counted.get_total_flops()
    assert work["tanh"] - work["relu"] == 2 * 6 * 64 * 32


class TwoLayers(nn.Module):
    def __init__(self, activation):
        super().__init__()
        self.first, self.second, self.activation = nn.Linear(4, 64), nn.Linear(64, 32), activation

    def forward(self, x):
        return self.second(self.activation(self.first(x)))


class ImageByImage(nn.Module):
    """Its layers see one image at a time, without the axis of the batch."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Conv2d(4, 6, 1)

    def forward(self, x):
        return torch.stack([torch.tanh(self.layer(image)) for image in x]).flatten(1)


class OneByOne(ImageByImage):
    """The same by a vmap of the model's own."""

    def forward(self, x):
        return vmap(lambda image: torch.tanh(self.layer(image)))(x).flatten(1)


@pytest.mark.parametrize("make", [ImageByImage, OneByOne])
@pytest.mark.parametrize("frozen", ["", "weight"])
def test_models_that_look_at_one_instance_after_the_other(make, frozen):
    outputs, theta = recast(make().double(), IMAGES, frozen)
    for joined in (False, True):
        check_rules(lambda theta: outputs(theta).square().sum(1), theta, joined=joined)


def test_a_norm_in_eval_mode_is_left_to_torch():
    model = MODELS["batch norm"][0]().double().eval()
    outputs, theta = recast(model, IMAGES, "")
    check_rules(lambda theta: outputs(theta).square().sum(1), theta)

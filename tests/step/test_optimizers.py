"""Identities of every optimizer's pure form: <J v, u> = <v, J^T u>, J against finite differences, one step against torch's own."""

import numpy as np
import pytest
import torch

from dross.errors import NotSupported
from dross.step.clipping import ClipNorm, ClipValue
from dross.step.optimizers import SUPPORTED, current_numbers, read_optimizer
from dross.step.state import Derivative, State
from dross.step.step import Step, advance, pull, push
from zoo import OPTIMIZERS

SIZE = 12


def setting(name: str, steps: int, clip=None):
    """A pure optimizer with two parameter groups, a state it reaches after some steps, and a gradient."""
    rng = torch.Generator().manual_seed(steps)
    halves = [
        torch.nn.Parameter(torch.randn(SIZE // 2, dtype=torch.float64, generator=rng))
        for _ in range(2)
    ]
    optimizer = OPTIMIZERS[name]([{"params": [halves[0]], "lr": 0.03}, {"params": [halves[1]]}])
    pure = read_optimizer(optimizer, (SIZE // 2, SIZE // 2), optimizer.param_groups)
    row = current_numbers(pure, optimizer.param_groups)
    theta = torch.cat([half.detach() for half in halves])
    slots, clock = pure.initial(theta, row)
    state = State(theta, slots, {}, clock)
    step = Step((), row, 0, clip)
    for _ in range(steps):
        g = torch.randn(SIZE, dtype=torch.float64, generator=rng)
        for half, part in zip(halves, g.split(SIZE // 2)):
            half.grad = part.clone()
        if clip is None:
            optimizer.step()
        state = advance(pure, state, step, g, {})
    if clip is None:
        torch.testing.assert_close(
            state.theta, torch.cat([half.detach() for half in halves]), rtol=1e-13, atol=1e-15
        )
    return pure, state, step, torch.randn(SIZE, dtype=torch.float64, generator=rng)


def random_like(state: State, count: int, seed: int) -> Derivative:
    rng = torch.Generator().manual_seed(seed)
    draw = lambda: torch.randn(count, SIZE, dtype=torch.float64, generator=rng)
    return Derivative(draw(), {name: draw() for name in state.slots})


def product(one: Derivative, other: Derivative) -> torch.Tensor:
    total = (one.theta * other.theta).sum(1)
    return total + sum((one.slots[name] * other.slots[name]).sum(1) for name in one.slots)


@pytest.mark.parametrize("clip", [None, ClipNorm(0.5), ClipNorm(1e3), ClipValue(0.6)], ids=str)
@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_transpose(name, steps, clip):
    pure, state, step, g = setting(name, steps, clip)
    u, v = random_like(state, 3, 1), random_like(state, 3, 2)
    g_dot = torch.randn(3, SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    forwards = push(pure, state, step, g, v, g_dot)
    a_g, backwards = pull(pure, state, step, g, u)
    torch.testing.assert_close(
        product(forwards, u), product(v, backwards) + (g_dot * a_g).sum(1), rtol=1e-11, atol=1e-12
    )


@pytest.mark.parametrize("clip", [None, ClipNorm(0.5), ClipValue(0.6)], ids=str)
@pytest.mark.parametrize(
    "name", sorted(set(OPTIMIZERS) - {"rprop"})
)  # Rprop jumps by design; test_exactness checks its zeros
def test_tangent_against_finite_differences(name, clip):
    pure, state, step, g = setting(name, 3, clip)
    v = random_like(state, 1, 5)
    g_dot = torch.randn(SIZE, dtype=torch.float64, generator=torch.Generator().manual_seed(6))
    h = 1e-7

    def moved(sign: float) -> State:
        slots = {name: slot + sign * h * v.slots[name][0] for name, slot in state.slots.items()}
        return advance(
            pure,
            State(state.theta + sign * h * v.theta[0], slots, {}, state.clock),
            step,
            g + sign * h * g_dot,
            {},
        )

    positive = {"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf", "acc_delta"} & set(
        state.slots
    )
    for name_ in positive:  # a step of h must not make a square negative
        v.slots[name_].mul_(state.slots[name_])
    tangent = push(pure, state, step, g, v, g_dot[None])
    up, down = moved(1), moved(-1)
    torch.testing.assert_close(
        (up.theta - down.theta) / (2 * h), tangent.theta[0], rtol=1e-5, atol=1e-6
    )
    for slot in state.slots:
        torch.testing.assert_close(
            (up.slots[slot] - down.slots[slot]) / (2 * h),
            tangent.slots[slot][0],
            rtol=1e-5,
            atol=1e-6,
        )


def test_every_supported_optimizer_is_in_the_zoo():
    used = {
        type(make([torch.nn.Parameter(torch.zeros(1))])).__name__ for make in OPTIMIZERS.values()
    }
    assert used == set(SUPPORTED)


def test_groups_that_differ_in_more_than_numbers():
    parameters = [torch.nn.Parameter(torch.zeros(2)) for _ in range(2)]
    optimizer = torch.optim.Adam(
        [{"params": parameters[:1], "amsgrad": True}, {"params": parameters[1:]}]
    )
    with pytest.raises(NotSupported, match="differ in more than their numbers"):
        read_optimizer(optimizer, (2, 2), optimizer.param_groups)


def test_a_subclass_is_not_taken_for_its_parent():
    class SGD(torch.optim.SGD):
        pass

    optimizer = SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    with pytest.raises(NotSupported, match=r"torch\.optim's own classes"):
        read_optimizer(optimizer, (2,), optimizer.param_groups)


def test_clipping_is_torchs():
    g = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for clip, apply in (
        (ClipNorm(0.7), lambda p: torch.nn.utils.clip_grad_norm_([p], 0.7)),
        (ClipNorm(70.0), lambda p: torch.nn.utils.clip_grad_norm_([p], 70.0)),
        (ClipValue(0.3), lambda p: torch.nn.utils.clip_grad_value_([p], 0.3)),
    ):
        parameter = torch.nn.Parameter(torch.zeros(9, dtype=torch.float64))
        parameter.grad = g.clone()
        apply(parameter)
        np.testing.assert_allclose(clip(g).numpy(), parameter.grad.numpy(), rtol=1e-14)

"""Identities of every optimizer's pure form.

<J v, u> = <v, J^T u>, J against finite differences, and one step against torch's own.
"""

import pytest
import torch

from dross.engine.binding import current_hyperparams
from dross.engine.optim import SUPPORTED, read_optimizer
from dross.engine.state import Derivative, Layout, State
from dross.engine.step import ClipNorm, ClipValue, Step, advance, jvp_step, vjp_step
from dross.errors import NotSupported
from tests.zoo import HAS_MUON, JUMPS, OPTIMIZERS

SIZE = 12
HALF = SIZE // 2
SQUARES = {
    *("exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "exp_inf", "acc_delta"),
    *("row_var", "col_var", "exp_avg_sq_row", "exp_avg_sq_col"),
}


def draw(*shape: int, generator: torch.Generator | None = None, seed: int = 0) -> torch.Tensor:
    generator = generator or torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def setting(name: str, steps: int, clip=None):
    """A pure optimizer with two parameter groups, a state it reaches, a step and a gradient."""
    rng = torch.Generator().manual_seed(steps)
    shapes = [torch.Size(shape) for shape in ((2, 3), (3, 2))]
    halves = [torch.nn.Parameter(draw(*shape, generator=rng)) for shape in shapes]
    other = {} if name == "transformers_adafactor" else {"lr": 0.03}  # it has no rate
    optimizer = OPTIMIZERS[name]([{"params": [halves[0]], **other}, {"params": [halves[1]]}])
    layout = Layout(("one", "other"), tuple(shapes), (HALF, HALF), ())
    pure = read_optimizer(optimizer, optimizer.param_groups).for_layout(layout)
    hyperparams = current_hyperparams(pure, optimizer.param_groups)
    theta = torch.cat([half.detach().flatten() for half in halves])
    slots, counters = pure.initial(theta, hyperparams)
    state = State(theta, slots, {}, counters)
    step = Step((), hyperparams, 0, clip)
    for _ in range(steps):
        g = draw(SIZE, generator=rng)
        for half, part in zip(halves, g.split(HALF)):
            half.grad = part.view(half.shape).clone()
        if clip is None:
            optimizer.step()
        state = advance(pure, state, step, g, {})
    if clip is None:
        stepped = torch.cat([half.detach().flatten() for half in halves])
        torch.testing.assert_close(state.theta, stepped, rtol=1e-12, atol=1e-14)
    return pure, state, step, draw(SIZE, generator=rng)


def random_like(state: State, count: int, seed: int) -> Derivative:
    rng = torch.Generator().manual_seed(seed)
    theta = draw(count, SIZE, generator=rng)
    slots = state.slots.items()
    return Derivative(theta, {name: draw(count, len(t), generator=rng) for name, t in slots})


def product(one: Derivative, other: Derivative) -> torch.Tensor:
    total = (one.theta * other.theta).sum(1)
    return total + sum((one.slots[name] * other.slots[name]).sum(1) for name in one.slots)


@pytest.mark.parametrize("clip", [None, ClipNorm(0.5), ClipNorm(1e3), ClipValue(0.6)], ids=str)
@pytest.mark.parametrize("steps", [0, 1, 4])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_pull_is_the_transpose_of_push(name, steps, clip):
    pure, state, step, g = setting(name, steps, clip)
    u, v = random_like(state, 3, 1), random_like(state, 3, 2)
    g_dot = draw(3, SIZE, seed=3)
    forwards = jvp_step(pure, state, step, g, v, g_dot)
    a_g, backwards = vjp_step(pure, state, step, g, u)
    expected = product(v, backwards) + (g_dot * a_g).sum(1)
    torch.testing.assert_close(product(forwards, u), expected, rtol=1e-11, atol=1e-12)


@pytest.mark.parametrize("clip", [None, ClipNorm(0.5), ClipValue(0.6)], ids=str)
@pytest.mark.parametrize("name", sorted(set(OPTIMIZERS) - JUMPS))
def test_push_agrees_with_finite_differences(name, clip):
    pure, state, step, g = setting(name, 3, clip)
    v = random_like(state, 1, 5)
    g_dot = draw(SIZE, seed=6)
    h = 1e-7

    def after(offset: float) -> State:
        slots = {slot: value + offset * v.slots[slot][0] for slot, value in state.slots.items()}
        moved = State(state.theta + offset * v.theta[0], slots, {}, state.counters)
        return advance(pure, moved, step, g + offset * g_dot, {})

    for slot in SQUARES & set(state.slots):  # a step of h must not make a square negative
        v.slots[slot].mul_(state.slots[slot])
    tangent = jvp_step(pure, state, step, g, v, g_dot[None]).map(lambda t: t[0]).tensors()
    up, down = after(h).tensors(), after(-h).tensors()
    for part in up:
        difference = (up[part] - down[part]) / (2 * h)
        torch.testing.assert_close(difference, tangent[part], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_in_pieces_is_the_same_step(name, monkeypatch):
    pure, state, step, g = setting(name, 3)
    u, g_dot = random_like(state, 2, 1), draw(2, SIZE, seed=3)

    def everything() -> dict[str, torch.Tensor]:
        a_g, back = vjp_step(pure, state, step, g, u)
        found = {"a_g": a_g} | {f"vjp {n}": t for n, t in back.tensors().items()}
        forth = jvp_step(pure, state, step, g, u, g_dot).tensors()
        after = advance(pure, state, step, g, {}).tensors()
        return found | {f"jvp {n}": t for n, t in forth.items()} | after

    whole = everything()
    monkeypatch.setattr("dross.engine.update_rules._ON_CPU", 4)
    monkeypatch.setattr("dross.engine.update_rules._FEWEST", 4)
    for part, value in everything().items():
        torch.testing.assert_close(value, whole[part], rtol=1e-14, atol=1e-15)


def test_every_supported_optimizer_is_in_the_zoo():
    parameter = torch.nn.Parameter(torch.zeros(1, 1))
    there = {name: make for name, make in OPTIMIZERS.items() if HAS_MUON or "muon" not in name}
    supported = {name for name in SUPPORTED if hasattr(torch.optim, name)}
    assert {type(make([parameter])).__name__ for make in there.values()} >= supported


def test_groups_that_differ_in_more_than_hyperparameters():
    one, other = (torch.nn.Parameter(torch.zeros(2)) for _ in range(2))
    optimizer = torch.optim.Adam([{"params": [one], "amsgrad": True}, {"params": [other]}])
    with pytest.raises(NotSupported, match="differ in more than their hyperparameters"):
        read_optimizer(optimizer, optimizer.param_groups)


def test_a_subclass_is_not_taken_for_its_parent():
    class SGD(torch.optim.SGD):
        pass

    optimizer = SGD([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    with pytest.raises(NotSupported, match=r"torch\.optim's own classes"):
        read_optimizer(optimizer, optimizer.param_groups)

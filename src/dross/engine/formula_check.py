"""Compare a formula with its optimizer's own step, and its derivative with finite differences."""

from collections import OrderedDict, defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInput
from .formula import Formula, Options
from .torch_step import differentiate_table
from .update_rules import Slots
from .vjp import jvp

_STEPS = 3
_SAME = 1e-9  # of the largest number: a formula may round in another order
_SLOPE = 1e-4  # of the largest slope: a finite difference is no better
_WIDTH = 1e-6  # of a finite difference


def check_formula(formula: Formula, optimizer: torch.optim.Optimizer, options: Options) -> None:
    """Take a few steps with random numbers in float64, and compare.

    Arguments:
        formula: the pure function.
        optimizer: an optimizer of its class. Its own parameters and memory are left alone.
        options: of its first parameter group, without "step".

    Raises:
        InvalidInput: where they disagree; it says how.
    """
    rng = torch.Generator().manual_seed(0)
    draw = lambda shape: torch.randn(shape, generator=rng, dtype=torch.float64)
    for shape in formula.trials:
        parameter = torch.nn.Parameter(draw(shape))
        own = _copy(optimizer, parameter)
        theta, told = parameter.detach().clone(), dict(options)
        slots = formula.start(theta, told)
        for t in range(1, _STEPS + 1):
            g = draw(shape)
            told |= {"step": float(t)} if formula.counts else {}
            after = _apply(formula, theta, g, slots, told)
            _check_slope(formula, theta, g, slots, told, draw)
            parameter.grad = g.clone()
            own.step()
            theta, slots = after
            _compare("theta", theta, parameter.detach(), t)
            _compare_slots(slots, own.state[parameter], t, counts=formula.counts)


def _copy(optimizer: torch.optim.Optimizer, parameter: Tensor) -> torch.optim.Optimizer:
    """The same optimizer over another parameter, without memory and hooks."""
    kind = type(optimizer)
    made: Any = object.__new__(kind)
    # a scheduler puts a step of its own over the class's, and that one would step the original
    own = {name: value for name, value in vars(optimizer).items() if not hasattr(kind, name)}
    made.__dict__.update(own)
    hooks = [name for name in made.__dict__ if name.endswith("_hooks")]
    made.__dict__.update({name: OrderedDict() for name in hooks})
    made.state = defaultdict(dict)
    made.param_groups = [{**optimizer.param_groups[0], "params": [parameter]}]
    return made


def _apply(formula: Formula, theta: Tensor, g: Tensor, slots: Slots, options: Options):
    try:
        with torch.no_grad():
            after, kept = formula.update(theta, g, dict(slots), options)
    except Exception as error:  # the formula may be the user's
        raise InvalidInput(f"update(theta, g, slots, numbers) failed: {error!r}") from error
    if not isinstance(after, Tensor) or not isinstance(kept, Mapping) or set(kept) != set(slots):
        raise InvalidInput(
            "update(theta, g, slots, numbers) must return theta and a dict of the slots "
            f"{sorted(slots)}, not {type(after).__name__} and {_names(kept)}."
        )
    return after, dict(kept)


def _names(kept: Any) -> str:
    return str(sorted(map(str, kept))) if isinstance(kept, Mapping) else type(kept).__name__


def _compare(what: str, found: Tensor, expected: Tensor, t: int) -> None:
    if found.shape != expected.shape:
        raise InvalidInput(
            f"update gives {what} of shape {tuple(found.shape)}, not {tuple(expected.shape)}."
        )
    difference = float((found - expected).abs().max())
    if not difference <= _SAME * max(1.0, float(expected.abs().max())):
        raise InvalidInput(
            f"In step {t} update gives a different {what} than the optimizer's step: they differ "
            f"by up to {difference:.1e}."
        )


def _compare_slots(slots: Slots, state: Mapping[str, Any], t: int, *, counts: bool) -> None:
    for name, value in state.items():
        if isinstance(value, Tensor) and value.numel() > 1 and name not in slots:
            raise InvalidInput(
                f"The optimizer keeps '{name}' as well, which is not one of the slots."
            )
    for name, slot in slots.items():
        if not isinstance(state.get(name), Tensor):
            raise InvalidInput(
                f"The optimizer keeps no '{name}': it has {sorted(map(str, state))}."
            )
        _compare(f"'{name}'", slot, state[name], t)
    if counts and float(state.get("step", -1)) != t:
        raise InvalidInput("The optimizer keeps no counter 'step' of its steps.")


def _check_slope(
    formula: Formula, theta: Tensor, g: Tensor, slots: Slots, options: Options, draw: Any
) -> None:
    """The derivative along a random direction, by autograd and by a finite difference."""
    inputs = {"theta": theta, "g": g, **slots}
    # a square must not become negative; 0 stays
    along = {name: draw(value.shape) * _size(name, value) for name, value in inputs.items()}

    def after(offset: float) -> dict[str, Tensor]:
        moved = {name: value + offset * along[name] for name, value in inputs.items()}
        own = {name: moved[name] for name in slots}
        with torch.no_grad():
            theta, kept = formula.derived(moved["theta"], moved["g"], own, options)
        return {"theta": theta, **kept}

    step = lambda theta, slots, g: formula.derived(theta, g, slots, options)
    try:
        slopes = (
            _elementwise(step, inputs, along)
            if formula.elementwise
            else _by_blocks(step, inputs, along)
        )
    except InvalidInput:
        raise
    except Exception as error:  # the formula may be the user's
        raise InvalidInput(f"update cannot be differentiated by autograd: {error!r}") from error
    up, down = after(_WIDTH), after(-_WIDTH)
    for name, slope in slopes.items():
        difference = (up[name] - down[name]) / (2 * _WIDTH)
        error = float((difference - slope).abs().max())
        if not error <= _SLOPE * max(1.0, float(difference.abs().max())):
            raise InvalidInput(
                f"The derivative of {name} does not match a finite difference (they differ by up "
                f"to {error:.1e}). Is every number treated alike, by functions that autograd knows?"
            )


def _size(name: str, value: Tensor) -> Tensor | float:
    return 1.0 if name in ("theta", "g") else value.abs()


def _elementwise(step: Any, inputs: dict[str, Tensor], along: dict[str, Tensor]):
    slots = {name: value for name, value in inputs.items() if name not in ("theta", "g")}
    table = differentiate_table(step, inputs["theta"], slots, inputs["g"])
    slopes = {name: torch.zeros_like(inputs["theta"]) for name in ("theta", *slots)}
    for (out, source), entry in table.items():
        slopes[out] = slopes[out] + entry * along[source]
    return slopes


def _by_blocks(step: Any, inputs: dict[str, Tensor], along: dict[str, Tensor]):
    names = [name for name in inputs if name not in ("theta", "g")]
    at = lambda t: (t["theta"], {name: t[name] for name in names}, t["g"])
    pushed: Any = jvp(step, at(inputs), at(along))
    theta, slots = pushed[1]
    return {"theta": theta, **slots}

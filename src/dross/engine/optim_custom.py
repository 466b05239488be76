"""Which formula an optimizer follows, and `dross.optimizers.register` for one of your own."""

from collections.abc import Iterable, Mapping
from typing import Any

import torch

from ..errors import InvalidInput, NotSupported
from .formula import Formula, Update
from .formula_check import check_formula
from .formula_known import OF_PACKAGES, OF_TORCH
from .hyperparams import flatten_numbers, group_options, read_flags

__all__ = ["register"]

_REGISTERED: dict[type, Formula] = {}
_CHECKED: set[tuple] = set()


def register(
    optimizer: type[torch.optim.Optimizer],
    slots: Iterable[str] | Mapping[str, float],
    update: Update,
    *,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Teach dross an optimizer of your own that treats every number of a parameter alike.

        def update(theta, g, slots, numbers):
            m = numbers["decay"] * slots["m"] + g
            return theta - numbers["lr"] * torch.tanh(m), {"m": m}

        dross.optimizers.register(TanhSGD, ["m"], update)

    The derivative comes from autograd through `update`. On random numbers, `update` is compared at
    once with the optimizer's own step, and its derivative with finite differences.
    A tape of such a run can be opened once the optimizer is registered again.

    Arguments:
        optimizer: the class.
        slots: the names under which it keeps its memory of a parameter in `state`, as tensors of
            the parameter's shape; or a dict of these names and their initial values, where those
            are not 0.
        update: (theta, g, slots, numbers) -> (theta, slots) after one step, as new tensors.
            numbers has the options of the parameter group under their names and, where the
            optimizer keeps a counter "step", numbers["step"], which is 1 in the first step.
        options: the keyword arguments to build the optimizer with, for the comparison.

    Raises:
        InvalidInput: where the two disagree; it says how.
    """
    if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
        raise InvalidInput(
            f"register takes an optimizer class first, not {optimizer!r:.60}. Pass the class "
            "itself, a subclass of torch.optim.Optimizer."
        )
    if optimizer.__module__.startswith("torch.optim"):
        raise InvalidInput(
            f"dross knows torch.optim.{optimizer.__name__}: it need not be registered."
        )
    if not callable(update):
        raise InvalidInput(
            "update must be a function (theta, g, slots, numbers) -> (theta, slots)."
        )
    first = dict(slots) if isinstance(slots, Mapping) else dict.fromkeys(slots, 0.0)
    if isinstance(slots, str) or not all(isinstance(name, str) for name in first):
        raise InvalidInput('slots must be a list of names, such as ["exp_avg"].')
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    try:
        made = optimizer([parameter], **(options or {}))
        counts = _keeps_counter(made, parameter)
    except Exception as error:  # the class is the user's
        raise InvalidInput(
            f"{optimizer.__name__} could not be tried: {error!r}. Pass the arguments that it is "
            "built with: options=dict(lr=0.1, ...)."
        ) from error
    formula = Formula(
        f"{optimizer.__module__}.{optimizer.__qualname__}",
        update,
        lambda shape, options: dict.fromkeys(first, shape),
        elementwise=True,
        first=first,
        counts=counts,
        trials=((7,),),
    )
    try:
        check_formula(formula, made, _options_of(made))
    except InvalidInput as error:
        raise InvalidInput(f"{optimizer.__name__} cannot be registered. {error}") from error
    _REGISTERED[optimizer] = formula


def find_formula(optimizer: torch.optim.Optimizer) -> Formula | None:
    """The formula of an optimizer, or None where none is known.

    Raises:
        NotSupported: where the formula known by its class name is not what it computes.
    """
    kind = type(optimizer)
    if (own := _REGISTERED.get(kind)) is not None:
        return own
    name = kind.__name__
    of_torch = getattr(torch.optim, name, None) is kind
    formula = (OF_TORCH if of_torch else OF_PACKAGES).get(name)
    if formula is None:
        return None
    options = _options_of(optimizer)
    key = (kind, tuple((k, v) for k, v in options.items() if isinstance(v, (bool, str))))
    if key not in _CHECKED:
        try:
            check_formula(formula, optimizer, options)
        except Exception as error:  # the class is not ours
            raise NotSupported(
                f"The optimizer {name} of {kind.__module__} is not the {name} that dross knows, or "
                f"has options that dross does not know. {error} Register its rule with "
                "dross.optimizers.register(...)."
            ) from error
        _CHECKED.add(key)
    return formula


def formula_named(name: str) -> Formula:
    """The formula that a tape names."""
    every = [*OF_TORCH.values(), *OF_PACKAGES.values(), *_REGISTERED.values()]
    for formula in every:
        if formula.name == name:
            return formula
    raise NotSupported(
        f"The tape was recorded with {name}, whose rule is not known here. Call "
        "dross.optimizers.register(...) before opening it, as when it was recorded."
    )


def _options_of(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The options of the first parameter group, as a formula is told them."""
    group, own = optimizer.param_groups[0], optimizer.defaults
    return {**group_options(flatten_numbers(group, own)), **read_flags(group, own)}


def _keeps_counter(optimizer: torch.optim.Optimizer, parameter: torch.Tensor) -> bool:
    parameter.grad = torch.full_like(parameter, 0.5)
    optimizer.step()
    kept = "step" in optimizer.state[parameter]
    optimizer.state.clear()
    return kept

"""The formulas of Lion, Muon and Adafactor, and `dross.optim.register` for custom optimizers.

docs/derivations.md has them in letters. A formula is compared with the optimizer's own step before
it is used, so an optimizer of the same name that computes something else is refused.
"""

import math
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..errors import InvalidInput, NotSupported
from .formulas import Formula, Options, Parameterwise, Shapes, Update, update_by_formula
from .state import Derivative, Layout, State
from .update_rules import Elementwise, Hyperparams, Slots, flatten_options, read_flags

__all__ = ["register"]

#: the type in which Muon orthogonalizes; its derivative is that of the same map without rounding
ORTHOGONALIZED_IN = torch.bfloat16
_MATRICES = ((3, 4), (4, 3))


def _like_parameter(*names: str) -> Shapes:
    return lambda shape, options: dict.fromkeys(names, shape)


# --- Lion -----------------------------------------------------------------------------------------


def lion(theta: Tensor, g: Tensor, slots: Slots, o: Options) -> tuple[Tensor, Slots]:
    """theta' = (1 - lr decay) theta - lr sign(b1 m + (1-b1) g),   m' = b2 m + (1-b2) g."""
    (beta1, beta2), lr, m = o["betas"], o["lr"], slots["exp_avg"]
    theta = theta * (1 - lr * o["weight_decay"])
    direction = (m * beta1).add(g, alpha=1 - beta1).sign()
    return theta.add(direction, alpha=-lr), {"exp_avg": (m * beta2).add(g, alpha=1 - beta2)}


# --- Muon -----------------------------------------------------------------------------------------


def newton_schulz(
    matrix: Tensor, coefficients: Sequence[float], steps: int, eps: float, dtype: torch.dtype
) -> Tensor:
    """About the orthogonal matrix closest to this one: X <- a X + (b A + c A A) X, A = X X^T."""
    a, b, c = coefficients
    tall = matrix.size(0) > matrix.size(1)
    x = matrix.to(dtype)
    x = x.T if tall else x
    x = x / x.norm().clamp(min=eps)
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.T if tall else x


def _muon(theta: Tensor, g: Tensor, slots: Slots, o: Options, dtype: torch.dtype):
    mu, lr = o["momentum"], o["lr"]
    m = slots["momentum_buffer"].lerp(g, 1 - mu)
    update = g.lerp(m, mu) if o["nesterov"] else m
    update = newton_schulz(update, o["ns_coefficients"], int(o["ns_steps"]), o["eps"], dtype)
    rows, columns = theta.shape
    ratio = math.sqrt(max(1, rows / columns))
    if o.get("adjust_lr_fn") == "match_rms_adamw":
        ratio = 0.2 * math.sqrt(max(rows, columns))
    theta = theta * (1 - lr * o["weight_decay"])
    return theta.add(update, alpha=-lr * ratio), {"momentum_buffer": m}


def muon(theta: Tensor, g: Tensor, slots: Slots, o: Options) -> tuple[Tensor, Slots]:
    """torch.optim.Muon."""
    return _muon(theta, g, slots, o, ORTHOGONALIZED_IN)


def smooth_muon(theta: Tensor, g: Tensor, slots: Slots, o: Options) -> tuple[Tensor, Slots]:
    """The same without rounding: a staircase has no useful derivative."""
    return _muon(theta, g, slots, o, theta.dtype)


# --- Adafactor ------------------------------------------------------------------------------------


def adafactor(theta: Tensor, g: Tensor, slots: Slots, o: Options) -> tuple[Tensor, Slots]:
    """torch.optim.Adafactor. RMS(x)^2 is the mean of x^2."""
    lr, (eps1, eps2), t = o["lr"], o["eps"], o["step"]
    eps1 = torch.finfo(theta.dtype).eps if eps1 is None else eps1
    g = -g if o["maximize"] else g
    share = t ** o["beta2_decay"]  # 1 - beta2
    alpha = _root_mean_square(theta, at_least=eps2) * min(lr, 1 / t**0.5)
    theta = theta * (1 - lr * o["weight_decay"])
    if g.dim() > 1:
        row = slots["row_var"].lerp((g * g).mean(-1, keepdim=True), share)
        column = slots["col_var"].lerp((g * g).mean(-2, keepdim=True), share)
        slots = {"row_var": row, "col_var": column}
        v = row @ column / row.mean(-2, keepdim=True).clamp(min=eps1)
    else:
        v = slots["variance"].lerp(g * g, share)
        slots = {"variance": v}
    update = g * v.clamp(min=eps1 * eps1).rsqrt()
    clipped = update / _root_mean_square(update / o["d"], at_least=1.0)
    return theta - alpha * clipped, slots


def _adafactor_shapes(shape: torch.Size, o: Options) -> dict[str, torch.Size]:
    if len(shape) < 2:
        return {"variance": shape}
    *lead, rows, columns = shape
    return {"row_var": torch.Size([*lead, rows, 1]), "col_var": torch.Size([*lead, 1, columns])}


def adafactor_of_transformers(
    theta: Tensor, g: Tensor, slots: Slots, o: Options
) -> tuple[Tensor, Slots]:
    """transformers' Adafactor, which came from fairseq."""
    t, (eps1, eps2) = o["step"], o["eps"]
    rate = o.get("lr", 0.0)
    if o["relative_step"]:
        rate = min(1e-6 * t if o["warmup_init"] else 1e-2, 1.0 / math.sqrt(t))
    scale = _root_mean_square(theta, at_least=eps2) if o["scale_parameter"] else 1.0
    lr = scale * rate
    beta2 = 1.0 - t ** o["decay_rate"]
    mix = lambda old, new: old * beta2 + new * (1 - beta2)
    squares, after = g**2 + eps1, {}
    if g.dim() > 1:
        row = after["exp_avg_sq_row"] = mix(slots["exp_avg_sq_row"], squares.mean(-1))
        column = after["exp_avg_sq_col"] = mix(slots["exp_avg_sq_col"], squares.mean(-2))
        row = (row / row.mean(-1, keepdim=True)).rsqrt().unsqueeze(-1)
        update = row * column.rsqrt().unsqueeze(-2) * g
    else:
        v = after["exp_avg_sq"] = mix(slots["exp_avg_sq"], squares)
        update = v.rsqrt() * g
    update = update / _root_mean_square(update / o["clip_threshold"], at_least=1.0) * lr
    if "exp_avg" in slots:
        update = slots["exp_avg"] * o["beta1"] + update * (1 - o["beta1"])
        after["exp_avg"] = update
    return theta * (1 - o["weight_decay"] * lr) - update, after


def _shapes_of_transformers(shape: torch.Size, o: Options) -> dict[str, torch.Size]:
    shapes = {"exp_avg": shape} if o.get("beta1") is not None else {}
    if len(shape) < 2:
        return shapes | {"exp_avg_sq": shape}
    column = torch.Size([*shape[:-2], shape[-1]])
    return shapes | {"exp_avg_sq_row": shape[:-1], "exp_avg_sq_col": column}


def _root_mean_square(t: Tensor, at_least: float) -> Tensor:
    """max(RMS(t), at_least). The limit is applied before the root, which has no slope at 0."""
    return (t * t).mean().clamp(min=at_least**2).sqrt()


#: by the name of a class in torch.optim
OF_TORCH = {
    "Muon": Formula(
        "Muon",
        muon,
        _like_parameter("momentum_buffer"),
        elementwise=False,
        smooth=smooth_muon,
        has_counter=False,
        trial_shapes=_MATRICES,
    ),
    "Adafactor": Formula("Adafactor", adafactor, _adafactor_shapes, elementwise=False),
}
#: by the name of a class in any package
OF_PACKAGES = {
    "Lion": Formula("Lion", lion, _like_parameter("exp_avg"), elementwise=True, has_counter=False),
    "Adafactor": Formula(
        "Adafactor (transformers)",
        adafactor_of_transformers,
        _shapes_of_transformers,
        elementwise=False,
    ),
}


# --- the check of a formula -----------------------------------------------------------------------

# Compare a formula with its optimizer's own step, and its derivative with finite differences.

_STEPS = 3
_SAME = 1e-9  # of the largest number: a formula may round in another order
_SLOPE = 1e-4  # of the largest slope: a finite difference is no better
_WIDTH = 1e-6  # of a finite difference


def check_formula(formula: Formula, optimizer: torch.optim.Optimizer) -> None:
    """Take a few steps with random numbers in float64, and compare.

    Arguments:
        formula: the pure function.
        optimizer: an optimizer of its class. Its own parameters and memory are left alone.

    Raises:
        InvalidInput: where they disagree; it says how.
    """
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator, dtype=torch.float64)
    flags = read_flags(optimizer.param_groups[0], optimizer.defaults)
    h = [flatten_options(optimizer.param_groups[0], optimizer.defaults)]
    for shape in map(torch.Size, formula.trial_shapes):
        parameter = torch.nn.Parameter(draw(*shape))
        copied = _copy(optimizer, parameter)
        layout = Layout(("theta",), (shape,), (shape.numel(),), ())
        smooth = replace(formula, update=formula.smooth or formula.update)
        pure, derived = (
            update_by_formula(one, flags, layout.group_sizes, layout.shapes_by_group)
            for one in (formula, smooth)
        )
        theta = parameter.detach().clone().flatten()
        slots, counters = pure.initial(theta, h)
        state = State(theta, slots, {}, counters)
        for t in range(1, _STEPS + 1):
            g = draw(shape.numel())
            after = _try_update(pure, state, g, h)
            _check_slope(derived, state, g, h, draw)
            parameter.grad = g.view(shape).clone()
            copied.step()
            state = after
            _compare("theta", state.theta.view(shape), parameter.detach(), t)
            named = {slot: pure.split_slot(layout, slot, state.slots[slot], h) for slot in slots}
            kept = copied.state[parameter]
            _compare_slots({slot: parts["theta"] for slot, parts in named.items()}, kept, t)
            if formula.has_counter and float(kept.get("step", -1)) != t:
                raise InvalidInput("The optimizer does not count its steps in a 'step' entry.")


def _copy(optimizer: torch.optim.Optimizer, parameter: Tensor) -> torch.optim.Optimizer:
    """The same optimizer over another parameter, without memory and hooks."""
    kind = type(optimizer)
    made: Any = object.__new__(kind)
    # a scheduler puts its own step over the class's, and that one would step the original
    kept = {name: value for name, value in vars(optimizer).items() if not hasattr(kind, name)}
    kept |= {name: OrderedDict() for name in kept if name.endswith("_hooks")}
    made.__dict__.update(kept)
    made.state = defaultdict(dict)
    made.param_groups = [{**optimizer.param_groups[0], "params": [parameter]}]
    return made


def _try_update(
    pure: Elementwise | Parameterwise, state: State, g: Tensor, hyperparams: list[Hyperparams]
) -> State:
    try:
        after = pure.update(state, g, hyperparams)
    except Exception as error:  # the formula may be the user's
        raise InvalidInput(f"update(theta, g, slots, hyperparams) failed: {error!r}") from error
    if set(after.slots) != set(state.slots):
        raise InvalidInput(
            "update(theta, g, slots, hyperparams) must return theta and a dict of the slots "
            f"{sorted(state.slots)}, not of {sorted(after.slots)}."
        )
    return after


def _compare(what: str, value: Tensor, expected: Tensor, t: int) -> None:
    if value.shape != expected.shape:
        raise InvalidInput(
            f"update returns {what} of shape {tuple(value.shape)}, not {tuple(expected.shape)}."
        )
    difference = float((value - expected).abs().max())
    if not difference <= _SAME * max(1.0, float(expected.abs().max())):
        raise InvalidInput(
            f"In step {t}, update returns a different {what} from the optimizer's own step: they "
            f"differ by up to {difference:.1e}."
        )


def _compare_slots(slots: Slots, state: Mapping[str, Any], t: int) -> None:
    for name, value in state.items():
        if isinstance(value, Tensor) and value.numel() > 1 and name not in slots:
            raise InvalidInput(f"The optimizer also keeps '{name}', which is not one of the slots.")
    for name, slot in slots.items():
        if not isinstance(state.get(name), Tensor):
            raise InvalidInput(
                f"The optimizer does not keep '{name}': it has {sorted(map(str, state))}."
            )
        _compare(f"'{name}'", slot, state[name], t)


def _check_slope(
    pure: Elementwise | Parameterwise,
    state: State,
    g: Tensor,
    hyperparams: list[Hyperparams],
    draw: Callable[[int], Tensor],
) -> None:
    """The derivative along a random direction, by autograd and by a finite difference."""
    g_dot = draw(len(g))
    theta_dot = draw(len(state.theta))
    # a square must not become negative; 0 stays
    slots_dot = {name: draw(len(slot)) * slot.abs() for name, slot in state.slots.items()}

    def after(offset: float) -> dict[str, Tensor]:
        slots = {name: slot + offset * slots_dot[name] for name, slot in state.slots.items()}
        moved = replace(state, theta=state.theta + offset * theta_dot, slots=slots)
        return pure.update(moved, g + offset * g_dot, hyperparams).tensors()

    tangent = Derivative(theta_dot, slots_dot).map(lambda t: t[None])
    try:
        slope = pure.jvp(state, g, hyperparams, tangent, g_dot[None])
    except Exception as error:  # the formula may be the user's
        raise InvalidInput(f"update cannot be differentiated by autograd: {error!r}") from error
    up = after(_WIDTH)
    down = after(-_WIDTH)
    for name, product in slope.tensors().items():
        difference = (up[name] - down[name]) / (2 * _WIDTH)
        error = float((difference - product[0]).abs().max())
        if not error <= _SLOPE * max(1.0, float(difference.abs().max())):
            raise InvalidInput(
                f"The derivative of {name.removeprefix('slot.')} does not match a finite "
                f"difference (they differ by up to {error:.1e}). Check that update treats "
                "all elements of a tensor alike and uses only functions that autograd supports."
            )


# --- registered formulas --------------------------------------------------------------------------

_REGISTERED: dict[type, Formula] = {}
_CHECKED: set[tuple] = set()


def register(
    optimizer: type[torch.optim.Optimizer],
    slots: Iterable[str] | Mapping[str, float],
    update: Update,
    *,
    options: Mapping[str, Any] | None = None,
) -> None:
    """Register a custom optimizer whose update is elementwise.

        def update(theta, g, slots, hyperparams):
            m = hyperparams["decay"] * slots["m"] + g
            return theta - hyperparams["lr"] * torch.tanh(m), {"m": m}

        dross.optim.register(TanhSGD, ["m"], update)

    The derivative comes from autograd through `update`. On random numbers, `update` is immediately
    compared with the optimizer's own step, and its derivative with finite differences. To open the
    tape of such a run, register the optimizer again first.

    Arguments:
        optimizer: the optimizer class.
        slots: the names under which it keeps its state of a parameter in `state`, as tensors of
            the parameter's shape; or a dict of these names and their initial values, if those
            are not 0.
        update: (theta, g, slots, hyperparams) -> (theta, slots) after one step, as new tensors.
            hyperparams has the options of the parameter group under their names and, if the
            optimizer counts its steps in "step", hyperparams["step"], which is 1 in the first step.
        options: the keyword arguments to build the optimizer with, for the comparison.

    Raises:
        InvalidInput: the two disagree; the message contains the difference.
    """
    if not (isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer)):
        raise InvalidInput(
            f"The first argument of register must be an optimizer class, not {optimizer!r:.60}. "
            "Pass the class itself, a subclass of torch.optim.Optimizer."
        )
    if optimizer.__module__.startswith("torch.optim"):
        raise InvalidInput(
            f"dross already supports torch.optim.{optimizer.__name__}: do not register it."
        )
    if not callable(update):
        raise InvalidInput(
            "update must be a function (theta, g, slots, hyperparams) -> (theta, slots)."
        )
    initial = dict(slots) if isinstance(slots, Mapping) else dict.fromkeys(slots, 0.0)
    if isinstance(slots, str) or not all(isinstance(name, str) for name in initial):
        raise InvalidInput('slots must be a list of names, such as ["exp_avg"].')
    parameter = torch.nn.Parameter(torch.ones(3, dtype=torch.float64))
    try:
        made = optimizer([parameter], **(options or {}))
        parameter.grad = torch.full_like(parameter, 0.5)
        made.step()
    except Exception as error:  # the class is the user's
        raise InvalidInput(
            f"{optimizer.__name__} could not be tested: {error!r}. Pass the arguments that it is "
            "constructed with: options=dict(lr=0.1, ...)."
        ) from error
    formula = Formula(
        f"{optimizer.__module__}.{optimizer.__qualname__}",
        update,
        lambda shape, options: dict.fromkeys(initial, shape),
        elementwise=True,
        initial=initial,
        has_counter="step" in made.state[parameter],
        trial_shapes=((7,),),
    )
    try:
        check_formula(formula, made)
    except InvalidInput as error:
        raise InvalidInput(f"{optimizer.__name__} cannot be registered. {error}") from error
    _REGISTERED[optimizer] = formula


def find_formula(optimizer: torch.optim.Optimizer) -> Formula | None:
    """The formula of an optimizer, or None if none is known.

    Raises:
        NotSupported: where the formula known by its class name is not what it computes.
    """
    kind = type(optimizer)
    if kind in _REGISTERED:
        return _REGISTERED[kind]
    name = kind.__name__
    of_torch = getattr(torch.optim, name, None) is kind
    formula = (OF_TORCH if of_torch else OF_PACKAGES).get(name)
    if formula is None:
        return None
    flags = read_flags(optimizer.param_groups[0], optimizer.defaults)
    key = (kind, tuple(flags.items()))
    if key not in _CHECKED:
        try:
            check_formula(formula, optimizer)
        except Exception as error:  # the class is not ours
            raise NotSupported(
                f"The optimizer {name} of {kind.__module__} is not the {name} that dross supports, "
                f"or has options that dross does not support. {error} Register its update rule "
                "with dross.optim.register(...)."
            ) from error
        _CHECKED.add(key)
    return formula


def formula_named(name: str) -> Formula:
    """The formula that a tape names."""
    for formula in (*OF_TORCH.values(), *OF_PACKAGES.values(), *_REGISTERED.values()):
        if formula.name == name:
            return formula
    raise NotSupported(
        f"The tape was recorded with {name}, whose update rule is not registered. Call "
        "dross.optim.register(...) before opening the tape, as you did before recording it."
    )

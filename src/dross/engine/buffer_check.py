"""Find out which moving buffers of a model have a derivative that can be followed."""

import warnings
from dataclasses import replace

import torch
from torch import Tensor

from ..data.batch import Batch
from ..errors import DrossWarning
from .autodiff import batched_jvp, probe_direction
from .moving_buffers import open_gates
from .objective import Buffers, Objective


def hold_what_has_no_derivative(objective: Objective, batch: Batch) -> Objective:
    """The objective, with those buffers held whose derivative is not that of finite differences.

    A warning names them: they are recorded and replayed as they move, and scores treat them as
    constants.
    """
    if not objective.followed:
        return objective
    # in 16 bits a finite difference is nothing but rounding, and casts do not hide a derivative
    uncast = replace(objective, precision=replace(objective.precision, autocast=None))
    with uncast.training(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch: the model looks at a value that has a gradient
        wrong = _find_wrong(uncast, batch)
    if not wrong:
        return objective
    names = ", ".join(f"'{name}'" for name in wrong[:3])
    warnings.warn(
        f"The forward pass moves {names} in a way that has no derivative (it looks at values, or "
        "leaves torch). dross records and replays it as it is; scores treat it as a constant. "
        "run.verify shows how much that matters.",
        DrossWarning,
        stacklevel=4,
    )
    return replace(objective, held=tuple(wrong))


def _find_wrong(objective: Objective, batch: Batch) -> list[str]:
    """The followed buffers whose derivative fails or differs from a finite difference."""
    theta, buffers = objective.layout.read(objective.model)
    names = objective.followed
    eps = torch.finfo(theta.dtype).eps
    width = eps ** (1 / 3)
    along = {name: _direction(buffers[name]) for name in names}
    theta_dot = probe_direction(theta)[0] * _size(theta)

    def move(offset: float) -> tuple[Tensor, Tensor, Buffers]:
        moved = {name: buffers[name] + offset * along[name] for name in names}
        return objective.gradient(theta + offset * theta_dot, {**buffers, **moved}, batch)

    plain, (_, _, up), (_, _, down) = move(0.0), move(width), move(-width)
    try:
        g, moved, slopes = _differentiate(objective, theta, buffers, batch, theta_dot, along)
    except torch.OutOfMemoryError:
        raise
    except Exception:  # the model is the user's code, and does what it likes with gates
        return list(names)
    if not _is_near(g, plain[0], width):
        return list(names)
    slope = {name: (up[name] - down[name]) / (2 * width) for name in names}
    return [
        name
        for name in names
        if not (
            _is_near(moved[name], plain[2][name], width)
            and _is_near(slopes[name], slope[name], 10 * width)
        )
    ]


def _differentiate(
    objective: Objective,
    theta: Tensor,
    buffers: Buffers,
    batch: Batch,
    theta_dot: Tensor,
    along: Buffers,
) -> tuple[Tensor, Buffers, Buffers]:
    """The gradient, the moved buffers and how these move, as a retrace computes them."""
    theta = theta.detach().requires_grad_()
    leaves = {name: buffers[name].detach().requires_grad_() for name in along}
    with torch.enable_grad():
        before = {**buffers, **leaves}
        losses, moved = objective.losses(theta, before, batch, track_buffers=True)
        (g,) = torch.autograd.grad((losses * batch.c).sum(), theta, create_graph=True)
    outputs, inputs = [moved[name] for name in along], [theta, *leaves.values()]
    tangents = [theta_dot[None], *(dot[None] for dot in along.values())]
    with open_gates():
        slopes = batched_jvp(outputs, inputs, tangents)
    moved = {name: moved[name].detach() for name in along}
    return g.detach(), moved, {name: slope[0] for name, slope in zip(along, slopes)}


def _direction(t: Tensor) -> Tensor:
    return probe_direction(t.reshape(-1))[0].view(t.shape) * _size(t)


def _size(t: Tensor) -> float:
    """A step that is neither lost in rounding nor larger than what it is taken from."""
    return max(0.1, float(t.detach().abs().mean())) if t.numel() else 0.1


def _is_near(found: Tensor, expected: Tensor, tolerance: float) -> bool:
    scale = max(float(expected.abs().max()), float(found.abs().max()), 1e-6)
    return float((found - expected).abs().max()) <= tolerance * scale

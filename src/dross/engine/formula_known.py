"""Formulas of optimizers that torch or a common package has, and that are not in torch_step.py.

docs/derivations.md has them in letters. A formula is compared with the optimizer's own step before
it is used (check.py), so an optimizer of the same name that computes something else is refused.
"""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from .formula import Formula, Options, Shapes
from .update_rules import Slots

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
    given = (o["ns_coefficients"], int(o["ns_steps"]), o["eps"])
    update = newton_schulz(update, *given, dtype)
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
        counts=False,
        trials=_MATRICES,
    ),
    "Adafactor": Formula("Adafactor", adafactor, _adafactor_shapes, elementwise=False),
}
#: by the name of a class in any package
OF_PACKAGES = {
    "Lion": Formula("Lion", lion, _like_parameter("exp_avg"), elementwise=True, counts=False),
    "Adafactor": Formula(
        "Adafactor (transformers)",
        adafactor_of_transformers,
        _shapes_of_transformers,
        elementwise=False,
    ),
}

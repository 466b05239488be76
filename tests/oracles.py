"""The reference: obviously right, and slow.

Nothing here uses the code that it checks, but for the seeds of random numbers.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from dross.data.seeds import mix_seeds


def cross_entropy(outputs: Tensor, labels: Tensor) -> Tensor:
    """One loss per instance."""
    return F.cross_entropy(outputs, labels, reduction="none")


@dataclass
class Problem:
    """A training run written out in full."""

    model: Callable[[], nn.Module]
    X: Tensor
    Y: Tensor
    X_val: Tensor
    Y_val: Tensor
    optimizer: Callable[[Sequence[nn.Parameter]], torch.optim.Optimizer]
    batches: list[np.ndarray]
    loss: Callable[[Tensor, Tensor], Tensor] = cross_entropy
    penalty: Callable[[dict[str, Tensor]], Tensor] | None = None
    rate: Callable[[int], float] | None = None
    groups: Callable[[nn.Module], Any] = lambda model: model.parameters()
    clip_norm: float | None = None
    cast: Callable[[], AbstractContextManager] = nullcontext  # around the forward pass and the loss
    seed: int = 0
    epochs: int = 1
    used: list[int] = field(default_factory=lambda: [0, 3])  # whose derivative is checked

    def start(self) -> tuple[nn.Module, torch.optim.Optimizer]:
        """The model with its initial weights, and its optimizer."""
        torch.manual_seed(1)
        model = self.model()
        return model, self.optimizer(self.groups(model))


def literal_run(problem: Problem, weights: Tensor | None = None) -> nn.Module:
    """Train with torch's own optimizer; instance i's loss counts weights[i] / |S_t|."""
    model, optimizer = problem.start()
    model.train()
    weights = torch.ones(len(problem.X), dtype=torch.float64) if weights is None else weights
    for t, ids in enumerate(problem.batches):
        if problem.rate is not None:
            for group in optimizer.param_groups:
                group["lr"] = problem.rate(t)
        ids = torch.as_tensor(ids)
        torch.manual_seed(mix_seeds(problem.seed, t, 0, 0))
        optimizer.zero_grad()
        with problem.cast():
            losses = problem.loss(model(problem.X[ids]), problem.Y[ids])
        if problem.penalty is not None:
            losses = losses + problem.penalty(dict(model.named_parameters()))
        ((losses * weights[ids]).sum() / len(ids)).backward()
        if problem.clip_norm is not None:
            nn.utils.clip_grad_norm_(model.parameters(), problem.clip_norm)
        optimizer.step()
    return model.eval()


def literal_margins(problem: Problem) -> list[list[float]]:
    """The margins of each instance, one for every time that training used it."""
    margins: list[list[float]] = [[] for _ in problem.X]
    seen: list[Tensor] = []

    def loss(outputs: Tensor, labels: Tensor) -> Tensor:
        seen.append(outputs.detach().double())
        return problem.loss(outputs, labels)

    literal_run(replace(problem, loss=loss))
    for ids, outputs in zip(problem.batches, seen):
        for i, logits in zip(ids.tolist(), outputs):
            label = int(problem.Y[i])
            others = [float(z) for k, z in enumerate(logits) if k != label]
            margins[i].append(float(logits[label]) - max(others))
    return margins


def validation_loss(problem: Problem, model: nn.Module) -> float:
    """The mean loss on the validation set."""
    with torch.no_grad(), problem.cast():
        return float(problem.loss(model(problem.X_val), problem.Y_val).mean())


def derivative(problem: Problem, j: int, h: float = 2e-5) -> float:
    """d validation loss / d w_j at w = 1, by a five-point stencil over literal runs.

    Its error is O(h^4).
    """

    def at(offset: float) -> float:
        weights = torch.ones(len(problem.X), dtype=torch.float64)
        weights[j] += offset
        return validation_loss(problem, literal_run(problem, weights))

    return (8 * (at(h) - at(-h)) - (at(2 * h) - at(-2 * h))) / (12 * h)


def literal_leave_one_out(problem: Problem, j: int) -> float:
    """How the validation loss changes when z_j is left out."""
    weights = torch.ones(len(problem.X), dtype=torch.float64)
    weights[j] = 0
    without, whole = literal_run(problem, weights), literal_run(problem)
    return validation_loss(problem, without) - validation_loss(problem, whole)


def unrolled_scores(problem: Problem, options: dict) -> Tensor:
    """- d validation loss / d w by autograd through the whole run.

    For SGD (any option), Adam, Muon and Adafactor, without BatchNorm and dropout. Those of instances
    that were never used are nan.
    """
    model, _ = problem.start()
    params = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters()}
    if options.get("rule") == "muon":  # it takes matrices; the others stay as they are
        params = {name: p for name, p in params.items() if p.ndim == 2}
    w = torch.ones(len(problem.X), dtype=torch.float64, requires_grad=True)
    memory: dict[str, dict[str, Tensor]] = {name: {} for name in params}
    for t, ids in enumerate(problem.batches):
        ids = torch.as_tensor(ids)
        with problem.cast():
            outputs = torch.func.functional_call(model, params, (problem.X[ids],))
            losses = problem.loss(outputs, problem.Y[ids])
        if problem.penalty is not None:
            losses = losses + problem.penalty(params)
        mean = (losses * w[ids]).sum() / len(ids)
        grads = torch.autograd.grad(mean, list(params.values()), create_graph=True)
        rate = options["lr"] if problem.rate is None else problem.rate(t)
        rule = _RULES[options.get("rule", "adam" if "betas" in options else "sgd")]
        params = {
            n: rule(p, g, memory[n], t, rate, options) for (n, p), g in zip(params.items(), grads)
        }
    with problem.cast():
        out = torch.func.functional_call(model.eval(), params, (problem.X_val,))
        asked = problem.loss(out, problem.Y_val).mean()
    used = torch.isin(torch.arange(len(w)), torch.as_tensor(np.concatenate(problem.batches)))
    return torch.where(used, -torch.autograd.grad(asked, w)[0], torch.nan)


def orthogonalize(matrix, coefficients, steps, eps):
    """Muon's Newton-Schulz iteration without rounding to bfloat16, which has no derivative."""
    a, b, c = coefficients
    x = matrix / matrix.norm().clamp(min=eps)
    for _ in range(steps):
        x = a * x + b * x @ x.T @ x + c * x @ x.T @ x @ x.T @ x
    return x


def _sgd(p, g, memory, t, rate, o):
    g = (-g if o.get("maximize") else g) + o.get("weight_decay", 0) * p
    if o.get("momentum", 0):
        memory["m"] = g if t == 0 else o["momentum"] * memory["m"] + (1 - o.get("dampening", 0)) * g
        g = g + o["momentum"] * memory["m"] if o.get("nesterov") else memory["m"]
    return p - rate * g


def _adam(p, g, memory, t, rate, o):
    b1, b2 = o["betas"]
    if o.get("decoupled"):
        p = p * (1 - rate * o["weight_decay"])
    else:
        g = g + o.get("weight_decay", 0) * p
    m = memory["m"] = b1 * memory.get("m", 0) + (1 - b1) * g
    v = memory["v"] = b2 * memory.get("v", 0) + (1 - b2) * g**2
    if o.get("amsgrad"):
        v = memory["x"] = torch.maximum(memory["x"], v) if "x" in memory else v
    m_hat, v_hat = m / (1 - b1 ** (t + 1)), v / (1 - b2 ** (t + 1))
    return p - rate * m_hat / (v_hat.sqrt() + o.get("eps", 1e-8))


def _muon(p, g, memory, t, rate, o):
    m = memory["m"] = o["momentum"] * memory.get("m", 0) + (1 - o["momentum"]) * g
    direction = orthogonalize((1 - o["momentum"]) * g + o["momentum"] * m, *o["newton_schulz"])
    ratio = max(1, p.shape[0] / p.shape[1]) ** 0.5
    return p * (1 - rate * o["weight_decay"]) - rate * ratio * direction


def _adafactor(p, g, memory, t, rate, o):
    share, rms = (t + 1) ** -0.8, lambda x: x.square().mean().sqrt()
    means = [g.square().mean(k, keepdim=True) for k in range(g.ndim)] if g.ndim > 1 else [g**2]
    for k, mean in enumerate(means):
        means[k] = memory[k] = (1 - share) * memory.get(k, 0) + share * mean
    v = means[0] * means[1] / means[1].mean() if g.ndim > 1 else means[0]
    update = g / v.sqrt()
    update = update / torch.clamp(rms(update), min=1)
    size = torch.clamp(rms(p), min=1e-3) * min(rate, (t + 1) ** -0.5)
    return p * (1 - rate * o["weight_decay"]) - size * update


_RULES = {"sgd": _sgd, "adam": _adam, "muon": _muon, "adafactor": _adafactor}


def slope(value, h=1e-4):
    """The derivative of value(offset) at 0, by a five-point stencil."""
    far = value(2 * h) - value(-2 * h)
    near = value(h) - value(-h)
    return (8 * near - far) / (12 * h)

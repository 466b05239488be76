"""The models that dross offers, and training them again and again: for the search of a rate, the choice of m and the verdict.

Many small models are trained side by side (`vmap`): thirty retrainings of a small network cost about as much as five. Each has its own initial
weights, its own order of instances, its own rate, and its own instances; all take the same number of steps, so a model with fewer
instances sees each a little more often.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, stack_module_state, vmap

from ..data.seeds import mixed
from ..errors import BadInput, NotFinite
from ..execution import threads
from ..step.loss import resolve
from ..support.name_hints import check_name
from ..support.progress import progress_bar

MODELS = ("linear", "mlp", "cnn")
MOMENTUM = 0.9
RATES = (0.3, 0.1, 0.03, 0.01, 0.003)
_EPOCHS = 30
_FEWEST_EPOCHS = 4
_HIDDEN = 64
_AS_GOOD = 1.03
SEARCHED = 20_000  # instances that a search looks at, at most
_BYTES_SIDE_BY_SIDE = 256 << 20


@dataclass(frozen=True)
class Recipe:
    """How to train: enough to do it again."""

    model: str
    inputs: tuple[int, ...]  # the shape of one instance
    outputs: int
    loss: str = "cross_entropy"
    rate: float = 0.1
    epochs: int = _EPOCHS
    batch_size: int = 32
    make: Callable[[], nn.Module] | None = None  # for a model of the user's own

    def build(self, seed: int) -> nn.Module:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return (
                self.make()
                if self.make is not None
                else network(self.model, self.inputs, self.outputs)
            )

    def to_json(self) -> dict[str, Any]:
        names = ("model", "inputs", "outputs", "loss", "rate", "epochs", "batch_size")
        return {name: getattr(self, name) for name in names}

    def steps_per_epoch(self, count: int) -> int:
        return -(-count // self.batch_size)


def network(kind: str, inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """Smooth activations: the estimates are first-order, and kinks are what they get wrong."""
    check_name("model", kind, MODELS)
    size = int(np.prod(inputs))
    if kind == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(size, outputs))
    if kind == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(size, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, outputs)
        )
    if len(inputs) != 3:
        raise BadInput(f"A cnn takes pictures, not inputs of shape {inputs}. Choose linear or mlp.")
    channels, height, width = inputs
    return nn.Sequential(
        nn.Conv2d(channels, 16, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * (height // 4) * (width // 4), outputs),
    )


def default_batch(count: int) -> int:
    return int(min(1024, max(16, 2 ** round(np.log2(max(count, 1) / 30)))))


# --- training many ---------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Fit:
    """One model to be trained: on which instances, from which seed, at which rate."""

    seed: int
    ids: np.ndarray
    rate: float
    labels: Tensor | None = None  # where it learns other labels than the rest


Watch = Callable[[int, "Trained", Sequence[Fit]], None]


@dataclass(frozen=True)
class Trained:
    """K models of one kind."""

    model: nn.Module
    parameters: dict[str, Tensor]  # each [K, ...]
    buffers: dict[str, Tensor]

    def outputs(self, x: Tensor) -> Tensor:
        """[K, N, outputs], in eval mode."""
        self.model.eval()
        count = len(next(iter(self.parameters.values())))
        chunks = []
        with torch.no_grad():
            for k in range(count):
                state = {
                    name: p[k] for name, p in (*self.parameters.items(), *self.buffers.items())
                }
                chunks.append(
                    torch.cat(
                        [functional_call(self.model, state, (part,)) for part in x.split(4096)]
                    )
                )
        return torch.stack(chunks)


def fit(
    recipe: Recipe,
    x: Tensor,
    y: Tensor,
    fits: Sequence[Fit],
    *,
    watch: Watch | None = None,
    what: str = "",
    progress: bool = False,
) -> Trained:
    """Train them all. `watch` is told after every epoch."""
    side_by_side, weights = _can_share(recipe), _weights(recipe)
    size = (
        max(1, min(len(fits), _BYTES_SIDE_BY_SIDE // max(1, _bytes(recipe, x))))
        if side_by_side
        else 1
    )
    steps = recipe.epochs * recipe.steps_per_epoch(len(x))
    parts: list[Trained] = []
    with (
        threads.manage_threads(),
        progress_bar(
            what or "training", steps * len(fits), show=progress, unit="model steps"
        ) as advance,
    ):
        for start in range(0, len(fits), size):
            if side_by_side:  # no convolutions: every weight is multiplied with every instance once
                threads.use_for(2 * weights * recipe.batch_size * min(size, len(fits) - start))
            parts.append(
                _fit_chunk(recipe, x, y, fits[start : start + size], watch, advance, steps)
            )
    if len(parts) == 1:
        return parts[0]
    names, buffers = parts[0].parameters, parts[0].buffers
    return Trained(
        parts[0].model,
        {name: torch.cat([part.parameters[name] for part in parts]) for name in names},
        {name: torch.cat([part.buffers[name] for part in parts]) for name in buffers},
    )


def _can_share(recipe: Recipe) -> bool:
    """Convolutions gain nothing from standing side by side, and layers with a memory or with chance cannot."""
    model = recipe.build(0)
    single = (nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.Dropout, nn.RNNBase, nn.MultiheadAttention)
    frozen = any(not p.requires_grad for p in model.parameters())
    return (
        not frozen
        and not any(isinstance(module, single) for module in model.modules())
        and not list(model.buffers())
    )


def _weights(recipe: Recipe) -> int:
    return sum(p.numel() for p in recipe.build(0).parameters())


def _bytes(recipe: Recipe, x: Tensor) -> int:
    return 4 * (3 * _weights(recipe) + 2 * recipe.batch_size * x[0].numel())


def _fit_chunk(
    recipe: Recipe,
    x: Tensor,
    y: Tensor,
    fits: Sequence[Fit],
    watch: Watch | None,
    advance,
    steps: int,
) -> Trained:
    models = [recipe.build(mixed(fit.seed, 1)) for fit in fits]
    orders = [_Order(fit.ids, mixed(fit.seed, 2), recipe.batch_size) for fit in fits]
    targets = torch.stack([y if fit.labels is None else fit.labels for fit in fits])
    rates = torch.tensor([fit.rate for fit in fits], dtype=torch.float32)
    loss = resolve(recipe.loss)[1]
    if len(models) == 1:
        return _fit_one(
            recipe, models[0], loss, x, targets[0], orders[0], fits[0], watch, advance, steps
        )
    parameters, _ = stack_module_state(models)
    parameters = {name: p.detach() for name, p in parameters.items()}
    velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}
    base = models[0].to("meta")

    def one(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
        return loss(functional_call(base, parameters, (x,)), y).mean()

    gradient = vmap(grad(one))
    trained = Trained(models[1].train(), parameters, {})
    per_epoch, rows = recipe.steps_per_epoch(len(x)), torch.arange(len(fits))[:, None]
    shaped = {name: rates.reshape(-1, *[1] * (p.dim() - 1)) for name, p in parameters.items()}
    base.train()
    for step in range(steps):
        ids = torch.from_numpy(np.stack([order.next() for order in orders]))
        g = gradient(parameters, x[ids], targets[rows, ids])
        for name, p in parameters.items():
            velocity[name].mul_(MOMENTUM).add_(g[name])
            p.sub_(shaped[name] * velocity[name])
        advance(len(fits))
        if watch is not None and (step + 1) % per_epoch == 0:
            watch((step + 1) // per_epoch, trained, fits)
            base.train()
    return trained


def _fit_one(recipe, model, loss, x, y, order, one: Fit, watch, advance, steps) -> Trained:
    optimizer = torch.optim.SGD(
        [p for p in model.parameters() if p.requires_grad], lr=one.rate, momentum=MOMENTUM
    )
    per_epoch = recipe.steps_per_epoch(len(x))
    state = lambda: Trained(
        model,
        {name: p.detach().clone()[None] for name, p in model.named_parameters()},
        {name: b.detach().clone()[None] for name, b in model.named_buffers()},
    )
    for step in range(steps):
        model.train()
        ids = torch.from_numpy(order.next())
        loss(model(x[ids]), y[ids]).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        advance(1)
        if watch is not None and (step + 1) % per_epoch == 0:
            watch((step + 1) // per_epoch, state(), [one])
    return state()


class _Order:
    """Batches of one size from endless shuffles of some instances."""

    def __init__(self, ids: np.ndarray, seed: int, size: int):
        self.ids, self.rng, self.size = ids, np.random.default_rng(seed), size
        self.left = np.zeros(0, dtype=np.int64)

    def next(self) -> np.ndarray:
        while len(self.left) < self.size:
            self.left = np.concatenate([self.left, self.rng.permutation(self.ids)])
        taken, self.left = self.left[: self.size], self.left[self.size :]
        return taken


# --- measuring and searching ---------------------------------------------------------------------------------------------------------


def losses(recipe: Recipe, outputs: Tensor, y: Tensor) -> Tensor:
    """[K, N] of outputs [K, N, ...]."""
    loss = resolve(recipe.loss)[1]
    return torch.stack([loss(one, y) for one in outputs])


def wrong(outputs: Tensor, y: Tensor) -> Tensor:
    """[K, N]: whether the largest output is not the label."""
    return outputs.argmax(-1) != y


def mistakes(recipe: Recipe, outputs: Tensor, y: Tensor) -> Tensor:
    """[K, N]: how far off, as people count it: a class is right or wrong, a number is off by so much."""
    if recipe.loss == "cross_entropy":
        return wrong(outputs, y).to(outputs.dtype)
    return losses(recipe, outputs, y).sqrt()


@dataclass(frozen=True)
class Searched:
    recipe: Recipe
    curves: dict[float, list[float]]  # rate -> validation loss after each epoch


def search(
    recipe: Recipe,
    x: Tensor,
    y: Tensor,
    validation: tuple[Tensor, Tensor],
    *,
    rates: Sequence[float] | None = None,
    epochs: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> Searched:
    """The rate and the number of epochs with the lowest validation loss. What the caller gives is taken as it is.

    Of a large set a part is enough to find them: the whole is then trained for about as many steps."""
    if len(x) > SEARCHED:
        return _searched_on_a_part(recipe, x, y, validation, rates, epochs, seed, progress)
    longest = replace(recipe, epochs=epochs or _EPOCHS)
    fits = [Fit(seed, np.arange(len(x)), rate) for rate in (rates or RATES)]
    curves: dict[float, list[float]] = {fit.rate: [] for fit in fits}

    def watch(_: int, trained: Trained, some: Sequence[Fit]) -> None:
        found = losses(recipe, trained.outputs(validation[0]), validation[1]).mean(1).tolist()
        for one, value in zip(some, found):
            curves[one.rate].append(value)

    fit(longest, x, y, fits, watch=watch, what="looking for a rate", progress=progress)
    usable = {rate: curve for rate, curve in curves.items() if np.isfinite(curve).all()}
    if not usable:
        raise NotFinite(
            f"Training diverges at every rate that was tried ({', '.join(map(str, curves))}). Pass a smaller one: --rate 0.001."
        )
    best = {
        rate: (_best_epoch(curve) if epochs is None else len(curve))
        for rate, curve in usable.items()
    }
    lowest = min(usable[rate][best[rate] - 1] for rate in usable)
    # among rates that do about as well, the smallest: the scores are first-order, and hold the better the smaller the steps
    rate = min(rate for rate in usable if usable[rate][best[rate] - 1] <= _AS_GOOD * lowest)
    return Searched(replace(recipe, rate=rate, epochs=best[rate]), curves)


def _searched_on_a_part(
    recipe: Recipe,
    x: Tensor,
    y: Tensor,
    validation: tuple[Tensor, Tensor],
    rates,
    epochs,
    seed: int,
    progress: bool,
) -> Searched:
    shuffled = lambda count: torch.from_numpy(np.random.default_rng(seed).permutation(count))
    chosen, asked = shuffled(len(y))[:SEARCHED], shuffled(len(validation[1]))[: SEARCHED // 4]
    small = replace(recipe, batch_size=min(recipe.batch_size, default_batch(SEARCHED)))
    found = search(
        small,
        x[chosen],
        y[chosen],
        (validation[0][asked], validation[1][asked]),
        rates=rates,
        seed=seed,
        progress=progress,
    )
    steps = found.recipe.epochs * small.steps_per_epoch(SEARCHED)
    enough = max(1, -(-steps // recipe.steps_per_epoch(len(x))))
    return Searched(replace(recipe, rate=found.recipe.rate, epochs=epochs or enough), found.curves)


def _best_epoch(curve: list[float]) -> int:
    """The first epoch that is within 1 % of the lowest loss: longer training makes longer tapes and wilder last iterates."""
    low = min(curve[_FEWEST_EPOCHS - 1 :])
    return next(k for k in range(_FEWEST_EPOCHS, len(curve) + 1) if curve[k - 1] <= 1.01 * low)

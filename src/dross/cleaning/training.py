"""The models that dross offers, and how many of them are trained.

Many small models are trained side by side (`vmap`): thirty small networks cost about as much as
five. Each has its own initial weights, order of instances, learning rate and instances. All
take the same number of steps, so a model with fewer instances sees each a little more often.
"""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import grad, stack_module_state, vmap

from .._progress import Advance, progress_bar
from ..data.seeds import mix_seeds
from ..engine.autodiff import call_model
from ..engine.device import manage_threads, set_threads_for
from ..engine.losses import Loss, find_loss
from ..engine.update_rules import SGD
from ..errors import Diverged, InvalidInput

MODELS = ("linear", "mlp", "cnn")
MOMENTUM = 0.9
_HIDDEN = 64
_MIN_BATCH_SIZE = 16
_MAX_BATCH_SIZE = 1024
_STEPS_PER_EPOCH = 30  # that the default batch size aims at
_MAX_BYTES_SIDE_BY_SIDE = 256 << 20
_INSTANCES_AT_ONCE = 4096
# Convolutions gain nothing from running side by side; the others draw random numbers or keep state
_LAYERS_TRAINED_ALONE = (
    nn.Conv1d,
    nn.Conv2d,
    nn.Conv3d,
    nn.Dropout,
    nn.RNNBase,
    nn.MultiheadAttention,
)
MAX_SEARCHED_INSTANCES = 5_000
# At larger rates the scores, which are first-order estimates, can be no better than chance.
_SEARCHED_RATES = (0.1, 0.03, 0.01, 0.003)
SEARCHED_EPOCHS = (10, 30)
_ABOUT_AS_GOOD = 1.10  # times the lowest validation loss of all

Pair = tuple[Tensor, Tensor]  # inputs [N, ...] and targets [N] or [N, 1]


@dataclass(frozen=True)
class RecipeSettings:
    """A model and the settings of its training, as a project keeps them."""

    model: str
    inputs: tuple[int, ...]  # the shape of one instance
    outputs: int
    loss: str = "cross_entropy"
    rate: float = 0.1
    epochs: int = 30
    batch_size: int = 32


@dataclass(frozen=True)
class Recipe(RecipeSettings):
    """Everything that it takes to train a model."""

    make: Callable[[], nn.Module] | None = None  # for a user-defined model
    device: str = "cpu"  # where it is trained; a project can be trained again on any other

    def build(self, seed: int) -> nn.Module:
        """A new model with the initial weights of this seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            if self.make is not None:
                return self.make()
            return build_network(self.model, self.inputs, self.outputs)

    def count_parameters(self) -> int:
        """How many numbers the parameters of one model have."""
        return sum(p.numel() for p in self.build(0).parameters())

    def steps_per_epoch(self, count: int) -> int:
        """How many batches it takes to see `count` instances."""
        return -(-count // self.batch_size)

    def rate_factor(self, step: int, steps: int) -> float:
        """The factor of the learning rate at a step, counted from 0: from 1 to 0 along a cosine.

        The last iterate is then the model, and not the model plus the noise of its last batches.
        """
        return 0.5 * (1 + math.cos(math.pi * step / steps))

    @property
    def loss_function(self) -> Loss:
        """The loss, one number per instance."""
        return find_loss(self.loss)[1]

    @property
    def settings(self) -> RecipeSettings:
        """The settings as a project keeps them; a user's model is named elsewhere."""
        names = [field.name for field in fields(RecipeSettings)]
        return RecipeSettings(**{name: getattr(self, name) for name in names})


def build_network(kind: str, inputs: tuple[int, ...], outputs: int) -> nn.Module:
    """A new network of one of the kinds in MODELS.

    The activations are smooth: the scores are first-order estimates, and kinks mislead them.
    """
    size = int(np.prod(inputs))
    if kind == "linear":
        return nn.Sequential(nn.Flatten(), nn.Linear(size, outputs))
    if kind == "mlp":
        return nn.Sequential(
            nn.Flatten(), nn.Linear(size, _HIDDEN), nn.GELU(), nn.Linear(_HIDDEN, outputs)
        )
    if len(inputs) != 3:
        raise InvalidInput(
            f"A CNN takes images, not inputs of shape {inputs}. Choose linear or mlp."
        )
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


def default_batch_size(count: int) -> int:
    """A power of two that gives about thirty steps per epoch of `count` instances."""
    wanted = 2 ** round(np.log2(max(count, 1) / _STEPS_PER_EPOCH))
    return int(min(_MAX_BATCH_SIZE, max(_MIN_BATCH_SIZE, wanted)))


# --- many models at once --------------------------------------------------------------------------


@dataclass(frozen=True)
class ModelSpec:
    """One model to train: from which seed, on which instances, at which learning rate."""

    seed: int
    ids: np.ndarray
    rate: float | None = None  # before it decays; by default that of the recipe
    labels: Tensor | None = None  # if its labels are not those of the rest


@dataclass(frozen=True)
class TrainedModels:
    """K models of one kind."""

    model: nn.Module
    parameters: dict[str, Tensor]  # each [K, ...]
    buffers: dict[str, Tensor]  # each [K, ...]

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return next(iter(self.parameters.values())).device

    def outputs(self, x: Tensor) -> Tensor:
        """The outputs of each model for N instances, in eval mode: [K, N, outputs], on the CPU."""
        self.model.eval()
        stacked = {**self.parameters, **self.buffers}
        count = len(next(iter(self.parameters.values())))
        outputs = []
        with torch.no_grad():
            for k in range(count):
                state = {name: values[k] for name, values in stacked.items()}
                chunks = [part.to(self.device) for part in x.split(_INSTANCES_AT_ONCE)]
                parts = [call_model(self.model, state, part).cpu() for part in chunks]
                outputs.append(torch.cat(parts))
        return torch.stack(outputs)


def train_many(
    recipe: Recipe,
    x: Tensor,
    y: Tensor,
    specs: Sequence[ModelSpec],
    *,
    what: str = "training",
    progress: bool = False,
) -> TrainedModels:
    """Train one model per spec, on the recipe's device.

    Arguments:
        recipe: The model and its settings.
        x: The inputs of all instances, [N, ...].
        y: Their targets, [N] or [N, 1].
        specs: The seed, the instances and the learning rate of each model.
        what: Words for the progress bar.
        progress: Whether to show the bar.
    """
    together = can_train_together(recipe)
    fitting = _MAX_BYTES_SIDE_BY_SIDE // max(1, _bytes_per_model(recipe, x))
    size = max(1, min(len(specs), fitting)) if together else 1
    steps = recipe.epochs * recipe.steps_per_epoch(len(x))
    weights = recipe.count_parameters()
    chunks: list[TrainedModels] = []
    shown = progress_bar(what, steps * len(specs), show=progress, unit="model steps")
    with manage_threads(), shown as advance:
        trainer = _Trainer(recipe, x.to(recipe.device), y.to(recipe.device), steps, advance)
        for start in range(0, len(specs), size):
            chunk = specs[start : start + size]
            if together:  # no convolutions: every weight is multiplied with every instance once
                set_threads_for(2 * weights * recipe.batch_size * len(chunk))
            train = trainer.train_together if len(chunk) > 1 else trainer.train_alone
            chunks.append(train(chunk))
    if len(chunks) == 1:
        return chunks[0]
    first = chunks[0]
    return TrainedModels(
        first.model,
        {name: torch.cat([c.parameters[name] for c in chunks]) for name in first.parameters},
        {name: torch.cat([c.buffers[name] for c in chunks]) for name in first.buffers},
    )


def can_train_together(recipe: Recipe) -> bool:
    """Whether models can share a vmap, and whether that is faster."""
    model = recipe.build(0)
    frozen = any(not p.requires_grad for p in model.parameters())
    alone = any(isinstance(module, _LAYERS_TRAINED_ALONE) for module in model.modules())
    return not frozen and not alone and not list(model.buffers())


def _bytes_per_model(recipe: Recipe, x: Tensor) -> int:
    """Memory for weights, gradients, velocities, and twice a batch."""
    return 4 * (3 * recipe.count_parameters() + 2 * recipe.batch_size * x[0].numel())


@dataclass(frozen=True)
class _Trainer:
    """What the models of one call have in common."""

    recipe: Recipe
    x: Tensor
    y: Tensor
    steps: int
    advance: Advance

    def train_together(self, specs: Sequence[ModelSpec]) -> TrainedModels:
        """Train several models by one vmap over their stacked parameters."""
        models = [self._build(spec) for spec in specs]
        orders = [self._batch_order(spec) for spec in specs]
        targets = torch.stack([self._targets(spec) for spec in specs])  # [K, N, ...]
        rows = torch.arange(len(specs), device=self.x.device)[:, None]
        parameters, _ = stack_module_state(models)
        parameters = {name: p.detach() for name, p in parameters.items()}
        velocity = {name: torch.zeros_like(p) for name, p in parameters.items()}
        rates = torch.tensor([self._rate(spec) for spec in specs], dtype=torch.float32)
        rates = rates.to(self.x.device)
        shaped = {name: rates.reshape(-1, *[1] * (p.dim() - 1)) for name, p in parameters.items()}
        loss = self.recipe.loss_function
        model = models[0].train()

        def mean_loss(parameters: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return loss(call_model(model, parameters, x), y).mean()

        gradient = vmap(grad(mean_loss))  # of parameters [K, ...], x [K, batch, ...], y [K, batch]
        for step in range(self.steps):
            drawn = np.stack([order.next() for order in orders])  # [K, batch]
            ids = torch.from_numpy(drawn).to(self.x.device)
            g = gradient(parameters, self.x[ids], targets[rows, ids])
            factor = self.recipe.rate_factor(step, self.steps)
            # Not SGD.update: it takes one rate for all, and fuses the product into the sum, which
            # rounds differently.
            for name, p in parameters.items():
                velocity[name] = SGD.next_momentum_buffer(velocity[name], g[name], MOMENTUM)
                p.sub_(factor * shaped[name] * velocity[name])
            self.advance(len(specs))
        return TrainedModels(models[1].train(), parameters, {})

    def train_alone(self, specs: Sequence[ModelSpec]) -> TrainedModels:
        """Train a single model as anyone would."""
        (spec,) = specs
        model = self._build(spec)
        order = self._batch_order(spec)
        targets = self._targets(spec)
        rate = self._rate(spec)
        learned = [p for p in model.parameters() if p.requires_grad]
        optimizer = torch.optim.SGD(learned, lr=rate, momentum=MOMENTUM)
        loss = self.recipe.loss_function
        model.train()
        for step in range(self.steps):
            optimizer.param_groups[0]["lr"] = rate * self.recipe.rate_factor(step, self.steps)
            ids = torch.from_numpy(order.next()).to(self.x.device)
            loss(model(self.x[ids]), targets[ids]).mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            self.advance(1)
        return TrainedModels(
            model,
            {name: p.detach().clone()[None] for name, p in model.named_parameters()},
            {name: b.detach().clone()[None] for name, b in model.named_buffers()},
        )

    def _build(self, spec: ModelSpec) -> nn.Module:
        return self.recipe.build(mix_seeds(spec.seed, 1)).to(self.x.device)

    def _batch_order(self, spec: ModelSpec) -> "_BatchOrder":
        return _BatchOrder(spec.ids, mix_seeds(spec.seed, 2), self.recipe.batch_size)

    def _rate(self, spec: ModelSpec) -> float:
        return self.recipe.rate if spec.rate is None else spec.rate

    def _targets(self, spec: ModelSpec) -> Tensor:
        return self.y if spec.labels is None else spec.labels.to(self.y.device)


class _BatchOrder:
    """Batches of one size from endless shuffles of some instances."""

    def __init__(self, ids: np.ndarray, seed: int, size: int):
        self.ids = ids
        self.rng = np.random.default_rng(seed)
        self.size = size
        self.left = np.zeros(0, dtype=np.int64)

    def next(self) -> np.ndarray:
        """The ids of the next batch, int64 [size]."""
        while len(self.left) < self.size:
            self.left = np.concatenate([self.left, self.rng.permutation(self.ids)])
        taken = self.left[: self.size]
        self.left = self.left[self.size :]
        return taken


# --- the search for a rate ------------------------------------------------------------------------


@dataclass(frozen=True)
class SearchResult:
    """The recipe with the learning rate and the epochs that were found, and what was tried."""

    recipe: Recipe
    curves: dict[float, list[float]]  # rate -> validation loss for each number of epochs
    epochs: list[int]  # the numbers of epochs
    seconds_per_step: float = 0.0  # that training took, with one model for each rate
    enlarged: float = 1.0  # how many times larger the batches of the recipe are


def search_rate(
    recipe: Recipe,
    x: Tensor,
    y: Tensor,
    validation: Pair,
    *,
    rates: Sequence[float] | None = None,
    epochs: int | None = None,
    seed: int = 0,
    progress: bool = False,
) -> SearchResult:
    """Find a learning rate and a number of epochs with about the lowest validation loss.

    Each pair is trained to its end: since the learning rate decays, a short run is not the
    beginning of a long one. For a large set, the search uses a sample; the whole set is then
    trained for about as many steps.

    Arguments:
        recipe: The model; its learning rate and epochs are ignored.
        x: The inputs of the training set, [N, ...].
        y: Its targets.
        validation: The inputs and targets of the validation set, wrong labels included: they
            count against overfitting.
        rates: The learning rates to try.
        epochs: The number of epochs, if it should not be searched for.
        seed: Of the initial weights and the order of instances.
        progress: Whether to show a progress bar.

    Raises:
        Diverged: Training diverges at every learning rate.
    """
    rates = rates or _SEARCHED_RATES
    tried: list[int] = [*SEARCHED_EPOCHS] if epochs is None else [epochs]
    searched = recipe
    per_epoch = recipe.steps_per_epoch(len(x))
    if len(x) > MAX_SEARCHED_INSTANCES:
        size = min(recipe.batch_size, default_batch_size(MAX_SEARCHED_INSTANCES))
        searched = replace(recipe, batch_size=size)
        if epochs is not None:
            as_long = -(-epochs * per_epoch // searched.steps_per_epoch(MAX_SEARCHED_INSTANCES))
            tried = [min(as_long, SEARCHED_EPOCHS[-1])]
        x, y = _sample((x, y), MAX_SEARCHED_INSTANCES, seed)
        validation = _sample(validation, MAX_SEARCHED_INSTANCES // 4, seed)
    searched_per_epoch = searched.steps_per_epoch(len(x))
    specs = [ModelSpec(seed, np.arange(len(x)), rate) for rate in rates]
    curves: dict[float, list[float]] = {rate: [] for rate in rates}
    started = time.monotonic()
    for count in tried:
        trained = train_many(
            replace(searched, epochs=count),
            x,
            y,
            specs,
            what=f"choosing a learning rate ({count} epochs)",
            progress=progress,
        )
        outputs = trained.outputs(validation[0])
        losses = torch.stack([recipe.loss_function(each, validation[1]) for each in outputs])
        for rate, loss in zip(rates, losses.mean(1).tolist(), strict=True):
            curves[rate].append(loss)
    seconds = time.monotonic() - started
    rate, best = _choose_rate(curves, tried)
    as_long = max(1, -(-best * searched_per_epoch // per_epoch))
    return SearchResult(
        replace(recipe, rate=rate, epochs=epochs or as_long),
        curves,
        tried,
        seconds_per_step=seconds / (sum(tried) * searched_per_epoch),
        enlarged=recipe.batch_size / searched.batch_size,
    )


def _sample(pair: Pair, size: int, seed: int) -> Pair:
    """The inputs and targets of some instances, drawn at random."""
    order = np.random.default_rng(seed).permutation(len(pair[1]))
    ids = torch.from_numpy(order[:size])
    return pair[0][ids], pair[1][ids]


def _choose_rate(curves: dict[float, list[float]], tried: list[int]) -> tuple[float, int]:
    """The least training that is about as good as the best: the learning rate and the epochs.

    The scores are first-order estimates: the smaller the steps and the shorter their sum, the more
    accurate.
    """
    losses = {
        (rate, epochs): loss
        for rate, curve in curves.items()
        if np.isfinite(curve).all()
        for epochs, loss in zip(tried, curve, strict=True)
    }
    if not losses:
        raise Diverged(
            "Training diverges at every learning rate that was tried "
            f"({', '.join(map(str, curves))}). Pass a smaller `lr`, such as 0.001."
        )
    limit = _ABOUT_AS_GOOD * min(losses.values())
    good = [pair for pair, loss in losses.items() if loss <= limit]
    return min(good, key=lambda pair: (round(pair[0] * pair[1], 12), pair[0]))

"""What each step of a training run will use: which instances, and which learning rates."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import torch

from .._checks import check_count
from .._text import say_count
from ..data.dataset import Instances, check_ids
from ..data.seeds import mix_seeds
from ..engine.binding import TorchBinding
from ..errors import InvalidInput, NotSupported

LearningRate = (
    float
    | Sequence[float]
    | np.ndarray
    | Callable[[int], float]
    | torch.optim.lr_scheduler.LRScheduler
)


_MAX_EPOCHS = 1_000_000
_MAX_BATCH_SIZE = 1_000_000_000
_MAX_STEPS = 100_000_000


def check_epochs(epochs: Any) -> int:
    """The number of epochs, or InvalidInput."""
    why = "scores are stored per epoch"
    return check_count(epochs, "`epochs`", at_most=_MAX_EPOCHS, because=why)


def check_batch_size(size: Any, at_most: int = _MAX_BATCH_SIZE) -> int:
    """The number of instances per step, or InvalidInput."""
    why = "all instances of a step are in memory at once"
    return check_count(size, "`batch_size`", at_most=at_most, because=why)


class BatchPlan:
    """Which ids each step uses, epoch by epoch, without holding all of them."""

    def __init__(
        self,
        per_epoch: Callable[[int], list[np.ndarray]],
        epochs: int,
        steps_of: Callable[[int], int],
    ):
        self.per_epoch = per_epoch
        self.epochs = epochs
        self.steps_of = steps_of
        self.steps = sum(steps_of(epoch) for epoch in range(epochs))

    def from_step(self, start: int) -> Iterator[tuple[np.ndarray, int]]:
        """The ids and the epoch of every step from `start` on."""
        t = 0
        for epoch in range(self.epochs):
            size = self.steps_of(epoch)
            if t + size > start:
                for ids in self.per_epoch(epoch)[max(0, start - t) :]:
                    yield ids, epoch
            t += size

    @staticmethod
    def make(
        instances: Instances, epochs: int | None, batch_size: int | None, batches: Any, seed: int
    ) -> "BatchPlan":
        """From the ids of every step, or drawn in a new order each epoch. See `dross.train`."""
        if epochs is not None:
            epochs = check_epochs(epochs)
        if batch_size is not None:
            batch_size = check_batch_size(batch_size)
        if batches is not None and batch_size is not None:
            raise InvalidInput("Pass batch_size or batches, not both: batches has its own sizes.")
        if batches is not None:
            return _from_batches(instances, batches, epochs or 1)
        if epochs is None or batch_size is None:
            raise InvalidInput("Specify how long to train: pass epochs and batch_size, or batches.")
        count = len(instances)
        check_count(
            epochs * -(-count // batch_size),
            "The number of steps",
            at_most=_MAX_STEPS,
            because="the learning rates of all steps are held in memory; use fewer epochs or larger "
            "batches",
            at_least=0,
        )

        def shuffle(epoch: int) -> list[np.ndarray]:
            order = np.random.default_rng(mix_seeds(seed, epoch)).permutation(count)
            return [order[start : start + batch_size] for start in range(0, count, batch_size)]

        return BatchPlan(shuffle, epochs, lambda epoch: -(-count // batch_size))


def _from_batches(instances: Instances, batches: Any, epochs: int) -> BatchPlan:
    if not isinstance(batches, Iterable):
        raise InvalidInput(f"batches must be a list with the ids of every step, not {batches!r}.")
    steps = [check_ids(ids, len(instances), "The ids in batches") for ids in batches]
    if not any(len(ids) for ids in steps):
        raise InvalidInput("batches is empty: there is nothing to train on.")
    if epochs > len(steps):
        raise InvalidInput(
            f"batches has {say_count(len(steps), 'step')}, which cannot be divided into {epochs} "
            "epochs: it must list the steps of the whole training run."
        )
    cuts = np.array_split(np.arange(len(steps)), epochs)
    parts = [[steps[t] for t in cut] for cut in cuts]
    return BatchPlan(lambda epoch: parts[epoch], len(parts), lambda epoch: len(parts[epoch]))


def plan_hyperparams(binding: TorchBinding, lr: LearningRate | None, steps: int) -> np.ndarray:
    """The optimizer's hyperparameters at every step: [T, G, H]. lr: see `dross.train`."""
    rows = np.repeat(binding.hyperparams()[None], steps, axis=0)
    if lr is None:
        return rows
    if isinstance(lr, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise NotSupported(
            "ReduceLROnPlateau needs a loss, which dross.train does not provide. Use "
            "dross.Recorder in your own loop."
        )
    if isinstance(lr, torch.optim.lr_scheduler.LRScheduler):
        # our loop is the optimizer's step; torch would warn that it was never called
        binding.torch_optimizer._opt_called = True  # type: ignore[attr-defined]
        for t in range(steps):
            rows[t] = binding.hyperparams()
            lr.step()
        return rows
    rates = _read_rates(lr, steps)
    groups = rows.shape[1]
    if rates.ndim > 1 and rates.shape[1:] not in ((1,), (groups,)):
        raise InvalidInput(
            f"lr has the shape {list(rates.shape)}: for {steps} steps and {groups} parameter "
            f"groups it must be [{steps}] or [{steps}, {groups}]."
        )
    column = binding.optimizer.columns.index("lr")
    rows[:, :, column] = rates if rates.ndim == 2 else rates.reshape(-1, 1)
    return rows


def _read_rates(lr: Any, steps: int) -> np.ndarray:
    values = [lr(t) for t in range(steps)] if callable(lr) else lr
    try:
        rates = np.asarray(values.cpu() if isinstance(values, torch.Tensor) else values, np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(
            "lr must be a number, a list with one number per step, a function of the step or a "
            f"torch scheduler, not {values!r:.60}."
        ) from None
    if rates.ndim and len(rates) != steps:
        raise InvalidInput(f"lr has {len(rates)} values for {steps} steps: pass one per step.")
    if not np.isfinite(rates).all() or (rates < 0).any():
        raise InvalidInput("lr must be finite and not negative.")
    return rates

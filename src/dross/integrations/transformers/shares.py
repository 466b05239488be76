"""What a trainer's loss is divided by, inferred from the loss itself.

Trainer passes the number of labelled tokens of all accumulated micro-batches to the model. Some
models divide by it, others take the mean over the micro-batch and ignore it, and what counts as a
token differs between models. So the loss of a batch is compared with the sum of its examples'
losses, and the divisor that fits is the one that is used. This is checked again whenever the
divisors that fitted so far differ.
"""

from typing import Any

import torch
from torch import Tensor

from ...errors import NotSupported
from ...record.followed import Followed
from .losses import InstanceLosses

_TOLERANCE = 1e-3  # of the loss: divisors that are closer to each other than this do not matter


class Shares:
    """The share that each example's loss has in the loss of a batch."""

    def __init__(self) -> None:
        self.fitting: list[str] = []  # the divisors that have fitted so far; empty: any may fit

    def find(
        self, losses: Any, y: dict[str, Tensor], items: Any, loss: Tensor, followed: Followed
    ) -> float:
        """The share in this batch.

        Arguments:
            losses: the function that gives the losses of the examples.
            y: the labels of the batch.
            items: Trainer's num_items_in_batch, where it counts them.
            loss: what the trainer computed.
            followed: gives the losses of the examples where they are needed.

        Raises:
            NotSupported: where the loss is not the sum of the examples' losses divided by any of
                them.
        """
        divisors = self.divisors(losses, y, items)
        known = {name: divisors[name] for name in self.fitting if name in divisors}
        if known and max(known.values()) == min(known.values()):
            return 1 / next(iter(known.values()))
        total, value = float(followed.losses().double().sum()), float(loss.detach())
        off = {name: abs(total / d - value) for name, d in (known or divisors).items()}
        limit = _TOLERANCE * abs(value)
        best = min(off.values())
        if not torch.isfinite(loss).all():
            return 1 / next(iter(divisors.values()))  # the step itself is refused
        if best > limit:
            tried = ", ".join(f"{name}: {total / d:.6g}" for name, d in divisors.items())
            raise NotSupported(
                f"The trainer's loss of this batch is {value:.6g}. The losses of its examples give "
                f"other values, divided by the number of {tried}. Something else is in the loss "
                "(an auxiliary loss, another reduction, compute_loss_func). Pass the loss of each "
                "example: losses=fn, where fn(outputs, labels) returns [B] and the trainer's loss "
                "is their mean or their sum divided by the number of tokens."
            )
        self.fitting = [name for name, error in off.items() if error <= max(best, 1e-9 * limit)]
        return 1 / divisors[self.fitting[0]]

    @staticmethod
    def divisors(losses: Any, y: dict[str, Tensor], items: Any) -> dict[str, float]:
        """What a loss may be divided by, by name."""
        found = {} if items is None else {"counted items": float(items)}
        if isinstance(losses, InstanceLosses):
            found["tokens"] = float(losses.count(y).sum())
        found["examples"] = float(len(next(iter(y.values()))))
        return {name: divisor for name, divisor in found.items() if divisor > 0}

"""The losses that have a name, and the checks of any loss.

Each loss returns one number per instance, [B]; several outputs of one instance are averaged.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor

from .._checks import check_signature
from ..errors import InvalidInput

Loss = Callable[[Tensor, Tensor], Tensor]


def cross_entropy(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of logits [B, classes, ...] and labels [B, ...]: [B]."""
    return _per_instance(F.cross_entropy(outputs, targets, reduction="none"))


def binary_cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Of logits [B] or [B, ...] and labels from 0 to 1: [B]."""
    targets = _align(logits, targets)
    return _per_instance(F.binary_cross_entropy_with_logits(logits, targets, reduction="none"))


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """Of outputs [B] or [B, ...] and targets of the same size: [B]."""
    return _per_instance((outputs - _align(outputs, targets)) ** 2)


NAMED_LOSSES: dict[str, Loss] = {
    "cross_entropy": cross_entropy,
    "binary_cross_entropy": binary_cross_entropy,
    "squared_error": squared_error,
}


def bound_losses(losses: Tensor, scale: float) -> Tensor:
    """1 - exp(-loss / scale): 0 for a loss of 0, at most 1. With cross entropy 1 - p(label)."""
    return -torch.expm1(-losses / scale)


def find_loss(loss: str | Loss) -> tuple[str, Loss]:
    """The name under which a tape remembers a loss, and the function."""
    names = ", ".join(NAMED_LOSSES)
    if isinstance(loss, str):
        if loss not in NAMED_LOSSES:
            raise InvalidInput(
                f"There is no loss named '{loss}'. Choose one of {names}, or pass a function."
            )
        return loss, NAMED_LOSSES[loss]
    if not callable(loss):
        raise InvalidInput(
            f"loss must be a function of (outputs, targets) or one of {names}, not {loss!r}."
        )
    given = "what the model returns for a batch, and its labels"
    check_signature(loss, "loss(outputs, targets)", given)
    # the module is left out: the same function is __main__.f in a script and train.f when imported
    return f"function {getattr(loss, '__name__', type(loss).__name__)}", loss


def check_per_instance(losses: object, count: int) -> Tensor:
    """The losses as [count], or an error that says what a loss has to return."""
    if not isinstance(losses, Tensor):
        raise InvalidInput(
            f"The loss returned {type(losses).__name__}, not a tensor with one loss per instance."
        )
    if losses.numel() != count or losses.dim() == 0:
        returned = (
            f"The loss returned shape {tuple(losses.shape)} for a batch of {count}: dross needs"
        )
        if losses.shape[:1] == (count,):
            raise InvalidInput(
                f"{returned} one number per instance. Average over the other dimensions: "
                "losses.flatten(1).mean(1)."
            )
        raise InvalidInput(
            f"{returned} one loss per instance, not their mean. Use reduction='none', as in "
            "nn.CrossEntropyLoss(label_smoothing=0.1, reduction='none'), or one of the named "
            "losses: loss='cross_entropy'."
        )
    return losses if losses.shape == (count,) else losses.reshape(count)


def check_differentiable(losses: Tensor) -> None:
    """Refuse losses without a gradient."""
    if not losses.requires_grad:
        raise InvalidInput(
            "The loss does not depend on the model's parameters: its result does not require a "
            "gradient. Compute it from the outputs, without detach(), item(), argmax or "
            "torch.no_grad()."
        )


def check_labels(outputs: Tensor, targets: Tensor, name: str) -> None:
    """Refuse labels that a named cross entropy cannot use, before a GPU asserts on them."""
    if name == "binary_cross_entropy" and targets.numel():
        low, high = float(targets.min()), float(targets.max())
        if not 0 <= low <= high <= 1:
            raise InvalidInput(
                f"Labels run from {low:g} to {high:g}; binary_cross_entropy needs labels from 0 to "
                "1."
            )
    if name == "cross_entropy" and targets.numel() and not targets.is_floating_point():
        if not isinstance(outputs, Tensor):
            return
        low, high = int(targets.min()), int(targets.max())
        classes = outputs.shape[1] if outputs.dim() > 1 else 0
        if low < 0 or high >= classes:
            raise InvalidInput(
                f"Labels run from {low} to {high}, but the model has {classes} outputs: labels "
                f"must be between 0 and {classes - 1}."
            )


def _per_instance(losses: Tensor) -> Tensor:
    return losses if losses.dim() == 1 else losses.flatten(1).mean(1)


def _align(outputs: Tensor, targets: Tensor) -> Tensor:
    """Targets in the shape and type of the outputs.

    [B] labels meet [B, 1] outputs without broadcasting to [B, B].
    """
    if outputs.numel() != targets.numel():
        raise InvalidInput(
            f"Outputs have shape {tuple(outputs.shape)}, targets {tuple(targets.shape)}: the "
            "shapes must match."
        )
    return targets.reshape(outputs.shape).to(torch.promote_types(outputs.dtype, torch.float32))

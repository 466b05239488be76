"""Check that a loop can be replayed, while it runs and not when its scores are wanted."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from ..data.augment import MOVE_TO_AUGMENT
from ..data.batch import Batch
from ..data.dataset import IDS_BEGIN_AT_0, Instances
from ..distributed.ranks import Reducer
from ..engine.executor import Executor
from ..engine.optim import Optimizer
from ..engine.precision import MATH, PassNotes
from ..engine.state import State
from ..engine.step import Step, advance, prepare_gradient, take_step
from ..engine.tolerance import LOSSES, OTHER_ORDER, ROUNDING_OF_LENGTH, is_close, size
from ..errors import Diverged, DrossWarning, InvalidInput, NotSupported

_WHAT_THE_LOOP_DOES = (
    "Check that the loop does not add anything else to the loss (use penalty=), weight the losses "
    "nonlinearly, draw random numbers outside the model, or change the model by hand."
)
_TF32_EPS = 2.0**-10
_ROUNDINGS = 4  # units in the last place of a type of 16 bits that two kernels may be apart
_MATH_KERNEL = "train with torch.nn.attention.sdpa_kernel(SDPBackend.MATH)"
_ATTENTION_ADVICE = {  # whether the model draws random numbers
    False: f"To get exact scores, {_MATH_KERNEL}.",
    True: "Dropout inside fused attention draws different random numbers than the math kernel: "
    f"{_MATH_KERNEL}, or set attention dropout to 0.",
}


@dataclass(frozen=True)
class SeenLoss:
    """The loss that a loop computed of a micro-batch."""

    loss: Tensor  # one number, or the losses of the instances [B]
    count: int  # B
    share: Any = None  # of each instance's loss in the one number

    @property
    def each(self) -> Tensor:
        """As one number per instance [B]."""
        return self.loss.expand(self.count)


def check_replayable(
    executor: Executor,
    optimizer: Optimizer,
    before: State,
    step: Step,
    batches: Sequence[Batch],
    after: State,
    losses: Sequence[SeenLoss],
    seen: Tensor,
    ranks: Reducer,
    t: int,
) -> None:
    """Take step t again as a pure function, and compare with the model as the loop left it.

    Arguments:
        executor, optimizer: of the run.
        before: the state that the loop stepped from.
        step: what was recorded of the step.
        batches: this rank's micro-batches.
        after: theta and the buffers after the loop's own step.
        losses: that the loop computed of these micro-batches.
        seen: the gradient that the optimizer saw [p].
        ranks: each rank rehearses its own batches.
        t: the number of the step.

    Raises:
        NotSupported: if the two differ.
    """
    step = replace(step, clip=ranks.clip(step.clip))
    with executor.training():
        replayed, g, of_batches = take_step(executor, optimizer, before, step, batches)
        (g,) = ranks.sum_over_theta(g)
        theta = advance(optimizer, before, step, g, {}).theta
    for own, of_batch in zip(losses, of_batches):
        _check_losses(own, of_batch, executor, t)
    # Adam's first steps do not depend on the size of the gradient
    g = prepare_gradient(step, g)
    length = float(g.norm())
    seen_length = float(seen.norm())
    if max(length, seen_length) > 2 * min(length, seen_length):
        raise NotSupported(
            f"At step {t} the optimizer received a gradient of norm {seen_length:.2e}, but the "
            f"gradient of the recorded losses has norm {length:.2e}. If the loop uses a "
            "GradScaler, pass it to the recorder: dross.Recorder(..., scaler=scaler)."
        )
    for name, buffer in after.buffers.items():
        if not is_close(replayed.buffers[name], buffer, OTHER_ORDER):
            raise NotSupported(
                f"The buffer '{name}' after step {t} differs from that of a replay. Check that the "
                "loop does not call the model once more in train mode, and that no block with "
                "BatchNorm uses gradient checkpointing, which runs the block twice: BatchNorm "
                "would count the batch twice."
            )
    apart = float((g - seen).norm()) / max(seen_length, torch.finfo(g.dtype).tiny)
    if apart > max(ROUNDING_OF_LENGTH.relative(g.dtype), 4 * _rounding_of_kernels(executor)):
        raise NotSupported(
            f"Step {t} cannot be reproduced: the gradient that the optimizer received and that of "
            f"the recorded losses differ by {100 * apart:.2g} %. {_WHAT_THE_LOOP_DOES}"
        )
    moved = size(after.theta - before.theta, OTHER_ORDER)
    scale = max(moved, torch.finfo(theta.dtype).tiny)
    if not is_close(theta, after.theta, OTHER_ORDER, scale=scale):
        difference = size(theta - after.theta, OTHER_ORDER)
        own_step = optimizer.update(before, seen, step.hyperparams).theta
        if is_close(own_step, after.theta, OTHER_ORDER, scale=scale):
            name = _parameter_at(executor, int((theta - after.theta).abs().argmax()))
            raise NotSupported(
                f"Step {t} cannot be reproduced: the gradient of '{name}' consists of rounding "
                "errors only, and the optimizer turns it into a step of full size, whose direction "
                "is different in a replay. A bias before a BatchNorm has such a gradient. Remove "
                "the parameter (bias=False), which does not change the model, or freeze it."
            )
        raise NotSupported(
            f"Step {t} cannot be reproduced: the optimizer changed the parameters by up to "
            f"{moved:.2e}, but a replay differs by {difference:.2e}. {_WHAT_THE_LOOP_DOES}"
        )


def _parameter_at(executor: Executor, index: int) -> str:
    """The name of the parameter that holds this element of theta."""
    layout = executor.objective.layout
    return layout.names[int(np.searchsorted(np.cumsum(layout.sizes), index, side="right"))]


def _rounding_of_kernels(executor: Executor) -> float:
    """How far two kernels for the same pass may be apart, beyond the rounding of its own type."""
    narrow = executor.objective.precision.narrow
    if narrow is not None:
        return _ROUNDINGS * torch.finfo(narrow).eps
    # on a GPU convolutions round to tf32 unless told otherwise, and choose their own kernels
    on_gpu = next(executor.objective.model.parameters()).is_cuda
    return _ROUNDINGS * _TF32_EPS if on_gpu else 0.0


def _check_losses(seen: SeenLoss, replayed: Tensor, executor: Executor, t: int) -> None:
    """Refuse a micro-batch whose losses are not those that the recorder was given a loss for.

    An optimizer such as Adam hides how large a gradient is, and a small difference shows late.
    """
    if seen.share is None:
        value, expected = seen.loss, replayed.reshape(seen.loss.shape)
    else:
        value = seen.loss.reshape(())
        # in float64, as the loop's own sum may be
        share = torch.as_tensor(seen.share, dtype=torch.float64, device=value.device)
        expected = (replayed.double() * share).sum()
        value = value.to(expected.dtype)
    scale = float(expected.abs().max())
    allowed = max(LOSSES.relative(replayed.dtype), _rounding_of_kernels(executor))
    difference = float((value - expected).abs().max())
    if not math.isfinite(scale) or difference <= allowed * max(
        scale, torch.finfo(value.dtype).tiny
    ):
        return
    if seen.share is None:
        raise NotSupported(
            f"Step {t} cannot be reproduced: its losses differ from those of a replay by up "
            f"to {difference:.2e} (the largest loss is {scale:.2e}). Check that the model and the "
            "loss do not count their calls, or draw random numbers that do not come from torch."
        )
    raise NotSupported(
        f"At step {t} the loss of the loop is {float(value):.6g}, but the recorder's loss, "
        f"{executor.objective.loss_name}, is {float(expected):.6g}. Pass to the recorder the loss "
        "that the loop uses, with one value per instance: dross.Recorder(model, "
        "nn.CrossEntropyLoss(label_smoothing=0.1, reduction='none'), optimizer, ...). If the loop "
        "does not average the losses, specify the weight of each loss: watch(loss, share=1) for a "
        "sum, watch(loss, share=1 / weight[y].sum()) with class weights."
    )


def compare_attention(executor: Executor, before: State, batch: Batch) -> float | None:
    """How far the loop's attention kernels are from the math kernel, in the gradient of a batch.

    A retrace differentiates by the math kernel, at states that the loop's kernels led to.

    Arguments:
        executor: of the run.
        before: the state that the loop stepped from.
        batch: its first micro-batch.

    Returns:
        The norm of the difference divided by that of the gradient; None if there is only one
        kernel.
    """
    objective = executor.objective
    if objective.precision.kernels == MATH:
        return None
    gradient = lambda: objective.gradient(before.theta, before.buffers, batch)[0]
    with objective.training():
        with PassNotes(before.theta.device) as notes:
            loop = gradient()
        with objective.precision.math_attention():
            math = gradient()
    gap = float((loop - math).norm() / loop.norm().clamp_min(torch.finfo(loop.dtype).tiny))
    narrow = objective.precision.narrow
    explained = ROUNDING_OF_LENGTH.relative(loop.dtype)
    if narrow is not None:
        deeper = (
            max(1.0, notes.attention_calls / 2) ** 0.5
        )  # roundings of many layers add up at random
        explained = max(explained, _ROUNDINGS * torch.finfo(narrow).eps * deeper)
    if gap > explained:
        warnings.warn(
            "The attention kernel of this loop and the math kernel, which a retrace uses, produce "
            f"gradients that differ by {100 * gap:.2g} %; rounding explains {100 * explained:.2g} "
            f"%. Scores are off by about as much. {_ATTENTION_ADVICE[objective.stochastic]}",
            DrossWarning,
            stacklevel=2,
        )
    return gap


def check_batch(instances: Instances, ids: np.ndarray, x: Any, y: Any, t: int) -> None:
    """Refuse a dataset that does not return a batch of step t again: it cannot be replayed."""
    seen = tree_leaves((x, y))

    def is_returned_for(ids: np.ndarray) -> bool:
        again = tree_leaves(instances[ids])
        pairs = zip(seen, again)
        same = all(one.shape == other.shape and torch.equal(one, other) for one, other in pairs)
        return same and len(seen) == len(again)

    if is_returned_for(ids):
        return
    if ids.min() > 0 and is_returned_for(ids - 1):
        raise InvalidInput(f"The ids of step {t} begin at 1. {IDS_BEGIN_AT_0}")
    raise NotSupported(
        f"The batch of step {t} does not match what the dataset returns for its ids. The ids must "
        "be the indices of its instances in the dataset, and inputs and labels must be recorded "
        f"exactly as the dataset returns them. {MOVE_TO_AUGMENT}"
    )


def check_finite(
    t: int, after: Tensor, g: Tensor, losses: list[Tensor], ids: np.ndarray, kept: int
) -> None:
    """Refuse a step whose gradient or result is not finite.

    Arguments:
        t: the number of the step.
        after: theta after it [p].
        g: its gradient [p].
        losses: of each micro-batch.
        ids: the instances of the step, in the order of the losses.
        kept: up to which step the tape is complete.

    Raises:
        Diverged: it names the step and the instances.
    """
    gradient_is_finite = _is_finite(g)
    if gradient_is_finite and _is_finite(after):
        return
    bad = ids[~torch.isfinite(torch.cat(losses)).cpu().numpy()]
    if len(bad):
        names = ", ".join(map(str, bad[:5]))
        what = f"the loss of instance{'s' * (len(bad) > 1)} {names} is not finite"
    else:
        what = "the update overflows" if gradient_is_finite else "the gradient is not finite"
    raise Diverged(
        f"Step {t}: {what}. Check those inputs, lower the learning rate, or clip the gradient. The "
        f"recorded run is complete up to step {kept}.",
        step=t,
    )


def _is_finite(t: Tensor) -> bool:
    """Whether every number is finite.

    The sum of finite numbers nearly always is, and takes a fiftieth of the time that looking at
    each takes. Where it is not, it may have overflowed, and each is looked at.
    """
    return bool(torch.isfinite(t.sum())) or bool(torch.isfinite(t).all())

"""Stop a run at the step that breaks it, and say which instances broke it."""

import numpy as np
import torch
from torch import Tensor

from ..engine.state import State
from ..errors import Diverged


def check_finite(
    t: int, after: State, g: Tensor, losses: list[Tensor], ids: np.ndarray, kept: int
) -> None:
    """Refuse a step whose gradient or result is not finite.

    Arguments:
        t: the number of the step.
        after: the state that it led to.
        g: its gradient [p].
        losses: of each micro-batch.
        ids: the instances of the step, in the order of the losses.
        kept: up to which step the tape is whole.

    Raises:
        Diverged: it names the step and the instances.
    """
    gradient_is_finite = _is_finite(g)
    if gradient_is_finite and _is_finite(after.theta):
        return
    bad = ids[~torch.isfinite(torch.cat(losses)).cpu().numpy()]
    if len(bad):
        names = ", ".join(map(str, bad[:5]))
        what = f"the loss of instance{'s' * (len(bad) > 1)} {names} is not finite"
    else:
        what = "the update overflows" if gradient_is_finite else "the gradient is not finite"
    raise Diverged(
        f"Step {t}: {what}. Look at those inputs, lower the rate, or clip the gradient. The "
        f"recorded run is whole up to step {kept}.",
        step=t,
    )


def _is_finite(t: Tensor) -> bool:
    """Whether every number is finite.

    The sum of finite numbers nearly always is, and takes a fiftieth of the time that looking at
    each takes. Where it is not, it may have overflowed, and each is looked at.
    """
    return bool(torch.isfinite(t.sum())) or bool(torch.isfinite(t).all())

"""Stop a run at the step that breaks it, and say which instances broke it."""

import numpy as np
import torch
from torch import Tensor

from ...errors import NotFinite
from ...step.state import State


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
        NotFinite: it names the step and the instances.
    """
    gradient_is_finite = bool(torch.isfinite(g).all())
    if gradient_is_finite and bool(torch.isfinite(after.theta).all()):
        return
    bad = ids[~torch.isfinite(torch.cat(losses)).cpu().numpy()]
    if len(bad):
        names = ", ".join(map(str, bad[:5]))
        what = f"the loss of instance{'s' * (len(bad) > 1)} {names} is not finite"
    else:
        what = "the update overflows" if gradient_is_finite else "the gradient is not finite"
    raise NotFinite(
        f"Step {t}: {what}. Look at those inputs, lower the rate, or clip the gradient. The tape "
        f"is whole up to step {kept}.",
        step=t,
    )

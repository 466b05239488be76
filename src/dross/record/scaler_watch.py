"""Follow a GradScaler: by which scale it divides the gradients, and which steps it skips.

Its two methods that act on an optimizer are watched on the object itself: `unscale_`, which `step`
calls where the loop has not, and `step`. A fused optimizer unscales and skips by itself, by two
attributes that the scaler sets during its step.
"""

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from ..errors import InvalidInput


def check_scaler(given: Any) -> GradScaler | None:
    """The scaler itself, or an error that says what one is; None for one that is disabled."""
    if given is None:
        return None
    if not isinstance(given, GradScaler):
        raise InvalidInput(f"scaler must be a torch.amp.GradScaler, not {type(given).__name__}.")
    return given if given.is_enabled() else None


class ScalerWatch:
    """Gets notified of what a scaler does to one optimizer."""

    def __init__(
        self,
        scaler: GradScaler,
        optimizer: Optimizer,
        *,
        unscaling: Callable[[], None],
        unscaled: Callable[[float], None],
        stepped: Callable[[], None],
    ):
        """Listen from now on, until `remove`.

        Arguments:
            scaler: the loop's.
            optimizer: the one that is recorded.
            unscaling: called before its gradients are divided by the scale.
            unscaled: called afterwards, with the scale.
            stepped: called after the scaler's step, whether the optimizer took one or not.
        """
        self.scaler = scaler
        own_unscale, own_step = scaler.unscale_, scaler.step

        def unscale_(given: Optimizer) -> None:
            if given is not optimizer:
                return own_unscale(given)
            unscaling()
            own_unscale(given)
            unscaled(scaler.get_scale())

        def step(given: Optimizer, *args: Any, **kwargs: Any) -> Any:
            result = own_step(given, *args, **kwargs)
            if given is optimizer:
                stepped()
            return result

        self._methods = {"unscale_": unscale_, "step": step}
        scaler.__dict__.update(self._methods)

    def remove(self) -> None:
        """Leave the scaler as it was."""
        for name, method in self._methods.items():
            if self.scaler.__dict__.get(name) is method:
                del self.scaler.__dict__[name]


def scale_in_step(optimizer: Optimizer) -> float:
    """The scale by which a fused optimizer divides in the step that it is taking; 1 for others."""
    scale = getattr(optimizer, "grad_scale", None)
    return float(scale) if isinstance(scale, Tensor) else 1.0


def skips_step(optimizer: Optimizer) -> bool:
    """Whether a fused optimizer leaves the parameters alone in the step that it is taking."""
    found = getattr(optimizer, "found_inf", None)
    return isinstance(found, Tensor) and float(found) > 0

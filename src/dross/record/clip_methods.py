"""How a loop clips its gradients so that a recorder knows of it."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from .._checks import check_number
from ..engine.step import ClipNorm, ClipValue
from ..errors import InvalidInput
from .step_watch import StepWatch


class ClipMethods:
    """The part of a recorder that clips."""

    _watch: StepWatch

    def clip_grad_norm_(self, max_norm: float) -> Tensor:
        """torch.nn.utils.clip_grad_norm_ over the parameters in training, recorded.

        Call it between backward() and optimizer.step().

        Arguments:
            max_norm: the largest norm that the gradient may have.

        Returns:
            The norm of the gradient before clipping.

        Raises:
            NotSupported: where this step has been clipped already.
        """
        max_norm = check_number(max_norm, "max_norm")
        with self.clipping(max_norm=max_norm) as parameters:
            return torch.nn.utils.clip_grad_norm_(parameters, max_norm)

    def clip_grad_value_(self, limit: float) -> None:
        """torch.nn.utils.clip_grad_value_ over the parameters in training, recorded.

        Call it between backward() and optimizer.step().

        Arguments:
            limit: the largest absolute value that a number of the gradient may have.

        Raises:
            NotSupported: where this step has been clipped already.
        """
        limit = check_number(limit, "limit")
        with self.clipping(value=limit) as parameters:
            torch.nn.utils.clip_grad_value_(parameters, limit)

    @contextmanager
    def clipping(
        self, *, max_norm: float | None = None, value: float | None = None
    ) -> Iterator[list[Tensor]]:
        """Record a clip that other code does inside, such as a trainer's own.

            with recorder.clipping(max_norm=1.0):
                accelerator.clip_grad_norm_(model.parameters(), 1.0)

        Arguments:
            max_norm: the largest norm that the gradient may have; infinity clips nothing.
            value: or the largest absolute value that a number of it may have.

        Yields:
            The parameters in training.

        Raises:
            NotSupported: where this step has been clipped already.
        """
        if (max_norm is None) == (value is None):
            raise InvalidInput("Give clipping either max_norm or value.")
        if max_norm is not None:
            limit = check_number(max_norm, "max_norm")
            clip = None if limit == float("inf") else ClipNorm(limit)
        else:
            clip = ClipValue(check_number(value, "value"))
        yield self._watch.declare_clip(clip)
        self._watch.gradients.accept()

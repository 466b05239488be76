"""What a loop that computes its own loss tells a recorder."""

from collections.abc import Callable

from torch import Tensor


class Followed:
    """A micro-batch of a loop that computes its own loss; called with that loss."""

    def __init__(
        self, watch: Callable[[Tensor, float | None], None], compute: Callable[[], Tensor]
    ):
        """watch: gets a loss and its share. compute: gives the losses of a replay."""
        self._watch, self._compute = watch, compute

    def __call__(self, loss: Tensor, share: float | None = None) -> None:
        """Note the loss, before backward().

        Arguments:
            loss: one number, or the losses of the instances [B].
            share: what each instance's loss is multiplied by to add up to that number; 1/B by
                default, which makes it the mean.
        """
        self._watch(loss, share)

    def losses(self) -> Tensor:
        """The losses of the instances [B] as a replay computes them."""
        return self._compute()

"""Whether a replay is where the recording went on from."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..errors import TapeMismatch
from ..execution.streams import HostCopy, side_stream
from ..step.layout import State
from ..tape.reader import Tape


def check_same(arrived: State, recorded: State, t: int, tape: Tape) -> None:
    comparison(arrived, lambda: recorded, t, tape)()


def comparison(
    arrived: State, recorded: Callable[[], State], t: int, tape: Tape
) -> Callable[[], None]:
    """The check that a replay is where it should be. On a GPU it is the caller's to make, when there is something else to compute meanwhile."""
    sent, device = HostCopy(arrived.tensors()), arrived.theta.device

    def check() -> None:
        with side_stream(device):
            _compare(sent.wait(), recorded().map(lambda t: t.cpu()).tensors(), device, t, tape)

    if device.type != "cuda":
        check()
        return nothing
    return check


def nothing() -> None:
    """There is nothing to check, or it has been."""


def _compare(
    arrived: dict[str, Tensor],
    recorded: dict[str, Tensor],
    device: torch.device,
    t: int,
    tape: Tape,
) -> None:
    """Tolerates rounding (another loop's optimizer adds up in another order), and nothing else."""
    for name, value in recorded.items():
        own = arrived[name]
        if torch.equal(own, value):
            continue
        if not value.is_floating_point():
            raise TapeMismatch(
                f"Step {t - 1} replayed to another {name}: the tape is of another model or data set."
            )
        tolerance = torch.finfo(value.dtype).eps ** 0.5
        difference, scale = float((own - value).abs().max()), float(value.abs().max())
        if not difference <= tolerance * max(scale, torch.finfo(value.dtype).tiny):
            made = tape.manifest
            raise TapeMismatch(
                f"Step {t - 1} replayed to a different {name} (largest difference {difference:.1e} of {scale:.1e}). The run was "
                f"recorded on {made['device']} with torch {made['torch']}; this is {device} with torch "
                f"{torch.__version__}. Retrace it there, and pass the loss, the penalty and the data it was trained with; a loop of your "
                "own must not change the model between steps."
            )

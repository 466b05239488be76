"""Check that a replay arrives where the recording did."""

from collections.abc import Callable

import torch
from torch import Tensor

from ..engine.device import HostCopy, side_stream
from ..engine.state import State
from ..engine.tolerance import ROUNDING, is_close, size
from ..errors import InputChanged
from ..tape.reader import Tape


def check_same(reached: State, recorded: State, t: int, tape: Tape) -> None:
    """Refuse a replay that reached another state after t steps than the recorded one."""
    check_later(reached, lambda: recorded, t, tape)()


def check_later(
    reached: State, recorded: Callable[[], State], t: int, tape: Tape
) -> Callable[[], None]:
    """`check_same`, as a function for the caller to call.

    On a GPU it is called when the GPU has other work to do meanwhile. On a CPU the check is done
    here, and the function does nothing.

    Arguments:
        reached: the state that the replay reached.
        recorded: gives the recorded state.
        t: the number of steps that led there.
        tape: says where the run was recorded.

    Raises:
        InputChanged: where the two differ by more than rounding.
    """
    copy, device = HostCopy(reached.tensors()), reached.theta.device

    def check() -> None:
        with side_stream(device):
            expected = recorded().map(lambda t: t.cpu()).tensors()
            _compare(copy.wait(), expected, device, t, tape)

    if device.type == "cuda":
        return check
    check()
    return do_nothing


def do_nothing() -> None:
    """A check that finds nothing: there is none to do, or it has been done."""


def _compare(
    reached: dict[str, Tensor],
    recorded: dict[str, Tensor],
    device: torch.device,
    t: int,
    tape: Tape,
) -> None:
    """Tolerates rounding (another loop's optimizer adds in another order), and nothing else."""
    for name, value in recorded.items():
        own = reached[name]
        if torch.equal(own, value):
            continue
        if not value.is_floating_point():
            raise InputChanged(
                f"Step {t - 1} replayed to another {name}: the tape is of another model or data "
                "set."
            )
        scale = size(value, ROUNDING)
        if not is_close(own, value, ROUNDING, scale=max(scale, torch.finfo(value.dtype).tiny)):
            made, difference = tape.manifest, size(own - value, ROUNDING)
            raise InputChanged(
                f"Step {t - 1} replayed to a different {name} (largest difference {difference:.1e} "
                f"of {scale:.1e}). The run was recorded on {made['device']} with torch "
                f"{made['torch']}; this is {device} with torch {torch.__version__}. Retrace it "
                "there, and pass the loss, the penalty and the data it was trained with; a loop of "
                "your own must not change the model between steps."
            )

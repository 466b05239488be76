"""Watch which autocast a loop computes in: it is recorded, and the same for the whole run."""

from dataclasses import replace

import torch

from ..engine.precision import Autocast, observe_autocast
from ..errors import InvalidInput, NotSupported
from .loop_tape import LoopTape, UserLoop


def find_cast(loop: UserLoop) -> Autocast | None:
    """The autocast that the next pass is computed in."""
    around = observe_autocast(loop.device)
    if around is not None and loop.autocast is not None:
        raise InvalidInput(
            "Autocast is on around recorder.step, and the recorder was given autocast= as well: "
            "leave one of the two out."
        )
    return around or loop.autocast


def check_same_cast(tape: LoopTape, cast: Autocast | None) -> None:
    """Refuse an autocast that comes, goes or changes within a run."""
    first = _recorded(tape)
    now = cast if cast is None or first is None else replace(cast, backward=first.backward)
    if now != first:
        raise NotSupported(
            f"Step {tape.steps} is computed with autocast {now or 'off'}, and the steps before it "
            f"with {first or 'off'}: a tape has one for the whole run. Close the recorder and "
            "begin another tape."
        )


def check_backward(tape: LoopTape, device: torch.device) -> None:
    """backward() runs inside autocast at every step, or at none."""
    cast = _recorded(tape)
    inside = torch.is_autocast_enabled(device.type)
    if cast is None or cast.backward == inside:
        return
    if tape.steps or tape.earlier:
        words = ("inside", "outside") if inside else ("outside", "inside")
        raise NotSupported(
            f"backward() of step {tape.steps} ran {words[0]} autocast, and those before it "
            f"{words[1]}: run it the same way at every step."
        )
    tape.settle_backward(inside)


def _recorded(tape: LoopTape) -> Autocast | None:
    assert tape.opened is not None  # by the first micro-batch
    return tape.opened.executor.objective.precision.autocast

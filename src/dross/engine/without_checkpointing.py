"""Passes without gradient checkpointing and without compiled functions.

Gradient checkpointing recomputes a block in the backward pass: with the model's own weights, not
with those of a functional call, and not at all under `torch.autograd.grad` (the reentrant kind). A
compiled function has no second derivative. Neither changes what is computed, so dross's own passes
do without both.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils import checkpoint

# All code that has imported `torch.utils.checkpoint.checkpoint`, under whatever name, calls one of
# these through the module: the reentrant kind, or the other, which torch 2.15 has renamed.
_REENTRANT, _OTHER = "CheckpointFunction", "_checkpoint_without_reentrant_generator"
_OTHERS = [name for name in (_OTHER, f"{_OTHER}_impl") if hasattr(checkpoint, name)]


class _CallAsItStands:
    @staticmethod
    def apply(function: Callable, preserve_rng_state: bool, *args: Any) -> Any:
        return function(*args)


def _do_nothing_around(*args: Any, **kwargs: Any) -> Iterator[None]:
    """What runs before and after a checkpointed block: torch calls the block at the yield."""
    yield


@contextmanager
def plain_passes() -> Iterator[None]:
    """Inside, checkpointed blocks keep their activations, and compiled functions run as written."""
    stands_in = {_REENTRANT: _CallAsItStands} | dict.fromkeys(_OTHERS, _do_nothing_around)
    before = {name: getattr(checkpoint, name) for name in stands_in}
    try:
        for name, plain in stands_in.items():
            setattr(checkpoint, name, plain)
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        for name, own in before.items():
            setattr(checkpoint, name, own)

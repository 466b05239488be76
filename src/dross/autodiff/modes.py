"""What hangs on a model's modules: whether they train, and whether somebody listens."""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn


@contextmanager
def modes(wanted: dict[nn.Module, bool]) -> Iterator[None]:
    before = [(module, module.training) for module in wanted]
    for module, training in wanted.items():
        module.training = training
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def has_hooks(model: nn.Module) -> bool:
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind, None) for module in model.modules() for kind in kinds)

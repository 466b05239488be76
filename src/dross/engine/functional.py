"""A model as a pure function: called with other tensors, in a given mode.

`torch.func.functional_call` exchanges a model's tensors, tied weights included. It fails where one
module is in two places of a model: it exchanges the tensors once per place, mistakes the first ones
for the module's own the second time, and leaves them behind (torch 2.11 and 2.13). So ties are
found here, one name for each module that has the tensor.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn
from torch.func import functional_call

from ..data.collated import Keywords


def apply_model(model: Callable[..., Any], x: Any) -> Any:
    """model(x), or model(**x) where x is a batch of keywords."""
    return model(**x) if isinstance(x, Keywords) else model(x)


def call_model(model: nn.Module, named: dict[str, Tensor], x: Any) -> Any:
    """`apply_model` with these parameters and buffers.

    What the pass assigns to them is in `named` afterwards.
    """
    every = dict(named)
    for name, other in _ties(model):
        if name in named and other in named:
            raise ValueError(
                f"'{name}' and '{other}' are the same tensor, as a parameter and as a buffer."
            )
        if name in named:
            every[other] = named[name]
    args, kwargs = ((), dict(x)) if isinstance(x, Keywords) else ((x,), None)
    outputs = functional_call(model, every, args, kwargs, tie_weights=False)
    named.update((name, every[name]) for name in named)
    return outputs


def _ties(model: nn.Module) -> Iterator[tuple[str, str]]:
    """The name of a tensor in named_parameters or named_buffers, and each name elsewhere."""
    names: dict[int, str] = {}
    for place, module in model.named_modules():  # each module once, wherever it is
        for kind in (module._parameters, module._buffers):
            for own, tensor in kind.items():
                if tensor is not None:
                    name = f"{place}.{own}" if place else own
                    if (first := names.setdefault(id(tensor), name)) is not name:
                        yield first, name


@contextmanager
def use_modes(wanted: dict[nn.Module, bool]) -> Iterator[None]:
    """Inside, each module trains (True) or evaluates (False) as wanted."""
    before = [(module, module.training) for module in wanted]
    for module, training in wanted.items():
        module.training = training
    try:
        yield
    finally:
        for module, training in before:
            module.training = training


def has_hooks(model: nn.Module) -> bool:
    """Whether a module has hooks, which must be called in every pass."""
    kinds = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
    return any(getattr(module, kind, None) for module in model.modules() for kind in kinds)

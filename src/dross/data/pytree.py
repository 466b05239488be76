"""Arguments and results as a row of tensors and the form to put them together again."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map


def in_pair(change: Callable[[Any], Any], pair: tuple[Any, Any]) -> tuple[Any, Any]:
    """The same of every leaf of (x, y). Nearly always both are tensors, and then a step need not wait for the general walk."""
    x, y = pair
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return change(x), change(y)
    return tree_map(change, (x, y))


def flattened(values: Iterable[Any]) -> tuple[list[Tensor], tuple]:
    """The tensors among the values and in their dicts, and their form; what is no tensor is part of the form. A state that was read from
    a file has its buffers in another order: dicts are taken by name."""
    tensors: list[Tensor] = []
    form: list[Any] = []
    for value in values:
        if isinstance(value, Tensor):
            tensors.append(value)
            form.append(_TENSOR)
        elif isinstance(value, dict):
            names = tuple(sorted(value))
            tensors += [value[name] for name in names]
            form.append(_Names(names))
        else:
            form.append(value)
    return tensors, tuple(form)


def unflattened(tensors: Iterable[Tensor], form: tuple) -> tuple:
    rest = iter(tensors)
    one = lambda f: (
        next(rest)
        if f is _TENSOR
        else {name: next(rest) for name in f}
        if isinstance(f, _Names)
        else f
    )
    return tuple(one(f) for f in form)


class _Names(tuple):
    """The keys of a dict of tensors."""


_TENSOR = object()

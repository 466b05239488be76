"""Arguments and results as a list of tensors and the form to put them together again."""

from collections.abc import Callable, Iterable
from typing import Any

from torch import Tensor
from torch.utils._pytree import tree_map


def map_pair(change: Callable[[Any], Any], pair: tuple[Any, Any]) -> tuple[Any, Any]:
    """The change applied to every leaf of (x, y).

    Nearly always both are tensors, and then a step need not wait for the general walk.
    """
    x, y = pair
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return change(x), change(y)
    return tree_map(change, (x, y))


def flatten(values: Iterable[Any]) -> tuple[list[Tensor], tuple]:
    """The tensors among the values and in their dicts, and the form of the values.

    Anything else is part of the form. Dicts are taken by name, because a state that was read
    from a file has its buffers in another order.
    """
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


def unflatten(tensors: Iterable[Tensor], form: tuple) -> tuple:
    """The values that `flatten` took apart, made of other tensors."""
    rest = iter(tensors)

    def rebuild(part: Any) -> Any:
        if part is _TENSOR:
            return next(rest)
        return {name: next(rest) for name in part} if isinstance(part, _Names) else part

    return tuple(rebuild(part) for part in form)


class _Names(tuple):
    """The keys of a dict of tensors."""


_TENSOR = object()

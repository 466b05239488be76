"""Functions of packages above this one, which register here so that this one can call them."""

from collections.abc import Callable
from typing import Any

_COPY: dict[str, Callable[..., Any]] = {}


def set_cleaned(copy: Callable[..., Any]) -> None:
    """Say what `Project.cleaned` calls: with the project, `remove` and `relabel`."""
    _COPY["cleaned"] = copy


def copy_cleaned(project: Any, remove: int | None, relabel: int | None) -> Any:
    """What `Project.cleaned` returns."""
    return _COPY["cleaned"](project, remove, relabel)

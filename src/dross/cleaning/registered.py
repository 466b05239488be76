"""Functions of packages above this one, which register here so that this one can call them."""

import importlib
from collections.abc import Callable
from typing import Any

_COPY: dict[str, Callable[..., Any]] = {}
_JUDGES: dict[str, Callable[..., Any]] = {}
_HOMES = {"chats": "dross.finetune.judge"}  # imported when a project of the kind is judged


def set_cleaned(copy: Callable[..., Any]) -> None:
    """Say what `Project.cleaned` calls: with the project, `remove` and `relabel`."""
    _COPY["cleaned"] = copy


def copy_cleaned(project: Any, remove: int | None, relabel: int | None) -> Any:
    """What `Project.cleaned` returns."""
    return _COPY["cleaned"](project, remove, relabel)


def set_judge(kind: str, judge: Callable[..., Any]) -> None:
    """Say what trains the models of a verdict for projects of a kind, instead of `dross.judge`.

    It is called with the project, the edits, the number of seeds and a function that is told how
    many are done, with `device` and `progress`; it returns the verdict and its ResultStore.
    """
    _JUDGES[kind] = judge


def judge_of(kind: str) -> Callable[..., Any] | None:
    """What `set_judge` was told of this kind; None: `dross.judge` trains them itself."""
    if kind in _HOMES:
        importlib.import_module(_HOMES[kind])  # it calls set_judge
    return _JUDGES.get(kind)

"""Data and models that a user gives as `module:function`."""

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import BadInput
from .prepared import PreparedData, assemble
from .source import PARTS, Source, check_learnable, consecutive_ids, import_pandas

_INPUTS_SHOWN = 50


def import_function(entry: str, option: str) -> Callable[..., Any]:
    """Import a function; modules in the current folder are found too.

    Arguments:
        entry: Its name as `module:function`.
        option: The option that the user gave it with, for error messages.
    """
    module, _, name = entry.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise BadInput(
            f"{option} {entry}: there is no module '{module}' to import ({error})."
        ) from None
    except AttributeError:
        raise BadInput(f"{option} {entry}: the module has no function '{name}'.") from None


def source_digest(entry: str) -> str:
    """A digest of the module that `module:function` is in; empty for a compiled one."""
    import_function(entry, "--model")
    try:
        source = inspect.getsource(sys.modules[entry.partition(":")[0]])
    except (OSError, TypeError):
        return ""
    return hashlib.sha256(source.encode()).hexdigest()


def prepare_from_python(entry: str, label: str) -> PreparedData:
    """Take a data set from a function of the user's own.

    Arguments:
        entry: `module:function`. The function returns {"train": (x, y), "validation": (x, y),
            "test": (x, y)} as tensors or arrays, and optionally "classes", the names of the
            classes.
        label: The name of what is learnt.
    """
    returned = import_function(entry, "data")()
    if not isinstance(returned, dict) or not set(PARTS) <= set(returned):
        raise BadInput(
            f"{entry} must return a dict with train, validation and test, each a pair (x, y); "
            f"it returned {type(returned).__name__}."
        )
    x = {part: _as_tensor(returned[part][0]) for part in PARTS}
    y = {part: _as_tensor(returned[part][1]) for part in PARTS}
    labels = np.concatenate([targets.reshape(len(targets)).numpy() for targets in y.values()])
    if y["train"].is_floating_point():
        labels = labels.astype(np.float64)
    else:
        labels = _name_classes(labels, [str(name) for name in returned.get("classes", [])], entry)
    parts = consecutive_ids({part: len(targets) for part, targets in y.items()})
    names = [f"{part} {k}" for part in PARTS for k in range(len(parts[part]))]
    source = Source("custom", label, _content(list(x.values())), labels, names)
    check_learnable(source)
    for part, inputs in x.items():
        x[part] = inputs.float() if inputs.is_floating_point() else inputs
    return assemble(source, parts, x)


def _as_tensor(side: Any) -> Tensor:
    return torch.as_tensor(side if isinstance(side, Tensor) else np.asarray(side))


def _name_classes(targets: np.ndarray, given: list[str], entry: str) -> np.ndarray:
    """The name of each label's class: the given one, or else the label itself."""
    names = dict(enumerate(given)) or {int(value): str(value) for value in np.unique(targets)}
    if not set(targets.tolist()) <= set(names):
        raise BadInput(
            f"{entry} gives {len(given)} classes, but labels run from {targets.min()} to "
            f"{targets.max()}: label k is class k."
        )
    return np.array([names[int(k)] for k in targets], dtype=object)


def _content(inputs: list[Tensor]) -> Any:
    """The first inputs of every instance as text, one column each."""
    every = torch.cat([x.float() for x in inputs])
    flat = every.reshape(len(every), -1)[:, :_INPUTS_SHOWN].numpy()
    columns = {f"input {k}": [f"{value:.4g}" for value in flat[:, k]] for k in range(flat.shape[1])}
    return import_pandas().DataFrame(columns)

"""Data and models that a user passes as `module:function`.

Importing a module runs it. So a function is imported only if the call that asks for it names it;
being named in a project's folder is never enough.
"""

import importlib
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor

from .._io import digest_file
from ..errors import InvalidInput
from .modality import PARTS, Modality, PreparedData, Source, assemble

CUSTOM = Modality("custom")

_INPUTS_SHOWN = 50


def import_function(entry: str) -> Callable[..., Any]:
    """Import a function; modules in the current folder are found too.

    Arguments:
        entry: Its name as `module:function`.
    """
    module, _, name = entry.partition(":")
    try:
        with _current_folder_first():
            return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise InvalidInput(f"{entry}: there is no module '{module}' to import ({error}).") from None
    except (AttributeError, ValueError):
        raise InvalidInput(f"{entry}: the module has no function '{name}'.") from None


@contextmanager
def _current_folder_first() -> Iterator[None]:
    """Inside, modules are looked for in the current folder first; afterwards, there last.

    Otherwise a `random.py` that happens to lie there would be imported in place of Python's own by
    later imports.
    """
    here = os.getcwd()
    if here in sys.path:
        yield
        return
    sys.path.insert(0, here)
    try:
        yield
    finally:
        sys.path.remove(here)
        sys.path.append(here)  # processes that share the work find it, too


def source_digest(entry: str) -> str:
    """A digest of the file of the module of `module:function`, which is imported."""
    import_function(entry)
    path = getattr(sys.modules[entry.partition(":")[0]], "__file__", None)
    return "" if path is None else digest_file(Path(path))


def prepare_from_python(entry: str, label: str) -> PreparedData:
    """Load a dataset from a function of the user.

    Arguments:
        entry: `module:function`. The function returns {"train": (x, y)} as tensors or arrays, and
            optionally "validation" and "test" likewise, and "classes", the names of the classes.
        label: The name of what is predicted.
    """
    returned = import_function(entry)()
    if not isinstance(returned, dict) or "train" not in returned:
        raise InvalidInput(
            f"{entry} must return a dict with the key train and, optionally, validation and test, "
            f"each a pair (x, y); it returned {type(returned).__name__}."
        )
    x = {part: _as_tensor(returned[part][0]) for part in PARTS if part in returned}
    y = {part: _as_tensor(returned[part][1]) for part in PARTS if part in returned}
    x = {part: x.get(part, x["train"][:0]) for part in PARTS}
    y = {part: y.get(part, y["train"][:0]) for part in PARTS}
    labels = np.concatenate([targets.reshape(len(targets)).numpy() for targets in y.values()])
    if y["train"].is_floating_point():
        labels = labels.astype(np.float64)
    else:
        labels = _name_classes(labels, [str(name) for name in returned.get("classes", [])], entry)
    sizes = [len(targets) for targets in y.values()]
    ids = np.split(np.arange(sum(sizes)), np.cumsum(sizes)[:-1])
    parts: dict[str, np.ndarray] = dict(zip(PARTS, ids, strict=True))
    places = np.concatenate([np.arange(size) for size in sizes])
    source = Source(CUSTOM, label, _content(list(x.values())), labels, places, "instance")
    source.check_learnable()
    for part, inputs in x.items():
        x[part] = inputs.float() if inputs.is_floating_point() else inputs
    return assemble(source, parts, x)


def _as_tensor(side: Any) -> Tensor:
    return torch.as_tensor(side if isinstance(side, Tensor) else np.asarray(side))


def _name_classes(targets: np.ndarray, given: list[str], entry: str) -> np.ndarray:
    """The name of each label's class: the given one, or else the label itself."""
    names = dict(enumerate(given)) or {int(value): str(value) for value in np.unique(targets)}
    if not set(targets.tolist()) <= set(names):
        raise InvalidInput(
            f"{entry} returns {len(given)} class names, but the labels run from {targets.min()} to "
            f"{targets.max()}; label k must be the index of its class."
        )
    return np.array([names[int(k)] for k in targets], dtype=object)


def _content(inputs: list[Tensor]) -> Any:
    """The first inputs of every instance as text, one column each."""
    every = torch.cat([x.float() for x in inputs])
    flat = every.reshape(len(every), -1)[:, :_INPUTS_SHOWN].numpy()
    columns = {f"input {k}": [f"{value:.4g}" for value in flat[:, k]] for k in range(flat.shape[1])}
    return pandas.DataFrame(columns)

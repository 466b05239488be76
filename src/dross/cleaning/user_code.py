"""Data and models that a user gives as `module:function`.

Importing a module runs it. So a function is imported only if the call that asks for it names it;
what a project's folder says is never enough. Its source is found, shown and compared without
importing anything.
"""

import hashlib
import importlib
import os
import sys
import tokenize
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from torch import Tensor

from ..errors import InvalidInput
from .modality import (
    PARTS,
    PreparedData,
    Source,
    assemble,
    check_learnable,
    consecutive_ids,
)

_INPUTS_SHOWN = 50
_LINES_SHOWN = 40  # of the source of code that is not trusted yet


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

    Otherwise a `random.py` that happens to lie there would be taken for Python's own by whatever is
    imported later.
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


def find_source(entry: str) -> Path | None:
    """The file that importing `module:function` would run; None if there is no source file.

    Nothing is imported, not even the packages that the module is in.
    """
    module = entry.partition(":")[0]
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded is not None:
        return Path(loaded) if loaded.endswith(".py") else None
    places: Sequence[str] | None = [os.getcwd(), *sys.path]
    parts, spec = module.split("."), None
    for count in range(1, len(parts) + 1):
        spec = PathFinder.find_spec(".".join(parts[:count]), places)
        if spec is None:
            return None
        places = spec.submodule_search_locations or []
    origin = None if spec is None else spec.origin
    return Path(origin) if origin is not None and origin.endswith(".py") else None


def source_digest(entry: str) -> str:
    """A digest of the module that `module:function` is in; empty where there is no source."""
    source = _read_source(find_source(entry))
    return "" if source is None else hashlib.sha256(source.encode()).hexdigest()


def check_trusted(entries: Sequence[str], trusted: Sequence[str], who: str) -> None:
    """Refuse code that somebody else names, unless this call names it, too; shows its source.

    Arguments:
        entries: The functions that are about to be imported.
        trusted: Those that the caller names.
        who: Who asks for them, for the message: the folder of a project.

    Raises:
        InvalidInput: one of them is not named.
    """
    missing = [entry for entry in entries if entry not in trusted]
    if missing:
        shown = "\n\n".join(show_source(entry) for entry in missing)
        raise InvalidInput(
            f"{who} was made with code that is not a part of dross, and using it runs that code: "
            f"{', '.join(missing)}. Read it below. If you trust it, pass it as "
            f"`trust_code`: {', '.join(entries)}.\n\n{shown}"
        )


def show_source(entry: str) -> str:
    """Where the code of `module:function` is, and how it begins, for a person to read."""
    path = find_source(entry)
    source = _read_source(path)
    if path is None or source is None:
        return f"{entry}: its source was not found."
    lines = source.splitlines()
    shown = [_escape(line) for line in lines[:_LINES_SHOWN]]
    if len(lines) > _LINES_SHOWN:
        shown.append(f"... and {len(lines) - _LINES_SHOWN} more lines")
    title = f"{entry}: {path} (SHA-256 {source_digest(entry)})"
    return "\n".join([title, *(f"    {line}" for line in shown)])


def _read_source(path: Path | None) -> str | None:
    """The text of a source file, as Python reads it."""
    if path is None:
        return None
    try:
        with tokenize.open(path) as file:
            text = file.read()
    except (OSError, SyntaxError, UnicodeDecodeError):
        return None
    return text if text.endswith("\n") else text + "\n"


def _escape(line: str) -> str:
    """Control characters could hide a part of the line from its reader."""
    return "".join(c if c.isprintable() or c == "\t" else ascii(c)[1:-1] for c in line)


def prepare_from_python(entry: str, label: str) -> PreparedData:
    """Take a data set from a function of the user's own.

    Arguments:
        entry: `module:function`. The function returns {"train": (x, y)} as tensors or arrays, and
            optionally "validation" and "test" likewise, and "classes", the names of the classes.
        label: The name of what is learnt.
    """
    returned = import_function(entry)()
    if not isinstance(returned, dict) or "train" not in returned:
        raise InvalidInput(
            f"{entry} must return a dict with train, and if you like validation and test, each a "
            f"pair (x, y); it returned {type(returned).__name__}."
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
        raise InvalidInput(
            f"{entry} gives {len(given)} classes, but labels run from {targets.min()} to "
            f"{targets.max()}: label k is class k."
        )
    return np.array([names[int(k)] for k in targets], dtype=object)


def _content(inputs: list[Tensor]) -> Any:
    """The first inputs of every instance as text, one column each."""
    every = torch.cat([x.float() for x in inputs])
    flat = every.reshape(len(every), -1)[:, :_INPUTS_SHOWN].numpy()
    columns = {f"input {k}": [f"{value:.4g}" for value in flat[:, k]] for k in range(flat.shape[1])}
    return pandas.DataFrame(columns)

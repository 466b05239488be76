"""Is every public name of dross in the reference, and does it say what it is?"""

import inspect
import re
from collections.abc import Iterator
from types import ModuleType
from typing import Any

ANCHOR = re.compile(r'id="(dross(?:\.\w+)+)"')


def find_anchors(html: str) -> set[str]:
    """Return the names that a page of the reference describes."""
    return set(ANCHOR.findall(html))


def find_missing(shown: set[str]) -> list[str]:
    """Say of every public name what it lacks: an entry among `shown`, or a docstring."""
    problems = []
    for name, thing in list_public():
        if is_table(thing):
            continue
        if name not in shown:
            problems.append(f"{name} is on no page of docs/reference")
        if not has_docstring(thing):
            problems.append(f"{name} has no docstring")
        for argument in find_unknown_arguments(thing):
            problems.append(f"{name} explains an argument '{argument}' that it does not have")
    return problems


def find_unknown_arguments(thing: Any) -> list[str]:
    """Return the arguments that a docstring explains and the function does not take."""
    thing = getattr(thing, "__func__", thing)
    if not callable(thing):
        return []
    text = inspect.cleandoc(thing.__doc__ or "")
    _, _, after = text.partition("Arguments:\n")
    section = re.split(r"\n(?=\S)", after)[0]
    lines = re.findall(r"^    (\S[\w, *]*):", section, flags=re.MULTILINE)
    named = [name.strip(" *") for line in lines for name in line.split(",")]
    try:
        known = inspect.signature(thing).parameters
    except (TypeError, ValueError):
        return []
    return [name for name in named if name not in known]


def is_table(thing: Any) -> bool:
    """Say whether a name stands for plain values, which a page need not explain one by one."""
    return isinstance(thing, (dict, list, tuple, str, int, float))


def list_public() -> Iterator[tuple[str, Any]]:
    """Yield the public names with what they stand for, methods and properties included."""
    import dross

    for name in dross.__all__:
        thing = getattr(dross, name)
        yield f"dross.{name}", thing
        if isinstance(thing, ModuleType):
            for inner in _public_of(thing):
                yield f"dross.{name}.{inner}", getattr(thing, inner)
        elif isinstance(thing, type):
            yield from _members(f"dross.{name}", thing)


def _public_of(module: ModuleType) -> list[str]:
    """Return the names that a module lists, or else what it defines itself."""
    if hasattr(module, "__all__"):
        return list(module.__all__)
    own = [name for name in vars(module) if not name.startswith("_")]
    return [
        name
        for name in own
        if getattr(getattr(module, name), "__module__", None) == module.__name__
    ]


def _members(name: str, kind: type) -> Iterator[tuple[str, Any]]:
    for own, member in vars(kind).items():
        is_described = callable(member) or isinstance(member, (property, staticmethod, classmethod))
        is_described = is_described or type(member).__name__ == "cached_property"
        if not own.startswith("_") and is_described:
            yield f"{name}.{own}", member


def has_docstring(thing: Any) -> bool:
    """Say whether a name explains itself."""
    if isinstance(thing, (staticmethod, classmethod)):
        thing = thing.__func__
    if isinstance(thing, type):
        return bool(vars(thing).get("__doc__"))
    return bool(inspect.getdoc(thing))

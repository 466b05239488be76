"""Reading JSON into dataclasses, checked once at the border."""

import json
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import CorruptFile

T = TypeVar("T")


def decode(cls: type[T], value: Any, path: Any) -> T:
    """Build `cls` from parsed JSON, checking the type of every field.

    Understands dataclasses, `int`, `float`, `str`, `bool`, `None`, `Any`, `Literal`, unions,
    `list[T]`, `dict[str, T]`, `tuple[T, ...]` and `tuple[A, B]`. A field with a default may be
    missing. `dataclasses.asdict` is the inverse. A dataclass may check more in `__post_init__`
    and raise ValueError.

    Arguments:
        cls: the type to build, usually a dataclass.
        value: as `json.loads` returns it.
        path: the file, for error messages.

    Raises:
        CorruptFile: a key is missing, unknown or has a wrong value; the message names it.
    """
    try:
        return _decode(cls, value, "")
    except (ValueError, OverflowError) as error:
        raise CorruptFile(f"{path} is damaged: {error}. Restore it from a copy.") from None


def _decode(kind: Any, value: Any, key: str) -> Any:
    origin = get_origin(kind)
    args = get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        others = [each for each in args if each is not NoneType]
        for each in others[:-1]:
            try:
                return _decode(each, value, key)
            except ValueError:
                continue
        return _decode(others[-1], value, key)
    if origin is Literal:
        if any(value == each and type(value) is type(each) for each in args):
            return value
    elif is_dataclass(kind):
        if isinstance(value, dict):
            return _decode_fields(kind, value, key)
    elif origin is dict:
        if isinstance(value, dict):
            return {name: _decode(args[1], each, f"{key}.{name}") for name, each in value.items()}
    elif origin in (list, tuple):
        if isinstance(value, (list, tuple)):
            has_fixed_length = origin is tuple and args[-1] is not ...
            kinds = args if has_fixed_length else [args[0]] * len(value)
            if len(kinds) == len(value):
                rows = enumerate(zip(kinds, value))
                return origin(_decode(each, one, f"{key}[{k}]") for k, (each, one) in rows)
    elif kind is float:
        if type(value) in (int, float):
            return float(value)
    elif type(value) is (kind or NoneType):  # not isinstance: True is an int
        return value
    shown = json.dumps(value, default=repr)
    raise ValueError(f"its entry '{key}' is {shown[:60]}, which is not valid")


def _decode_fields(cls: Any, value: dict, key: str) -> Any:
    prefix = f"{key}." if key else ""
    known = {field.name: field for field in fields(cls)}
    for name, field in known.items():
        if name not in value and field.default is field.default_factory is MISSING:
            raise ValueError(f"it lacks '{prefix}{name}'")
    if unknown := sorted(value.keys() - known.keys()):
        raise ValueError(f"it has the unknown entry '{prefix}{unknown[0]}'")
    hints = _type_hints(cls)
    return cls(**{name: _decode(hints[name], each, prefix + name) for name, each in value.items()})


_type_hints = cache(get_type_hints)

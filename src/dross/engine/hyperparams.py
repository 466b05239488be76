"""The options of a parameter group as numbers and flags, and back."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor

Numbers = dict[str, float]  # one parameter group's lr, momentum, betas.0, ... at one step
Flags = dict[str, bool | str]  # options that say which formula is followed: nesterov, amsgrad
_IGNORED = {"foreach", "fused", "capturable", "differentiable"}  # how torch computes, not what


def flatten_numbers(group: Mapping[str, Any], keys: Iterable[str]) -> Numbers:
    """The numbers among these options of a group; betas=(a, b) becomes betas.0 and betas.1.

    A None within a tuple, as in eps=(None, 1e-3), is kept as nan.
    """
    numbers: Numbers = {}
    for key in keys:
        value = group[key]
        if key in _IGNORED or isinstance(value, bool) or value is None:
            continue
        if isinstance(value, (tuple, list)):
            parts = [math.nan if part is None else float(part) for part in value]
            numbers |= {f"{key}.{k}": part for k, part in enumerate(parts)}
        elif isinstance(value, (int, float)) or (isinstance(value, Tensor) and value.numel() == 1):
            numbers[key] = float(value)
    return numbers


def group_options(h: Numbers) -> dict[str, Any]:
    """The inverse of `flatten_numbers`: betas.0 and betas.1 become betas=(a, b)."""
    options: dict[str, Any] = {}
    for key, value in h.items():
        base, _, index = key.partition(".")
        part = None if index and math.isnan(value) else value
        options[base] = (*options.get(base, ()), part) if index else value
    return options


def read_flags(group: Mapping[str, Any], keys: Iterable[str]) -> Flags:
    """The options that say which formula is followed, and not with which numbers."""
    return {
        key: group[key]
        for key in keys
        if isinstance(group[key], (bool, str)) and key not in _IGNORED
    }

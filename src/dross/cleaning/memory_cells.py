"""The cells and labels of data from Python: which can be kept, and what kind a column is."""

import datetime
import decimal
import numbers
from typing import Any

import numpy as np

from ..errors import InvalidInput, first_line
from .source import Frame, Series, import_pandas

_SIMPLE = (str, bytes, bool, np.bool_, numbers.Number, decimal.Decimal, datetime.date)


def check_table(frame: Frame, label: str, who: str) -> tuple[Frame, dict[str, str]]:
    """The table with cells that a file can hold, and the kinds that its types imply.

    Raises:
        InvalidInput: a cell is an object of another kind.
    """
    kinds: dict[str, str] = {}
    changed = {}
    for name in frame.columns:
        if name == label:
            continue
        column = frame[name]
        if str(column.dtype) == "category":
            kinds[name] = "category"
        elif column.dtype.kind == "M":
            kinds[name] = "date"
        if column.dtype == object:
            changed[name] = _simplify(column, f"The column '{name}' of {who}")
    return frame.assign(**changed) if changed else frame, kinds


def check_labels(y: Any, count: int, who: str, about: dict[str, Any]) -> Series:
    """Labels as one column; what they were is noted in `about`.

    Raises:
        InvalidInput: they are not one label for each instance.
    """
    import torch

    pandas = import_pandas()
    about.setdefault("y", _describe(y))
    if isinstance(y, torch.Tensor):
        about["y_tensor"] = str(y.dtype).removeprefix("torch.")
        y = y.detach().cpu().numpy()
    if not isinstance(y, pandas.Series):
        y = _as_column(y, who)
    if len(y) != count:
        raise InvalidInput(
            f"{who} has {len(y):,} labels, but there are {count:,} instances. Each needs one."
        )
    missing = np.flatnonzero(y.isna().to_numpy())
    if len(missing):
        raise InvalidInput(
            f"{who} has {len(missing):,} labels that are missing (NaN or None), the first at place "
            f"{missing[0]}. Leave these instances out, or label them."
        )
    if str(y.dtype) == "category":
        about["y_type"] = "category"
        y = pandas.Series(np.asarray(y), index=y.index)
    return _simplify(y, who) if y.dtype == object else y


def _describe(y: Any) -> str:
    import torch

    pandas = import_pandas()
    if isinstance(y, torch.Tensor):
        return "tensor"
    if isinstance(y, pandas.Series):
        return "series"
    return "list" if isinstance(y, (list, tuple)) else "array"


def _as_column(y: Any, who: str) -> Series:
    pandas = import_pandas()
    if isinstance(y, (pandas.DataFrame, pandas.Index)) or hasattr(y, "categories"):
        y = np.asarray(y)
    try:
        is_text = isinstance(y, (list, tuple)) and any(isinstance(label, str) for label in y)
        array = np.array(y, dtype=object) if is_text else np.asarray(y)
    except ValueError as error:
        raise InvalidInput(f"{who} is not a list of labels: {first_line(error)}.") from None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InvalidInput(
            f"{who} has the shape {array.shape}; it must be one label for each instance. For "
            "one-hot labels, pass y.argmax(1)."
        )
    if array.dtype.kind == "c":
        raise InvalidInput(f"{who} has complex numbers, which dross cannot learn.")
    return pandas.Series(array)


def _simplify(column: Series, who: str) -> Series:
    """A column of objects as one of a simple type; texts where they are mixed."""
    pandas = import_pandas()
    present = column[column.notna().to_numpy()]
    for place, cell in zip(np.flatnonzero(column.notna().to_numpy()), present):
        if not isinstance(cell, _SIMPLE) or isinstance(cell, complex):
            raise InvalidInput(
                f"{who} holds objects other than numbers, texts and dates: the first, at "
                f"place {place}, is of type {type(cell).__name__}. Give columns of simple values."
            )
    if all(isinstance(cell, str) for cell in present):
        return column
    if all(isinstance(cell, (bool, np.bool_)) for cell in present) and len(present) == len(column):
        return column.astype(bool)
    if all(isinstance(cell, numbers.Real) and not isinstance(cell, bool) for cell in present):
        return pandas.to_numeric(column)
    return column.map(_as_text, na_action="ignore")


def _as_text(cell: Any) -> str:
    return cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell)

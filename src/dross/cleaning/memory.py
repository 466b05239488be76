"""Take data that are given from Python, and write them to files that the rest of dross reads."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import DrossError, InvalidInput, first_line
from ..support.name_hints import check_name
from .memory_cells import check_labels, check_table
from .memory_files import file_name, pixels_of
from .memory_pixels import find_layout
from .source import Frame, import_pandas

_TEXT, _PATH, _LABEL = "text", "path", "label"
_MAX_CELLS = 50_000_000  # of a sparse matrix, once it is dense


@dataclass(frozen=True)
class Given:
    """What a request has to say about data that were given from Python."""

    label: str
    text: str | None
    images: str | None
    columns: dict[str, str]
    about: dict[str, Any]  # how to give them back: `Request.given`


@dataclass
class _Part:
    """One part as a table, and how it came."""

    frame: Frame
    label: str
    about: dict[str, Any]
    text: str | None = None
    pictures: np.ndarray | None = None
    kinds: dict[str, str] = field(default_factory=dict)


def is_given(data: Any) -> bool:
    """Whether these are data themselves, and not the name of a file or a function."""
    return data is not None and not isinstance(data, (str, os.PathLike))


def take_given(
    data: Any,
    label: Any,
    others: Mapping[str, Any],
    place: Path,
    *,
    text: str | None = None,
    images: str | None = None,
) -> Given:
    """Write data to files under a folder.

    Arguments:
        data: A frame, an array, a tensor, a sparse matrix, or a list of texts.
        label: The labels, or the name of the column of a frame that has them.
        others: {"validation": (X, y), or a frame, ...}; None and paths are skipped.
        place: The folder.
        text: The column of a frame that holds texts.
        images: The column of a frame that holds paths of pictures.

    Raises:
        InvalidInput: they cannot be used as given.
        DrossError: the files cannot be written.
    """
    first = _take_part(data, label, "X", text)
    _write(first, "train", place, images)
    for part, value in others.items():
        if is_given(value):
            x, y = value if isinstance(value, tuple) and len(value) == 2 else (value, first.label)
            taken = _take_part(x, y, part, text)
            _write(_name_alike(taken, first, part), part, place, images)
    is_array = first.pictures is not None
    return Given(
        first.label, first.text or text, _PATH if is_array else images, first.kinds, first.about
    )


# --- one part ---


def _take_part(x: Any, y: Any, who: str, text: str | None) -> _Part:
    pandas = import_pandas()
    if isinstance(x, pandas.DataFrame):
        part = _take_frame(x, y, who)
    else:
        if isinstance(y, str) or y is None:
            raise InvalidInput(
                f"{who} is not a DataFrame, so its labels have to be given with it: "
                + ("dross.clean(X, y)." if who == "X" else f"{who}=(X, y).")
            )
        part = _take_array(x, who)
        _add_labels(part, y, who)
    if part.pictures is None:
        part.frame, kinds = check_table(part.frame, part.label, who)
        part.about["categories"] = [name for name in kinds if kinds[name] == "category"]
        part.kinds = {} if text or part.text else kinds
    return part


def _take_frame(x: Frame, y: Any, who: str) -> _Part:
    frame: Any = x.copy(deep=False)
    about: dict[str, Any] = {"x": "frame", "index": [_plain(name) for name in x.index.names]}
    frame.index = frame.index.set_names([None] * frame.index.nlevels)
    if isinstance(frame.index, import_pandas().RangeIndex):  # Parquet would only describe it
        frame.index = import_pandas().Index(np.asarray(frame.index))
    if frame.columns.nlevels > 1:
        raise InvalidInput(f"{who} has columns of several levels. Give them one name each.")
    if all(isinstance(name, (int, np.integer)) for name in frame.columns):
        about["columns"] = "whole"
    names = [str(name) for name in frame.columns]
    frame.columns = names
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise InvalidInput(f"{who} has two columns named '{twice}'. Give one of them another name.")
    if len(frame) == 0 or frame.shape[1] == 0:
        raise InvalidInput(f"{who} is empty: it has the shape {x.shape}.")
    if y is None:
        raise InvalidInput(
            "Which column is to be predicted? Call dross.clean(frame, 'name of the column') or "
            "dross.clean(X, y)."
        )
    if isinstance(y, str):
        check_name("column", y, frame.columns)
        part = _Part(frame, y, about | {"y": "column"})
        frame[y] = check_labels(frame[y], len(frame), f"The column '{y}' of {who}", about)
        return part
    part = _Part(frame, _LABEL, about)
    _add_labels(part, y, who)
    return part


def _take_array(x: Any, who: str) -> _Part:
    about: dict[str, Any] = {}
    array = _as_array(x, who, about)
    if array.ndim == 0 or array.size == 0:
        raise InvalidInput(f"{who} is empty: it has the shape {array.shape}.")
    if array.dtype.kind == "c":
        raise InvalidInput(f"{who} has complex numbers. Give their parts as columns.")
    about |= {"dtype": str(array.dtype), "dimensions": array.ndim}
    pandas = import_pandas()
    if array.ndim > 2:
        return _take_pictures(array, who, about)
    if array.ndim == 1 and all(isinstance(cell, str) for cell in array.tolist()):
        frame = pandas.DataFrame({_TEXT: array.astype(object)})
        return _Part(frame, _LABEL, about, text=_TEXT)
    flat = array.reshape(len(array), -1)
    frame = pandas.DataFrame(flat, columns=[f"x{k}" for k in range(flat.shape[1])])
    return _Part(frame.infer_objects(), _LABEL, about)


def _take_pictures(array: np.ndarray, who: str, about: dict[str, Any]) -> _Part:
    layout = None
    if array.ndim <= 4 and array.dtype.kind in "buif":
        layout = find_layout(array.shape, prefer_first=about["x"] == "tensor")
    if layout is None:
        raise InvalidInput(
            f"{who} has the shape {array.shape} and the type {array.dtype}. With more than two "
            "dimensions it is taken for pictures: [N, H, W], or [N, H, W, C] or [N, C, H, W] with "
            "1, 3 or 4 channels. For anything else give one row of numbers for each instance."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidInput(f"{who} has pixels that are not finite numbers. Correct them first.")
    array = np.moveaxis(array, 1, 3) if layout == "first" else array
    frame = import_pandas().DataFrame(index=range(len(array)))
    about |= {"pixels": layout}
    return _Part(frame, _LABEL, about, pictures=np.ascontiguousarray(array))


def _as_array(x: Any, who: str, about: dict[str, Any]) -> np.ndarray:
    """X as an array; what it was is noted in `about`."""
    import torch
    from scipy import sparse

    if isinstance(x, import_pandas().Series):
        about["x"] = "series"
        series: Any = x
        return series.to_numpy(dtype=object if series.dtype.kind not in "buif" else None)

    if isinstance(x, torch.Tensor):
        about["x"] = "tensor"
        about["tensor"] = str(x.dtype).removeprefix("torch.")
        x = x.detach().cpu()
        return (x.float() if x.dtype == torch.bfloat16 else x).numpy()
    if sparse.issparse(x):
        about |= {"x": "sparse", "format": x.format, "array": isinstance(x, sparse.sparray)}
        if x.shape[0] * x.shape[1] > _MAX_CELLS:
            raise InvalidInput(
                f"{who} is a sparse matrix of {x.shape[0]:,} x {x.shape[1]:,}, which dross would "
                f"have to make dense; the limit is {_MAX_CELLS:,} cells. Reduce it first, for "
                "example with sklearn's TruncatedSVD; or give texts as they are."
            )
        return x.toarray()
    about["x"] = "array" if isinstance(x, np.ndarray) else "list"
    if isinstance(x, Sequence) and all(isinstance(cell, str) for cell in x):
        return np.array(x, dtype=object)
    try:
        array = np.asarray(x)
    except ValueError as error:
        raise InvalidInput(
            f"{who} cannot be made into an array ({first_line(error)}). Do all instances have "
            "the same number of values?"
        ) from None
    if array.ndim == 0:
        raise InvalidInput(
            f"{who} has the type {type(x).__name__}; dross takes a DataFrame, an array, a tensor, "
            "a sparse matrix, a list of texts, or the name of a file."
        )
    return array


def _add_labels(part: _Part, y: Any, who: str) -> None:
    """Add the labels as a column; it takes the name of a Series, if it has one."""
    name = getattr(y, "name", None)
    label = name if isinstance(name, str) and name.strip() == name != "" else _LABEL
    count = len(part.frame)
    while label in part.frame.columns or (part.pictures is not None and label == _PATH):
        label += "."
    part.label = label
    labels = check_labels(y, count, "y" if who == "X" else f"y of {who}", part.about)
    part.frame = part.frame.assign(**{label: labels.to_numpy()})


def _name_alike(part: _Part, first: _Part, who: str) -> _Part:
    """Give the column of labels the name that it has in the first part."""
    if (part.pictures is None) != (first.pictures is None):
        raise InvalidInput(f"{who} and X are of different kinds: only one of them is pictures.")
    if part.label != first.label:
        part.frame = part.frame.rename(columns={part.label: first.label})
        part.label = first.label
    return part


def _write(part: _Part, name: str, place: Path, images: str | None) -> None:
    table = place / file_name(name)
    frame = part.frame
    if part.pictures is not None:
        array = pixels_of(table).name
        frame = frame.assign(**{_PATH: [f"{array}/{k}" for k in range(len(frame))]})
    elif images is not None and images in frame.columns:
        frame = frame.assign(**{images: [_resolve(path) for path in frame[images]]})
    try:
        table.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(table)
        if part.pictures is not None:
            np.save(pixels_of(table), part.pictures, allow_pickle=False)
    except OSError as error:
        raise DrossError(f"{table} cannot be written: {error.strerror or error}.") from error
    except Exception as error:  # cells that Parquet has no type for
        raise InvalidInput(f"The data cannot be kept as Parquet: {first_line(error)}.") from error


def _resolve(path: Any) -> Any:
    """An absolute path: a project may be opened from other folders."""
    return os.path.abspath(path) if isinstance(path, (str, os.PathLike)) else path


def _plain(name: Any) -> str | None:
    return None if name is None else str(name)

"""Data that are given from Python: arrays, frames, tensors, lists of texts."""

import datetime
import decimal
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import torch
from scipy import sparse

from .._checks import check_name
from .._io import digest_file, make_folder, write_bytes
from ..errors import DrossError, InvalidInput, first_line
from .modality import PARTS, Frame, Series

# memory_files ---


FOLDER = "given"
_NAMES = {"train": "data", "validation": "validation", "test": "test"}


def file_name(part: str) -> str:
    """The file of a part, within the folder of a project."""
    return f"{FOLDER}/{_NAMES[part]}.parquet"


def is_given_file(path: str | None) -> bool:
    """Whether this is the name of a file that was made from objects of Python."""
    return path in [file_name(part) for part in PARTS]


def pixels_of(table: Path) -> Path:
    """The array of pictures that belongs to a table of them."""
    return table.with_suffix(".npy")


def keep_files(place: Path, folder: Path) -> None:
    """Copy the files of `place` into the folder of a project, unless they are there.

    Raises:
        DrossError: they cannot be written.
    """
    try:
        make_folder(folder / FOLDER)
        for path in sorted((place / FOLDER).iterdir()):
            kept = folder / FOLDER / path.name
            if not kept.is_file() or digest_file(kept) != digest_file(path):
                write_bytes(kept, path.read_bytes())
    except OSError as error:
        if isinstance(error, DrossError):
            raise
        reason = error.strerror or error
        raise DrossError(f"{folder / FOLDER} cannot be written: {reason}.") from error


def is_in_array(path: Path) -> bool:
    """Whether this names a picture in an array: `data.npy/17`."""
    return path.parent.suffix == ".npy" and os.path.isfile(path.parent)


# memory_pixels ---


_WHITE = 255.0
_CHANNELS = (1, 3, 4)


def read_picture(path: Path) -> np.ndarray | None:
    """The pixels between 0 and 255, [H, W, 3]; None if there is no such picture.

    They are uint8, or float32 where a grey picture has more than 256 shades.
    """
    try:
        stat = path.parent.stat()
        pictures, low, high = _open_array(path.parent, stat.st_mtime_ns, stat.st_size)
        picture = np.asarray(pictures[int(path.name)])
    except (OSError, ValueError, IndexError):
        return None
    if picture.dtype != np.uint8:
        picture = (picture.astype(np.float32) - low) * (_WHITE / (high - low))
    if picture.ndim == 3 and picture.shape[2] > 1:
        return np.round(picture[..., :3]).astype(np.uint8)
    return np.repeat(picture.reshape(*picture.shape[:2], 1), 3, axis=2)


@lru_cache(maxsize=6)
def _open_array(path: Path, changed: int, size: int) -> tuple[np.ndarray, float, float]:
    """The array, and what is black and what is white in it. changed, size: of the file."""
    pictures = np.load(path, mmap_mode="r", allow_pickle=False)
    if pictures.dtype == np.uint8:
        return pictures, 0.0, _WHITE
    low, high = float(pictures.min()), float(pictures.max())
    for white in (1.0, _WHITE):  # the usual ranges
        if low >= 0 and high <= white:
            return pictures, 0.0, white
    return pictures, low, high


def find_layout(shape: tuple[int, ...], prefer_first: bool) -> str | None:
    """Where the channels of pictures are: none, last or first; None where it cannot be told.

    shape: [N, H, W], [N, H, W, C] or [N, C, H, W]; prefer_first: where both could be.
    """
    if len(shape) == 3:
        return "none"
    fitting = {"first": shape[1] in _CHANNELS, "last": shape[3] in _CHANNELS}
    order = ("first", "last") if prefer_first else ("last", "first")
    return next((layout for layout in order if fitting[layout]), None)


# memory_cells ---


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
    if isinstance(y, torch.Tensor):
        return "tensor"
    if isinstance(y, pandas.Series):
        return "series"
    return "list" if isinstance(y, (list, tuple)) else "array"


def _as_column(y: Any, who: str) -> Series:
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


# memory ---


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
    if isinstance(frame.index, pandas.RangeIndex):  # Parquet would only describe it
        frame.index = pandas.Index(np.asarray(frame.index))
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
    frame = pandas.DataFrame(index=range(len(array)))
    about |= {"pixels": layout}
    return _Part(frame, _LABEL, about, pictures=np.ascontiguousarray(array))


def _as_array(x: Any, who: str, about: dict[str, Any]) -> np.ndarray:
    """X as an array; what it was is noted in `about`."""
    if isinstance(x, pandas.Series):
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


# memory_restore ---


def give_back(frame: Frame, label: str, about: dict[str, Any], pixels: Path) -> Any:
    """A frame with its label column where that was given; else the pair (X, y).

    Arguments:
        frame: The rows that are left, as a project's file keeps them.
        label: The column of labels.
        about: How they were given: `Request.given`.
        pixels: The array of pictures, where there is one.
    """
    categories = [*about.get("categories", []), *([label] if "y_type" in about else [])]
    for name in categories:  # Parquet keeps only those of texts
        if str(frame[name].dtype) != "category":
            frame[name] = frame[name].astype("category")
    if about.get("y") == "column":
        return _restore_frame(frame, about)
    y = _restore_labels(frame[label], about)
    if about["x"] == "frame":
        return _restore_frame(frame.drop(columns=[label]), about), y
    if "pixels" in about:
        places = [int(path.rpartition("/")[2]) for path in frame["path"]]
        x = np.load(pixels, allow_pickle=False)[places]
        x = np.moveaxis(x, 3, 1) if about["pixels"] == "first" else x
    else:
        x = _restore_array(frame.drop(columns=[label]), about)
    return _restore_container(x, about), y


def _restore_frame(frame: Frame, about: dict[str, Any]) -> Frame:
    names = about.get("index", [None])
    if frame.index.nlevels == len(names):
        frame.index = frame.index.set_names(names)
    if about.get("columns") == "whole":
        frame.columns = [int(name) for name in frame.columns]
    return frame


def _restore_labels(labels: Any, about: dict[str, Any]) -> Any:
    kind = about.get("y")
    if kind == "list":
        return labels.tolist()
    if kind == "series":
        return labels
    array = labels.to_numpy()
    if kind == "tensor":
        return _make_tensor(array, about["y_tensor"])
    return array


def _restore_array(frame: Frame, about: dict[str, Any]) -> np.ndarray:
    array = frame.to_numpy()
    dtype = np.dtype(about["dtype"])
    if dtype.kind != "U":  # texts are kept as objects: numpy would cut a longer new one
        array = array.astype(dtype)
    return array[:, 0] if about["dimensions"] == 1 else array


def _make_tensor(array: np.ndarray, name: str) -> Any:
    """name: of its type, as the project has it."""
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is not a type of tensor")
    return torch.from_numpy(np.ascontiguousarray(array).copy()).to(dtype)


def _restore_container(x: np.ndarray, about: dict[str, Any]) -> Any:
    kind = about["x"]
    if kind == "list":
        return x.tolist()
    if kind == "series":
        return pandas.Series(x)
    if kind == "tensor":
        return _make_tensor(x, about["tensor"])
    if kind == "sparse":
        made = (sparse.csr_array if about["array"] else sparse.csr_matrix)(x)
        return made.asformat(about["format"])
    return x

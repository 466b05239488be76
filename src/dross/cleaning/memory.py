"""Data that are passed from Python: arrays, frames, tensors, lists of texts."""

import datetime
import decimal
import numbers
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas
import torch
from scipy import sparse

from .._checks import check_name
from .._io import digest_file, write_bytes
from .._text import say_count
from ..errors import DrossError, InvalidInput, first_line
from .modality import PARTS, Frame, Series

FOLDER = "data"
_TEXT, _PATH, _LABEL = "text", "path", "label"  # columns of data that come without names
_MAX_CELLS = 50_000_000  # of a sparse matrix, once it is dense
_CHANNELS = (1, 3, 4)
_WHITE = 255.0
_SIMPLE = (str, bytes, bool, np.bool_, numbers.Real, decimal.Decimal, datetime.date)


@dataclass
class DataTypes:
    """The types of X and y, so that `Project.cleaned` can return the same."""

    x: Literal["frame", "series", "array", "list", "tensor", "sparse"]
    library: Literal["", "polars", "pyarrow", "datasets"] = ""  # whose frame it was, if not pandas'
    x_dtype: str = ""  # torch's for a tensor, else numpy's
    dimensions: int = 2
    channels: Literal["first", "last", "none"] | None = None  # where images have them
    sparse_format: str = ""
    sparse_array: bool = False  # rather than a sparse matrix
    index: list[str | None] = field(default_factory=list)  # the names of a frame's index
    integer_columns: bool = False  # whether columns are named by integers
    categories: list[str] = field(default_factory=list)  # columns of pandas' categories
    y: Literal["column", "series", "array", "list", "tensor"] = "array"
    y_dtype: str = ""  # of a tensor


@dataclass(frozen=True)
class StoredData:
    """What a request records about data that were written to files."""

    label: str
    text: str | None
    images: str | None
    columns: dict[str, str]  # the kinds that follow from the types of a frame
    types: DataTypes


@dataclass
class _Part:
    """The training, validation or test set as a table."""

    frame: Frame
    types: DataTypes
    label: str = _LABEL
    text: str | None = None
    images: np.ndarray | None = None  # [N, H, W] or [N, H, W, C]
    kinds: dict[str, str] = field(default_factory=dict)


# --- files ----------------------------------------------------------------------------------------


def file_name(part: str) -> str:
    """The file of a training, validation or test set, within the folder of a project."""
    return f"{FOLDER}/{part}.parquet"


def is_stored_file(path: str | None) -> bool:
    """Whether this is the name of a file that `store_data` writes."""
    return path in [file_name(part) for part in (*PARTS, "after")]


def pixels_of(table: Path) -> Path:
    """The array of images that belongs to a table of them."""
    return table.with_suffix(".npy")


def keep_files(place: Path, folder: Path) -> None:
    """Copy the files of `place` into the folder of a project, unless they are there.

    Raises:
        DrossError: they cannot be written.
    """
    for path in sorted((place / FOLDER).iterdir()):
        kept = folder / FOLDER / path.name
        if not kept.is_file() or digest_file(kept) != digest_file(path):
            write_bytes(kept, path.read_bytes())


def is_in_array(path: Path) -> bool:
    """Whether this names an image in an array: `train.npy/17`."""
    return path.parent.suffix == ".npy" and os.path.isfile(path.parent)


def read_image(path: Path) -> np.ndarray | None:
    """The pixels between 0 and 255, [H, W, 3]; None if there is no such image.

    They are uint8, or float32 where a gray image has more than 256 shades.
    """
    try:
        stat = path.parent.stat()
        images, low, high = _open_array(path.parent, stat.st_mtime_ns, stat.st_size)
        image = np.asarray(images[int(path.name)])
    except (OSError, ValueError, IndexError):
        return None
    if image.dtype != np.uint8:
        image = (image.astype(np.float32) - low) * (_WHITE / (high - low))
    if image.ndim == 3 and image.shape[2] > 1:
        return np.round(image[..., :3]).astype(np.uint8)
    return np.repeat(image.reshape(*image.shape[:2], 1), 3, axis=2)


@lru_cache(maxsize=6)
def _open_array(path: Path, changed: int, size: int) -> tuple[np.ndarray, float, float]:
    """The array, and what is black and what is white in it. changed, size: of the file."""
    images = np.load(path, mmap_mode="r", allow_pickle=False)
    if images.dtype == np.uint8:
        return images, 0.0, _WHITE
    low, high = float(images.min()), float(images.max())
    for white in (1.0, _WHITE):  # the usual ranges
        if low >= 0 and high <= white:
            return images, 0.0, white
    return images, low, high


# --- from objects to files ------------------------------------------------------------------------


def is_in_memory(data: Any) -> bool:
    """Whether this is the data itself, and not the name of a file or a function."""
    return data is not None and not isinstance(data, (str, os.PathLike))


def store_data(
    data: Any,
    label: Any,
    others: Mapping[str, Any],
    place: Path,
    *,
    text: str | None = None,
    images: str | None = None,
) -> StoredData:
    """Write data to files under a folder.

    Arguments:
        data: A frame, an array, a tensor, a sparse matrix, or a list of texts.
        label: The labels, or the name of the column of a frame that has them.
        others: {"validation": (X, y), or a frame, ...}; None and paths are skipped.
        place: The folder.
        text: The column of a frame that contains texts.
        images: The column of a frame that contains paths of images.

    Raises:
        InvalidInput: they cannot be used.
        DrossError: the files cannot be written.
    """
    train = _make_part(data, label, "X")
    _write(train, "train", place, images)
    for name, value in others.items():
        if is_in_memory(value):
            x, y = value if isinstance(value, tuple) and len(value) == 2 else (value, train.label)
            part = _make_part(x, y, name)
            if (part.images is None) != (train.images is None):
                raise InvalidInput(
                    f"{name} and X are of different kinds: only one of them contains images."
                )
            part.frame = part.frame.rename(columns={part.label: train.label})
            _write(part, name, place, images)
    text = train.text or text
    images = images if train.images is None else _PATH
    return StoredData(train.label, text, images, {} if text else train.kinds, train.types)


def _make_part(x: Any, y: Any, who: str) -> _Part:
    library = _find_library(x)
    if library:
        x = x.to_pandas()
    part = _take_frame(x, who) if isinstance(x, pandas.DataFrame) else _take_array(x, who)
    part.types.library = library
    _add_labels(part, y, who)
    if part.images is None:
        _check_columns(part, who)
    return part


def _find_library(x: Any) -> Literal["", "polars", "pyarrow", "datasets"]:
    """Whose table or column this is, where `to_pandas` turns it into one of pandas."""
    module = type(x).__module__.partition(".")[0]
    for name in ("polars", "pyarrow", "datasets"):
        if module == name and hasattr(x, "to_pandas"):
            return name
    return ""


def _take_frame(x: Frame, who: str) -> _Part:
    types = DataTypes(
        "frame", index=[None if name is None else str(name) for name in x.index.names]
    )
    types.integer_columns = all(isinstance(name, (int, np.integer)) for name in x.columns)
    if x.columns.nlevels > 1:
        raise InvalidInput(
            f"{who} has multi-level columns. Flatten them so that each column has a single name."
        )
    if x.size == 0:
        raise InvalidInput(f"{who} is empty: it has the shape {x.shape}.")
    frame: Any = x.copy(deep=False)
    frame.index = frame.index.set_names([None] * frame.index.nlevels)
    if isinstance(frame.index, pandas.RangeIndex):  # Parquet would only describe it
        frame.index = pandas.Index(np.asarray(frame.index))
    names = pandas.Index([str(name) for name in frame.columns])
    if not names.is_unique:
        twice = names[names.duplicated()][0]
        raise InvalidInput(f"{who} has two columns named '{twice}'. Rename one of them.")
    frame.columns = names
    return _Part(frame, types)


def _take_array(x: Any, who: str) -> _Part:
    array, types = _as_array(x, who)
    if array.ndim == 0:
        raise InvalidInput(
            f"{who} is of type {type(x).__name__}; dross takes a DataFrame, an array, a tensor, a "
            "sparse matrix, an Arrow table, a datasets.Dataset, a list of strings, or a file name."
        )
    if array.size == 0:
        raise InvalidInput(f"{who} is empty: it has the shape {array.shape}.")
    if array.dtype.kind == "c":
        raise InvalidInput(
            f"{who} contains complex numbers. Pass the real and imaginary parts as separate "
            "columns."
        )
    types.x_dtype = types.x_dtype or str(array.dtype)
    types.dimensions = array.ndim
    if array.ndim > 2:
        images = _as_images(array, types, who)
        return _Part(pandas.DataFrame(index=range(len(array))), types, images=images)
    if array.ndim == 1 and all(isinstance(cell, str) for cell in array.tolist()):
        frame = pandas.DataFrame({_TEXT: array.astype(object)})
        return _Part(frame, types, text=_TEXT)
    flat = array.reshape(len(array), -1)
    frame = pandas.DataFrame(flat, columns=[f"x{k}" for k in range(flat.shape[1])])
    return _Part(frame.infer_objects(), types)


def _as_array(x: Any, who: str) -> tuple[np.ndarray, DataTypes]:
    if isinstance(x, pandas.Series):
        is_number = x.dtype.kind in "buif"
        return x.to_numpy(dtype=None if is_number else object), DataTypes("series")
    if isinstance(x, torch.Tensor):
        return _tensor_to_numpy(x), DataTypes("tensor", x_dtype=_name_dtype(x))
    if sparse.issparse(x):
        if x.shape[0] * x.shape[1] > _MAX_CELLS:
            raise InvalidInput(
                f"{who} is a sparse matrix of {x.shape[0]:,} x {x.shape[1]:,}, which dross would "
                f"have to make dense; the limit is {_MAX_CELLS:,} cells. Reduce it first, for "
                "example with scikit-learn's TruncatedSVD, or pass the raw texts."
            )
        is_array = isinstance(x, sparse.sparray)
        return x.toarray(), DataTypes("sparse", sparse_format=x.format, sparse_array=is_array)
    types = DataTypes("array" if isinstance(x, np.ndarray) else "list")
    x = _fill_masked(x)
    if isinstance(x, Sequence) and all(isinstance(cell, str) for cell in x):
        return np.array(x, dtype=object), types
    try:
        return np.asarray(x), types
    except ValueError as error:
        raise InvalidInput(
            f"{who} cannot be converted to an array ({first_line(error)}). Check that all "
            "instances have the same number of values."
        ) from None


def _tensor_to_numpy(t: torch.Tensor) -> np.ndarray:
    t = t.detach().cpu()
    return (t.float() if t.dtype == torch.bfloat16 else t).numpy()


def _name_dtype(t: torch.Tensor) -> str:
    return str(t.dtype).removeprefix("torch.")


def _as_images(array: np.ndarray, types: DataTypes, who: str) -> np.ndarray:
    """Images with their channels last."""
    if array.ndim == 3:
        types.channels = "none"
    elif array.ndim == 4:
        layouts: list[Literal["first", "last"]] = ["last", "first"]
        if types.x == "tensor":  # where both are possible
            layouts.reverse()
        channels = {"first": array.shape[1], "last": array.shape[3]}
        types.channels = next((name for name in layouts if channels[name] in _CHANNELS), None)
    if types.channels is None or array.dtype.kind not in "buif":
        raise InvalidInput(
            f"{who} has the shape {array.shape} and the type {array.dtype}. An array with more "
            "than two dimensions is treated as images: [N, H, W], or [N, H, W, C] or [N, C, H, W] "
            "with 1, 3 or 4 channels. For other data, pass one row of numbers per instance."
        )
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InvalidInput(
            f"{who} contains pixels that are not finite numbers. Correct them first."
        )
    return np.ascontiguousarray(np.moveaxis(array, 1, 3) if types.channels == "first" else array)


def _add_labels(part: _Part, y: Any, who: str) -> None:
    """Add the labels as a column, which takes the name of a Series, if it has one."""
    if part.types.x == "frame" and y is None:
        raise InvalidInput(
            "Specify the column to predict: call dross.clean(frame, 'name of the column') or "
            "dross.clean(X, y)."
        )
    if part.types.x != "frame" and (y is None or isinstance(y, str)):
        raise InvalidInput(
            f"{who} is not a DataFrame, so its labels must be passed with it: "
            + ("dross.clean(X, y)." if who == "X" else f"{who}=(X, y).")
        )
    if isinstance(y, str):
        check_name("column", y, part.frame.columns)
        part.label = y
        labels = _as_labels(part.frame[y], part, f"The column '{y}' of {who}")
        part.types.y = "column"
        part.frame[y] = labels
        return
    name = getattr(y, "name", None)
    if isinstance(name, str) and name.strip() == name != "":
        part.label = name
    while part.label in part.frame.columns or (part.images is not None and part.label == _PATH):
        part.label += "."
    labels = _as_labels(y, part, "y" if who == "X" else f"y of {who}")
    part.frame = part.frame.assign(**{part.label: labels.to_numpy()})


def _as_labels(y: Any, part: _Part, who: str) -> Series:
    """One label for each instance, as a column; its type is noted."""
    types = part.types
    if _find_library(y):
        y = y.to_pandas()
    if isinstance(y, torch.Tensor):
        types.y = "tensor"
        types.y_dtype = _name_dtype(y)
        y = _tensor_to_numpy(y)
    elif isinstance(y, pandas.Series):
        types.y = "series"
    elif isinstance(y, (list, tuple)):
        types.y = "list"
    if not isinstance(y, pandas.Series):
        y = _as_column(y, who)
    if len(y) != len(part.frame):
        raise InvalidInput(
            f"{who} has {len(y):,} labels, but there are {len(part.frame):,} instances. Pass "
            "exactly one label per instance."
        )
    missing = np.flatnonzero(y.isna().to_numpy())
    if len(missing):
        raise InvalidInput(
            f"{who} has {say_count(len(missing), 'missing label')} (NaN or None), the first at "
            f"position {missing[0]}. Leave out these instances, or label them."
        )
    if isinstance(y.dtype, pandas.CategoricalDtype):
        types.categories.append(part.label)
        y = pandas.Series(np.asarray(y), index=y.index)
    return _simplify(y, who) if y.dtype == object else y


def _fill_masked(x: Any) -> Any:
    """An array in which nan or None stands for each cell that is masked; others as they are."""
    if not isinstance(x, np.ma.MaskedArray):
        return x
    if not np.ma.getmaskarray(x).any():
        return x.data
    if x.dtype.kind in "buif":
        return np.ma.filled(x.astype(np.float64), np.nan)
    return np.ma.filled(x.astype(object), None)


def _as_column(y: Any, who: str) -> Series:
    try:
        is_text = isinstance(y, (list, tuple)) and any(isinstance(label, str) for label in y)
        array = np.array(y, dtype=object) if is_text else np.asarray(_fill_masked(y))
    except ValueError as error:
        raise InvalidInput(f"{who} is not a list of labels: {first_line(error)}.") from None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim != 1:
        raise InvalidInput(
            f"{who} has the shape {array.shape}; it must contain one label per instance. For "
            "one-hot labels, pass y.argmax(1)."
        )
    if array.dtype.kind == "c":
        raise InvalidInput(f"{who} contains complex numbers, which are not supported as labels.")
    return pandas.Series(array)


def _check_columns(part: _Part, who: str) -> None:
    """Make cells such that a file can hold them, and note the kinds that types imply."""
    for name in part.frame.columns.drop(part.label):
        column = part.frame[name]
        if isinstance(column.dtype, pandas.CategoricalDtype):
            part.kinds[name] = "category"
            part.types.categories.append(name)
        elif column.dtype.kind == "M":
            part.kinds[name] = "date"
        elif column.dtype == object:
            part.frame[name] = _simplify(column, f"The column '{name}' of {who}")


def _simplify(column: Series, who: str) -> Series:
    """A column of objects as one of a simple type; texts where they are mixed."""
    present = column.notna().to_numpy()
    cells = column[present].tolist()
    for place, cell in zip(np.flatnonzero(present), cells):
        if not isinstance(cell, _SIMPLE):
            raise InvalidInput(
                f"{who} contains objects other than numbers, strings and dates: the first, at "
                f"position {place}, is of type {type(cell).__name__}. Pass columns of plain "
                "numbers, strings or dates."
            )
    if all(isinstance(cell, str) for cell in cells):
        return column
    if all(isinstance(cell, (bool, np.bool_)) for cell in cells) and present.all():
        return column.astype(bool)
    if all(isinstance(cell, numbers.Real) and not isinstance(cell, bool) for cell in cells):
        return pandas.to_numeric(column)
    as_text = lambda cell: cell.decode("utf-8", "replace") if isinstance(cell, bytes) else str(cell)
    return column.map(as_text, na_action="ignore")


def _write(part: _Part, name: str, place: Path, images: str | None) -> None:
    table = place / file_name(name)
    pixels = pixels_of(table)
    frame = part.frame
    if part.images is not None:
        frame = frame.assign(**{_PATH: [f"{pixels.name}/{k}" for k in range(len(frame))]})
    elif images is not None and images in frame.columns:
        absolute = lambda path: os.path.abspath(path) if isinstance(path, str) else path
        frame = frame.assign(**{images: frame[images].map(absolute)})
    try:
        table.parent.mkdir(parents=True, exist_ok=True)
        frame.to_parquet(table)
        if part.images is not None:
            np.save(pixels, part.images, allow_pickle=False)
    except OSError as error:
        raise DrossError(f"{table} cannot be written: {error.strerror or error}.") from error
    except Exception as error:  # cells that Parquet has no type for
        raise InvalidInput(f"The data cannot be stored as Parquet: {first_line(error)}.") from error


# --- and back -------------------------------------------------------------------------------------


def restore_data(frame: Frame, label: str, types: DataTypes, pixels: Path) -> Any:
    """A frame with its label column if it came so; else the pair (X, y).

    Arguments:
        frame: The rows that are left, as a project's file keeps them.
        label: The column of labels.
        types: What X and y were.
        pixels: The array of images, if X was one.
    """
    for name in types.categories:  # Parquet keeps only those of texts
        frame[name] = frame[name].astype("category")
    labels = frame[label]
    if types.y != "column":
        frame = frame.drop(columns=[label])
    if types.x == "frame":
        if frame.index.nlevels == len(types.index):
            frame.index = frame.index.set_names(types.index)
        if types.integer_columns:
            frame.columns = [int(name) for name in frame.columns]
        restored = _restore_frame(frame, types.library)
        return restored if types.y == "column" else (restored, _restore_labels(labels, types))
    if types.channels is None:
        array = frame.to_numpy()
        array = array[:, 0] if types.dimensions == 1 else array
    else:
        places = [int(path.rpartition("/")[2]) for path in frame[_PATH]]
        array = np.load(pixels, allow_pickle=False)[places]
        array = np.moveaxis(array, 3, 1) if types.channels == "first" else array
    return _restore_array(array, types), _restore_labels(labels, types)


def _restore_frame(frame: Frame, library: str) -> Any:
    """A table of the library that it came from."""
    if library == "polars":
        import polars

        return polars.from_pandas(frame)
    if library == "pyarrow":
        import pyarrow

        return pyarrow.Table.from_pandas(frame, preserve_index=False)
    if library == "datasets":
        from datasets import Dataset

        return Dataset.from_pandas(frame, preserve_index=False)
    return frame


def _restore_array(array: np.ndarray, types: DataTypes) -> Any:
    if types.x == "tensor":
        return _to_tensor(array, types.x_dtype)
    dtype = np.dtype(types.x_dtype)
    if dtype.kind != "U":  # texts are kept as objects: numpy would cut a longer new one
        array = array.astype(dtype)
    if types.x == "list":
        return array.tolist()
    if types.x == "series":
        return pandas.Series(array)
    if types.x == "sparse":
        kind = sparse.csr_array if types.sparse_array else sparse.csr_matrix
        return kind(array).asformat(types.sparse_format)
    return array


def _restore_labels(labels: Series, types: DataTypes) -> Any:
    if types.y == "list":
        return labels.tolist()
    if types.y == "series":
        return labels
    array = labels.to_numpy()
    return _to_tensor(array, types.y_dtype) if types.y == "tensor" else array


def _to_tensor(array: np.ndarray, name: str) -> torch.Tensor:
    dtype = getattr(torch, name)
    if not isinstance(dtype, torch.dtype):
        raise ValueError(f"{name} is not a tensor dtype")
    return torch.from_numpy(np.ascontiguousarray(array).copy()).to(dtype)

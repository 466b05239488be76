"""Features of the user's own, in place of those that dross would make of its input."""

import io
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import InvalidInput, first_line
from .numbers import LARGEST
from .source import import_pandas
from .tables import PARQUET, read_bytes

_LARGEST_INPUT = 8  # deviations; one wild number must not end the training
_LENGTH = 8  # of an instance's features, at most: longer ones need rates that no search tries
_ORDER = (
    "It must have one row for each instance, in the order of the input: rows of a table as they "
    "stand, pictures sorted by path; then those of the validation data, then those of the test "
    "data."
)


def read_features(path: Path, count: int, left_out: str) -> np.ndarray:
    """Read features of `count` instances, float32 [count, features].

    Arguments:
        path: A .npy file with an array [N, d], or a Parquet file whose columns are numbers.
        count: How many instances the input has.
        left_out: What was said of instances that are not used, for the message.

    Raises:
        InvalidInput: the file cannot be read, or does not fit the input.
    """
    raw = read_bytes(path)
    rows = _read_parquet(raw, path) if path.suffix.lower() in PARQUET else _read_npy(raw, path)
    if rows.ndim != 2 or rows.shape[1] == 0:
        shape = " x ".join(map(str, rows.shape))
        raise InvalidInput(f"{path} has the shape [{shape}], not [instances, features]. {_ORDER}")
    if rows.dtype.kind not in "fiub":
        raise InvalidInput(f"{path} holds {rows.dtype}, not real numbers.")
    if len(rows) != count:
        noted = f" Instances that were left out of the input must be left out here, too: {left_out}"
        raise InvalidInput(
            f"{path} has features of {len(rows):,} instances, but the input has {count:,}. {_ORDER}"
            + (noted if left_out else "")
        )
    rows = rows.astype(np.float64)
    wrong = np.flatnonzero(~(np.abs(rows) <= LARGEST).all(1))
    if len(wrong):
        column = int(np.flatnonzero(~(np.abs(rows[wrong[0]]) <= LARGEST))[0])
        raise InvalidInput(
            f"{path}: row {wrong[0]} (the first is 0), feature {column} is "
            f"{rows[wrong[0], column]:g}"
            + (f", and {len(wrong) - 1:,} more rows are like it" if len(wrong) > 1 else "")
            + ". Features must be finite numbers: correct them, or leave the column out."
        )
    return rows.astype(np.float32)


def _read_npy(raw: bytes, path: Path) -> np.ndarray:
    try:
        return np.load(io.BytesIO(raw), allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise InvalidInput(
            f"{path} cannot be read as .npy ({first_line(error)}). Features are a .npy file with "
            "an array [instances, features], or a Parquet file whose columns are numbers."
        ) from None


def _read_parquet(raw: bytes, path: Path) -> np.ndarray:
    try:
        frame = import_pandas().read_parquet(io.BytesIO(raw))
    except Exception as error:  # a damaged file can fail anywhere inside the parser
        raise InvalidInput(f"{path} cannot be read as Parquet: {first_line(error)}") from None
    others = [str(name) for name in frame.columns if frame[name].dtype.kind not in "fiub"]
    if others:
        raise InvalidInput(
            f"{path}: the columns {', '.join(others[:3])} are not numbers. Leave them out: rows "
            "are matched by their order alone."
        )
    return frame.to_numpy(dtype=np.float64)


def standardize(rows: Tensor, train: np.ndarray) -> Tensor:
    """Features as models learn them: with mean 0 and a common spread in training, float32 [N, d].

    The spread is 1, or less where there are many: an instance's length is then 8 on average.
    Features that never change in training are 0. Values far from the mean are cut off.
    """
    learnt = rows.numpy()[train].astype(np.float64)  # numpy adds in one order on any machine
    mean, deviation = learnt.mean(0), learnt.std(0)
    constant = deviation <= 1e-6 * np.abs(mean)
    scaled = (rows.numpy() - mean) / np.where(constant, 1.0, deviation)
    scaled[:, constant] = 0
    spread = usual_length(rows.shape[1]) / max(rows.shape[1], 1) ** 0.5
    cut = spread * scaled.clip(-_LARGEST_INPUT, _LARGEST_INPUT)
    return torch.from_numpy(cut.astype(np.float32))


def usual_length(features: int) -> float:
    """The average length of an instance with this many features."""
    return min(features**0.5, _LENGTH)

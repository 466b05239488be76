"""Where a project keeps data that were given from Python, and how their instances are named.

given/data.parquet          columns and labels, or the places of pictures and labels
given/data.npy              pictures, [N, H, W] or [N, H, W, C]
given/validation.*, test.*  the same for these parts, if they were given
"""

import os
from collections.abc import Iterable
from pathlib import Path

from ..errors import DrossError
from ..support.atomic_files import make_folder, write_bytes
from ..support.file_digests import digest_file
from .source import PARTS

FOLDER = "given"
_NAMES = {"train": "data", "validation": "validation", "test": "test"}
_FIRST_ROW = 2  # what a table's first row is called: row 1 has the names of the columns


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


def name_places(rows: Iterable[str]) -> list[str]:
    """Names of rows as places in what was given: `row 19` is `place 17`, X[17]."""
    return [f"place {int(row.removeprefix('row ')) - _FIRST_ROW}" for row in rows]


def name_row(place: str) -> str:
    """The row that a place is in."""
    return f"row {int(place.removeprefix('place ')) + _FIRST_ROW}"


def is_in_array(path: Path) -> bool:
    """Whether this names a picture in an array: `data.npy/17`."""
    return path.parent.suffix == ".npy" and os.path.isfile(path.parent)

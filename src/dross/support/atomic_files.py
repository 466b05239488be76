"""Small files that are there whole or not at all."""

import csv
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import StorageFailed


def replace_file(path: Path, raw: bytes, *, sync: bool = True) -> None:
    """Write a file so that readers see the old content or the new one, never a part.

    The content goes to a temporary file beside it (`.name.pid.tmp`), which is then renamed.

    Arguments:
        path: the file to write or to replace; its folder exists.
        raw: the whole content.
        sync: wait until the content is on the disk before renaming.

    Raises:
        OSError: the file cannot be written. The old file is intact, the temporary one is removed.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(raw)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON, making the folder where it is missing."""
    write_bytes(path, json.dumps(value, indent=1).encode())


def write_bytes(path: Path, raw: bytes) -> None:
    """Write a file, making its folder where it is missing; raises StorageFailed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, raw)
    except OSError as error:
        raise StorageFailed(f"{path} cannot be written: {error.strerror}.") from error


def write_table(path: Path, rows: list[dict]) -> Path:
    """Write rows with the same keys as CSV, and return the path."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path

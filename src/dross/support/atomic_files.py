"""Files that are there whole or not at all, even after a crash in the middle of a write."""

import csv
import io
import json
import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..errors import StorageFailed


def replace_file(path: Path, raw: bytes, *, sync: bool = True) -> None:
    """Put a file with these bytes in place of whatever is at the path.

    The bytes go to a hidden temporary file in the same folder, which is then renamed. Readers see
    the old file or the new one, never a part of it.

    Arguments:
        path: The file. Its folder must exist.
        raw: All of its bytes.
        sync: Wait until the bytes are on the disk. Without it, a power cut may lose them.

    Raises:
        OSError: The file cannot be written. The temporary file is gone, the old file still there.
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


def write_bytes(path: Path, raw: bytes, *, sync: bool = True) -> None:
    """Replace a file, and make its folder if there is none; failures become StorageFailed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, raw, sync=sync)
    except OSError as error:
        raise StorageFailed(f"{path} cannot be written: {error.strerror}.") from error


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, with the line ends it has."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON."""
    write_text(path, json.dumps(value, indent=1))


def write_table(path: Path, rows: list[dict]) -> Path:
    """Write rows with the same keys as CSV, and return the path."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
    return path

"""Small files that are there whole or not at all."""

import csv
import json
import os
from pathlib import Path
from typing import Any

from ..errors import StorageFailed


def write_json(path: Path, value: Any) -> None:
    write_bytes(path, json.dumps(value, indent=1).encode())


def write_bytes(path: Path, raw: bytes) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.{os.getpid()}")
        with open(temporary, "wb") as file:
            file.write(raw)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise StorageFailed(f"{path} cannot be written: {error.strerror}.") from error


def write_table(path: Path, rows: list[dict]) -> Path:
    """Rows with the same keys as CSV."""
    with open(path, "w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return path

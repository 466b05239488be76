"""A copy of a file of conversations without some of its rows; the others are not changed."""

import io
from pathlib import Path

import numpy as np

from ..errors import InvalidInput
from .chats import JSONL
from .tables import PARQUET, read_bytes


def check_same_format(source: Path, to: Path) -> None:
    """Refuse, with InvalidInput, a copy in another format than the input's."""
    formats = [JSONL, tuple(PARQUET)]
    wanted = next(known for known in formats if source.suffix.lower() in known)
    if to.suffix.lower() not in wanted:
        raise InvalidInput(
            f"{to.name} must be a file like {source.name}: end its name with {' or '.join(wanted)}."
        )


def copy_chats(source: Path, removed: set[str]) -> tuple[bytes, int]:
    """The bytes of the copy, and how many rows it has.

    Lines of JSON are copied byte for byte; rows of Parquet with their types and metadata.

    Arguments:
        source: A file that `read_chats` has read.
        removed: The names of rows to leave out: `line 17`, `row 17`.
    """
    raw = read_bytes(source)
    if source.suffix.lower() in PARQUET:
        return _copy_parquet(raw, removed)
    lines = raw.split(b"\n")
    kept = [line for k, line in enumerate(lines, 1) if f"line {k}" not in removed]
    return b"\n".join(kept), sum(bool(line.strip()) for line in kept)


def _copy_parquet(raw: bytes, removed: set[str]) -> tuple[bytes, int]:
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    table = parquet.ParquetFile(io.BytesIO(raw)).read()
    kept = np.array([f"row {k}" not in removed for k in range(1, len(table) + 1)], dtype=bool)
    sink = io.BytesIO()
    parquet.write_table(table.filter(arrow.array(kept)), sink)
    return sink.getvalue(), int(kept.sum())

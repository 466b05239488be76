"""A copy of a table without some of its rows and with other labels; all else stays as it is."""

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput, first_line
from ..support.name_hints import check_name
from .numbers import read_number
from .source import Frame, Series
from .tables import AS_USUAL, PARQUET, Reading, column_names, read_bytes, read_frame, row_names

TABLES = (".csv", ".tsv", *PARQUET)


@dataclass(frozen=True)
class RowEdits:
    """What to change, by the names of rows, `row 17`, or of files."""

    removed: set[str] = field(default_factory=set)
    relabelled: dict[str, str] = field(default_factory=dict)


def copy_table(
    source: Path, suffix: str, label: str, edits: RowEdits, reading: Reading = AS_USUAL
) -> tuple[bytes, int]:
    """The bytes of the copy, and how many rows it has.

    Arguments:
        source: A CSV, TSV or Parquet file.
        suffix: Of the copy: one of TABLES.
        label: The column that holds the labels.
        edits: What to change.
        reading: How the file was read.
    """
    frame, _ = read_frame(source, verbatim=True, reading=reading)
    rows = row_names(frame.index)
    kept = np.array([row not in edits.removed for row in rows], dtype=bool)
    names = column_names(frame.columns)
    check_name("column", label, names)
    place = names.index(label)
    new = {k: edits.relabelled[row] for k, row in enumerate(rows) if row in edits.relabelled}
    try:
        copied = None
        if suffix in PARQUET and source.suffix.lower() in PARQUET:
            copied = _copy_parquet(source, frame.iloc[:, place], new, kept)
        if copied is None:
            cells = frame.iloc[:, place]
            if new:
                frame.isetitem(place, _relabel(cells, cells.tolist(), new))
            copied = _write_frame(frame[kept], suffix)
    except InvalidInput:
        raise
    except Exception as error:  # a table can hold what a file of another kind cannot
        raise InvalidInput(
            f"{source} cannot be copied as {suffix}: {first_line(error)}. Choose another kind of "
            "file."
        ) from error
    return copied, int(kept.sum())


def _copy_parquet(
    source: Path, labels: Series, new: dict[int, str], kept: np.ndarray
) -> bytes | None:
    """The copy with the types, the index and the metadata of the original.

    None if the labels are not a column of the file, but an index that it only describes.
    """
    import pyarrow as arrow
    import pyarrow.parquet as parquet

    table = parquet.ParquetFile(io.BytesIO(read_bytes(source))).read()
    if new:
        places = [k for k, name in enumerate(table.schema.names) if name == str(labels.name)]
        if len(places) != 1:
            return None
        field = table.schema.field(places[0])
        values = _relabel(labels, table.column(places[0]).to_pylist(), new)
        table = table.set_column(places[0], field, arrow.array(values, type=field.type))
    sink = io.BytesIO()
    parquet.write_table(table.filter(arrow.array(kept)), sink)
    return sink.getvalue()


def _relabel(shown: Series, values: list[Any], new: dict[int, str]) -> list[Any]:
    """The values with new ones in some places.

    Arguments:
        shown: What the labels were read from, one for each value.
        values: To be changed.
        new: {place: new label}.
    """
    known = {str(label).strip(): value for label, value in zip(shown, values)}
    numeric = all(read_number(name) is not None for name in known if name)
    changed = list(values)
    for place, label in new.items():
        if isinstance(values[place], str) and (label in known or not numeric):
            changed[place] = label
        elif label in known:
            changed[place] = known[label]
        else:
            changed[place] = _as_number(label, values[place])
    return changed


def _as_number(label: str, like: Any) -> Any:
    number = read_number(label)
    if number is None or (isinstance(like, int) and not number.is_integer()):
        raise InvalidInput(f"'{label}' cannot be a label among labels such as '{like}'.")
    return label if isinstance(like, str) else type(like)(number)


def _write_frame(frame: Frame, suffix: str) -> bytes:
    if suffix in PARQUET:
        if not frame.columns.is_unique:
            raise InvalidInput(
                "Some columns have the same name, which Parquet does not allow. Choose another "
                "kind of file, such as .csv."
            )
        return frame.to_parquet(index=False)
    text = io.StringIO(newline="")
    frame.to_csv(text, index=False, sep="\t" if suffix == ".tsv" else ",", lineterminator="\n")
    return text.getvalue().encode("utf-8")

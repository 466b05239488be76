"""Read tables: CSV, TSV and Parquet files."""

import io
import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import InvalidInput, first_line
from ..support.counts import say_count
from ..support.name_hints import check_name
from ..support.option_names import name_option
from .columns import KINDS
from .csv_text import check_separator, decode_text, guess_separator, read_records
from .numbers import parse_numbers
from .source import Frame, Series, Source, import_pandas

PARQUET = (".parquet", ".pq")
_MISSING = ("", "?", "NA", "N/A", "nan", "NaN", "null", "NULL", "None", "-")
_MAX_CLASSES = 10  # a column of numbers with more distinct values is taken for a regression ...
_MAX_WHOLE_NUMBER_CLASSES = 20  # ... unless they are whole numbers


@dataclass(frozen=True)
class Reading:
    """How a user wants tables to be read."""

    separator: str | None = None  # of the cells of a CSV file; guessed by default
    missing: Sequence[str] | None = None  # cells without a value, besides empty ones


AS_USUAL = Reading()


def read_bytes(path: Path) -> bytes:
    """All bytes of a file that a user named; what cannot be read is refused."""
    if not os.path.exists(path):
        raise InvalidInput(f"There is no file {path}.")
    if not os.path.isfile(path):
        raise InvalidInput(
            f"{path} is not a regular file, and dross has to read it more than once. Copy it into "
            "one."
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror or error}.") from None


def read_frame(
    path: Path,
    *,
    verbatim: bool = False,
    reading: Reading = AS_USUAL,
    asked: Iterable[str] = (),
) -> tuple[Frame, list[str]]:
    """Read a table, every cell as text. Its index has the numbers of the rows.

    Arguments:
        path: A CSV, TSV or Parquet file.
        verbatim: No cell counts as missing, columns have their own names even if these are alike
            or empty, cells keep their spaces, and Parquet keeps its types.
        reading: How to read it.
        asked: The names of columns that are needed: each must be there, and only once.

    Returns:
        The table, and notes about what had to be guessed.
    """
    raw, notes = read_bytes(path), []
    if path.suffix.lower() in PARQUET:
        frame = _parse_parquet(raw, path)
        missing = reading.missing or ()
    else:
        frame, notes = _parse_csv(raw, path, reading.separator, verbatim)
        missing = _MISSING if reading.missing is None else ("", *reading.missing)
    if verbatim:
        return frame, notes
    if len(frame) == 0:
        raise InvalidInput(f"{path} has column names, but no rows.")
    own_names, frame.columns = list(frame.columns), column_names(frame.columns)
    _check_asked(own_names, list(asked), path)
    notes += _note_renamed(own_names, list(frame.columns))
    columns = {name: _as_text(frame[name]) for name in frame.columns}
    for name in asked:
        notes += _note_missing(columns[name], name, missing)
    absent = {None, *missing}
    cells = {name: [None if cell in absent else cell for cell in columns[name]] for name in columns}
    return import_pandas().DataFrame(cells, index=frame.index), notes


def _as_text(column: Series) -> list[str | None]:
    """Cells as text; None for those that a Parquet file leaves out."""
    if column.dtype == object and all(isinstance(cell, str) for cell in column):
        return column.tolist()
    present = column.notna().tolist()
    return [str(cell) if there else None for cell, there in zip(column.astype(object), present)]


def _parse_csv(
    raw: bytes, path: Path, separator: str | None, verbatim: bool
) -> tuple[Frame, list[str]]:
    text, notes = decode_text(raw, path.name)
    separator = guess_separator(text) if separator is None else check_separator(separator)
    records = read_records(text, separator, path.name, verbatim=verbatim)
    if separator != ",":
        shown = "a tab" if separator == "\t" else repr(separator)
        notes.append(f"Columns are separated by {shown}.")
    if records.short:
        notes.append(
            f"{say_count(len(records.short), 'row has', 'rows have')} fewer cells than the first "
            f"line has names (the first is on line {records.short[0]}); the cells that are not "
            "there count as missing."
        )
    pandas = import_pandas()
    columns = list(zip(*records.rows)) or [()] * len(records.names)
    frame = pandas.DataFrame(dict(enumerate(columns)), index=records.lines, dtype=object)
    frame.columns = records.names
    return frame, notes


def _parse_parquet(raw: bytes, path: Path) -> Frame:
    """The table with its named index, if it has one, as its first columns."""
    try:
        frame = import_pandas().read_parquet(io.BytesIO(raw))
        if any(name is not None for name in frame.index.names):
            frame = frame.reset_index(allow_duplicates=True)
    except Exception as error:  # a damaged file can fail anywhere inside the parser
        raise InvalidInput(f"{path} cannot be read as Parquet: {first_line(error)}") from None
    frame.index = np.arange(len(frame)) + 2  # as a spreadsheet counts: the names are its row 1
    return frame


def column_names(own_names: Iterable[Any]) -> list[str]:
    """The names that columns are known by: without spaces around them, and each only once.

    A second `x` is `x.1`, and the third column is `Unnamed: 2` if it has no name.
    """
    stripped = [str(name).strip() for name in own_names]
    names: list[str] = []
    for place, name in enumerate(stripped):
        unique, number = name or f"Unnamed: {place}", 0
        while unique in names or (number > 0 and unique in stripped):
            number += 1
            unique = f"{name or f'Unnamed: {place}'}.{number}"
        names.append(unique)
    return names


def _check_asked(own_names: list[Any], asked: list[str], path: Path) -> None:
    """Refuse a table that lacks a column that is needed, or has two of its name."""
    names = column_names(own_names)
    if asked and asked[0] not in names and len(names) == 1:
        raise InvalidInput(
            f"{path} was read as one column named '{names[0][:60]}'. Is the separator "
            f"something other than a comma, semicolon, tab or |? Pass {name_option('separator')}."
        )
    for name in asked:
        check_name("column", name, names)
        alike = [k + 1 for k, own in enumerate(own_names) if str(own).strip() == name]
        if len(alike) > 1:
            raise InvalidInput(
                f"{path} has {len(alike)} columns named '{name}' (columns "
                f"{', '.join(map(str, alike))}). Which one is meant? Give the others another name."
            )


def _note_renamed(own_names: list[Any], names: list[str]) -> list[str]:
    renamed = [
        f"column {place + 1} is called '{name}'"
        for place, (own, name) in enumerate(zip(own_names, names))
        if str(own).strip() != name
    ]
    if not renamed:
        return []
    more = " ..." if len(renamed) > 3 else ""
    return [f"Some columns have no name, or the name of another: {', '.join(renamed[:3])}{more}."]


def _note_missing(column: list[str | None], name: str, missing: Sequence[str]) -> list[str]:
    """Say which cells of a needed column count as missing."""
    said = Counter(cell for cell in column if cell in missing and cell)
    if not said:
        return []
    counts = ", ".join(f"'{cell}' ({count:,})" for cell, count in said.most_common(3))
    verb = "counts" if len(said) == 1 else "count"
    return [f"In '{name}', {counts} {verb} as missing; {name_option('na')} changes this."]


def row_names(rows: Iterable[int]) -> list[str]:
    """The names of rows by their numbers, which are the index of a frame that `read_frame` read.

    In a CSV file they are the lines that the rows begin on.
    """
    return [f"row {number}" for number in rows]


def read_table(
    path: Path,
    label: str,
    *,
    task: str | None = None,
    text: str | None = None,
    columns: dict[str, str] | None = None,
    reading: Reading = AS_USUAL,
) -> Source:
    """Read a table, or one column of it as texts.

    Arguments:
        path: A CSV, TSV or Parquet file.
        label: The column to learn.
        task: classification or regression; inferred from the labels by default.
        text: The column to read as text. All other columns are then left out.
        columns: The kinds of some columns. Here they are only checked.
        reading: How to read it.
    """
    columns = columns or {}
    asked = [label, *([] if text is None else [text])]
    frame, notes = read_frame(path, reading=reading, asked=asked)
    for name in columns:
        check_name("column", name, frame.columns)
    for kind in columns.values():
        check_name("kind of column", kind, KINDS)
    present = has_text(frame[label])
    if not present.all():
        lacking = (f"row has no '{label}' and is", f"rows have no '{label}' and are")
        notes.append(f"{say_count(int((~present).sum()), *lacking)} left out.")
    frame = frame[present]
    names = row_names(frame.index)
    frame = frame.reset_index(drop=True)
    labels = _parse_labels(frame[label], label, task, notes)
    if text:
        content = frame[[text]].rename(columns={text: "text"})
        empty = int((~has_text(content["text"])).sum())
        if empty > 0:
            notes.append(f"{say_count(empty, 'text is', 'texts are')} empty.")
        return Source("text", label, content, labels, names, notes)
    copies = int(frame.duplicated().sum())
    if copies > 0:
        copied = (
            "row is an exact copy of an earlier row. It is kept; look at it",
            "rows are exact copies of an earlier row. They are kept; look at them",
        )
        notes.append(f"{say_count(copies, *copied)} on the page.")
    return Source("table", label, frame.drop(columns=[label]), labels, names, notes)


def has_text(column: Series) -> np.ndarray:
    """Which cells have more in them than spaces, bool [N]."""
    return np.array([isinstance(cell, str) and bool(cell.strip()) for cell in column], dtype=bool)


def _parse_labels(column: Series, name: str, task: str | None, notes: list[str]) -> np.ndarray:
    """Labels as [N] of str for classes, float64 for numbers; an inferred task is noted."""
    numbers = parse_numbers(column)
    if task is None:
        task = _infer_task(column, numbers)
        distinct = f"{column.nunique()} classes"
        meaning = "a number to be predicted (regression)" if task == "regression" else distinct
        notes.append(f"'{name}' is taken for {meaning}; {name_option('task')} changes this.")
    check_name("task", task, ("classification", "regression"))
    if task == "classification":
        return column.astype(str).str.strip().to_numpy(dtype=object)
    if not numbers.notna().all():
        example = column[numbers.isna()].iloc[0]
        raise InvalidInput(
            f"'{name}' must be a number, but {int(numbers.isna().sum())} cells are not, such as "
            f"'{example}'. Correct them, or leave them empty."
        )
    return numbers.to_numpy(dtype=np.float64)


def _infer_task(column: Series, numbers: Series) -> str:
    if not numbers.notna().all():
        return "classification"
    whole = bool((numbers == numbers.round()).all())
    most = _MAX_WHOLE_NUMBER_CLASSES if whole else _MAX_CLASSES
    return "regression" if column.nunique() > most else "classification"

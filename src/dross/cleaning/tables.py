"""Tables: read CSV, TSV and Parquet files, encode their columns, and copy them with edits."""

import codecs
import csv
import io
import os
import sys
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as arrow
import pyarrow.parquet as parquet
import torch
from sklearn.compose import ColumnTransformer
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from .._checks import check_name
from .._text import say_count
from ..errors import InvalidInput, first_line
from .modality import Column, Frame, Modality, RowEdits, Series, Source
from .task import (
    CLASSIFICATION,
    REGRESSION,
    TASKS,
    check_size,
    parse_finite,
    parse_numbers,
    read_number,
)
from .text import TEXT

TABLE = Modality("table")

# csv_text ---


_SEPARATORS = ",;\t|"
_SAMPLE = 65536  # characters
_SAMPLE_RECORDS = 50
_END = "\x1ethe end\x1e"  # a record of our own after the last: a quote left open swallows it
_PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
# Windows-1252 with its five undefined bytes filled as browsers do, so that no byte is lost.
_WINDOWS = {
    code: code if letter == "\ufffd" else ord(letter)
    for code, letter in enumerate(bytes(range(256)).decode("cp1252", errors="replace"))
}


@dataclass(frozen=True)
class Records:
    """The records of a CSV file, each with as many cells as there are names."""

    names: list[str]  # of the columns, as the first record has them
    rows: list[list[str]]
    lines: list[int]  # the line of the file that each row begins on; the first line is 1
    short: list[int]  # the lines of rows that lacked cells; these are "" now


def decode_text(raw: bytes, name: str) -> tuple[str, list[str]]:
    """The text of a file, and a note if its encoding had to be guessed."""
    for magic, packing in _PACKED.items():
        if raw.startswith(magic):
            raise InvalidInput(
                f"{name} is compressed ({packing}), not a text file. Unpack it, or save it as CSV "
                "(UTF-8) or Parquet."
            )
    try:
        text, notes = raw.decode("utf-8-sig"), []
    except UnicodeDecodeError as error:
        if b"\0" in raw[:1000]:
            raise InvalidInput(
                f"{name} is not a text file. Save it as CSV (UTF-8) or Parquet."
            ) from None
        text = codecs.charmap_decode(raw, "strict", _WINDOWS)[0]
        notes = [
            f"{name} is not UTF-8 (byte {error.start}); read as Windows-1252. "
            "Check letters with accents."
        ]
    if not text.strip():
        raise InvalidInput(f"{name} is empty.")
    if "\0" in text.lstrip().split("\n", 1)[0]:
        raise InvalidInput(
            f"{name} has NUL characters in its first line: it is not a text file, or it is in "
            "UTF-16. Save it as CSV (UTF-8) or Parquet."
        )
    return text, notes


def check_separator(given: str) -> str:
    """A separator as a user types it: one character, or the word tab."""
    separator = "\t" if given in ("tab", "\\t") else given
    if len(separator) != 1 or separator in '"\r\n':
        raise InvalidInput(f"A separator is one character, or the word tab, not '{given}'.")
    return separator


def guess_separator(text: str) -> str:
    """The separator that gives most rows as many cells as the first; of several, the most cells."""
    best, best_score = ",", (0.0, 0)
    for candidate in _SEPARATORS:
        sample, _ = _split(text[:_SAMPLE], candidate, skip_spaces=True)
        records = [record for record in sample[:-1] if not _is_blank(record)][:_SAMPLE_RECORDS]
        if len(text) > _SAMPLE and len(records) < _SAMPLE_RECORDS:
            records = records[: max(1, len(records) - 1)]  # the sample ends within the last
        names, rows = len(records[0]) if records else 0, records[1:]
        even = sum(len(row) == names for row in rows) / max(1, len(rows))
        if names > 1 and (even, names) > best_score:
            best, best_score = candidate, (even, names)
    return best


def read_records(text: str, separator: str, name: str, *, verbatim: bool = False) -> Records:
    """Split a text into records.

    Arguments:
        text: All of the file.
        separator: Between cells.
        name: Of the file, for messages.
        verbatim: Cells keep the spaces they begin with, unless a quote follows these.
    """
    records, lines = _split_whole(text, separator, name, skip_spaces=True)
    if verbatim:
        exact, exact_lines = _split_whole(text, separator, name, skip_spaces=False, lenient=True)
        if exact_lines == lines and list(map(len, exact)) == list(map(len, records)):
            records = exact
    first = next((k for k, record in enumerate(records) if not _is_blank(record)), None)
    if first is None:
        raise InvalidInput(f"{name} has no column names in its first line.")
    names, rows, places, short = records[first], [], [], []
    for line, row in zip(lines[first + 1 :], records[first + 1 :]):
        if not row or (len(names) > 1 and _is_blank(row)):
            continue
        if len(row) > len(names):
            raise InvalidInput(
                f"{name} cannot be read as a table: line {line} has {len(row)} cells, but the "
                f"first has {len(names)} names. If the separator is not {separator!r}, pass "
                f"`separator`."
            )
        if len(row) < len(names):
            short.append(line)
            row = row + [""] * (len(names) - len(row))
        rows.append(row)
        places.append(line)
    return Records(names, rows, places, short)


def _is_blank(record: list[str]) -> bool:
    """Whether a record is an empty line, or one of spaces."""
    return not record or (len(record) == 1 and not record[0].strip())


def _split_whole(
    text: str, separator: str, name: str, *, skip_spaces: bool, lenient: bool = False
) -> tuple[list[list[str]], list[int]]:
    """All records and the lines they begin on; a quote that is never closed is refused."""
    records, lines = _split(text, separator, skip_spaces)
    if records.pop() != [_END] and not lenient:
        raise InvalidInput(
            f"{name} cannot be read as a table: a quote is opened in the row on line {lines[-1]} "
            "and never closed."
        )
    return records, lines[:-1]


def _split(text: str, separator: str, skip_spaces: bool) -> tuple[list[list[str]], list[int]]:
    """The records with _END after them, and the line that each begins on."""
    text_lines = chain(io.StringIO(text, newline=""), [_END])
    reader = csv.reader(text_lines, delimiter=separator, skipinitialspace=skip_spaces)
    records, lines, line = [], [], 1
    with _long_cells():
        for record in reader:
            records.append(record)
            lines.append(line)
            line = reader.line_num + 1
    return records, lines


@contextmanager
def _long_cells() -> Iterator[None]:
    """Inside, cells may have any length: texts are often longer than csv's 131,072 characters."""
    before = csv.field_size_limit(sys.maxsize)
    try:
        yield
    finally:
        csv.field_size_limit(before)


# columns ---


_NOT_LEARNT = ("text", "ignore")
KINDS = ("number", "category", "date", *_NOT_LEARNT)
_MAX_CATEGORIES = 60
_MAX_SHARE_OF_CATEGORIES = 0.05  # distinct texts per cell; in a long table more may be categories
_NEARLY_ALL = 0.95
_DATES_TRIED = 200  # parsing dates is slow: a few cells rule most columns out
_CATEGORY = "category: "  # before the name of an encoded column
_IDENTIFIERS = ("id", "index", "unnamed: 0", "row", "key")
_SKEWED, _HEAVY = 5, 50  # the third and the fourth moment that put a column on a logarithmic scale
_LARGEST_INPUT = 8  # deviations; one wild cell must not end the training


def infer_columns(content: Frame, given: dict[str, str] | None = None) -> list[Column]:
    """Infer the kind of each column from its cells; the kinds in `given` take precedence."""
    given = given or {}
    return [
        _take_column(str(name), given[name]) if name in given else _infer_column(content[name])
        for name in content.columns
    ]


def _take_column(name: str, kind: str) -> Column:
    """A column of which the user has said what it is."""
    return Column(name, kind, f"it is set to {kind}" if kind in _NOT_LEARNT else "")


def _infer_column(column: Series) -> Column:
    name, cells = str(column.name), column.dropna()
    if len(cells) == 0:
        return Column(name, "ignore", "no cell has a value")
    distinct = cells.nunique()
    if distinct == 1 and len(cells) == len(column):
        return Column(name, "ignore", f"always '{cells.iloc[0]}'")
    numeric = parse_finite(cells).notna().mean()
    if numeric == 1.0 or (numeric >= _NEARLY_ALL and distinct > 10):
        if distinct == len(column) and name.strip().lower() in _IDENTIFIERS:
            return Column(name, "ignore", "a different number in every row: an identifier")
        odd = f"{1 - numeric:.1%} of its cells are not numbers and count as missing"
        return Column(name, "number", "" if numeric == 1.0 else odd)
    if _are_dates(cells.head(_DATES_TRIED)) and _are_dates(cells):
        return Column(name, "date")
    if distinct <= _MAX_CATEGORIES or distinct < _MAX_SHARE_OF_CATEGORIES * len(cells):
        return Column(name, "category")
    return Column(name, "ignore", f"{distinct:,} different texts: a name or an identifier")


def _to_dates(cells: Series) -> Series:
    """Cells as dates; NaT for all others."""
    if cells.dtype.kind in "iuf":  # pandas would count nanoseconds
        return pandas.Series(pandas.NaT, index=cells.index)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pandas.to_datetime(cells, errors="coerce", format="mixed", utc=True)


def _are_dates(cells: Series) -> bool:
    return _to_dates(cells).notna().mean() >= _NEARLY_ALL


def describe_columns(columns: list[Column]) -> list[str]:
    """Sentences about what the columns were taken for, for the user to check."""
    lines = []
    for kind, words in (("number", "Numbers"), ("category", "Categories"), ("date", "Dates")):
        if names := [column.name for column in columns if column.kind == kind]:
            lines.append(f"{words}: {', '.join(names)}.")
    for column in columns:
        if column.kind in _NOT_LEARNT:
            lines.append(f"'{column.name}' is ignored: {column.why}.")
    for column in columns:
        if column.kind == "number" and column.why:
            lines.append(f"'{column.name}': {column.why}.")
    return lines


def check_cells(content: Frame, names: Sequence[str], columns: list[Column]) -> None:
    """Refuse numbers that are too large to learn from, naming row and column."""
    for column in columns:
        if column.kind == "number":
            check_size(names, column.name, parse_finite(content[column.name]).to_numpy())


class TableEncoder:
    """Turns the columns of a table into numbers, float32 [N, inputs].

    Numbers are standardized; a missing one is replaced by the median and flagged. Highly skewed
    ones are put on a logarithmic scale first. Categories are one-hot. A date becomes its day,
    month and weekday.
    """

    def __init__(self, content: Frame, columns: list[Column]):
        self.columns = [column for column in columns if column.kind not in _NOT_LEARNT]
        if not self.columns:
            reasons = "; ".join(f"{column.name}: {column.why}" for column in columns)
            raise InvalidInput(
                f"No column is left to learn from ({reasons}). Say which are "
                f"numbers, categories or dates with `columns`."
            )
        numbers = make_pipeline(
            SimpleImputer(strategy="median", add_indicator=True), StandardScaler()
        )
        categories = OneHotEncoder(
            handle_unknown="infrequent_if_exist",
            min_frequency=2,
            max_categories=_MAX_CATEGORIES,
            sparse_output=False,
        )
        self._scales: dict[str, tuple[float, float]] = {}
        self._scales = _find_scales(self._parse(content), self.columns)
        parsed = self._parse(content)
        numeric = [name for name in parsed.columns if not name.startswith(_CATEGORY)]
        textual = [name for name in parsed.columns if name.startswith(_CATEGORY)]
        self._transform = ColumnTransformer(
            [("numbers", numbers, numeric), ("categories", categories, textual)]
        )
        self._transform.fit(parsed)

    @property
    def skewed(self) -> list[str]:
        """The columns that are learnt on a logarithmic scale."""
        return list(self._scales)

    def __call__(self, content: Frame) -> torch.Tensor:
        """Encode rows; numbers far from the mean are cut off."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Found unknown categories")
            encoded = self._transform.transform(self._parse(content))
        inputs = np.asarray(encoded, dtype=np.float32)
        return torch.from_numpy(np.clip(inputs, -_LARGEST_INPUT, _LARGEST_INPUT))

    def _parse(self, content: Frame) -> Frame:
        """Columns of float64, and of str for categories; a date becomes three columns."""
        parsed: dict[str, Series] = {}
        for column in self.columns:
            name, cells = column.name, content[column.name]
            if column.kind == "number":
                numbers = parse_finite(cells)
                scale = self._scales.get(name)
                parsed[name] = numbers if scale is None else _compress(numbers, *scale)
            elif column.kind == "category":
                parsed[_CATEGORY + name] = as_text(cells).fillna("(missing)")
            else:
                dates = _to_dates(cells)
                since = dates - pandas.Timestamp("2000-01-01", tz="UTC")
                parsed[f"{name} day"] = since.dt.total_seconds() / 86400
                parsed[f"{name} month"] = dates.dt.month.astype(float)
                parsed[f"{name} weekday"] = dates.dt.day_of_week.astype(float)
        return pandas.DataFrame(parsed)


def _find_scales(parsed: Frame, columns: list[Column]) -> dict[str, tuple[float, float]]:
    """{column: its median and a usual distance from it} of columns with far outliers."""
    scales: dict[str, tuple[float, float]] = {}
    for column in columns:
        if column.kind == "number":
            numbers = parsed[column.name].dropna().to_numpy(dtype=np.float64)
            deviation = np.std(numbers) if len(numbers) else 0.0
            if not 0 < deviation < np.inf:
                continue
            standard = (numbers - numbers.mean()) / deviation
            if abs(np.mean(standard**3)) > _SKEWED or np.mean(standard**4) > _HEAVY:
                median = float(np.median(numbers))
                distances = np.abs(numbers - median)
                scales[column.name] = (median, float(np.median(distances[distances > 0])))
    return scales


def _compress(numbers: Series, median: float, scale: float) -> Series:
    """Numbers on a logarithmic scale to both sides of their median."""
    distances = (numbers - median) / scale
    return np.sign(distances) * np.log1p(np.abs(distances))


# tables ---


PARQUET = (".parquet", ".pq")
_MISSING = ("", "?", "NA", "N/A", "nan", "NaN", "null", "NULL", "None", "-")
_MAX_CLASSES = 10  # a column of numbers with more distinct values is taken for a regression ...
_MAX_WHOLE_NUMBER_CLASSES = 20  # ... unless they are whole numbers


@dataclass(frozen=True)
class Reading:
    """How a user wants tables to be read."""

    separator: str | None = None  # of the cells of a CSV file; guessed by default
    missing: Sequence[str] | None = None  # cells without a value, besides empty ones
    from_memory: bool = False  # whether rows are places in an array: the first is 0

    @property
    def row_word(self) -> str:
        """What the number of a row counts."""
        return "place" if self.from_memory else "row"


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
    path: Path, *, reading: Reading = AS_USUAL, asked: Iterable[str] = ()
) -> tuple[Frame, list[str]]:
    """Read a table. Its index has the numbers of the rows.

    Numbers and dates of a Parquet file keep their types; all other cells are text, or None.

    Arguments:
        path: A CSV, TSV or Parquet file.
        reading: How to read it.
        asked: The names of columns that are needed: each must be there, and only once.

    Returns:
        The table, and notes about what had to be guessed.
    """
    frame, notes = _parse(read_bytes(path), path, reading)
    missing = reading.missing or ()
    if path.suffix.lower() not in PARQUET:
        missing = _MISSING if reading.missing is None else ("", *reading.missing)
    if len(frame) == 0:
        raise InvalidInput(f"{path} has column names, but no rows.")
    own_names, frame.columns = list(frame.columns), column_names(frame.columns)
    _check_asked(own_names, list(asked), path)
    notes += _note_renamed(own_names, list(frame.columns))
    for name in asked:
        notes += _note_missing(as_text(frame[name]), name, missing)
    columns = {name: _mark_missing(frame[name], missing) for name in frame.columns}
    return pandas.DataFrame(columns, index=frame.index), notes


def _mark_missing(column: Series, missing: Sequence[str]) -> Series:
    """The column, typed if it holds numbers or dates, else as text; None for missing cells."""
    text = as_text(column)
    is_typed = column.dtype.kind in "iufM"
    gone = text.isna() | text.isin(list(missing))
    if is_typed:
        return column.mask(gone) if missing and gone.any() else column
    return text.where(~gone, None)


def as_text(column: Series) -> Series:
    """Cells as text; None for those that are missing."""
    cells = column.astype(object)
    present = column.notna()
    return cells.map(str).where(present, None)


def _parse(raw: bytes, path: Path, reading: Reading, verbatim: bool = False) -> tuple[Frame, list]:
    """The table as it is in the file, with notes; its index has the numbers of the rows.

    verbatim: Cells of a CSV file keep their spaces.
    """
    if path.suffix.lower() not in PARQUET:
        return _parse_csv(raw, path, reading.separator, verbatim)
    frame = _parse_parquet(raw, path)
    first = 0 if reading.from_memory else 2  # as a spreadsheet counts: the names are its row 1
    frame.index = np.arange(first, first + len(frame))
    return frame, []


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
    columns = list(zip(*records.rows)) or [()] * len(records.names)
    frame = pandas.DataFrame(dict(enumerate(columns)), index=records.lines, dtype=object)
    frame.columns = records.names
    return frame, notes


def _parse_parquet(raw: bytes, path: Path) -> Frame:
    """The table with its named index, if it has one, as its first columns."""
    try:
        frame = pandas.read_parquet(io.BytesIO(raw))
        if any(name is not None for name in frame.index.names):
            frame = frame.reset_index(allow_duplicates=True)
    except Exception as error:  # a damaged file can fail anywhere inside the parser
        raise InvalidInput(f"{path} cannot be read as Parquet: {first_line(error)}") from None
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
            f"something other than a comma, semicolon, tab or |? Pass `separator`."
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


def _note_missing(column: Series, name: str, missing: Sequence[str]) -> list[str]:
    """Say which cells of a needed column count as missing."""
    said = Counter(cell for cell in column if cell in missing and cell)
    if not said:
        return []
    counts = ", ".join(f"'{cell}' ({count:,})" for cell, count in said.most_common(3))
    verb = "counts" if len(said) == 1 else "count"
    return [f"In '{name}', {counts} {verb} as missing; `na` changes this."]


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
    present = has_content(frame[label])
    if not present.all():
        lacking = (f"row has no '{label}' and is", f"rows have no '{label}' and are")
        notes.append(f"{say_count(int((~present).sum()), *lacking)} left out.")
    frame = frame[present]
    where: dict[str, Any] = {"rows": frame.index.to_numpy(), "row_word": reading.row_word}
    frame = frame.reset_index(drop=True)
    labels = _parse_labels(frame[label], label, task, notes)
    if text:
        content = pandas.DataFrame({"text": as_text(frame[text])})
        empty = int((~has_content(content["text"])).sum())
        if empty > 0:
            notes.append(f"{say_count(empty, 'text is', 'texts are')} empty.")
        return Source(TEXT, label, content, labels, notes=notes, **where)
    copies = int(frame.duplicated().sum())
    if copies > 0:
        copied = (
            "row is an exact copy of an earlier row. It is kept; look at it",
            "rows are exact copies of an earlier row. They are kept; look at them",
        )
        notes.append(f"{say_count(copies, *copied)} on the page.")
    return Source(TABLE, label, frame.drop(columns=[label]), labels, notes=notes, **where)


def has_content(column: Series) -> np.ndarray:
    """Which cells have more in them than spaces, bool [N]."""
    return as_text(column).fillna("").str.strip().ne("").to_numpy(dtype=bool)


def _parse_labels(column: Series, name: str, task: str | None, notes: list[str]) -> np.ndarray:
    """Labels as [N] of str for classes, float64 for numbers; an inferred task is noted."""
    numbers = parse_numbers(column)
    if task is None:
        task = _infer_task(column, numbers)
        distinct = f"{column.nunique()} classes"
        meaning = "a number to be predicted (regression)" if task == "regression" else distinct
        notes.append(f"'{name}' is taken for {meaning}; `task` changes this.")
    check_name("task", task, (CLASSIFICATION.name, REGRESSION.name))
    if TASKS[task] is CLASSIFICATION:
        return as_text(column).str.strip().to_numpy(dtype=object)
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


# table_copy ---


TABLES = (".csv", ".tsv", *PARQUET)


def copy_table(
    raw: bytes,
    source: Path,
    suffix: str,
    label: str,
    edits: RowEdits,
    reading: Reading = AS_USUAL,
) -> tuple[bytes, int]:
    """The bytes of the copy, and how many rows it has.

    Arguments:
        raw: The content of a CSV, TSV or Parquet file.
        source: The path of the file.
        suffix: Of the copy: one of TABLES.
        label: The column that holds the labels.
        edits: What to change.
        reading: How the file was read.
    """
    frame, _ = _parse(raw, source, reading, verbatim=True)
    rows = frame.index.tolist()
    kept = np.array([row not in edits.removed for row in rows], dtype=bool)
    names = column_names(frame.columns)
    check_name("column", label, names)
    place = names.index(label)
    new = {k: edits.relabelled[row] for k, row in enumerate(rows) if row in edits.relabelled}
    try:
        copied = None
        if suffix in PARQUET and source.suffix.lower() in PARQUET:
            copied = _copy_parquet(raw, frame.iloc[:, place], new, kept)
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
    raw: bytes, labels: Series, new: dict[int, str], kept: np.ndarray
) -> bytes | None:
    """The copy with the types, the index and the metadata of the original.

    None if the labels are not a column of the file, but an index that it only describes.
    """
    table = parquet.ParquetFile(io.BytesIO(raw)).read()
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

"""Tables: read CSV, TSV and Parquet files, encode their columns, and copy them with edits."""

import codecs
import csv
import io
import os
import sys
import warnings
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
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
    check_size,
    parse_finite,
    parse_numbers,
    read_number,
)
from .text import TEXT

TABLE = Modality("table")

_MISSING = ("", "?", "NA", "N/A", "nan", "NaN", "null", "NULL", "None", "-")
_SEPARATORS = ",;\t|"
_SAMPLE = 65536  # characters
_SAMPLE_RECORDS = 50
_END = "\x1ethe end\x1e"  # a record after the last of the file: an open quote swallows it
_ZIP = b"PK\x03\x04"
_PACKED = {b"\x1f\x8b": "gzip", _ZIP: "zip", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
_WORKBOOK_IN_ZIP = b"xl/workbook"  # an .xlsx file is a zip archive in which this is a name
_OLD_WORKBOOK = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # how an .xls file begins
# Windows-1252 with its five undefined bytes filled as browsers do, so that no byte is lost.
_WINDOWS = {
    code: code if letter == "\ufffd" else ord(letter)
    for code, letter in enumerate(bytes(range(256)).decode("cp1252", errors="replace"))
}


@dataclass(frozen=True)
class Reading:
    """How tables are read."""

    separator: str | None = None  # of the cells of a CSV file; guessed by default
    missing: Sequence[str] | None = None  # cells without a value, besides empty ones
    from_memory: bool = False  # whether rows are places in an array: the first is 0

    @property
    def row_word(self) -> str:
        """What the number of a row counts."""
        return "place" if self.from_memory else "row"


# --- files ----------------------------------------------------------------------------------------


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


def read_parquet(raw: bytes, path: Path) -> Frame:
    """The table in a Parquet file; what is none is refused."""
    try:
        return pandas.read_parquet(io.BytesIO(raw))
    except Exception as error:  # a damaged file can fail anywhere inside the parser
        raise InvalidInput(f"{path} cannot be read as Parquet: {first_line(error)}") from None


class TableFormat(ABC):
    """A kind of file that holds a table. FORMATS lists them all.

    Attributes:
        has_types: whether a file says which cells are numbers, dates or missing. Otherwise all
            cells are text, and `Reading.missing` says which count as missing.
    """

    has_types: bool

    @abstractmethod
    def read(
        self, raw: bytes, path: Path, reading: Reading, *, verbatim: bool = False
    ) -> tuple[Frame, list[str]]:
        """The table as it is in the file, with notes; its index has the numbers of the rows.

        verbatim: as for `parse_csv`; for a copy.
        """

    @abstractmethod
    def write(self, frame: Frame) -> bytes:
        """The bytes of a file with this table, without its index."""

    @abstractmethod
    def load(self, raw: bytes) -> Frame:
        """What pandas makes of a file that `write` or `copy` made."""

    def copy(
        self, raw: bytes, labels: Series, new: dict[int, str], kept: np.ndarray
    ) -> bytes | None:
        """A copy with what `write` would lose; None where that is nothing, or cannot be kept.

        Arguments:
            raw: The content of a file of this format.
            labels: The column of the labels, of all rows.
            new: {place of a row: its new label}.
            kept: Which rows the copy has, bool [N].
        """
        return None


@dataclass(frozen=True)
class _TextFormat(TableFormat):
    """CSV and TSV. The separator is guessed when a file is read."""

    separator: str  # of files that are written
    has_types = False

    def read(
        self, raw: bytes, path: Path, reading: Reading, *, verbatim: bool = False
    ) -> tuple[Frame, list[str]]:
        text, notes = decode_text(raw, path.name)
        if reading.separator is None:
            separator = guess_separator(text)
        else:
            separator = check_separator(reading.separator)
        frame, short = parse_csv(text, separator, path.name, verbatim=verbatim)
        if separator != ",":
            shown = "a tab" if separator == "\t" else repr(separator)
            notes.append(f"Columns are separated by {shown}.")
        if short:
            notes.append(
                f"{say_count(len(short), 'row has', 'rows have')} fewer cells than the first line "
                f"has names (the first is on line {short[0]}); the cells that are not there count "
                "as missing."
            )
        return frame, notes

    def write(self, frame: Frame) -> bytes:
        return encode_csv(frame, self.separator)

    def load(self, raw: bytes) -> Frame:
        return pandas.read_csv(io.BytesIO(raw), sep=self.separator)


class _ParquetFormat(TableFormat):
    """Parquet. A named index becomes columns."""

    has_types = True

    def read(
        self, raw: bytes, path: Path, reading: Reading, *, verbatim: bool = False
    ) -> tuple[Frame, list[str]]:
        frame = read_parquet(raw, path)
        if any(name is not None for name in frame.index.names):
            frame = frame.reset_index(allow_duplicates=True)
        first = 0 if reading.from_memory else 2  # as a spreadsheet counts: the names are its row 1
        frame.index = np.arange(first, first + len(frame))
        return frame, []

    def write(self, frame: Frame) -> bytes:
        if not frame.columns.is_unique:
            raise InvalidInput(
                "Some columns have the same name, which Parquet does not allow. Choose another "
                "kind of file, such as .csv."
            )
        return frame.to_parquet(index=False)

    def load(self, raw: bytes) -> Frame:
        return pandas.read_parquet(io.BytesIO(raw))

    def copy(
        self, raw: bytes, labels: Series, new: dict[int, str], kept: np.ndarray
    ) -> bytes | None:
        """The copy with the types, the index and the metadata of the original.

        None if the labels are not a column of the file, but an index that it only describes.
        """
        table = parquet.ParquetFile(io.BytesIO(raw)).read()
        if new:
            places = table.schema.get_all_field_indices(str(labels.name))
            if len(places) != 1:
                return None
            field = table.schema.field(places[0])
            values = _relabel(labels, table.column(places[0]).to_pylist(), new)
            table = table.set_column(places[0], field, arrow.array(values, type=field.type))
        sink = io.BytesIO()
        parquet.write_table(table.filter(arrow.array(kept)), sink)
        return sink.getvalue()


_CSV = _TextFormat(",")
_PARQUET = _ParquetFormat()
# the formats of tables by how names of files end: one more needs an entry here and nothing else
FORMATS: dict[str, TableFormat] = {
    ".csv": _CSV,
    ".tsv": _TextFormat("\t"),
    ".parquet": _PARQUET,
    ".pq": _PARQUET,
}


def find_format(path: Path) -> TableFormat:
    """The format of a table by its name; every other name is that of a text."""
    return FORMATS.get(path.suffix.lower(), _CSV)


def is_parquet(path: Path) -> bool:
    """Whether a file is a Parquet file, by its name."""
    return find_format(path) is _PARQUET


# --- text -----------------------------------------------------------------------------------------


def decode_text(raw: bytes, name: str) -> tuple[str, list[str]]:
    """The text of a file, and a note if its encoding had to be guessed."""
    if raw.startswith(_OLD_WORKBOOK) or (raw.startswith(_ZIP) and _WORKBOOK_IN_ZIP in raw):
        raise InvalidInput(
            f"{name} is an Excel workbook. Save the sheet as CSV UTF-8 (in Excel: File, Save As), "
            f"or as Parquet (in Python: pandas.read_excel('{name}').to_parquet("
            f"'{Path(name).stem}.parquet'))."
        )
    for magic, packing in _PACKED.items():
        if raw.startswith(magic):
            raise InvalidInput(
                f"{name} is compressed ({packing}), not a text file. Unpack it, or save it as CSV "
                "(UTF-8) or Parquet."
            )
    notes = []
    try:
        text = raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        text = codecs.charmap_decode(raw, "strict", _WINDOWS)[0]
        notes.append(
            f"{name} is not UTF-8 (byte {error.start}); read as Windows-1252. "
            "Check letters with accents."
        )
    if "\0" in (text[:1000] if notes else text.lstrip().split("\n", 1)[0]):
        raise InvalidInput(
            f"{name} has NUL characters at its beginning: it is not a text file, or it is in "
            "UTF-16. Save it as CSV (UTF-8) or Parquet."
        )
    if not text.strip():
        raise InvalidInput(f"{name} is empty.")
    return text, notes


def check_separator(separator: str) -> str:
    """The separator that a user typed: one character, or the word tab."""
    if separator in ("tab", "\\t"):
        return "\t"
    if len(separator) != 1 or separator in '"\r\n':
        raise InvalidInput(f"A separator is one character, or the word tab, not '{separator}'.")
    return separator


def guess_separator(text: str) -> str:
    """The separator that gives most rows as many cells as the first; of several, the most cells."""
    best, best_score = ",", (0.0, 0)
    for candidate in _SEPARATORS:
        sample = _split(text[:_SAMPLE], candidate, skip_spaces=True)[0]
        records = [record for record in sample if not _is_blank(record)]
        if len(text) > _SAMPLE and len(records) > 1:
            records.pop()  # the sample ends within it
        names, *rows = records[:_SAMPLE_RECORDS] or [[]]
        even = sum(len(row) == len(names) for row in rows) / max(1, len(rows))
        if len(names) > 1 and (even, len(names)) > best_score:
            best, best_score = candidate, (even, len(names))
    return best


def parse_csv(
    text: str, separator: str, name: str, *, verbatim: bool = False
) -> tuple[Frame, list[int]]:
    """Split a text into records.

    Arguments:
        text: All of the file.
        separator: Between cells.
        name: Of the file, for messages.
        verbatim: Cells keep the spaces they begin with, unless a quote follows these.

    Returns:
        The table, all cells as text, indexed by the line of the file that each row begins on (the
        first line is 1); and the lines of rows that lack cells, which are "".
    """
    records, lines, unclosed = _split(text, separator, skip_spaces=True)
    if unclosed is not None:
        raise InvalidInput(
            f"{name} cannot be read as a table: a quote is opened in the row on line {unclosed} "
            "and never closed."
        )
    if verbatim:
        exact, exact_lines, _ = _split(text, separator, skip_spaces=False)
        if exact_lines == lines and list(map(len, exact)) == list(map(len, records)):
            records = exact
    first = next((k for k, record in enumerate(records) if not _is_blank(record)), None)
    if first is None:
        raise InvalidInput(f"{name} has no column names in its first line.")
    names = records[first]
    rows: dict[int, list[str]] = {}
    short = []
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
        rows[line] = row + [""] * (len(names) - len(row))
    table = pandas.DataFrame(list(rows.values()), index=list(rows), columns=names, dtype=object)
    return table, short


def encode_csv(frame: Frame, separator: str = ",") -> bytes:
    """A table as CSV. Lines end with a line feed."""
    lines = _LineFeeds(newline="")
    frame.to_csv(lines, index=False, sep=separator, lineterminator="\r\n")
    return lines.getvalue().encode("utf-8")


class _LineFeeds(io.StringIO):
    """Takes lines that end with CR LF, and ends them with LF.

    csv quotes a cell with a carriage return, which would end a line for a reader, only where line
    ends have one.
    """

    def write(self, line: str) -> int:
        return super().write(line.removesuffix("\r\n") + "\n")


def _is_blank(record: list[str]) -> bool:
    """Whether a record is an empty line, or one of spaces."""
    return not record or (len(record) == 1 and not record[0].strip())


def _split(
    text: str, separator: str, *, skip_spaces: bool
) -> tuple[list[list[str]], list[int], int | None]:
    """The records, the lines they begin on, and that of a quote that is never closed."""
    text_lines = chain(io.StringIO(text, newline=""), [_END])
    reader = csv.reader(text_lines, delimiter=separator, skipinitialspace=skip_spaces)
    records = []
    lines = [1]
    limit = csv.field_size_limit(sys.maxsize)  # texts are often longer than its 131,072 characters
    try:
        for record in reader:
            records.append(record)
            lines.append(reader.line_num + 1)
    finally:
        csv.field_size_limit(limit)
    closed = records.pop() == [_END]
    return records, lines[:-2], None if closed else lines[-2]


# --- frames ---------------------------------------------------------------------------------------


def read_frame(path: Path, *, reading: Reading, needed: list[str]) -> tuple[Frame, list[str]]:
    """Read a table. Its index has the numbers of the rows.

    Numbers and dates of a Parquet file keep their types; all other cells are text, or None.

    Arguments:
        path: A CSV, TSV or Parquet file.
        reading: How to read it.
        needed: The names of columns that must be there, and only once.

    Returns:
        The table, and notes about what had to be guessed.
    """
    form = find_format(path)
    frame, notes = form.read(read_bytes(path), path, reading)
    if len(frame) == 0:
        raise InvalidInput(f"{path} has column names, but no rows.")
    missing = reading.missing or ()
    if not form.has_types:
        missing = _MISSING if reading.missing is None else ("", *reading.missing)
    original = [str(name).strip() for name in frame.columns]
    frame.columns = names = column_names(original)
    _check_needed(original, names, needed, path)
    renamed = [
        f"column {place} is called '{name}'"
        for place, (before, name) in enumerate(zip(original, names), 1)
        if before != name
    ]
    if renamed:
        more = " ..." if len(renamed) > 3 else ""
        notes.append(
            f"Some columns have no name, or the name of another: {', '.join(renamed[:3])}{more}."
        )
    for name in needed:
        counts = Counter(cell for cell in as_text(frame[name]) if cell and cell in missing)
        if counts:
            shown = ", ".join(f"'{cell}' ({count:,})" for cell, count in counts.most_common(3))
            verb = "counts" if len(counts) == 1 else "count"
            notes.append(f"In '{name}', {shown} {verb} as missing; `na` changes this.")
    columns = {name: _mark_missing(frame[name], missing) for name in names}
    return pandas.DataFrame(columns, index=frame.index), notes


def column_names(original: Iterable[Any]) -> list[str]:
    """The names that columns are known by: without spaces around them, and each only once.

    A second `x` is `x.1`, and the third column is `Unnamed: 2` if it has no name.
    """
    stripped = [str(name).strip() for name in original]
    names: list[str] = []
    for place, name in enumerate(stripped):
        base = name or f"Unnamed: {place}"
        unique, number = base, 0
        while unique in names or (number > 0 and unique in stripped):
            number += 1
            unique = f"{base}.{number}"
        names.append(unique)
    return names


def _check_needed(original: list[str], names: list[str], needed: list[str], path: Path) -> None:
    """Refuse a table that lacks a column that is needed, or has two of its name."""
    if needed[0] not in names and len(names) == 1:
        raise InvalidInput(
            f"{path} was read as one column named '{names[0][:60]}'. Is the separator "
            f"something other than a comma, semicolon, tab or |? Pass `separator`."
        )
    for name in needed:
        check_name("column", name, names)
        places = [str(place) for place, other in enumerate(original, 1) if other == name]
        if len(places) > 1:
            raise InvalidInput(
                f"{path} has {len(places)} columns named '{name}' (columns {', '.join(places)}). "
                "Which one is meant? Give the others another name."
            )


def _mark_missing(column: Series, missing: Sequence[str]) -> Series:
    """The column, typed if it holds numbers or dates, else as text; None for missing cells."""
    text = as_text(column)
    is_missing = text.isna() | text.isin(list(missing))
    return column.mask(is_missing) if column.dtype.kind in "iufM" else text.mask(is_missing, None)


def as_text(column: Series) -> Series:
    """Cells as text; None for those that are missing."""
    return column.astype(object).map(str).where(column.notna(), None)


def has_content(column: Series) -> np.ndarray:
    """Which cells have more in them than spaces, bool [N]."""
    return as_text(column).fillna("").str.strip().ne("").to_numpy(dtype=bool)


# --- columns --------------------------------------------------------------------------------------


_UNUSED = ("text", "ignore")
KINDS = ("number", "category", "date", *_UNUSED)
_MAX_CATEGORIES = 60
_MAX_SHARE_OF_CATEGORIES = 0.05  # distinct texts per cell; in a long table more may be categories
_NEARLY_ALL = 0.95
_DATES_TRIED = 200  # parsing dates is slow: a few cells rule most columns out
_CATEGORY = "category: "  # before the name of an encoded column
_IDENTIFIERS = ("id", "index", "unnamed: 0", "row", "key")
_SKEWED, _HEAVY = 5, 50  # the third and the fourth moment that put a column on a logarithmic scale
LARGEST_INPUT = 8  # deviations; one outlier must not end the training


def infer_columns(content: Frame, kinds: dict[str, str]) -> list[Column]:
    """The kinds of the columns, inferred from their cells where `kinds` has none."""
    columns = []
    for name in content.columns:
        if kind := kinds.get(name):
            why = f"it is set to {kind}" if kind in _UNUSED else ""
            columns.append(Column(name, kind, why))
        else:
            columns.append(_infer_column(name, content[name]))
    return columns


def _infer_column(name: str, column: Series) -> Column:
    cells = column.dropna()
    if len(cells) == 0:
        return Column(name, "ignore", "no cell has a value")
    distinct = cells.nunique()
    if distinct == 1 and len(cells) == len(column):
        return Column(name, "ignore", f"always '{cells.iloc[0]}'")
    numeric = parse_finite(cells).notna().mean()
    if numeric == 1.0 or (numeric >= _NEARLY_ALL and distinct > 10):
        if distinct == len(column) and name.strip().lower() in _IDENTIFIERS:
            return Column(name, "ignore", "a different number in every row: an identifier")
        why = f"{1 - numeric:.1%} of its cells are not numbers and count as missing"
        return Column(name, "number", "" if numeric == 1.0 else why)
    if _are_dates(cells.head(_DATES_TRIED)) and _are_dates(cells):
        return Column(name, "date")
    if distinct <= _MAX_CATEGORIES or distinct < _MAX_SHARE_OF_CATEGORIES * len(cells):
        return Column(name, "category")
    return Column(name, "ignore", f"{distinct:,} different texts: a name or an identifier")


def _to_dates(cells: Series) -> Series:
    """Cells as dates; NaT for all others."""
    if cells.dtype.kind in "iuf":  # pandas would count nanoseconds
        return pandas.Series(pandas.NaT, index=cells.index, dtype="datetime64[ns, UTC]")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pandas.to_datetime(cells, errors="coerce", format="mixed", utc=True)


def _are_dates(cells: Series) -> bool:
    return _to_dates(cells).notna().mean() >= _NEARLY_ALL


def describe_columns(columns: list[Column]) -> list[str]:
    """Sentences about the kinds of the columns, for the user to check."""
    lines = []
    for kind, words in (("number", "Numbers"), ("category", "Categories"), ("date", "Dates")):
        if names := [column.name for column in columns if column.kind == kind]:
            lines.append(f"{words}: {', '.join(names)}.")
    ignored = [column for column in columns if column.kind in _UNUSED]
    lines += [f"'{column.name}' is ignored: {column.why}." for column in ignored]
    odd = [column for column in columns if column.why and column not in ignored]
    return [*lines, *(f"'{column.name}': {column.why}." for column in odd)]


def check_cells(content: Frame, names: Sequence[str], columns: list[Column]) -> None:
    """Refuse numbers that are too large to learn from, naming row and column."""
    for column in columns:
        if column.kind == "number":
            check_size(names, column.name, parse_finite(content[column.name]).to_numpy())


class TableEncoder:
    """Turns the columns of a table into numbers, float32 [N, inputs].

    Numbers are standardized; a missing one is replaced by the median and flagged. Highly skewed
    ones are put on a logarithmic scale to both sides of their median first. Categories are one-hot.
    A date becomes its day, month and weekday.
    """

    def __init__(self, content: Frame, columns: list[Column]):
        self.columns = [column for column in columns if column.kind not in _UNUSED]
        if not self.columns:
            reasons = "; ".join(f"{column.name}: {column.why}" for column in columns)
            raise InvalidInput(
                f"No column is left to learn from ({reasons}). Say which are numbers, categories "
                "or dates with `columns`."
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
        """The columns on a logarithmic scale."""
        return list(self._scales)

    def __call__(self, content: Frame) -> torch.Tensor:
        """Encode rows; numbers far from the mean are cut off."""
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Found unknown categories")
            encoded = self._transform.transform(self._parse(content))
        inputs = np.asarray(encoded, dtype=np.float32)
        return torch.from_numpy(np.clip(inputs, -LARGEST_INPUT, LARGEST_INPUT))

    def _parse(self, content: Frame) -> Frame:
        """Columns of float64, and of str for categories; a date becomes three columns."""
        parsed: dict[str, Series] = {}
        for column in self.columns:
            name = column.name
            cells = content[name]
            if column.kind == "number":
                parsed[name] = parse_finite(cells)
                if name in self._scales:
                    median, scale = self._scales[name]
                    distances = (parsed[name] - median) / scale
                    parsed[name] = np.sign(distances) * np.log1p(np.abs(distances))
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
    """{column: its median and the usual distance from it} of columns with far outliers."""
    scales = {}
    for name in [column.name for column in columns if column.kind == "number"]:
        numbers = parsed[name].dropna().to_numpy(dtype=np.float64)
        deviation = np.std(numbers) if len(numbers) else 0.0
        if not 0 < deviation < np.inf:
            continue
        standard = (numbers - numbers.mean()) / deviation
        if abs(np.mean(standard**3)) > _SKEWED or np.mean(standard**4) > _HEAVY:
            median = float(np.median(numbers))
            distances = np.abs(numbers - median)
            scales[name] = (median, float(np.median(distances[distances > 0])))
    return scales


# --- data sets ------------------------------------------------------------------------------------


_MAX_CLASSES = 10  # a column of numbers with more distinct values is taken for a regression ...
_MAX_WHOLE_NUMBER_CLASSES = 20  # ... unless they are whole numbers


def read_table(
    path: Path,
    label: str,
    *,
    task: str | None,
    text: str | None,
    columns: dict[str, str],
    reading: Reading,
) -> Source:
    """Read a table, or one column of it as texts.

    Arguments:
        path: A CSV, TSV or Parquet file.
        label: The column to learn.
        task: classification or regression; None: inferred from the labels.
        text: The column to read as text. All other columns are then left out.
        columns: The kinds of some columns. Here they are only checked.
        reading: How to read it.
    """
    needed = [label] if text is None else [label, text]
    frame, notes = read_frame(path, reading=reading, needed=needed)
    for name, kind in columns.items():
        check_name("column", name, frame.columns)
        check_name("kind of column", kind, KINDS)
    # a row without a label is left out: nothing can be learned from it. Ids count the rows that are
    # left; a copy (`copy_table`) has it as it was.
    present = has_content(frame[label])
    if not present.all():
        lacking = (f"row has no '{label}' and is", f"rows have no '{label}' and are")
        notes.append(f"{say_count(int((~present).sum()), *lacking)} left out.")
    frame = frame[present]
    rows = frame.index.to_numpy()
    frame = frame.reset_index(drop=True)
    labels = _parse_labels(frame[label], label, task, notes)
    if text:
        content = pandas.DataFrame({"text": as_text(frame[text])})
        empty = int((~has_content(content["text"])).sum())
        if empty > 0:
            notes.append(f"{say_count(empty, 'text is', 'texts are')} empty.")
        return Source(TEXT, label, content, labels, rows, reading.row_word, notes)
    copies = int(frame.duplicated().sum())
    if copies > 0:
        copied = (
            "row is an exact copy of an earlier row. It is kept; look at it",
            "rows are exact copies of an earlier row. They are kept; look at them",
        )
        notes.append(f"{say_count(copies, *copied)} on the page.")
    content = frame.drop(columns=[label])
    return Source(TABLE, label, content, labels, rows, reading.row_word, notes)


def _parse_labels(column: Series, name: str, task: str | None, notes: list[str]) -> np.ndarray:
    """Labels as [N] of str for classes, float64 for numbers; an inferred task is noted."""
    numbers = parse_numbers(column)
    all_numbers = bool(numbers.notna().all())
    if task is None:
        whole = bool((numbers == numbers.round()).all())
        most = _MAX_WHOLE_NUMBER_CLASSES if whole else _MAX_CLASSES
        count = column.nunique()
        task = REGRESSION.name if all_numbers and count > most else CLASSIFICATION.name
        classes = f"{count} classes"
        meaning = "a number to be predicted (regression)" if task == REGRESSION.name else classes
        notes.append(f"'{name}' is taken for {meaning}; `task` changes this.")
    check_name("task", task, (CLASSIFICATION.name, REGRESSION.name))
    if task == CLASSIFICATION.name:
        return as_text(column).str.strip().to_numpy(dtype=object)
    if not all_numbers:
        example = column[numbers.isna()].iloc[0]
        raise InvalidInput(
            f"'{name}' must be a number, but {int(numbers.isna().sum())} cells are not, such as "
            f"'{example}'. Correct them, or leave them empty."
        )
    return numbers.to_numpy(dtype=np.float64)


# --- copies ---------------------------------------------------------------------------------------


def copy_table(
    raw: bytes, source: Path, suffix: str, label: str, edits: RowEdits, reading: Reading
) -> tuple[bytes, int]:
    """The bytes of the copy, and how many rows it has.

    Arguments:
        raw: The content of a CSV, TSV or Parquet file.
        source: The path of the file.
        suffix: Of the copy: one of FORMATS.
        label: The column that holds the labels.
        edits: What to change.
        reading: How the file was read.
    """
    form = find_format(source)
    target = FORMATS[suffix]
    frame, _ = form.read(raw, source, reading, verbatim=True)
    kept = ~frame.index.isin(list(edits.removed))
    names = column_names(frame.columns)
    check_name("column", label, names)
    place = names.index(label)
    rows = enumerate(frame.index.tolist())
    new = {k: edits.relabelled[row] for k, row in rows if row in edits.relabelled}
    try:
        copied = None
        if target is form:
            copied = form.copy(raw, frame.iloc[:, place], new, kept)
        if copied is None:
            cells = frame.iloc[:, place]
            if new:
                frame.isetitem(place, _relabel(cells, cells.tolist(), new))
            copied = target.write(frame[kept])
    except InvalidInput:
        raise
    except Exception as error:  # a table can hold what a file of another kind cannot
        raise InvalidInput(
            f"{source} cannot be copied as {suffix}: {first_line(error)}. Choose another kind of "
            "file."
        ) from error
    return copied, int(kept.sum())


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
        old = values[place]
        if isinstance(old, str) and (label in known or not numeric):
            changed[place] = label
        elif label in known:
            changed[place] = known[label]
        else:
            number = read_number(label)
            if number is None or (isinstance(old, int) and not number.is_integer()):
                raise InvalidInput(f"'{label}' cannot be a label among labels such as '{old}'.")
            changed[place] = label if isinstance(old, str) else type(old)(number)
    return changed

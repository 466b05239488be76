"""The formats of tables: reading a file, writing one, and copying one with edits."""

import io
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pyarrow as arrow
import pyarrow.parquet as parquet

from .._checks import check_name
from .._io import read_file
from .._text import say_count
from ..errors import InvalidInput, first_line
from .csv_text import check_separator, decode_text, encode_csv, guess_separator, parse_csv
from .modality import Frame, RowEdits, Series
from .task import read_number


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
    try:
        return read_file(path)
    except FileNotFoundError:
        raise InvalidInput(f"There is no file {path}.") from None
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

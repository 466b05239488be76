"""The formats of tables: reading a file, writing one, and copying one with edits."""

import codecs
import io
import json
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pandas
import pyarrow as arrow
import pyarrow.feather as feather
import pyarrow.parquet as parquet

from .._checks import check_name
from .._text import say_count
from ..errors import InvalidInput, first_line
from .csv_text import (
    Encoding,
    check_separator,
    copy_csv,
    decode_text,
    encode_csv,
    guess_separator,
    has_decimal_comma,
    parse_csv,
    read_decimal_commas,
)
from .files import (
    ARROW,
    EXCEL,
    JSON_LINES,
    PARQUET,
    TEXT,
    Place,
    check_kind,
    pack,
    split_suffix,
    unpack,
)
from .modality import Frame, RowEdits, Series
from .task import read_number

_NAMED = 5  # columns in a note


@dataclass(frozen=True)
class Reading:
    """How tables are read."""

    separator: str | None = None  # of the cells of a CSV file; guessed by default
    missing: Sequence[str] | None = None  # cells without a value, besides empty ones
    sheet: str | None = None  # of a workbook; by default the first
    from_memory: bool = False  # whether rows are indices of an array: the first is 0


@dataclass(frozen=True)
class TableEdits:
    """What to change in a copy of a table, by the places of its rows."""

    labels: Series  # the column of the labels, of all rows, indexed by the numbers of the rows
    place: int  # of this column, from 0
    new: Mapping[int, str]  # {place of a row: its new label}
    kept: np.ndarray  # which rows the copy has, bool [N]

    @property
    def removed(self) -> set[int]:
        """The numbers of the rows that the copy lacks."""
        return set(self.labels.index[~self.kept].tolist())

    def change(self, values: list[Any]) -> dict[int, Any]:
        """{place of a row: its new label, in the type of the values}."""
        return _relabel(self.labels, values, self.new)


class TableFormat(ABC):
    """A kind of file that holds a table. FORMATS lists them all.

    Attributes:
        what: The usual name of such a file.
        marks_missing: Whether a file marks missing cells. Otherwise cells such as "NA" count as
            missing; see `Reading.missing`.
        copied_as: How the names of copies end, where no file of this kind can be written.
        not_copied: What a file may have that no copy keeps, as a sentence for the user.
    """

    what: str = TEXT
    marks_missing: bool = False
    copied_as: str = ""
    not_copied: str = ""

    @abstractmethod
    def read(
        self, raw: bytes, path: Place, reading: Reading, *, verbatim: bool = False
    ) -> tuple[Frame, list[str]]:
        """The table as it is in the file, with notes; its index has the numbers of the rows.

        verbatim: as for `parse_csv`; for a copy.
        """

    @abstractmethod
    def write(self, frame: Frame) -> bytes:
        """The bytes of a file with this table, without its index."""

    @abstractmethod
    def load(self, raw: bytes, reading: Reading) -> Frame:
        """A file of `write` or `copy` as pandas reads it."""

    def explain_lack(
        self, raw: bytes, path: Place, reading: Reading, names: list[str], lacking: str
    ) -> str | None:
        """Why a table lacks a column, where its format is a likely reason, and what to pass.

        Arguments:
            raw: The content of a file of this format.
            path: Where it is.
            reading: How it was read.
            names: Of the columns that there are.
            lacking: The name of the other one.
        """
        return None

    def copy(self, raw: bytes, path: Place, reading: Reading, edits: TableEdits) -> bytes | None:
        """A copy with what `write` would lose; None where that is nothing, or cannot be kept.

        Arguments:
            raw: The content of a file of this format.
            path: Where it is.
            reading: How it was read.
            edits: What to change.
        """
        return None


@dataclass(frozen=True)
class _TextFormat(TableFormat):
    """CSV and TSV. The separator is guessed when a file is read."""

    separator: str  # of files that are written

    def read(
        self, raw: bytes, path: Place, reading: Reading, *, verbatim: bool = False
    ) -> tuple[Frame, list[str]]:
        text, _, notes = decode_text(raw, path.name)
        separator = _find_separator(text, reading)
        frame, short = parse_csv(text, separator, path.name, verbatim=verbatim)
        if not verbatim and (with_commas := read_decimal_commas(frame, separator)):
            notes.append(
                f"Decimal commas are read as decimal points, and dots between digits as "
                f"thousands separators, in: {_name_some(with_commas)}."
            )
        if separator != ",":
            shown = "a tab" if separator == "\t" else repr(separator)
            notes.append(f"Columns are separated by {shown}.")
        if short:
            notes.append(
                f"{say_count(len(short), 'row has', 'rows have')} fewer cells than there are "
                f"column names (the first is on line {short[0]}); the remaining cells are treated "
                "as missing values."
            )
        return frame, notes

    def explain_lack(
        self, raw: bytes, path: Place, reading: Reading, names: list[str], lacking: str
    ) -> str | None:
        if len(names) > 1:
            return None
        return (
            f"{path} has one column, named '{names[0][:60]}', and none named '{lacking}'. If its "
            "cells are separated by something other than a comma, semicolon, tab or |, pass "
            "`separator`."
        )

    def write(self, frame: Frame) -> bytes:
        return encode_csv(frame, self.separator)

    def load(self, raw: bytes, reading: Reading) -> Frame:
        text = decode_text(raw, "the copy")[0]
        separator = _find_separator(text, reading)
        frame, _ = parse_csv(text, separator, "the copy", verbatim=True)
        read_decimal_commas(frame, separator)
        return pandas.read_csv(io.BytesIO(encode_csv(frame)))

    def copy(self, raw: bytes, path: Place, reading: Reading, edits: TableEdits) -> bytes | None:
        """The copy with the encoding, the separator, the line ends and the quotes of the original."""
        text, encoding, _ = decode_text(raw, path.name)
        rows = edits.labels.index.tolist()
        changed = edits.change(edits.labels.tolist())
        new = {rows[place]: str(label) for place, label in changed.items()}
        separator = _find_separator(text, reading)
        return _encode(copy_csv(text, separator, edits.place, edits.removed, new), encoding)


def _find_separator(text: str, reading: Reading) -> str:
    guessed = guess_separator(text)
    if reading.separator is None:
        return guessed
    separator = check_separator(reading.separator)
    names = next((line for line in text.splitlines() if line.strip()), "")
    if separator not in names and guessed in names:
        shown = "tab" if guessed == "\t" else guessed
        raise InvalidInput(
            f"The first line has no {separator!r}: {names[:60]!r}. The cells seem to be separated by "
            f"{guessed!r}. Leave out `separator`, or pass `separator={shown!r}`."
        )
    return separator


def _name_some(names: Sequence[str]) -> str:
    return ", ".join(names[:_NAMED]) + (" ..." if len(names) > _NAMED else "")


def _encode(text: str, encoding: Encoding) -> bytes:
    try:
        return encoding.encode(text)
    except UnicodeEncodeError as error:
        letter = error.object[error.start]
        raise InvalidInput(
            f"The character {letter!r} in a new label cannot be represented in the encoding of the "
            "input. Save the input as CSV (UTF-8)."
        ) from None


class _ArrowFormat(TableFormat):
    """Files of Arrow tables, whose types, metadata and index a copy keeps."""

    marks_missing = True

    @abstractmethod
    def _read_arrow(self, raw: bytes) -> Any:
        """The pyarrow.Table in a file."""

    @abstractmethod
    def _write_arrow(self, table: Any, like: bytes) -> bytes:
        """A file with a table, in the container that the bytes have."""

    def read(
        self, raw: bytes, path: Place, reading: Reading, *, verbatim: bool = False
    ) -> tuple[Frame, list[str]]:
        try:
            frame = self.load(raw, reading)
        except Exception as error:  # a damaged file can fail anywhere inside the parser
            why = first_line(error).rstrip(".")
            raise InvalidInput(f"{path} cannot be read as {self.what}: {why}.") from None
        if any(name is not None for name in frame.index.names):
            frame = frame.reset_index(allow_duplicates=True)
        first = 0 if reading.from_memory else 2  # as a spreadsheet counts: the names are its row 1
        frame.index = np.arange(first, first + len(frame))
        return frame, []

    def copy(self, raw: bytes, path: Place, reading: Reading, edits: TableEdits) -> bytes | None:
        """The copy with the types, the index and the metadata of the original.

        None if the labels are not a column of the file, but an index that it only describes.
        """
        table = self._read_arrow(raw)
        if edits.new:
            places = table.schema.get_all_field_indices(str(edits.labels.name))
            if len(places) != 1:
                return None
            field = table.schema.field(places[0])
            values = table.column(places[0]).to_pylist()
            for place, label in edits.change(values).items():
                values[place] = label
            table = table.set_column(places[0], field, arrow.array(values, type=field.type))
        return self._write_arrow(table.filter(arrow.array(edits.kept)), raw)


class _ParquetFormat(_ArrowFormat):
    """Parquet. A named index becomes columns."""

    what = PARQUET

    def write(self, frame: Frame) -> bytes:
        _check_unique(frame, "Parquet")
        return frame.to_parquet(index=False)

    def load(self, raw: bytes, reading: Reading) -> Frame:
        return pandas.read_parquet(io.BytesIO(raw))

    def _read_arrow(self, raw: bytes) -> Any:
        return parquet.ParquetFile(io.BytesIO(raw)).read()

    def _write_arrow(self, table: Any, like: bytes) -> bytes:
        sink = io.BytesIO()
        parquet.write_table(table, sink)
        return sink.getvalue()


class _FeatherFormat(_ArrowFormat):
    """Feather, and the files and streams of Arrow."""

    what = ARROW

    def write(self, frame: Frame) -> bytes:
        _check_unique(frame, "Feather")
        return self._write_arrow(arrow.Table.from_pandas(frame, preserve_index=False), b"")

    def load(self, raw: bytes, reading: Reading) -> Frame:
        return self._read_arrow(raw).to_pandas()

    def _read_arrow(self, raw: bytes) -> Any:
        if raw.startswith(_STREAM):
            table = arrow.ipc.open_stream(raw).read_all()
        else:
            table = feather.read_table(io.BytesIO(raw))
        table.validate(full=True)  # Arrow checks nothing by itself, and would crash on damage
        return table

    def _write_arrow(self, table: Any, like: bytes) -> bytes:
        sink = io.BytesIO()
        if like.startswith(_STREAM):
            with arrow.ipc.new_stream(sink, table.schema) as stream:
                stream.write_table(table)
        else:
            feather.write_feather(table, sink)
        return sink.getvalue()


_STREAM = b"\xff\xff\xff\xff"  # how a stream of Arrow begins


class _JsonFormat(TableFormat):
    """JSON Lines: an object with one value per column on each line."""

    what = JSON_LINES
    marks_missing = True

    def read(
        self, raw: bytes, path: Place, reading: Reading, *, verbatim: bool = False
    ) -> tuple[Frame, list[str]]:
        rows = dict(parse_json_lines(raw, path))
        for line, row in rows.items():
            for name, value in row.items():
                if isinstance(value, (dict, list)):
                    raise InvalidInput(_explain_nested(path, line, name, value))
        names = list(dict.fromkeys(name for row in rows.values() for name in row))
        columns = [type_column([row.get(name) for row in rows.values()]) for name in names]
        frame = pandas.DataFrame(dict(enumerate(columns)), index=range(len(rows)))
        return frame.set_axis(names, axis=1).set_axis(list(rows), axis=0), []

    def write(self, frame: Frame) -> bytes:
        _check_unique(frame, "JSON")
        names = [str(name) for name in frame.columns]
        columns = [plain_values(frame.iloc[:, k]) for k in range(len(names))]
        rows = (dict(zip(names, cells)) for cells in zip(*columns, strict=True))
        return b"".join(msgspec.json.encode(row) + b"\n" for row in rows)

    def load(self, raw: bytes, reading: Reading) -> Frame:
        rows = [row for _, row in parse_json_lines(raw, None)]
        names = list(dict.fromkeys(name for row in rows for name in row))
        return pandas.DataFrame(
            {name: type_column([row.get(name) for row in rows]) for name in names}
        )

    def copy(self, raw: bytes, path: Place, reading: Reading, edits: TableEdits) -> bytes | None:
        """The copy with every line as it is, but for the new labels."""
        lines = raw.split(b"\n")
        rows = edits.labels.index.tolist()
        name = str(edits.labels.name)
        values = [json.loads(lines[row - 1].removeprefix(_MARK)).get(name) for row in rows]
        for place, label in edits.change(values).items():
            lines[rows[place] - 1] = _replace_value(lines[rows[place] - 1], name, label)
        removed = edits.removed
        return b"\n".join(line for k, line in enumerate(lines, 1) if k not in removed)


_MARK = b"\xef\xbb\xbf"  # some programs begin a file in UTF-8 with it


def parse_json_lines(raw: bytes, path: Place | None) -> Iterator[tuple[int, dict[str, Any]]]:
    """(number of the line, object) of all lines that are not blank."""
    if raw.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        raise InvalidInput(f"{path} is in UTF-16. Save it as UTF-8.")
    for number, line in enumerate(raw.removeprefix(_MARK).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise InvalidInput(
                f"{path}, line {number} is not JSON ({first_line(error)})."
            ) from None
        if not isinstance(row, dict):
            raise InvalidInput(f"{path}, line {number} is not a JSON object, as every row must be.")
        if b"\\u" in line:
            _check_letters(row, f"{path}, line {number}")
        yield number, row


def _check_letters(row: dict[str, Any], where: str) -> None:
    """Refuse half of a character, which JSON can contain, but neither UTF-8 nor a tokenizer."""
    text = json.dumps(row, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(
            f"{where}: {text[error.start]!a} is an unpaired surrogate, that is, half of a "
            "character such as an emoji. Remove it, or write the whole character."
        ) from None


def _explain_nested(path: Place, line: int, name: str, value: Any) -> str:
    what = "a list" if isinstance(value, list) else "an object"
    chats = ""
    if name == "messages":
        chats = f" If these are chats: dross clean-chats {path} --model PATH_OR_NAME."
    return (
        f"{path}, line {line}: '{name}' contains {what}, but a table has one value per cell. Leave "
        f"out '{name}', or put each of its values in its own column.{chats}"
    )


def _replace_value(line: bytes, name: str, value: Any) -> bytes:
    """A line of JSON with another value of one key; every other byte stays."""
    text = line.decode()
    decoder = json.JSONDecoder()
    place = _skip(text, text.index("{") + 1)
    begin = end = place
    while text[place] != "}":
        key, place = decoder.raw_decode(text, place)
        start = _skip(text, place, ":")
        _, place = decoder.raw_decode(text, start)
        if key == name:  # of a key that occurs twice, readers take the last value
            begin, end = start, place
        place = _skip(text, place, ",")
    new = json.dumps(value, ensure_ascii=line.isascii())
    return (text[:begin] + new + text[end:]).encode()


def _skip(text: str, place: int, mark: str = "") -> int:
    """The place after blanks, and a mark among them."""
    while text[place] in f" \t\r\n{mark}":
        place += 1
    return place


@dataclass(frozen=True)
class _ExcelFormat(TableFormat):
    """A sheet of a workbook: its values. Formatting, formulas and other sheets are not copied."""

    copied_as: str = ""
    what = EXCEL
    not_copied = (
        "The copy has the values of the sheet, without its formatting and formulas, and without "
        "other sheets."
    )

    def read(
        self, raw: bytes, path: Place, reading: Reading, *, verbatim: bool = False
    ) -> tuple[Frame, list[str]]:
        sheets, sheet, rows = _read_sheet(raw, path, reading.sheet)
        named = f"{path}, sheet '{sheet}'"
        filled = [(number, row) for number, row in enumerate(rows, 1) if _has_value(row)]
        others = [f"'{name}'" for name in sheets if name != sheet]
        if not filled:
            hint = f" Other sheets: {', '.join(others)}. Pass one as `sheet`." if others else ""
            raise InvalidInput(f"{named} is empty.{hint}")
        (first, names), *filled = filled
        width = max(
            (k + 1 for _, row in [(first, names), *filled] for k in _filled(row)), default=0
        )
        unnamed = [
            k for k in range(width) if names[k] == "" and any(row[k] != "" for _, row in filled)
        ]
        titled = names[0] != "" and len(unnamed) == width - 1 > 0
        if titled or len(unnamed) > width / 2:
            raise InvalidInput(
                f"{named}: row {first} must contain the names of the columns, but {len(unnamed)} "
                f"of {width} columns have none. Delete the rows above the names."
            )
        used = [k for k in range(width) if names[k] != "" or k in unnamed]
        columns = [type_column([_as_cell(row[k]) for _, row in filled]) for k in used]
        frame = pandas.DataFrame(dict(enumerate(columns)), index=range(len(filled)))
        frame.columns = [str(_as_cell(names[k]) or "") for k in used]
        frame.index = pandas.Index([number for number, _ in filled])
        notes = []
        if others and reading.sheet is None:
            notes.append(
                f"The first sheet of {path.name}, '{sheet}', is read; pass `sheet` to read "
                f"another: {', '.join(others)}."
            )
        return frame, notes

    def explain_lack(
        self, raw: bytes, path: Place, reading: Reading, names: list[str], lacking: str
    ) -> str | None:
        sheets, sheet, _ = _read_sheet(raw, path, reading.sheet)
        for other in sheets:
            _, _, rows = _read_sheet(raw, path, other)
            if other != sheet and lacking in [str(cell).strip() for cell in next(iter(rows), [])]:
                return (
                    f"{path}: the sheet '{sheet}' has no column named '{lacking}', but the sheet "
                    f"'{other}' does. Pass `sheet={other!r}`."
                )
        return None

    def write(self, frame: Frame) -> bytes:
        return _write_sheet(frame, "Sheet1")

    def load(self, raw: bytes, reading: Reading) -> Frame:
        frame, _ = self.read(raw, _COPY, Reading())
        return frame.reset_index(drop=True)

    def copy(self, raw: bytes, path: Place, reading: Reading, edits: TableEdits) -> bytes | None:
        """The values of the sheet, under its name."""
        frame, _ = self.read(raw, path, reading)
        values = frame.iloc[:, edits.place].tolist()
        for place, label in edits.change(values).items():
            values[place] = label
        frame.isetitem(edits.place, values)
        return _write_sheet(frame[edits.kept], _read_sheet(raw, path, reading.sheet)[1])


def _read_sheet(raw: bytes, path: Place, sheet: str | None) -> tuple[list[str], str, list[list]]:
    """The names of all sheets, the name of one, and its rows; empty cells are ""."""
    from python_calamine import CalamineWorkbook

    try:
        book = CalamineWorkbook.from_filelike(io.BytesIO(raw))
        names = book.sheet_names
        if sheet is None:
            sheet = names[0]
        rows = (
            book.get_sheet_by_name(sheet).to_python(skip_empty_area=False) if sheet in names else []
        )
    except Exception as error:  # a damaged file can fail anywhere inside the parser
        raise InvalidInput(
            f"{path} cannot be read as an Excel workbook: {first_line(error)}. Open it in a "
            "spreadsheet program and save it again."
        ) from None
    check_name("sheet", sheet, names)
    return names, sheet, rows


def _has_value(row: list[Any]) -> bool:
    return any(cell != "" for cell in row)


def _filled(row: list[Any]) -> list[int]:
    return [k for k, cell in enumerate(row) if cell != ""]


def _as_cell(cell: Any) -> Any:
    """A cell as pandas has it: None where it is empty, whole numbers as int."""
    if isinstance(cell, str):
        return cell or None
    return int(cell) if isinstance(cell, float) and cell.is_integer() else cell


_OTHER_KIND = "Choose another file format, such as .csv."
_CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f]")
_MAX_LETTERS = 32_767  # of a cell
_MAX_ROWS, _MAX_COLUMNS = 1_048_576, 16_384
_MAX_WHOLE = 1 << 53  # Excel computes in float64


def _write_sheet(frame: Frame, sheet: str) -> bytes:
    """A workbook with one sheet. Texts stay texts, also those that begin like a formula."""
    from openpyxl import Workbook
    from openpyxl.cell import WriteOnlyCell

    if len(frame) >= _MAX_ROWS or len(frame.columns) > _MAX_COLUMNS:
        raise InvalidInput(f"The table is too large for a sheet. {_OTHER_KIND}")
    names = [str(name) for name in frame.columns]
    columns = [plain_values(frame.iloc[:, k]) for k in range(len(names))]
    for value in chain(names, *columns):  # before: openpyxl cannot be stopped while it writes
        _check_cell(value)
    book = Workbook(write_only=True)
    page: Any = book.create_sheet(sheet)
    for row in chain([names], zip(*columns, strict=True)):
        cells = [WriteOnlyCell(page, value=value) for value in row]
        for cell, value in zip(cells, row):
            if isinstance(value, str):
                cell.data_type = "s"
        page.append(cells)
    sink = io.BytesIO()
    book.save(sink)
    return sink.getvalue()


def _check_cell(value: Any) -> None:
    """Refuse what a cell of a sheet cannot contain."""
    if isinstance(value, str):
        wrong = "text of more than 32,767 characters" if len(value) > _MAX_LETTERS else ""
        wrong = wrong or ("text with control characters" if _CONTROL.search(value) else "")
    elif isinstance(value, (int, float)):
        wrong = "" if abs(value) <= _MAX_WHOLE or isinstance(value, float) else f"{value} exactly"
        wrong = wrong if math.isfinite(value) else "infinite numbers"
    elif isinstance(value, (datetime, time)):
        wrong = "" if value.tzinfo is None else "times with a time zone"
    else:
        known = value is None or isinstance(value, (date, timedelta))
        wrong = "" if known else f"cells of the type {type(value).__name__}"
    if wrong:
        raise InvalidInput(f"A sheet cannot contain {wrong}. {_OTHER_KIND}")


# --- cells of files that have types ---------------------------------------------------------------


def type_column(values: list[Any]) -> Series:
    """Cells of a column as numbers or dates where all are, else as they are; None for missing."""
    values = [None if isinstance(one, float) and math.isnan(one) else one for one in values]
    present = [one for one in values if one is not None]
    column = pandas.Series(values, dtype=object)
    kinds = {type(one) for one in present}
    if kinds == {int}:
        fits = all(abs(one) < 1 << 63 for one in present)
        whole = "int64" if len(present) == len(values) else "Int64"
        return column.astype(whole) if fits else column
    if kinds and kinds <= {int, float}:
        return column.astype("float64")
    if kinds and kinds <= {date, datetime}:
        return pandas.to_datetime(column)
    return column


def plain_values(column: Series) -> list[Any]:
    """Cells as values of Python's own types: None for missing ones, a date without a time as date."""
    values = [
        None if missing else value
        for value, missing in zip(column.astype(object).tolist(), column.isna().tolist())
    ]
    if column.dtype.kind == "M":
        values = [None if one is None else one.to_pydatetime(warn=False) for one in values]
        if all(one is None or one.time() == datetime.min.time() for one in values):
            return [None if one is None else one.date() for one in values]
    return [one.item() if isinstance(one, np.generic) else one for one in values]


def _check_unique(frame: Frame, what: str) -> None:
    if not frame.columns.is_unique:
        raise InvalidInput(
            f"Some columns have the same name, which {what} does not allow. Choose another file "
            "format, such as .csv."
        )


# --- names and copies -----------------------------------------------------------------------------

_CSV = _TextFormat(",")
_PARQUET = _ParquetFormat()
_FEATHER = _FeatherFormat()
_JSON = _JsonFormat()
_OTHER_WORKBOOK = _ExcelFormat(copied_as=".xlsx")
# the formats of tables by how names of files end: one more needs an entry here and nothing else
FORMATS: dict[str, TableFormat] = {
    ".csv": _CSV,
    ".tsv": _TextFormat("\t"),
    ".parquet": _PARQUET,
    ".pq": _PARQUET,
    ".feather": _FEATHER,
    ".arrow": _FEATHER,
    ".jsonl": _JSON,
    ".ndjson": _JSON,
    ".xlsx": _ExcelFormat(),
    ".xlsm": _OTHER_WORKBOOK,
    ".xlsb": _OTHER_WORKBOOK,
    ".xls": _OTHER_WORKBOOK,
    ".ods": _OTHER_WORKBOOK,
}
_COPY = Path("the copy")


def find_format(path: Place) -> TableFormat:
    """The format of a table by its name; every other name is that of a text."""
    return FORMATS.get(split_suffix(path.name)[0], _CSV)


def is_parquet(path: Place) -> bool:
    """Whether a file is a Parquet file, by its name."""
    return find_format(path) is _PARQUET


def suffix_of_copy(path: Place) -> str:
    """How the name of a copy ends that keeps as much of a file as possible."""
    suffix = split_suffix(path.name)[0]
    return find_format(path).copied_as or (suffix if suffix in FORMATS else ".csv")


def open_table(raw: bytes, path: Place) -> tuple[TableFormat, bytes]:
    """The format of a file by its name, and its content, unpacked; refused if it is another."""
    form = find_format(path)
    content = unpack(raw, path)
    check_kind(content, path, form.what)
    return form, content


def column_names(original: Iterable[Any]) -> list[str]:
    """The names that columns are known by: without spaces around them, and each only once.

    A second `x` is `x.1`, and the third column is `Unnamed: 2` if it has no name.
    """
    stripped = [str(name).strip() for name in original]
    taken = set(stripped)
    names: dict[str, None] = {}
    for place, name in enumerate(stripped):
        base = name or f"Unnamed: {place}"
        unique, number = base, 0
        while unique in names or (number > 0 and unique in taken):
            number += 1
            unique = f"{base}.{number}"
        names[unique] = None
    return list(names)


def copy_table(
    raw: bytes, source: Place, suffix: str, label: str, edits: RowEdits, reading: Reading
) -> tuple[bytes, int]:
    """The bytes of the copy, and how many rows it has.

    Arguments:
        raw: The content of the file.
        source: Where it is.
        suffix: Of the copy: one of FORMATS, or that of the file; that of a compression may follow.
        label: The column that contains the labels.
        edits: What to change.
        reading: How the file was read.
    """
    form, raw = open_table(raw, source)
    suffix, packing = split_suffix(f"copy{suffix}")
    target = FORMATS.get(suffix, form)
    frame, _ = form.read(raw, source, reading, verbatim=True)
    kept = ~frame.index.isin(list(edits.removed))
    names = column_names(frame.columns)
    check_name("column", label, names)
    place = names.index(label)
    rows = enumerate(frame.index.tolist())
    new = {k: edits.relabeled[row] for k, row in rows if row in edits.relabeled}
    changes = TableEdits(frame.iloc[:, place], place, new, kept)
    try:
        copied = form.copy(raw, source, reading, changes) if target is form else None
        if copied is None:
            cells = frame.iloc[:, place].tolist()
            for row, changed in changes.change(cells).items():
                cells[row] = changed
            if new:
                frame.isetitem(place, cells)
            copied = target.write(frame[kept])
    except InvalidInput:
        raise
    except Exception as error:  # a table can hold what a file of another kind cannot
        raise InvalidInput(
            f"{source} cannot be copied as {suffix}: {first_line(error)}. Choose another file "
            "format."
        ) from error
    return pack(copied, packing), int(kept.sum())


def _relabel(shown: Series, values: list[Any], new: Mapping[int, str]) -> dict[int, Any]:
    """The new labels in the types of the values.

    Arguments:
        shown: What the labels were read from, one for each value.
        values: To be changed.
        new: {place: new label}.
    """
    known = {str(label).strip(): value for label, value in zip(shown, values)}
    numeric = all(read_number(name) is not None for name in known if name)
    with_commas = any(map(has_decimal_comma, known))
    changed: dict[int, Any] = {}
    for place, label in new.items():
        old = values[place]
        if with_commas and label not in known and read_number(label) is not None:
            changed[place] = label.replace(".", ",")
        elif isinstance(old, str) and (label in known or not numeric):
            changed[place] = label
        elif label in known:
            changed[place] = known[label]
        else:
            number = read_number(label)
            if number is None or (isinstance(old, int) and not number.is_integer()):
                raise InvalidInput(
                    f"'{label}' is not a valid label here: existing labels look like '{old}'."
                )
            changed[place] = label if isinstance(old, str) else type(old)(number)
    return changed

"""The text of CSV files: encodings, separators, records."""

import codecs
import csv
import io
import re
import sys
from collections.abc import Mapping, Set
from dataclasses import dataclass
from itertools import chain

import pandas

from ..errors import InvalidInput
from .modality import Frame, Series

_SEPARATORS = ",;\t|"
_SAMPLE = 65536  # characters
_SAMPLE_RECORDS = 50
_DECLARED = re.compile(r"sep=([^\r\n])\r?\n", re.IGNORECASE)
_NEARLY_ALL = 0.95  # of the cells of a column
_WITH_COMMA = re.compile(r"\s*[+-]?(?:\d+|\d{1,3}(?:\.\d{3})+)(?:,\d+)?(?:[eE][+-]?\d+)?\s*")
_SURELY_DECIMAL = re.compile(r",(?!\d{3}\s*$)|\.\d{3},")  # 3,14 or 1.234,567, but not 1,234
_GROUPED = re.compile(r"\d[.,]\d")
_END = "\x1ethe end\x1e"  # a record after the last of the file: an open quote swallows it
# Windows-1252 with its five undefined bytes filled as browsers do, so that no byte is lost.
_WINDOWS = {
    code: code if letter == "\ufffd" else ord(letter)
    for code, letter in enumerate(bytes(range(256)).decode("cp1252", errors="replace"))
}


_TO_WINDOWS = {letter: code for code, letter in _WINDOWS.items()}
_DETECTED = 1000  # bytes that decide whether a file without a mark is UTF-16


@dataclass(frozen=True)
class Encoding:
    """How the characters of a file are written as bytes; None: Windows-1252."""

    codec: str | None = "utf-8"
    mark: bytes = b""  # a byte order mark, which the file begins with

    def decode(self, raw: bytes) -> str:
        """The text of a file; raises UnicodeDecodeError."""
        content = raw[len(self.mark) :]
        if self.codec is None:
            return codecs.charmap_decode(content, "strict", _WINDOWS)[0]
        return content.decode(self.codec)

    def encode(self, text: str) -> bytes:
        """The bytes of a file with this text; raises UnicodeEncodeError."""
        if self.codec is None:
            return codecs.charmap_encode(text, "strict", _TO_WINDOWS)[0]
        return self.mark + text.encode(self.codec)


_MARKED = (  # UTF-32 first: its mark begins with that of UTF-16
    Encoding("utf-32-le", codecs.BOM_UTF32_LE),
    Encoding("utf-32-be", codecs.BOM_UTF32_BE),
    Encoding("utf-16-le", codecs.BOM_UTF16_LE),
    Encoding("utf-16-be", codecs.BOM_UTF16_BE),
    Encoding("utf-8", codecs.BOM_UTF8),
)


def _find_encoding(raw: bytes) -> Encoding:
    """That of the byte order mark; else UTF-16 where every other byte is 0, else UTF-8."""
    for encoding in _MARKED:
        if raw.startswith(encoding.mark):
            return encoding
    beginning = raw[:_DETECTED]
    for codec, first in (("utf-16-le", 1), ("utf-16-be", 0)):
        zeros = beginning[first::2].count(0)
        if zeros > 0.7 * len(beginning) / 2 and 0 not in beginning[1 - first :: 2]:
            return Encoding(codec)
    return Encoding()


def decode_text(raw: bytes, name: str) -> tuple[str, Encoding, list[str]]:
    """The text of a file, its encoding, and a note if that had to be guessed."""
    encoding = _find_encoding(raw)
    notes = []
    try:
        text = encoding.decode(raw)
    except UnicodeDecodeError as error:
        if encoding != Encoding():
            raise InvalidInput(
                f"{name} begins like a file in {encoding.codec}, but is not valid {encoding.codec} "
                f"(byte {error.start}). Save it as CSV (UTF-8)."
            ) from None
        encoding = Encoding(None)
        text = encoding.decode(raw)
        notes.append(
            f"{name} is not UTF-8 (byte {error.start}); read as Windows-1252. Check that accented "
            "letters were read correctly."
        )
    if "\0" in (text[:1000] if notes else text.lstrip().split("\n", 1)[0]):
        raise InvalidInput(
            f"{name} begins with NUL characters, so it is not a text file. Save it as CSV (UTF-8) "
            "or Parquet."
        )
    if not text.strip():
        raise InvalidInput(f"{name} is empty.")
    return text, encoding, notes


def check_separator(separator: str) -> str:
    """The separator that a user typed: one character, or the word tab."""
    if separator in ("tab", "\\t"):
        return "\t"
    if len(separator) != 1 or separator in '"\r\n':
        raise InvalidInput(
            f"A separator must be one character, or the word tab, not '{separator}'."
        )
    return separator


def guess_separator(text: str) -> str:
    """The separator that splits most rows into as many cells as the first; of several, the most
    cells.

    A first line such as `sep=;`, which Excel understands, specifies it.
    """
    if declared := _DECLARED.match(text):
        return declared[1]
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
    skipped = 1 if _DECLARED.match(text) else 0
    filled = (k for k, record in enumerate(records) if k >= skipped and not _is_blank(record))
    first = next(filled, None)
    if first is None:
        raise InvalidInput(f"{name} has no column names in its first line.")
    names = records[first]
    rows: dict[int, list[str]] = {}
    short = []
    for line, row in zip(lines[first + 1 :], records[first + 1 :]):
        if not row or (len(names) > 1 and _is_blank(row)):
            continue
        if len(row) > len(names) == 1:
            raise InvalidInput(
                f"{name} cannot be read as a table: line {line} has {len(row)} cells, but line "
                f"{lines[first]} has one, '{names[0][:60]}'. The first line must contain the names "
                "of the columns: delete the lines above them."
            )
        if len(row) > len(names):
            raise InvalidInput(
                f"{name} cannot be read as a table: line {line} has {len(row)} cells, but the "
                f"first has {len(names)} names. If the separator is not {separator!r}, pass "
                "`separator`."
            )
        if len(row) < len(names):
            short.append(line)
        rows[line] = row + [""] * (len(names) - len(row))
    table = pandas.DataFrame(list(rows.values()), index=list(rows), columns=names, dtype=object)
    return table, short


def has_decimal_comma(cell: str) -> bool:
    """Whether a cell is a number with a decimal comma."""
    return "," in cell and _WITH_COMMA.fullmatch(cell) is not None


def read_decimal_commas(frame: Frame, separator: str) -> list[str]:
    """Write numbers with decimal commas with points, in place; the names of their columns.

    Only in files that do not separate cells by commas. Where every comma of a column precedes three
    digits, as in 1,234, it is read as a decimal comma only if another column shows that the file
    has these.
    """
    if separator == ",":
        return []
    written = [
        place for place in range(frame.shape[1]) if _are_written_with_commas(frame.iloc[:, place])
    ]
    is_sure = any(
        frame.iloc[:, place].str.contains(_SURELY_DECIMAL, regex=True).any() for place in written
    )
    if not is_sure:
        return []
    for place in written:
        cells = frame.iloc[:, place]
        numbers = cells.str.replace(".", "", regex=False).str.replace(",", ".", regex=False)
        is_number = cells.str.fullmatch(_WITH_COMMA)
        frame.isetitem(place, cells.where(~is_number, numbers.str.strip()))
    return [str(frame.columns[place]).strip() for place in written]


def _are_written_with_commas(cells: Series) -> bool:
    filled = cells[cells.str.strip() != ""]
    if not filled.str.contains(_GROUPED, regex=True).any():
        return False
    return bool(filled.str.fullmatch(_WITH_COMMA).mean() >= _NEARLY_ALL)


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


def copy_csv(
    text: str, separator: str, place: int, removed: Set[int], new: Mapping[int, str]
) -> str:
    """The text without some rows, and with new cells in one column. All else stays as it is.

    Arguments:
        text: All of a file that `parse_csv` reads.
        separator: Between cells.
        place: Of the column, from 0.
        removed: The lines that removed rows begin on.
        new: {line that a row begins on: its new cell}.
    """
    lines = list(io.StringIO(text, newline=""))
    records, starts, _ = _split(text, separator, skip_spaces=True)
    kept = []
    for record, start, end in zip(records, starts, [*starts[1:], len(lines) + 1]):
        if start in removed:
            continue
        row = "".join(lines[start - 1 : end - 1])
        kept.append(
            _replace_cell(row, record, separator, place, new[start]) if start in new else row
        )
    copy = "".join(kept)
    if text.endswith(("\n", "\r")):
        return copy
    return copy[: len(copy) - len(_line_end(copy))]  # the last row may have been removed


def _line_end(text: str) -> str:
    """The line end that a text ends with, or nothing."""
    return next((end for end in ("\r\n", "\n", "\r") if text.endswith(end)), "")


def _replace_cell(row: str, record: list[str], separator: str, place: int, cell: str) -> str:
    """A row as it is written, with a new cell; in quotes if the old one is."""
    wanted = [*record[:place], cell, *record[place + 1 :]]
    separators = re.escape(separator)
    pattern = re.compile(
        rf' *(?:"(?P<quoted>(?:[^"]|"")*)"|(?P<bare>[^{separators}\r\n]*?))'
        rf" *(?=[{separators}\r\n]|$)"
    )
    position = 0
    for _ in range(place):
        found = pattern.match(row, position)
        position = found.end() + 1 if found else len(row)
    found = pattern.match(row, position)
    if found is not None:
        group = "quoted" if found["quoted"] is not None else "bare"
        escaped = cell.replace('"', '""') if group == "quoted" else cell
        replaced = row[: found.start(group)] + escaped + row[found.end(group) :]
        records, _, unclosed = _split(replaced, separator, skip_spaces=True)
        if unclosed is None and [[one.strip() for one in each] for each in records] == [
            [one.strip() for one in wanted]
        ]:
            return replaced
    line = io.StringIO(newline="")
    csv.writer(line, delimiter=separator, lineterminator=_line_end(row)).writerow(wanted)
    return line.getvalue()


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

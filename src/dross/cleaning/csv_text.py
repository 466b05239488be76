"""The text of CSV files: encodings, separators, records."""

import codecs
import csv
import io
import sys
from itertools import chain
from pathlib import Path

import pandas

from ..errors import InvalidInput
from .modality import Frame

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

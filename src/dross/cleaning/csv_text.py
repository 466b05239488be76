"""The text of a CSV file: its encoding, its separator, and its records with their lines."""

import codecs
import csv
import io
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain

from ..errors import InvalidInput
from ..support.option_names import name_option

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
                f"{name_option('separator')}."
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

"""Files that a user names: their bytes, from a path or a URL, and what kind of file they are."""

import bz2
import difflib
import gzip
import io
import json
import lzma
import os
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import url2pathname

from .._environment import free_memory
from .._io import read_file
from .._text import say_bytes
from ..errors import InvalidInput, first_line
from ..tape.storage import is_url, open_url

# --- places ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Url:
    """The address of a file that fsspec reads: https://, s3://, gs://, ..."""

    address: str

    def __str__(self) -> str:
        return self.address

    @property
    def name(self) -> str:
        """The last part of its path, without what follows a `?`."""
        return PurePosixPath(unquote(urlsplit(self.address).path)).name or self.address

    @property
    def suffix(self) -> str:
        """How its name ends."""
        return PurePosixPath(self.name).suffix

    def read_bytes(self) -> bytes:
        """All of its bytes; raises InvalidInput."""
        return _fetch(self)


Place = Path | Url


def find_place(text: str | os.PathLike) -> Place:
    """The path or the URL that a user named; file:// is a path."""
    text = os.fspath(text)
    if not is_url(text):
        return Path(text)
    parts = urlsplit(text)
    return Path(url2pathname(parts.path)) if parts.scheme == "file" else Url(text)


def is_folder(place: Place) -> bool:
    """Whether this is a folder on this machine."""
    return isinstance(place, Path) and os.path.isdir(place)  # Path.is_dir fails for long names


def stem_of(place: Place) -> str:
    """Its name without suffixes: "people" for people.csv.gz."""
    name = PurePosixPath(place.name)
    return (name.with_suffix("") if name.suffix.lower() in _PACKINGS else name).stem


def read_bytes(place: Place) -> bytes:
    """All bytes of a file that a user named; what cannot be read is refused."""
    if isinstance(place, Url):
        return place.read_bytes()
    try:
        return read_file(place)
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidInput(_explain_absence(place)) from None
    except OSError as error:
        raise InvalidInput(f"{place} cannot be read: {error.strerror or error}.") from None


def _explain_absence(path: Path) -> str:
    """That a file does not exist, with the names of similar files."""
    try:
        beside = os.listdir(path.parent)
    except OSError:
        beside = []
    near = difflib.get_close_matches(path.name, beside, n=3)
    hint = f" Did you mean {' or '.join(str(path.parent / name) for name in near)}?"
    return f"There is no file {path}.{hint if near else ''}"


def _fetch(url: Url) -> bytes:
    system, path = open_url(url.address)
    try:
        return bytes(system.cat_file(path))
    except FileNotFoundError:
        raise InvalidInput(f"There is no file at {url}.") from None
    except Exception as error:  # every kind of storage has errors of its own
        raise InvalidInput(
            f"{url} cannot be read ({type(error).__name__}: {first_line(error)}). Check the "
            "address and your access to it, or download the file."
        ) from None


# --- compressed files -----------------------------------------------------------------------------


@dataclass(frozen=True)
class _Packing:
    """A way to compress one file."""

    name: str
    begins: bytes
    pack: Callable[[bytes], Any]
    open: Callable[[io.BytesIO], Any]  # a file of the content


_PACKINGS = {
    ".gz": _Packing(
        "gzip",
        b"\x1f\x8b",
        partial(gzip.compress, mtime=0),
        lambda packed: gzip.GzipFile(fileobj=packed),
    ),
    ".bz2": _Packing("bzip2", b"BZh", bz2.compress, bz2.BZ2File),
    ".xz": _Packing("xz", b"\xfd7zXZ", lzma.compress, lzma.LZMAFile),
}
_MOST_TIMES = 200  # as large as its file, if it is larger than ...
_ALWAYS_UNPACKED = 64 << 20
_SHARE_OF_MEMORY = 8  # a table takes several times the memory of its text


def split_suffix(name: str) -> tuple[str, str]:
    """How a name ends, in small letters: the suffix of the file, and that of its compression."""
    whole = PurePosixPath(name)
    packing = whole.suffix.lower() if whole.suffix.lower() in _PACKINGS else ""
    inner = whole.with_suffix("") if packing else whole
    return inner.suffix.lower(), packing


def unpack(raw: bytes, place: Place) -> bytes:
    """The content of a compressed file; that of any other file as it is."""
    for packing in _PACKINGS.values():
        if raw.startswith(packing.begins) and not _is_text(raw):
            try:
                with packing.open(io.BytesIO(raw)) as content:
                    unpacked = content.read(most_unpacked(len(raw)) + 1)
                check_unpacked(len(unpacked), len(raw), place)
                return unpacked
            except InvalidInput:
                raise
            except (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError) as error:
                raise InvalidInput(
                    f"{place} is compressed ({packing.name}) and cannot be unpacked: "
                    f"{first_line(error)}. Check that it was downloaded completely."
                ) from None
    if raw.startswith(_ZIP):  # a workbook is an archive
        check_unpacked(_size_in_zip(raw), len(raw), place)
    return raw


def _size_in_zip(raw: bytes) -> int:
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            return sum(entry.file_size for entry in archive.infolist())
    except Exception:  # it is damaged, which is reported where it is read
        return 0


def most_unpacked(packed: int) -> int:
    """How many bytes the content of a file of `packed` bytes may have: more is an attack or a mistake."""
    by_ratio = max(_ALWAYS_UNPACKED, _MOST_TIMES * packed)
    return min(by_ratio, free_memory() // _SHARE_OF_MEMORY)


def check_unpacked(size: int, packed: int, place: Place) -> None:
    """Refuse a compressed file whose content is too large to read."""
    most = most_unpacked(packed)
    if size <= most:
        return
    raise InvalidInput(
        f"{place} is compressed, and its content is larger than {say_bytes(most)}, the limit for "
        f"a file of {say_bytes(packed)} with the memory currently available. Check that the file "
        "is what you expect. If it is, unpack it, and pass fewer rows or use a machine with more "
        "memory."
    )


def pack(raw: bytes, packing: str) -> bytes:
    """Compress a file as its suffix says."""
    return _PACKINGS[packing].pack(raw) if packing else raw


# --- kinds of files -------------------------------------------------------------------------------

EXCEL = "an Excel workbook"
PARQUET = "a Parquet file"
ARROW = "an Arrow file"
JSON_LINES = "a JSON Lines file"
TEXT = "a text file"
_AS_CSV = "Save it as CSV"
_ZIP = b"PK\x03\x04"
_OLE = (
    b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"  # files of Microsoft Office up to 2003, and encrypted ones
)
_BEGINNING = 4096  # bytes that are searched for markup


@dataclass(frozen=True)
class Kind:
    """What a file is by its content."""

    what: str  # "a PDF document"
    advice: str = ""  # what to do; empty for kinds that are read as tables
    suffix: str = ""  # of a table: how its name should end


_ARCHIVE = "Unpack it and pass one of its files."
_IMAGE = Kind("an image", "For images, pass a folder that has one folder of images per class.")
_SIGNATURES = {
    b"PAR1": Kind(PARQUET, suffix=".parquet"),
    b"ARROW1": Kind(ARROW, suffix=".feather"),
    b"FEA1": Kind(ARROW, suffix=".feather"),
    b"\xff\xff\xff\xff": Kind(ARROW, suffix=".arrow"),  # a stream
    b"SQLite format 3\0": Kind("an SQLite database", "Export the table as CSV."),
    b"\x89HDF": Kind("an HDF5 file", f"{_AS_CSV} or Parquet."),
    b"\x93NUMPY": Kind("a NumPy array", "Pass arrays from Python: dross.clean(X, y)."),
    b"<stata_dta>": Kind("a Stata file", f"{_AS_CSV}."),
    b"$FL2": Kind("an SPSS file", f"{_AS_CSV}."),
    b"7z\xbc\xaf\x27\x1c": Kind("a 7-Zip archive", _ARCHIVE),
    b"Rar!": Kind("a RAR archive", _ARCHIVE),
    b"\x28\xb5\x2f\xfd": Kind("compressed (zstd)", "Unpack it."),
    b"\x89PNG": _IMAGE,
    b"\xff\xd8\xff": _IMAGE,
    b"GIF8": _IMAGE,
    **{
        b"\x80" + bytes([protocol]): Kind(
            "a Python pickle",
            "dross does not open pickles, because loading one can run arbitrary code. Load it in "
            "Python and pass the data: dross.clean(frame, 'label').",
        )
        for protocol in (2, 3, 4, 5)
    },
}
_IN_ZIP = {  # the name of a file in the archive
    "xl/workbook.xml": Kind(EXCEL, suffix=".xlsx"),
    "xl/workbook.bin": Kind(EXCEL, suffix=".xlsb"),
    "word/document.xml": Kind("a Word document", "Copy its table into an Excel workbook."),
    "ppt/presentation.xml": Kind(
        "a PowerPoint presentation", "Copy its table into an Excel workbook."
    ),
    "Index/Document.iwa": Kind("an Apple Numbers or Pages document", "Export it as CSV or Excel."),
}
_SAVE_PAGE = "Open it in a spreadsheet program and save it as CSV or Excel."
_MARKUP = {
    b"%pdf-": Kind("a PDF document", "Copy its table into a CSV file or an Excel workbook."),
    b"{\\rtf": Kind("a text document (RTF)", f"{_AS_CSV}."),
    b"<!doctype html": Kind(
        "a web page (HTML)", "Check that the download is not a login or error page."
    ),
    b"<html": Kind("a web page (HTML)", "Check that the download is not a login or error page."),
    b"<table": Kind("a web page (HTML)", _SAVE_PAGE),
    b"<?xml": Kind("an XML document", "Open it in a spreadsheet program and save it as CSV."),
}


def recognize(raw: bytes) -> Kind | None:
    """The kind of a file that is not plain text; None for plain text and what is not known."""
    for begins, kind in _SIGNATURES.items():
        if raw.startswith(begins) and not (begins.isascii() and _is_text(raw)):
            return kind
    if raw.startswith(_ZIP):
        return _recognize_zip(raw)
    if raw.startswith(_OLE):
        return _recognize_office(raw)
    beginning = raw[:_BEGINNING].removeprefix(b"\xef\xbb\xbf").lstrip()
    for begins, kind in _MARKUP.items():
        if beginning.lower().startswith(begins):
            return _MARKUP[b"<table"] if "HTML" in kind.what and b"<table" in raw.lower() else kind
    return _recognize_json(raw, beginning) if beginning[:1] in (b"[", b"{") else None


def _recognize_zip(raw: bytes) -> Kind:
    try:
        with zipfile.ZipFile(io.BytesIO(raw)) as archive:
            names = [entry.filename for entry in archive.infolist() if not entry.is_dir()]
            is_sheet = "mimetype" in names and b"spreadsheet" in archive.open("mimetype").read(200)
    except Exception:  # a damaged archive can fail anywhere
        return Kind("a ZIP archive", "It is damaged. Check that it was downloaded completely.")
    for name, kind in _IN_ZIP.items():
        if name in names:
            return kind
    if is_sheet:
        return Kind(EXCEL, suffix=".ods")  # an OpenDocument sheet, which is read in the same way
    more = " ..." if len(names) > 3 else ""
    listed = f" It contains {', '.join(names[:3])}{more}." if names else " It is empty."
    return Kind("a ZIP archive", _ARCHIVE + listed)


def _recognize_office(raw: bytes) -> Kind:
    if "EncryptedPackage".encode("utf-16-le") in raw:
        return Kind("a password-protected file", "Save it without the password.")
    if "WordDocument".encode("utf-16-le") in raw:
        return Kind("a Word document", "Copy its table into an Excel workbook.")
    return Kind(EXCEL, suffix=".xls")


def _recognize_json(raw: bytes, beginning: bytes) -> Kind | None:
    """The kind of a text that begins with a bracket; None if it is not JSON."""
    if beginning.startswith(b"[") and beginning[1:].lstrip()[:1] in (b"{", b"]", b"["):
        return Kind(
            "a JSON array",
            "Write one object per line (JSON Lines, .jsonl). In Python: pandas.read_json('NAME')"
            ".to_json('STEM-lines.jsonl', orient='records', lines=True).",
        )
    line = raw.removeprefix(b"\xef\xbb\xbf").lstrip().split(b"\n", 1)[0]
    if line.strip() == b"{":
        return Kind("a JSON document", "Write one object per line (JSON Lines, .jsonl).")
    try:
        is_object = isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return None
    return Kind(JSON_LINES, suffix=".jsonl") if is_object else None


def check_kind(raw: bytes, place: Place, expected: str) -> None:
    """Refuse a file whose content is not what its name says.

    Arguments:
        raw: Its content, unpacked.
        place: Where it is.
        expected: The kind that its name stands for, such as EXCEL.
    """
    if not raw.strip():
        raise InvalidInput(f"{place} is empty.")
    kind = recognize(raw)
    if kind is None and expected != JSON_LINES and _is_text(raw):
        kind = Kind(TEXT, suffix=".csv")
    if kind is None or kind.what == expected:
        return
    if kind.advice:
        advice = kind.advice.replace("NAME", place.name).replace("STEM", stem_of(place))
        wanted = "a table" if expected == TEXT else expected
        raise InvalidInput(f"{place} is {kind.what}, not {wanted}. {advice}")
    renamed = PurePosixPath(place.name).with_suffix(kind.suffix).name
    raise InvalidInput(f"{place} is {kind.what}, not {expected}. Rename it to {renamed}.")


def _is_text(raw: bytes) -> bool:
    """Whether the beginning of a file is mostly UTF-8, without a NUL."""
    beginning = raw[:_BEGINNING].decode("utf-8", errors="ignore")
    return len(beginning.encode()) > 0.9 * len(raw[:_BEGINNING]) and "\0" not in beginning

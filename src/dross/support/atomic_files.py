"""Files that are there whole or not at all, even after a crash in the middle of a write."""

import csv
import errno
import io
import itertools
import json
import os
import re
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import DrossError
from .file_lock import is_alive

Raw = bytes | Iterable[bytes | memoryview]

_written = itertools.count()  # two threads never share a temporary file
_staged: set[Path] = set()  # temporary files of this process that are in use
# .NAME.NUMBER.tmp; the number is made of the process, its host and a count
_TEMPORARY = re.compile(
    r"\.(?P<name>.+)\.(?P<pid>[1-9]\d{0,9})(?P<host>\d{5})\d{4}\.tmp", re.ASCII | re.DOTALL
)


def replace_file(path: Path, raw: Raw, *, sync: bool = True) -> None:
    """Put a file with these bytes in place of whatever is at the path.

    The bytes go to a hidden temporary file in the same folder, which is then renamed. Readers see
    the old file or the new one, never a part of it.

    Arguments:
        path: The file. Its folder must exist.
        raw: All of its bytes, or parts of them one after the other.
        sync: Wait until the bytes and the name are on the disk. Without it, a power cut may lose
            them.

    Raises:
        OSError: The file cannot be written. The temporary file is gone, the old file still there.
    """
    with staged_file(path, raw, sync=sync) as temporary:
        os.replace(temporary, path)
        if sync:
            sync_folder(path.parent)


@contextmanager
def staged_file(path: Path, raw: Raw, *, sync: bool = True) -> Iterator[Path]:
    """Write the bytes to a hidden temporary file beside `path`, ready to be renamed to it.

    What has not been renamed at the end is deleted. Several files that belong together are staged
    first: a full disk then leaves all of them as they were.

    Raises:
        OSError: The file cannot be written.
    """
    number = f"{os.getpid()}{_host_number()}{next(_written) % 10_000:04d}"
    temporary = path.with_name(f".{path.name}.{number}.tmp").absolute()
    _staged.add(temporary)
    try:
        temporary.unlink(missing_ok=True)  # of a killed process that had our number
        with open(temporary, "xb") as file:
            for part in [raw] if isinstance(raw, bytes) else raw:
                file.write(part)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        _staged.discard(temporary)


def _host_number() -> str:
    return f"{zlib.crc32(socket.gethostname().encode(errors='replace')) % 100_000:05d}"


def find_stale(path: Path) -> str | None:
    """The intended name of a temporary file, if the process that wrote it has been killed.

    None for all other files, and for those of processes that are alive or on other hosts.
    """
    found = _TEMPORARY.fullmatch(path.name)
    if found is None or found["host"] != _host_number() or path.is_symlink():
        return None
    pid = int(found["pid"])
    in_use = path.absolute() in _staged if pid == os.getpid() else is_alive(pid)
    return None if in_use else found["name"]


def delete_stale(folder: Path, is_ours: Callable[[str], bool]) -> None:
    """Delete the temporary files in a folder that a killed process has left, as far as possible.

    Arguments:
        folder: Where to look; not in the folders in it.
        is_ours: Whether dross writes a file of this name there.
    """
    with suppress(OSError):
        for path in list(folder.iterdir()):
            name = find_stale(path)
            if name is not None and is_ours(name):
                with suppress(OSError):
                    path.unlink()


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on the disk, where the system can say so."""
    if os.name == "nt":  # folders cannot be opened there
        return
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # some network disks
            raise
    finally:
        os.close(descriptor)


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, on the disk; raises OSError."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    folder.mkdir(parents=True, exist_ok=True)
    for path in missing:
        sync_folder(path.parent)


def write_bytes(path: Path, raw: bytes, *, sync: bool = True) -> None:
    """Replace a file, and make its folder if there is none; failures become DrossError."""
    try:
        make_folder(path.parent)
        replace_file(path, raw, sync=sync)
    except OSError as error:
        raise DrossError(f"{path} cannot be written: {error.strerror or error}.") from error


def write_text(path: Path, text: str) -> None:
    """Write a text as UTF-8, with the line ends it has."""
    write_bytes(path, text.encode("utf-8"))


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON."""
    write_text(path, json.dumps(value, indent=1))


def write_table(path: Path, rows: list[dict]) -> Path:
    """Write rows with the same keys as CSV, and return the path."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    write_text(path, text.getvalue())
    return path

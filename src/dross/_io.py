"""Files: whole or not at all, their digests, and one writer at a time."""

import errno
import hashlib
import io
import json
import os
import re
import secrets
import stat
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .errors import DrossError, InvalidInput

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.tmp", re.DOTALL)  # see `staged_path`
_SECONDS_UNTIL_STALE = 3600.0  # a process that is alive writes more often to what it has staged


# --- kinds of files -------------------------------------------------------------------------------

_NOT_FILES = (
    (stat.S_ISFIFO, "a pipe"),
    (stat.S_ISSOCK, "a socket"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
)
# A pipe without a writer must not keep us waiting, and Windows must not translate line ends.
_OPENING = getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


class WrongKind(OSError):
    """A path leads to a pipe, a device or a link where a regular file is needed."""


def open_file(path: str | os.PathLike) -> io.BufferedReader:
    """Open a regular file to read it. Links are followed.

    Raises:
        OSError: It cannot be read, or it is not a regular file: reading a pipe or a device may
            never end.
    """
    return os.fdopen(_open_regular(path, os.O_RDONLY), "rb")


def read_file(path: str | os.PathLike) -> bytes:
    """The content of a regular file; raises OSError as `open_file` does."""
    with open_file(path) as file:
        return file.read()


def open_in_place(path: Path) -> io.BufferedRandom:
    """Open a file of dross to write to it where it is; it is made if there is none.

    All other files are replaced as a whole (`write_bytes`), which reaches through no link.

    Raises:
        OSError: It cannot be written, it is not a regular file, or the same file is reached by
            another name: what is written here would change it there as well.
    """
    descriptor = _open_regular(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0))
    if os.fstat(descriptor).st_nlink > 1:
        os.close(descriptor)
        raise WrongKind(errno.EMLINK, "it is one of several hard links to the same file")
    return os.fdopen(descriptor, "r+b")


def _open_regular(path: str | os.PathLike, flags: int) -> int:
    """A descriptor of a regular file; raises OSError."""
    try:
        descriptor = os.open(path, flags | _OPENING, 0o666)
    except OSError as error:
        kinds = {errno.ELOOP: "a link", errno.ENXIO: "a socket"}
        if error.errno in kinds:
            raise _wrong_kind(kinds[error.errno]) from None
        raise
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise _wrong_kind(next(name for is_kind, name in _NOT_FILES if is_kind(mode)))


def _wrong_kind(name: str) -> WrongKind:
    return WrongKind(errno.EINVAL, f"it is {name}, not a regular file")


# --- one writer at a time -------------------------------------------------------------------------


@contextmanager
def hold_lock(path: Path, what: str) -> Iterator[None]:
    """Inside, no other process holds the same lock file. Its folder must exist.

    Arguments:
        path: The lock file: an empty one with a name that only dross gives. It is deleted at the
            end.
        what: What is locked, for messages, such as "the folder runs/people".

    Raises:
        InvalidInput: another process holds it, or dross did not write it.
        DrossError: the file cannot be created.
    """
    lock = FileLock(path)
    try:
        with open_in_place(path) as file:
            if file.read(1):
                raise InvalidInput(
                    f"{path} is not a dross lock file: it is not empty. Move it elsewhere."
                )
        lock.acquire(timeout=0)
    except Timeout:
        raise InvalidInput(
            f"Another dross process is writing to {what} and has locked {path}. Wait until it has "
            "finished, or choose another folder."
        ) from None
    except OSError as error:
        raise DrossError(f"{path} cannot be locked: {error.strerror or error}.") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()


# --- whole or not at all --------------------------------------------------------------------------


@contextmanager
def staged_path(path: Path) -> Iterator[Path]:
    """A hidden place beside `path` for a temporary file, to be written and renamed to it.

    What has not been renamed at the end is deleted.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        yield temporary
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


@contextmanager
def staged_file(path: Path, raw: bytes, *, sync: bool = True) -> Iterator[Path]:
    """Write the bytes to `staged_path(path)`.

    Several files that belong together are staged first: a full disk then leaves all of them as they
    were.

    Raises:
        OSError: The file cannot be written.
    """
    with staged_path(path) as temporary:
        with open(temporary, "xb") as file:
            file.write(raw)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        yield temporary


def intended_name(temporary: str) -> str | None:
    """The name of the file that a temporary one was going to be; None for all other files."""
    match = _TEMPORARY.fullmatch(temporary)
    return None if match is None else match["name"]


def delete_stale(
    folder: Path, is_ours: Callable[[str], bool], *, older_than: float = _SECONDS_UNTIL_STALE
) -> None:
    """Delete the temporary files in a folder that a killed process has left, as far as possible.

    Arguments:
        folder: Where to look; not in the folders in it.
        is_ours: Whether dross writes a file of this name there.
        older_than: Seconds, in which another process would have written to them. -inf where there
            is no other.
    """
    with suppress(OSError):
        for path in list(folder.iterdir()):
            name = intended_name(path.name)
            if name is None or not is_ours(name) or path.is_symlink():
                continue
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > older_than:
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


@contextmanager
def temporary_folder() -> Iterator[Path]:
    """A folder that is gone afterwards; raises DrossError if none can be made."""
    try:
        folder = tempfile.TemporaryDirectory(prefix="dross-", ignore_cleanup_errors=True)
    except OSError as error:
        raise DrossError(
            f"A temporary folder cannot be created: {error.strerror or error}. Set TMPDIR to a "
            "writable folder."
        ) from error
    with folder as place:
        yield Path(place)


def write_bytes(path: Path, raw: bytes, *, sync: bool = True) -> None:
    """Put a file with these bytes in place of whatever is at the path.

    Its folder is made if there is none. Readers see the old file or the new one, never a part of
    it: the bytes go to a hidden temporary file in the same folder, which is then renamed.

    Arguments:
        path: The file.
        raw: All of its bytes.
        sync: Wait until the bytes and the name are on the disk. Without it, a power cut may lose
            them.

    Raises:
        DrossError: It cannot be written. The temporary file is gone, the old file still there.
    """
    try:
        make_folder(path.parent)
        with staged_file(path, raw, sync=sync) as temporary:
            os.replace(temporary, path)
            if sync:
                sync_folder(path.parent)
    except OSError as error:
        raise DrossError(f"{path} cannot be written: {error.strerror or error}.") from error


def write_json(path: Path, value: Any) -> None:
    """Write a value as indented JSON."""
    write_bytes(path, json.dumps(value, indent=1).encode())


# --- digests --------------------------------------------------------------------------------------

_SEAL = "sha256"  # the key under which a sealed JSON object carries its own digest


def digest_bytes(raw: bytes) -> str:
    """The digest of some bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(raw).hexdigest()


def digest_file(path: Path) -> str:
    """The digest of a file's content; raises DrossError."""
    try:
        with open_file(path) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise DrossError(f"{path} cannot be read: {error.strerror or error}.") from error


def join_digests(digests: Mapping[str, str]) -> str:
    """The digest of many files together, by their names and their digests."""
    sha = hashlib.sha256()
    for name, digest in digests.items():
        sha.update(f"{digest} {name}\n".encode(errors="surrogateescape"))
    return sha.hexdigest()


def seal(value: dict[str, Any]) -> dict[str, Any]:
    """The same JSON object with a digest of itself, so that damage to it is noticed."""
    return value | {_SEAL: digest_json(value)}


def break_seal(value: dict[str, Any]) -> dict[str, Any] | None:
    """A sealed object without its digest; None if it is not the one that was sealed."""
    content = {key: entry for key, entry in value.items() if key != _SEAL}
    return content if value.get(_SEAL) == digest_json(content) else None


def digest_json(value: Any) -> str:
    """The digest of a value that JSON can hold; tuples count as lists, keys as texts."""
    as_read = json.loads(json.dumps(value))
    return digest_bytes(json.dumps(as_read, sort_keys=True).encode())

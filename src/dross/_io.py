"""Files: whole or not at all, their digests, and one writer at a time."""

import errno
import hashlib
import json
import os
import re
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from .errors import DrossError, InvalidInput

_TEMPORARY = re.compile(r"\.(?P<name>.+)\.[0-9a-f]{8}\.tmp", re.DOTALL)  # see `staged_path`
_SECONDS_UNTIL_STALE = 3600.0  # a process that is alive writes more often to what it has staged


@contextmanager
def hold_lock(path: Path, what: str) -> Iterator[None]:
    """Inside, no other process holds the same lock file. Its folder must exist.

    Arguments:
        path: The lock file. It is deleted at the end.
        what: What is locked, for messages, such as "the folder runs/people".

    Raises:
        InvalidInput: another process holds it.
        DrossError: the file cannot be created.
    """
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        raise InvalidInput(
            f"Another dross is writing to {what} and holds {path}. Wait until it has ended, or "
            "choose another place."
        ) from None
    except OSError as error:
        raise DrossError(f"{path} cannot be created: {error.strerror or error}.") from error
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
        lock.release()


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


_SEAL = "sha256"  # the key under which a sealed JSON object carries its own digest


def digest_bytes(raw: bytes) -> str:
    """The digest of some bytes, as 64 hexadecimal digits."""
    return hashlib.sha256(raw).hexdigest()


def digest_file(path: Path) -> str:
    """The digest of a file's content; raises DrossError."""
    try:
        with open(path, "rb") as file:
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

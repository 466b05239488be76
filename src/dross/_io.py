"""Files: whole or not at all, their digests, and one writer at a time."""

import csv
import errno
import hashlib
import io
import itertools
import json
import os
import re
import socket
import time
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import CorruptFile, DrossError, InvalidInput

_HELD = (errno.EAGAIN, errno.EACCES, errno.EDEADLK)
_PLACE_OF_LOCK = 1 << 30  # on Windows a locked byte cannot be read: far beyond the content


@contextmanager
def hold_lock(path: Path, what: str) -> Iterator[None]:
    """Inside, no other process holds the same lock file. Its folder must exist.

    Arguments:
        path: The lock file. It is deleted at the end.
        what: What is locked, for messages, such as "the folder runs/people".

    Raises:
        InvalidInput: another process holds it, or one of another host held it last.
        DrossError: the file cannot be created.
    """
    try:
        descriptor = _open_locked(path)
    except OSError as error:
        raise DrossError(f"{path} cannot be created: {error.strerror or error}.") from error
    if descriptor is None:
        raise _explain_holder(path, what, _read_owner(path))
    try:
        owner = _read_owner(path)
        if owner.get("host") not in (None, socket.gethostname()):
            raise _explain_holder(path, what, owner)
        try:
            _write_owner(descriptor, path)
            yield
        finally:
            with suppress(OSError):
                path.unlink()
    finally:
        os.close(descriptor)


def _open_locked(path: Path) -> int | None:
    """An open descriptor of the lock file, locked; None if another process holds the lock."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        if not _try_to_lock(descriptor, path):
            os.close(descriptor)
            return None
        with suppress(OSError):
            if os.path.samestat(os.fstat(descriptor), os.stat(path)):
                return descriptor
        os.close(descriptor)  # its last owner deleted it in the meantime


def _try_to_lock(descriptor: int, path: Path) -> bool:
    try:
        if os.name == "nt":
            import msvcrt

            os.lseek(descriptor, _PLACE_OF_LOCK, os.SEEK_SET)
            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)  # type: ignore[attr-defined]
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _HELD:
            return False
        owner = _read_owner(path)  # a disk without locks: ask whether the owner is alive
        pid = owner.get("pid")
        is_other = owner.get("host") != socket.gethostname()
        return is_other or not isinstance(pid, int) or pid == os.getpid() or not is_alive(pid)
    return True


def is_alive(pid: int) -> bool:
    """Whether there is a process of this number on this machine."""
    if pid <= 0:
        return False
    if os.name == "nt":
        return _is_alive_on_windows(pid)
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except OSError:
        return True
    return True


def _is_alive_on_windows(pid: int) -> bool:
    """os.kill(pid, 0) would send it a Ctrl-C there."""
    import ctypes

    kernel = ctypes.windll.kernel32  # type: ignore[attr-defined]
    handle = kernel.OpenProcess(0x1000, False, pid)  # the right to query, no more
    if not handle:
        return kernel.GetLastError() == 5  # it is there, but not ours
    code = ctypes.c_ulong()
    kernel.GetExitCodeProcess(handle, ctypes.byref(code))
    kernel.CloseHandle(handle)
    return code.value == 259  # still active


def _read_owner(path: Path) -> dict[str, Any]:
    """Who wrote the file; {} if nobody has, or not yet."""
    try:
        owner = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return owner if isinstance(owner, dict) else {}


def _write_owner(descriptor: int, path: Path) -> None:
    owner = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": time.strftime("%Y-%m-%d %H:%M:%S"),
    }
    try:
        os.lseek(descriptor, 0, os.SEEK_SET)
        os.ftruncate(descriptor, 0)
        os.write(descriptor, json.dumps(owner).encode())
    except OSError as error:
        raise DrossError(f"{path} cannot be written: {error.strerror or error}.") from error


def _explain_holder(path: Path, what: str, owner: dict[str, Any]) -> InvalidInput:
    pid, host, since = (owner.get(key, "unknown") for key in ("pid", "host", "since"))
    advice = "Wait until it has ended, or choose another place."
    if host != socket.gethostname():
        advice += f" If it is no longer running, delete {path}."
    return InvalidInput(
        f"Another dross is writing to {what}: process {pid} on {host}, since {since}. {advice}"
    )


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


def digest_files(root: Path, names: Iterable[str]) -> str:
    """The digest of many files together: of their names and of their content, in this order."""
    sha = hashlib.sha256()
    for name in names:
        sha.update(f"{digest_file(root / name)} {name}\n".encode(errors="surrogateescape"))
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


T = TypeVar("T")


def decode(cls: type[T], value: Any, path: Any) -> T:
    """Build `cls` from parsed JSON, checking the type of every field.

    Understands dataclasses, `int`, `float`, `str`, `bool`, `None`, `Any`, `Literal`, unions,
    `list[T]`, `dict[str, T]`, `tuple[T, ...]` and `tuple[A, B]`. A field with a default may be
    missing. `dataclasses.asdict` is the inverse. A dataclass may check more in `__post_init__`
    and raise ValueError.

    Arguments:
        cls: the type to build, usually a dataclass.
        value: as `json.loads` returns it.
        path: the file, for error messages.

    Raises:
        CorruptFile: a key is missing, unknown or has a wrong value; the message names it.
    """
    try:
        return _decode(cls, value, "")
    except (ValueError, OverflowError) as error:
        raise CorruptFile(f"{path} is damaged: {error}. Restore it from a copy.") from None


def _decode(kind: Any, value: Any, key: str) -> Any:
    origin = get_origin(kind)
    args = get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        if value is None and NoneType in args:
            return None
        others = [each for each in args if each is not NoneType]
        for each in others[:-1]:
            try:
                return _decode(each, value, key)
            except ValueError:
                continue
        return _decode(others[-1], value, key)
    if origin is Literal:
        if any(value == each and type(value) is type(each) for each in args):
            return value
    elif is_dataclass(kind):
        if isinstance(value, dict):
            return _decode_fields(kind, value, key)
    elif origin is dict:
        if isinstance(value, dict):
            return {name: _decode(args[1], each, f"{key}.{name}") for name, each in value.items()}
    elif origin in (list, tuple):
        if isinstance(value, (list, tuple)):
            has_fixed_length = origin is tuple and args[-1] is not ...
            kinds = args if has_fixed_length else [args[0]] * len(value)
            if len(kinds) == len(value):
                rows = enumerate(zip(kinds, value))
                return origin(_decode(each, one, f"{key}[{k}]") for k, (each, one) in rows)
    elif kind is float:
        if type(value) in (int, float):
            return float(value)
    elif type(value) is (kind or NoneType):  # not isinstance: True is an int
        return value
    shown = json.dumps(value, default=repr)
    raise ValueError(f"its entry '{key}' is {shown[:60]}, which is not valid")


def _decode_fields(cls: Any, value: dict, key: str) -> Any:
    prefix = f"{key}." if key else ""
    known = {field.name: field for field in fields(cls)}
    for name, field in known.items():
        if name not in value and field.default is field.default_factory is MISSING:
            raise ValueError(f"it lacks '{prefix}{name}'")
    if unknown := sorted(value.keys() - known.keys()):
        raise ValueError(f"it has the unknown entry '{prefix}{unknown[0]}'")
    hints = _type_hints(cls)
    return cls(**{name: _decode(hints[name], each, prefix + name) for name, each in value.items()})


_type_hints = cache(get_type_hints)

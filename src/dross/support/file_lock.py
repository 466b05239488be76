"""One process at a time: a lock file that names its owner, and that a dead owner does not hold.

The operating system releases the lock when its owner ends, however it ends. The file says who it
was, for messages, and for other hosts, whose processes this one cannot see.
"""

import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..errors import DrossError, InvalidInput

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

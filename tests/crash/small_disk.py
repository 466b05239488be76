"""A disk that can be made full, and given room again while a process uses it.

Root has a small tmpfs. Others have a limit on the size of each file that a process writes.
"""

import contextlib
import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

PAGE = 4096  # bytes: the unit in which a disk is made larger
_AMPLE = "512m"


class SmallDisk:
    """A tmpfs, whose size is changed by mounting it again."""

    def __init__(self, root: Path):
        self.folder = root / "job"
        self._root = root

    def pages(self) -> int:
        """How much is in use."""
        usage = os.statvfs(self._root)
        return (usage.f_blocks - usage.f_bfree) * usage.f_frsize // PAGE

    def taken(self) -> int:
        """Of the pages in use, those that a job cannot have."""
        return self.pages()

    def shrink(self, free: int) -> None:
        """Leave this many free pages."""
        self._resize(str((self.pages() + free) * PAGE))

    def limit_writer(self) -> None:
        """Called in a process that is to meet the full disk."""

    def grow(self, writer: int | None = None) -> None:
        """Give ample room, also to a process that is at work."""
        self._resize(_AMPLE)

    def _resize(self, size: str) -> None:
        _run("mount", "-o", f"remount,size={size}", str(self._root))


class FileLimit(SmallDisk):
    """No file of a writer may be longer than the limit."""

    def __init__(self, root: Path):
        super().__init__(root)
        self._bytes = resource.RLIM_INFINITY

    def pages(self) -> int:
        """The longest file."""
        files = [path for path in self._root.rglob("*") if path.is_file()]
        sizes = [0]
        for path in files:
            with contextlib.suppress(FileNotFoundError):  # a temporary one
                sizes.append(path.stat().st_size)
        return -(-max(sizes) // PAGE)

    def taken(self) -> int:
        """None: what is there does not count against the limit."""
        return 0

    def shrink(self, free: int) -> None:
        """Let files have this many pages."""
        self._bytes = free * PAGE

    def limit_writer(self) -> None:
        """Take the limit; the parent may raise it again."""
        resource.setrlimit(resource.RLIMIT_FSIZE, (self._bytes, resource.RLIM_INFINITY))

    def grow(self, writer: int | None = None) -> None:
        """Lift the limit."""
        self._bytes = resource.RLIM_INFINITY
        if writer is not None:
            resource.prlimit(writer, resource.RLIMIT_FSIZE, (self._bytes, self._bytes))


@contextlib.contextmanager
def make_small_disk(kind: str = "") -> Iterator[SmallDisk]:
    """A disk with ample room. kind: tmpfs or limit; by default the first that can be had."""
    with tempfile.TemporaryDirectory(prefix="dross-small-disk-") as place:
        root = Path(place)
        if kind == "limit" or (not kind and not can_mount()):
            yield FileLimit(root)
            return
        _run("mount", "-t", "tmpfs", "-o", f"size={_AMPLE}", "tmpfs", place)
        try:
            (root / "page").write_bytes(bytes(PAGE))  # a size of 0 would mean no limit at all
            yield SmallDisk(root)
        finally:
            _run("umount", "--lazy", place)


def can_mount() -> bool:
    """Whether this process may mount a tmpfs: not every root may."""
    if os.getuid() != 0 or shutil.which("mount") is None:
        return False
    with tempfile.TemporaryDirectory() as place:
        mounted = subprocess.run(["mount", "-t", "tmpfs", "tmpfs", place], capture_output=True)
        if mounted.returncode == 0:
            _run("umount", place)
        return mounted.returncode == 0


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"

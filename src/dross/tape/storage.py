"""Where the files of a tape lie: in a folder, or behind a URL that fsspec understands (s3://, gs://, memory://, file://, ...).

From a bucket a file is fetched when it is needed and not before. What has been fetched and found intact is kept in a temporary folder, up to a
bound, the longest unused going first; it is removed with the tape. Only reading: a run is recorded into a folder and copied up afterwards.
"""

import os
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from collections import OrderedDict
from pathlib import Path

from ..errors import BadInput
from ..support.atomic_files import write_bytes

_HELD = 1 << 30  # bytes of a bucket's files kept here


class Place(ABC):
    """What a tape asks of it."""

    address: Path | str  # as it was given

    @property
    @abstractmethod
    def absolute(self) -> str:
        """An address that another process understands, too."""

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The file, or an OSError."""

    def hold(self, name: str, raw: bytes) -> None:  # noqa: B027
        """This is what read gave, and it is intact."""

    def path(self, name: str) -> str:
        """The file's name for a message."""
        return f"{str(self.address).rstrip('/')}/{name}"


class Folder(Place):
    def __init__(self, folder: Path):
        self.address = folder

    @property
    def absolute(self) -> str:
        return os.path.abspath(self.address)

    def read(self, name: str) -> bytes:
        return Path(self.address, name).read_bytes()


class Bucket(Place):
    def __init__(self, url: str):
        import fsspec

        try:
            self.system, self.root = fsspec.core.url_to_fs(url)
        except (
            ImportError,
            ValueError,
        ) as error:  # the package for this kind of storage is missing; an unknown kind
            raise BadInput(f"{url} cannot be opened: {error}.") from None
        self.address = url
        self.folder: Path | None = None  # made when there is something to put into it
        self.held: OrderedDict[str, int] = OrderedDict()  # file -> bytes, the longest unused first

    @property
    def absolute(self) -> str:
        return str(self.address)

    def read(self, name: str) -> bytes:
        if self.folder is not None and name in self.held:
            self.held.move_to_end(name)
            return (self.folder / name).read_bytes()
        try:
            return bytes(self.system.cat_file(f"{self.root.rstrip('/')}/{name}"))
        except OSError:
            raise
        except Exception as error:  # every kind of storage has errors of its own
            raise OSError(str(error) or type(error).__name__) from error

    def hold(self, name: str, raw: bytes) -> None:
        if name in self.held or len(raw) > _HELD:
            return
        if self.folder is None:
            self.folder = Path(tempfile.mkdtemp(prefix="dross-tape-"))
            weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
        while sum(self.held.values()) + len(raw) > _HELD:
            oldest, _ = self.held.popitem(last=False)
            (self.folder / oldest).unlink(missing_ok=True)
        write_bytes(self.folder / name, raw)
        self.held[name] = len(raw)


def is_url(where: str | os.PathLike) -> bool:
    return "://" in str(where)


def place(where: str | os.PathLike | Place) -> Place:
    if isinstance(where, Place):
        return where
    return Bucket(str(where)) if is_url(where) else Folder(Path(where))

"""Where the files of a tape lie: in a folder, or behind a URL (s3://, gs://, memory://, file://).

URLs are those that fsspec understands. From a bucket a file is fetched when it is needed and not
before. What has been fetched and found intact is cached in a temporary folder, up to a bound, and
the folder goes with the tape. Storage is for reading only: a run is recorded into a folder and
copied to a bucket afterwards.
"""

import os
import shutil
import tempfile
import weakref
from abc import ABC, abstractmethod
from contextlib import suppress
from pathlib import Path
from typing import Any

from .._checks import check_folder
from .._io import read_file, write_bytes
from ..errors import DrossError, InvalidInput

_MAX_CACHED_BYTES = 1 << 30  # of a bucket's files


class Storage(ABC):
    """The storage of a tape's files."""

    def __init__(self, address: Path | str, absolute: str):
        self.address = address
        self.absolute = absolute  # an address that another process understands, too

    @abstractmethod
    def read(self, name: str) -> bytes:
        """The content of a file; raises OSError."""

    def cache(self, name: str, raw: bytes) -> None:  # noqa: B027
        """Keep content that `read` returned and that is known to be intact."""

    def path(self, name: str) -> str:
        """The file's name for a message."""
        return f"{str(self.address).rstrip('/')}/{name}"


class Folder(Storage):
    """A folder on this machine."""

    def __init__(self, folder: Path):
        super().__init__(folder, os.path.abspath(folder))

    def read(self, name: str) -> bytes:
        """The content of a file; raises OSError."""
        return read_file(Path(self.address, name))


class Bucket(Storage):
    """A file system behind a URL, with a bounded cache on this machine."""

    def __init__(self, url: str):
        super().__init__(url, url)
        self.system, self.root = open_url(url)
        self.folder: Path | None = None  # made when the first file is cached
        self.cached: dict[str, int] = {}  # file -> bytes

    def read(self, name: str) -> bytes:
        """The content of a file, from the cache or fetched; raises OSError."""
        if self.folder is not None and name in self.cached:
            return (self.folder / name).read_bytes()
        try:
            return bytes(self.system.cat_file(f"{self.root.rstrip('/')}/{name}"))
        except OSError:
            raise
        except Exception as error:  # every kind of storage has errors of its own
            raise OSError(str(error) or type(error).__name__) from error

    def cache(self, name: str, raw: bytes) -> None:
        """Keep a file here, if there is room for it."""
        if name in self.cached or sum(self.cached.values()) + len(raw) > _MAX_CACHED_BYTES:
            return
        with suppress(OSError, DrossError):  # no room here either: it is fetched again
            if self.folder is None:
                self.folder = Path(tempfile.mkdtemp(prefix="dross-tape-"))
                weakref.finalize(self, shutil.rmtree, self.folder, ignore_errors=True)
            write_bytes(self.folder / name, raw)
            self.cached[name] = len(raw)


def is_url(where: str | os.PathLike) -> bool:
    """Whether this names a bucket rather than a folder."""
    return "://" in str(where)


def open_url(url: str) -> tuple[Any, str]:
    """The file system of fsspec for a URL, and the path in it.

    Raises:
        InvalidInput: the package for this kind of storage is missing, or there is no such kind.
    """
    import fsspec
    from fsspec.registry import known_implementations

    try:
        return fsspec.core.url_to_fs(url)
    except ImportError as error:
        scheme = url.partition("://")[0]
        home = str(known_implementations.get(scheme, {}).get("class", "")).partition(".")[0]
        needed = {"fsspec": "aiohttp", "": error.name}.get(home, home)
        raise InvalidInput(
            f"{url} needs the package {needed}: pip install {needed}. Or download the files."
        ) from None
    except ValueError as error:
        raise InvalidInput(f"{url} cannot be opened: {error}.") from None


def open_storage(where: str | os.PathLike | Storage) -> Storage:
    """The storage at a path or behind a URL; raises InvalidInput for a URL that cannot be opened."""
    if isinstance(where, Storage):
        return where
    check_folder(where, "The location of a tape")
    return Bucket(str(where)) if is_url(where) else Folder(Path(where))

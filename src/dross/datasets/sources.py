"""Where data set files come from: DROSS_DATA's folder, the cache, then their public homes."""

import hashlib
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from .._progress import progress_bar
from ..errors import DrossError, InvalidInput

_CHUNK_BYTES = 1 << 18


@dataclass(frozen=True)
class Remote:
    """A file with a public home."""

    path: str  # below DROSS_DATA and below the cache
    url: str
    md5: str


def cache_folder() -> Path:
    """The folder that fetched files go to: DROSS_CACHE, or `dross` in the user's cache."""
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.environ.get("DROSS_CACHE") or os.path.join(user_cache, "dross")
    return Path(folder).expanduser()


def find_local(path: str) -> Path | None:
    """The file in DROSS_DATA or in the cache, if it is there."""
    given = os.environ.get("DROSS_DATA")
    folders = [Path(given).expanduser()] if given else []
    folders.append(cache_folder())
    return next((folder / path for folder in folders if (folder / path).is_file()), None)


def fetch(remote: Remote) -> Path:
    """The file, downloaded into the cache if it is nowhere else.

    A download that arrives damaged is removed and tried once more.

    Raises:
        InvalidInput: its home cannot be reached, or it arrived damaged twice.
        DrossError: the cache cannot be written.
    """
    found = find_local(remote.path)
    if found is not None:
        return found
    for _ in range(2):
        target = _download(remote)
        if _md5(target) == remote.md5:
            finished = target.with_suffix("")
            os.replace(target, finished)
            return finished
        target.unlink()
    raise InvalidInput(
        f"{remote.url} arrived damaged twice (its checksum is not {remote.md5}) and was removed. "
        f"Try again later, or put a good copy at {remote.path} in a folder that DROSS_DATA names."
    )


def _download(remote: Remote) -> Path:
    target = cache_folder() / (remote.path + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(remote.url, timeout=30) as reply, open(target, "wb") as file:
            size = int(reply.headers.get("Content-Length") or 0)
            with progress_bar(f"fetching {Path(remote.path).name}", size, unit="bytes") as advance:
                while part := reply.read(_CHUNK_BYTES):
                    file.write(part)
                    advance(len(part))
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        target.unlink(missing_ok=True)
        reason = getattr(error, "reason", error)
        raise InvalidInput(
            f"{remote.path} is not on this machine and {remote.url} cannot be reached ({reason}). "
            f"Connect to the network, or put the file at {remote.path} in a folder and name that "
            "folder in DROSS_DATA."
        ) from None
    except OSError as error:
        raise DrossError(f"{target} cannot be written: {error.strerror}.") from error
    return target


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while part := file.read(_CHUNK_BYTES):
            digest.update(part)
    return digest.hexdigest()

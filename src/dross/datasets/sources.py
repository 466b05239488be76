"""Where the files of a data set come from: the folder named by DROSS_DATA, then the cache, then the set's public home."""

import hashlib
import os
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from ..errors import DataUnavailable, StorageFailed
from ..support.progress import progress_bar

_PART = 1 << 18


@dataclass(frozen=True)
class Remote:
    """A file with a public home."""

    path: str  # below DROSS_DATA and below the cache
    url: str
    md5: str


def cache() -> Path:
    home = os.environ.get("DROSS_CACHE") or os.path.join(
        os.environ.get("XDG_CACHE_HOME") or "~/.cache", "dross"
    )
    return Path(home).expanduser()


def at_hand(path: str) -> Path | None:
    """The file in DROSS_DATA or in the cache, if it is there."""
    roots = [Path(folder).expanduser() for folder in [os.environ.get("DROSS_DATA")] if folder] + [
        cache()
    ]
    return next((root / path for root in roots if (root / path).is_file()), None)


def get(remote: Remote) -> Path:
    """The file, fetched into the cache if it is nowhere else. One that came damaged is removed and fetched once more."""
    found = at_hand(remote.path)
    if found is not None:
        return found
    for attempt in (1, 2):
        target = _download(remote)
        if _md5(target) == remote.md5:
            finished = target.with_suffix("")
            os.replace(target, finished)
            return finished
        target.unlink()
        if attempt == 2:
            raise DataUnavailable(
                f"{remote.url} arrived damaged twice (its checksum is not {remote.md5}) and was removed. Try again later, or put a "
                f"good copy at {remote.path} in a folder that DROSS_DATA names."
            )
    raise AssertionError("unreachable")


def _download(remote: Remote) -> Path:
    target = cache() / (remote.path + ".part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with urllib.request.urlopen(remote.url, timeout=30) as reply, open(target, "wb") as file:
            size = int(reply.headers.get("Content-Length") or 0)
            with progress_bar(f"fetching {Path(remote.path).name}", size, unit="bytes") as advance:
                while part := reply.read(_PART):
                    file.write(part)
                    advance(len(part))
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        target.unlink(missing_ok=True)
        reason = getattr(error, "reason", error)
        raise DataUnavailable(
            f"{remote.path} is not on this machine and {remote.url} cannot be reached ({reason}). Connect to the network, or put "
            f"the file at {remote.path} in a folder and name that folder in DROSS_DATA."
        ) from None
    except OSError as error:
        raise StorageFailed(f"{target} cannot be written: {error.strerror}.") from error
    return target


def _md5(path: Path) -> str:
    digest = hashlib.md5(usedforsecurity=False)
    with open(path, "rb") as file:
        while part := file.read(_PART):
            digest.update(part)
    return digest.hexdigest()

"""SHA-256 digests of files, of many files together, and of JSON values."""

import hashlib
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..errors import DrossError

SEAL = "sha256"  # the key under which a sealed JSON object carries its own digest
_SEALED = "sealed"  # beside it: damage to one of the two names does not hide the seal


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
    return value | {_SEALED: True, SEAL: _digest_json(value)}


def break_seal(value: dict[str, Any]) -> dict[str, Any] | None:
    """A sealed object without its digest; None if it is not the one that was sealed.

    An object without a seal is returned as it is: earlier versions did not seal.
    """
    content = {key: entry for key, entry in value.items() if key not in (_SEALED, SEAL)}
    if len(content) == len(value):
        return content
    return content if value.get(SEAL) == _digest_json(content) and value.get(_SEALED) else None


def _digest_json(value: dict[str, Any]) -> str:
    as_read = json.loads(json.dumps(value))  # tuples are lists, keys are texts
    return digest_bytes(json.dumps(as_read, sort_keys=True).encode())

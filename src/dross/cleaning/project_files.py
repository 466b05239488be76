"""The files of a project: which ones dross writes, which are whole, and how to delete only those.

A file that dross cannot name is somebody else's, and stays.
"""

import io
import json
import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import msgspec
import numpy as np
import pandas
from pyarrow import ArrowException

from .._io import break_seal, delete_stale, digest_bytes, intended_name, read_file, seal, write_json
from ..errors import CorruptFile, DrossError, InvalidInput
from ..tape.format import FILE_NAMES
from .modality import Frame

INFO = "project.json"
BEGUN = "begun.json"
LOCK = "dross.lock"
USUAL = "runs"  # the folder that projects lie in by default
MEND = "Run dross clean again; your decisions are kept."
T = TypeVar("T")

_WRITTEN = re.compile(
    "|".join(
        (
            r"(begun|project|why|search|judging|checked|checks|comparison)\.json",
            r"(instances|content|validation|copies|labels|scores|tokens)\.parquet",
            r"scores\.csv",
            r"report\.html",
            r"summary\.md",
            r"data/(train|validation|test|after)\.(parquet|npy)",
            r"images/(train|validation|test)-\d+\.png",
            r"verdicts/[\d-]+\.json",
            r"judging/[0-9a-f]{16}/piece-\d+\.safetensors",
            r"trials/[0-9a-f]{16}/piece-\d+\.safetensors",
            r"features/[0-9a-f]{16}/piece-\d+\.safetensors",
            r"runs/run-\d+-scores\.safetensors",
            rf"runs/run-\d+/({FILE_NAMES})",
        )
    )
)
_FOLDERS = re.compile(
    r"data|images|verdicts|(judging|features|trials)(/[0-9a-f]{16})?|runs(/run-\d+)?"
)
_DECISIONS = re.compile(r"decisions(-[\d-]+)?\.sqlite(-journal)?")


# --- their names ----------------------------------------------------------------------------------


def is_written_by_dross(name: str) -> bool:
    """Whether a project has a file of this name: "runs/run-0/manifest.json"."""
    return bool(_WRITTEN.fullmatch(name) or _DECISIONS.fullmatch(name) or name == LOCK)


def delete_written(folder: Path, under: str = "", names: re.Pattern[str] = _WRITTEN) -> None:
    """Delete what dross wrote into a project's folder, or into one folder in it.

    Decisions, begun.json and all files that dross cannot name stay. Nothing is followed through a
    link. project.json is the first to go: without it the rest is known to be unfinished.

    Arguments:
        folder: Of the project.
        under: A folder in it.
        names: Of the files, relative to the project; by default everything.

    Raises:
        DrossError: something cannot be deleted.
    """
    try:
        for name in sorted(_walk(folder, under), key=lambda name: name != INFO):
            path = PurePosixPath(name)  # of a temporary file, what it was going to be
            final = path.with_name(intended_name(path.name) or path.name).as_posix()
            if final != BEGUN and names.fullmatch(final):
                (folder / name).unlink(missing_ok=True)
    except OSError as error:
        raise DrossError(f"{folder} cannot be emptied: {error}.") from error
    for place, _, _ in os.walk(folder / under, topdown=False):
        if _FOLDERS.fullmatch(Path(place).relative_to(folder).as_posix()):
            with suppress(OSError):  # somebody else's files are in it
                Path(place).rmdir()


def delete_stale_files(folder: Path) -> None:
    """Delete temporary files in a project's folder that a killed process has left."""
    for place, _, _ in os.walk(folder):
        under = Path(place).relative_to(folder)
        delete_stale(
            Path(place), lambda name, under=under: is_written_by_dross((under / name).as_posix())
        )


def _walk(folder: Path, under: str) -> Iterator[str]:
    """Names of plain files, relative to the folder; links are neither named nor followed."""
    for place, _, files in os.walk(folder / under):
        for name in files:
            path = Path(place, name)
            if not path.is_symlink():
                yield path.relative_to(folder).as_posix()


def check_no_links(folder: Path) -> None:
    """Refuse a project with links in place of its folders.

    What dross writes and deletes there would be written and deleted elsewhere.

    Raises:
        InvalidInput: a folder is a link.
    """
    for place, folders, files in os.walk(folder):
        under = Path(place).relative_to(folder)
        ours = [name for name in folders + files if _FOLDERS.fullmatch((under / name).as_posix())]
        for path in (Path(place, name) for name in ours):
            if path.is_symlink():
                raise InvalidInput(
                    f"{path} is a link to {os.readlink(path)}, and dross writes to the project's "
                    "own folders only. Remove the link, or choose another folder for the project."
                )
        folders[:] = [name for name in folders if name in ours]


def explain_missing(folder: Path) -> str:
    """Why a folder has no project.json, and what to do."""
    if (folder / BEGUN).exists():
        return f"dross clean has not finished in {folder}. Run the same command again to resume."
    others = sorted({path.parent for path in (*folder.glob(f"*/{INFO}"), *_list_beside(folder))})
    shown = ", ".join(map(str, others[:3]))
    hint = f"Pass one that dross clean created: {shown}." if others else "Run dross clean first."
    if not folder.exists():
        return f"There is no folder {folder}. {hint}"
    if folder.is_dir():
        return f"{folder} is not a folder created by dross clean. {hint}"
    return f"{folder} is a file, not the folder that dross clean created from it. {hint}"


def _list_beside(folder: Path) -> list[Path]:
    """project.json of the finished projects beside a folder, and in the usual folder of projects."""
    return [*folder.parent.glob(f"*/{INFO}"), *folder.parent.glob(f"{USUAL}/*/{INFO}")]


# --- their content --------------------------------------------------------------------------------


def write_sealed(path: Path, value: Any) -> None:
    """Write a dataclass as JSON together with its digest; `read_sealed` checks it."""
    write_json(path, seal(to_json(value)))


def read_sealed(path: Path, kind: type[T]) -> T:
    """The content of a file that `write_sealed` wrote.

    Raises:
        CorruptFile: the file is not as it was written.
        DrossError: it cannot be read.
    """
    value = parse_json(read_whole(path), dict[str, Any], path)
    content = break_seal(value)
    if content is None:
        raise CorruptFile(f"{path} is damaged: its content is not what dross wrote. {MEND}")
    return _convert(content, kind, path)


def read_intact(path: Path, kind: type[T]) -> T | None:
    """The same, or None where the file is missing or damaged and has to be written again."""
    try:
        return read_sealed(path, kind) if path.exists() else None
    except DrossError:
        return None


def to_json(value: Any) -> Any:
    """Dataclasses and arrays as what JSON can hold."""
    return msgspec.to_builtins(value, enc_hook=np.ndarray.tolist, str_keys=True)


def parse_json(raw: bytes, kind: type[T], path: Path) -> T:
    """JSON as a value of a type; raises CorruptFile."""
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise CorruptFile(f"{path} is not readable JSON ({error}). {MEND}") from None
    return _convert(value, kind, path)


def _convert(value: Any, kind: type[T], path: Path) -> T:
    try:
        return msgspec.convert(value, kind, dec_hook=_read_ids, str_keys=True)
    except (msgspec.ValidationError, OverflowError) as error:
        raise CorruptFile(f"{path} is damaged: {error}. {MEND}") from None


def _read_ids(kind: type, value: Any) -> np.ndarray:
    """Of the types that msgspec does not know, only arrays of ids are kept in JSON."""
    return np.array(msgspec.convert(value, list[int]), dtype=np.int64)


def read_whole(path: Path, digest: str | None = None) -> bytes:
    """The bytes of a file, once they are known to be those that were written.

    Arguments:
        path: Of the file.
        digest: Of what was written; None where the content has one of its own.

    Raises:
        CorruptFile: the file is missing, or not as it was written.
        DrossError: it cannot be read.
    """
    try:
        raw = read_file(path)
    except FileNotFoundError:
        raise CorruptFile(f"{path} is missing. {MEND}") from None
    except OSError as error:
        raise DrossError(f"{path} cannot be read: {error.strerror}.") from error
    if digest is not None and digest_bytes(raw) != digest:
        raise CorruptFile(f"{path} is damaged: its content is not what dross wrote. {MEND}")
    return raw


def read_table(path: Path, digest: str | None) -> Frame:
    """The table in a file, read as `read_whole` does and with the same errors."""
    raw = read_whole(path, digest)
    try:
        return pandas.read_parquet(io.BytesIO(raw))
    except (OSError, ValueError, KeyError, TypeError, ArrowException) as error:
        raise CorruptFile(f"{path} cannot be read ({error}). {MEND}") from None

"""A folder of pictures that `dross export` wrote, with a list of all that it wrote.

The list, dross-export.json, names every file with the digest of its content. An export replaces a
folder only if all that lies in it is named there and is still as it was written. A file that
somebody has put there or changed is never deleted.
"""

import json
import os
import shutil
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any

from ..errors import InvalidInput
from ..support.atomic_files import make_folder, sync_folder, write_json
from ..support.file_digests import break_seal, digest_bytes, digest_file, seal

MARKER = "dross-export.json"
_MADE_BY = "dross export"
_SHOWN = 3


def check_replaceable(folder: Path) -> None:
    """Refuse a folder that an export may not replace; one that is not there is fine.

    Raises:
        InvalidInput: it is a file or a link, or holds something that an export did not write.
    """
    for place in (folder, _unfinished(folder), _outgoing(folder)):
        if place.is_symlink() or (place.exists() and not place.is_dir()):
            raise InvalidInput(
                f"{place} is not a folder, but a file or a link. Choose another name."
            )
        if place.is_dir() and any(place.iterdir()):
            _check_own(place)


def write_pictures(
    source: Path, folder: Path, targets: dict[str, str], *, confirm: Callable[[], None]
) -> None:
    """Copy pictures into a folder that is complete when it appears.

    It is made under another name and then renamed. An earlier export's folder is moved away just
    before, and then deleted.

    Arguments:
        source: The folder of the originals.
        folder: The copy; `check_replaceable` has agreed to it.
        targets: {name in the source: name in the copy}.
        confirm: Called when everything is copied, before it appears; what it raises ends the copy.

    Raises:
        InvalidInput: a name leads out of the folder.
        OSError: the disk is full, or a picture cannot be read.
    """
    unfinished, outgoing = _unfinished(folder), _outgoing(folder)
    for target in targets.values():
        _join(unfinished, target)
    _delete_own(unfinished)
    try:
        _fill(unfinished, source, targets)
        confirm()
    except BaseException:
        with suppress(OSError, InvalidInput):  # else the next export does it
            _delete_own(unfinished)
        raise
    if folder.exists():
        _delete_own(outgoing)
        folder.rename(outgoing)
    unfinished.rename(folder)
    sync_folder(folder.parent)
    _delete_own(outgoing)


def _unfinished(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.partial")


def _outgoing(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.replaced")


def _fill(folder: Path, source: Path, targets: dict[str, str]) -> None:
    """The list comes first, so that what a killed process leaves can be told from other files."""
    make_folder(folder)
    _write_marker(folder, dict.fromkeys(targets.values(), ""), finished=False)
    digests = {target: _copy(source / name, folder / target) for name, target in targets.items()}
    _sync(folder, digests)
    _write_marker(folder, digests, finished=True)


def _copy(original: Path, copy: Path) -> str:
    """The digest of what was copied."""
    copy.parent.mkdir(parents=True, exist_ok=True)
    raw = original.read_bytes()
    with open(copy, "xb") as file:
        file.write(raw)
    shutil.copystat(original, copy)
    return digest_bytes(raw)


def _sync(folder: Path, names: dict[str, str]) -> None:
    """Wait until everything is on the disk."""
    for name in names:
        descriptor = os.open(folder / name, os.O_RDONLY if os.name != "nt" else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    for place in {(folder / name).parent for name in names}:
        sync_folder(place)


def _join(folder: Path, name: str) -> Path:
    """The path of a name in a folder; names come from labels and files, and may be hostile."""
    plain = PurePosixPath(name)
    path = folder.joinpath(*plain.parts)
    is_plain = str(plain) == name and not plain.is_absolute() and ".." not in plain.parts
    if not is_plain or folder.resolve() not in path.resolve().parents:
        raise InvalidInput(f"{name!r} leads out of the folder {folder}. Nothing was written there.")
    return path


# --- the list ---


def _write_marker(folder: Path, digests: dict[str, str], *, finished: bool) -> None:
    about = {"made_by": _MADE_BY, "finished": finished, "files": digests}
    write_json(folder / MARKER, seal(about))


def _read_marker(folder: Path) -> dict[str, Any] | None:
    try:
        about = json.loads((folder / MARKER).read_bytes())
        about = break_seal(about) if isinstance(about, dict) else None
    except (OSError, ValueError, RecursionError):
        return None
    is_ours = (
        about is not None
        and about.get("made_by") == _MADE_BY
        and isinstance(about.get("files"), dict)
    )
    return about if is_ours else None


def _check_own(folder: Path) -> dict[str, Any]:
    """The list in a folder, if it names everything that is there as it is there."""
    about = _read_marker(folder)
    if about is None:
        raise InvalidInput(
            f"{folder} was not written by dross export: it has no {MARKER} that lists what may be "
            "replaced. Choose another name, or delete it yourself."
        )
    strangers = []
    for place, folders, files in os.walk(folder):
        here = Path(place)
        links = [name for name in folders if (here / name).is_symlink()]
        for name in [*files, *links]:
            path = here / name
            if path != folder / MARKER and not _is_as_written(folder, path, about):
                strangers.append(path.relative_to(folder).as_posix())
    if strangers:
        more = " ..." if len(strangers) > _SHOWN else ""
        raise InvalidInput(
            f"{len(strangers)} files in {folder} were not written by dross export, or have been "
            f"changed since: {', '.join(sorted(strangers)[:_SHOWN])}{more}. Move them away, or "
            "choose another name."
        )
    return about


def _is_as_written(folder: Path, path: Path, about: dict[str, Any]) -> bool:
    name = path.relative_to(folder).as_posix()
    if path.is_symlink() or name not in about["files"]:
        return name.startswith(f".{MARKER}.") and not path.is_symlink()
    return not about.get("finished") or digest_file(path) == about["files"][name]


def _delete_own(folder: Path) -> None:
    """Delete the files that the list in a folder names, and then the folders that are empty."""
    if not folder.is_dir():
        return
    if any(folder.iterdir()):
        about = _check_own(folder)
        for name in about["files"]:
            _join(folder, name).unlink(missing_ok=True)
        for left in folder.glob(f".{MARKER}.*.tmp"):
            left.unlink()
        for place, _, _ in os.walk(folder, topdown=False):
            if Path(place) != folder:
                with suppress(OSError):
                    Path(place).rmdir()
        (folder / MARKER).unlink()
    folder.rmdir()

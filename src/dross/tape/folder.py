"""The folder of a tape: prepared for a new one, and the error where it cannot be written."""

import errno
import os
import re
from pathlib import Path

from ..errors import DrossError, InvalidInput
from .reader import MANIFEST, read_manifest
from .storage import is_url


def prepare_folder(folder: str | os.PathLike, *, overwrite: bool, resume: bool) -> dict | None:
    """Prepare a folder for a tape.

    Returns the manifest to continue from, if there is one and `resume` asks for it.

    Raises:
        InvalidInput: the folder is a URL, or both options are given.
        InvalidInput: the folder holds a tape that may not be replaced, or other files.
        DrossError: the folder cannot be made.
    """
    if is_url(folder):
        raise InvalidInput(
            f"A run is recorded into a folder; from {folder} it can only be read. Record it here, "
            "and copy the folder there."
        )
    folder = Path(folder)
    if overwrite and resume:
        raise InvalidInput("overwrite and resume exclude each other: pass only one of them.")
    if (folder / MANIFEST).exists():
        if resume:
            manifest = read_manifest(folder)
            _remove_temporary_files(folder)
            return manifest
        if not overwrite:
            raise InvalidInput(
                f"There is a tape at {folder} already. Open it with dross.load, continue it "
                "with resume=True, replace it with overwrite=True, or choose another folder."
            )
        read_manifest(folder)  # never clear a folder that is not a tape
        (folder / MANIFEST).unlink()
        for kind in ("segment", "shard", "state", "hashes", "average", "retrace"):
            for file in folder.glob(f"{kind}-*.safetensors*"):
                file.unlink()
    elif folder.exists() and not _holds_only_remains(folder):
        raise InvalidInput(f"{folder} exists and is not a tape. Choose another folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise storage_failed(folder, error, 0) from error
    _remove_temporary_files(folder)
    return None


# `segment-000012.safetensors.tmp`, `.manifest.json.4711.tmp`: the writer's, never a user's file.
_TEMPORARY = re.compile(
    r"\.?((segment|shard|state|hashes|average)-\d+(-\d+-of-\d+)?\.safetensors|manifest\.json)"
    r"\.(\d+|tmp|\d+\.tmp)"
)


def _holds_only_remains(folder: Path) -> bool:
    """Whether everything in it was left by a run that was killed before its first commit."""
    return folder.is_dir() and all(
        file.suffix in (".tmp", ".safetensors") or _TEMPORARY.fullmatch(file.name)
        for file in folder.iterdir()
    )


def _remove_temporary_files(folder: Path) -> None:
    """Remove what a killed writer has left half written."""
    for file in folder.iterdir():
        if _TEMPORARY.fullmatch(file.name):
            file.unlink(missing_ok=True)


def storage_failed(path: Path, error: OSError, steps: int) -> DrossError:
    """What a failed write means, and how far the tape is whole."""
    causes = {
        errno.ENOSPC: "the disk is full. Free some space; or, in a program of your own, keep less "
        "with keep=Checkpoints() or keep=Budget(bytes)",
        errno.EDQUOT: "your disk quota is used up",
        errno.EACCES: "you have no permission to write to the folder",
        errno.EROFS: "the disk is read-only",
    }
    cause = causes.get(error.errno or 0, error.strerror or str(error))
    return DrossError(f"{path} cannot be written: {cause}. The tape is whole up to step {steps}.")

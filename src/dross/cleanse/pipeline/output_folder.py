"""The folder that `dross clean` writes to: new, unfinished, finished, or somebody else's."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

from ...errors import BadInput, TapeDamaged
from ...support.printable import check_encodable
from ..project import ABOUT, BEGUN, read_json


def claim_folder(folder: Path, begun: dict[str, Any], overwrite: bool) -> bool:
    """Make sure that a folder may be written to; whether it already holds the finished result.

    begun: what begun.json says of this job. A folder that holds something else is refused, or
    emptied with `overwrite`.
    """
    check_encodable(str(folder))
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file, not a folder. Choose another folder: --out.")
    if not folder.exists() or not any(folder.iterdir()):
        return False
    if not any((folder / name).exists() for name in (BEGUN, ABOUT)):
        raise BadInput(f"{folder} exists and was not made by dross. Choose another folder: --out.")
    if _read_begun(folder) == json.loads(json.dumps(begun)):
        return (folder / ABOUT).exists()
    if overwrite:
        _empty(folder)
        return False
    if {path.name for path in folder.iterdir()} == {BEGUN}:
        return False  # an attempt that failed before anything was done
    raise BadInput(
        f"{folder} holds a run on other data or with other settings. Choose another folder with "
        "--out, or replace it with --overwrite (decisions that were made there are set aside, "
        "not deleted)."
    )


def _read_begun(folder: Path) -> Any:
    try:
        return read_json(folder / BEGUN)
    except (TapeDamaged, OSError):
        return None


def _empty(folder: Path) -> None:
    """Remove everything but decisions, which get a name with the time in it."""
    for path in folder.glob("decisions.sqlite*"):
        stamp = time.strftime("%Y%m%d-%H%M%S")
        path.rename(folder / f"decisions-{stamp}{path.name.removeprefix('decisions')}")
    for path in folder.iterdir():
        if not path.name.startswith("decisions-"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()

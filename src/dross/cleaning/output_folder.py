"""The folder that `dross clean` writes to: new, unfinished, finished, or somebody else's."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from .._io import hold_lock, make_folder, write_json
from .._text import check_encodable
from ..errors import DrossError, InputChanged, InvalidInput
from .inputs import Request, check_output_folder, input_paths
from .job import Options
from .memory import FOLDER as GIVEN
from .project import Project
from .project_files import (
    ABOUT,
    BEGUN,
    LOCK,
    delete_stale_files,
    delete_written,
    read_intact,
    set_decisions_aside,
)

_FOR_PEOPLE = ("report.html", "scores.csv", "scores.parquet")
_OPTIONAL = ("made_by", "input_files", "data_source")  # earlier versions did not write them


@contextmanager
def claimed_folder(
    folder: Path, request: Request, begun: dict[str, Any], overwrite: bool
) -> Iterator[Project | None]:
    """Inside, no other process writes to the folder, and begun.json says whose it is.

    Arguments:
        folder: Where the results go.
        request: The inputs, which must be elsewhere.
        begun: What begun.json says of this job.
        overwrite: Delete the results of another job; without it they are refused.

    Returns:
        The project, if the folder holds the finished result of this very job; else None.

    Raises:
        InvalidInput: the folder holds something else, or another process writes to it.
        DrossError: it cannot be written.
    """
    check_encodable(str(folder))
    if request.given is None:  # else the folder itself keeps the inputs
        check_output_folder(folder, input_paths(request))
    _check_ownership(folder)
    try:
        make_folder(folder)
    except OSError as error:
        raise DrossError(f"{folder} cannot be created: {error.strerror or error}.") from error
    with hold_lock(folder / LOCK, f"the folder {folder}"):
        _check_ownership(folder)
        delete_stale_files(folder)
        finished = _enter(folder, begun, overwrite)
        if finished is None:
            write_json(folder / BEGUN, begun)
        yield finished


def check_answer(project: Project, begun: dict[str, Any]) -> Project:
    """Refuse results that are not those of this job, before they are reported as its own.

    Raises:
        InputChanged: another process has written to the folder.
    """
    if not _is_same_job(project.about, begun):
        raise InputChanged(
            f"{project.folder} holds the results of other data or settings: another process has "
            f"written to it in the meantime. Choose another folder with `out`."
        )
    return project


def _check_ownership(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file. Choose a folder with `out`.")
    names = _names(folder)
    if names and not _is_begun_by_dross(folder) and not _is_finished_by_dross(folder):
        raise InvalidInput(
            f"{folder} exists and was not made by dross. Choose another folder with `out`."
        )


def _names(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()} - {LOCK} if folder.exists() else set()
    except OSError as error:
        raise DrossError(f"{folder} cannot be read: {error.strerror}.") from error


def _is_begun_by_dross(folder: Path) -> bool:
    begun = read_intact(folder / BEGUN)
    return (
        isinstance(begun, dict)
        and begun.get("made_by", "dross") == "dross"
        and isinstance(begun.get("request"), dict)
        and isinstance(begun.get("options"), dict)
        and {"digest", "format"} <= set(begun)
    )


def _is_finished_by_dross(folder: Path) -> bool:
    about = read_intact(folder / ABOUT)
    return isinstance(about, dict) and about.get("made_by") == "dross"


def _enter(folder: Path, begun: dict[str, Any], overwrite: bool) -> Project | None:
    """Make room for a job, or find that it is done."""
    if not _names(folder):
        return None
    if _is_same_job(read_intact(folder / BEGUN) or read_intact(folder / ABOUT), begun):
        return _open_whole(folder)
    if overwrite:
        delete_written(folder)
        set_decisions_aside(folder)
        return None
    if BEGUN in _names(folder) <= {BEGUN, GIVEN, "features"}:  # features are of one data set each
        return None  # an attempt that failed before anything else was done
    raise InvalidInput(
        f"{folder} holds a run on other data or with other settings. Choose another folder with "
        f"`out`, or replace it with `overwrite` "
        "(decisions that were made there are set aside, not deleted)."
    )


def _open_whole(folder: Path) -> Project | None:
    """The project, if no file of it is missing or damaged; otherwise None."""
    try:
        project = Project.open(folder)
        project.check_files()
    except DrossError:
        return None
    return project if all((folder / name).exists() for name in _FOR_PEOPLE) else None


def _is_same_job(said: Any, begun: dict[str, Any]) -> bool:
    """Whether a begun.json or a project.json is about this job.

    What an earlier version could not say, because it did not know it, does not count.
    """
    if not isinstance(said, dict):
        return False
    wanted = json.loads(json.dumps(begun))
    found = {key: said[key] for key in wanted if key in said}
    kinds: list[tuple[str, Any]] = [("request", Request)]
    if set(begun["options"]) <= {field.name for field in fields(Options)}:
        kinds.append(("options", Options))  # else those of chats, which have no earlier version
    for key, kind in kinds:
        try:
            for said_of in (found, wanted):
                said_of[key] = json.loads(json.dumps(asdict(kind(**said_of[key]))))
        except (KeyError, TypeError, ValueError):
            return False
    for said_of in (found, wanted):  # if another version encodes differently, the digest tells
        del said_of["request"]["encoder"]
    return all(
        found[key] == value if key in found else key in _OPTIONAL for key, value in wanted.items()
    )

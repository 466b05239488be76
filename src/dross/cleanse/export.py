"""`dross export`: a cleaned copy of the input, and the list of what was decided. The input itself is never touched."""

import csv
import shutil
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadInput, StorageFailed
from .edits import Change, chosen
from .inputs import images, tables
from .judge import reopened
from .project import Project

_SUFFIXES = (".csv", ".tsv", ".parquet", ".pq")


@dataclass(frozen=True)
class Exported:
    cleaned: Path
    decisions: Path
    removed: int
    relabelled: int
    written: int  # instances in the cleaned copy


def export(
    folder: str | Path,
    to: str | Path,
    *,
    remove: int | None = None,
    relabel: int | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write the input without the removed instances and with the corrected labels.

    What was decided on the page is applied, or else the suggestion; `remove=m` takes the m most harmful instead, `relabel=m` gives the m most
    probably mislabelled the label that the models predict. Validation and test rows stay as they are.
    """
    project, to = Project.open(folder), Path(to)
    change = chosen(project, remove, relabel, decisions=False)
    about = project.about
    if about["kind"] == "custom":
        raise BadInput(
            "The data came from a Python function; there is no file to copy. scores.csv has the places in the training part."
        )
    reopened(
        project
    )  # rows are told apart by their places: the input must be the one that was scored
    source = Path(about["request"]["data"])
    if to.exists() and (to.samefile(source) if source.exists() else False):
        raise BadInput(f"{to} is the input itself, which is never touched. Choose another name.")
    if not source.is_dir() and to.suffix.lower() not in _SUFFIXES:
        raise BadInput(f"{to.name} is to be a table: end its name with {', '.join(_SUFFIXES)}.")
    listed = to.with_name(f"{to.name}-decisions.csv")
    for path in (to, listed):
        if path.exists() and not overwrite:
            raise BadInput(f"{path} is there already. Choose another name, or pass --overwrite.")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        _list(listed, project, change)
        written = _copied(project, change, source, to)
    except OSError as error:
        raise StorageFailed(
            f"{to} cannot be written: {error.strerror or error}. Nothing else was changed."
        ) from error
    return Exported(to, listed, len(change.removed), len(change.relabelled), written)


def _copied(project: Project, change: Change, source: Path, to: Path) -> int:
    names = project.instances["source"]
    removed = {names.loc[k] for k in change.removed}
    renamed = {names.loc[k]: label for k, label in change.relabelled.items()}
    if source.is_dir():
        return _folder(source, to, removed, renamed)
    return _table(project.about, source, to, removed, renamed)


def _table(about: dict, source: Path, to: Path, removed: set[str], renamed: dict[str, str]) -> int:
    frame, _ = tables.read_frame(source, verbatim=True)
    column = next(name for name in frame.columns if str(name).strip() == about["label"])
    keys = [f"row {k + 2}" for k in range(len(frame))]
    if renamed:
        kind = frame[column].dtype
        frame[column] = [renamed.get(key, label) for key, label in zip(keys, frame[column])]
        with suppress(ValueError, TypeError):  # numbers stay numbers
            frame[column] = frame[column].astype(kind)
    kept: Any = frame[np.array([key not in removed for key in keys])]
    if to.suffix.lower() in (".parquet", ".pq"):
        kept.to_parquet(to, index=False)
    else:
        kept.to_csv(to, index=False, sep="\t" if to.suffix.lower() == ".tsv" else ",")
    return len(kept)


def _folder(source: Path, to: Path, removed: set[str], renamed: dict[str, str]) -> int:
    """Pictures that keep their class keep their names; a relabelled one gets a name that is still free in its new class."""
    files = sorted(
        path
        for path in source.rglob("*")
        if path.suffix.lower() in images.SUFFIXES and path.is_file()
    )
    kept = [
        path.relative_to(source).as_posix()
        for path in files
        if path.relative_to(source).as_posix() not in removed
    ]
    targets = {name: name for name in kept if name not in renamed}
    taken = set(targets.values())
    for name in (name for name in kept if name in renamed):
        path = Path(name)
        names = (
            f"{renamed[name]}/{front}{path.name}"
            for front in (
                "",
                f"{path.parts[0]}-",
                *(f"{path.parts[0]}-{k}-" for k in range(len(kept))),
            )
        )
        targets[name] = next(free for free in names if free not in taken)
        taken.add(targets[name])
    made = to.with_name(f".{to.name}.partial")
    shutil.rmtree(made, ignore_errors=True)
    for name, target in targets.items():
        (made / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, made / target)
    if to.exists():
        shutil.rmtree(to) if to.is_dir() else to.unlink()
    made.rename(to)
    return len(targets)


def _list(path: Path, project: Project, change: Change) -> None:
    taken = {int(k): ("remove", None) for k in change.removed} | {
        k: ("relabel", label) for k, label in change.relabelled.items()
    }
    made = project.decisions.current() if change.what == "decisions" else taken
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "source", "label", "decision", "new label", "score", "prediction"])
        for k, (action, label) in sorted(made.items()):
            if action != "undecided":
                row = project.instances.loc[k]
                writer.writerow(
                    [
                        k,
                        row["source"],
                        row["label"],
                        action,
                        label or "",
                        f"{row['score']:.6g}",
                        row["prediction"],
                    ]
                )

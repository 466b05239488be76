"""`dross export`: a cleaned copy of the input, and the list of what was decided. The input itself is never touched."""

import csv
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import BadInput, StorageFailed
from . import images, tables
from .judging import Change, chosen
from .project import Project


@dataclass(frozen=True)
class Exported:
    cleaned: Path
    decisions: Path
    removed: int
    relabelled: int
    written: int  # instances in the cleaned copy


def export(folder: str | Path, to: str | Path, *, remove: int | None = None, overwrite: bool = False) -> Exported:
    """Write the input without the removed instances and with the corrected labels.

    What was decided on the page is applied; `remove=m` takes the m most harmful instead. Validation and test rows stay as they are.
    """
    project, to = Project.open(folder), Path(to)
    change = chosen(project, remove, None, decisions=remove is None)
    about = project.about
    source = Path(about["request"]["data"])
    if to.exists() and (to.samefile(source) if source.exists() else False):
        raise BadInput(f"{to} is the input itself, which is never touched. Choose another name.")
    listed = to.with_name(f"{to.name.removesuffix(to.suffix)}-decisions.csv")
    for path in (to, listed):
        if path.exists() and not overwrite:
            raise BadInput(f"{path} is there already. Choose another name, or pass --overwrite.")
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        _list(listed, project, change)
        written = _copied(project, change, source, to)
    except OSError as error:
        raise StorageFailed(f"{to} cannot be written: {error.strerror or error}. Nothing else was changed.") from error
    return Exported(to, listed, len(change.removed), len(change.relabelled), written)


def _copied(project: Project, change: Change, source: Path, to: Path) -> int:
    if project.about["kind"] == "custom":
        raise BadInput(
            "The data came from a Python function; there is no file to copy. The list of decisions has their places in the training part."
        )
    names = project.instances["source"]
    removed = {names.loc[k] for k in change.removed}
    renamed = {names.loc[k]: label for k, label in change.relabelled.items()}
    if source.is_dir():
        return _folder(source, to, removed, renamed)
    return _table(project.about, source, to, removed, renamed)


def _table(about: dict, source: Path, to: Path, removed: set[str], renamed: dict[str, str]) -> int:
    frame, _ = tables.read_frame(source)
    column = about["request"]["images"]
    keys = frame[column].tolist() if column else [f"row {k + 2}" for k in range(len(frame))]
    frame[about["label"]] = [renamed.get(key, label) for key, label in zip(keys, frame[about["label"]])]
    kept: Any = frame[np.array([key not in removed for key in keys])]
    if to.suffix.lower() in (".parquet", ".pq"):
        kept.to_parquet(to, index=False)
    else:
        kept.to_csv(to, index=False, sep="\t" if to.suffix.lower() == ".tsv" else ",")
    return len(kept)


def _folder(source: Path, to: Path, removed: set[str], renamed: dict[str, str]) -> int:
    count = 0
    for path in sorted(path for path in source.rglob("*") if path.suffix.lower() in images.SUFFIXES and path.is_file()):
        name = path.relative_to(source).as_posix()
        if name in removed:
            continue
        target = to / (f"{renamed[name]}/{path.name}" if name in renamed else name)
        if name in renamed and target.exists():
            target = target.with_name(f"{path.parent.name}-{path.name}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, target)
        count += 1
    return count


def _list(path: Path, project: Project, change: Change) -> None:
    made = project.decisions.current() if change.what == "decisions" else {int(k): ("remove", None) for k in change.removed}
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["id", "source", "label", "decision", "new label", "score", "prediction"])
        for k, (action, label) in sorted(made.items()):
            if action != "undecided":
                row = project.instances.loc[k]
                writer.writerow([k, row["source"], row["label"], action, label or "", f"{row['score']:.6g}", row["prediction"]])

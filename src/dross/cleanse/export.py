"""`dross export`: a cleaned copy of the input, and the list of what was decided.

The input itself is never touched.
"""

import csv
import io
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..errors import BadInput, StorageFailed
from ..support.atomic_files import write_bytes
from .decisions import Decision
from .edits import BY_DECISIONS, Edits, choose_edits
from .inputs import images
from .inputs.load import Request
from .inputs.table_copy import TABLES, RowEdits, copy_table
from .project import Project
from .reopen import reopen_inputs

_LISTED = ("id", "source", "label", "decision", "new label", "score", "prediction")


@dataclass(frozen=True)
class Exported:
    """What `dross.export` wrote.

    Attributes:
        cleaned: the cleaned copy: a file, or a folder of pictures.
        decisions: the CSV file that lists what was removed, relabelled or kept.
        removed, relabelled: how many instances.
        written: how many instances the cleaned copy has.
    """

    cleaned: Path
    decisions: Path
    removed: int
    relabelled: int
    written: int


@dataclass(frozen=True)
class _NamedEdits:
    """Edits by the names of instances in the input: `row 17`, or a file name."""

    removed: set[str]
    relabelled: dict[str, str]


def export(
    folder: str | Path,
    to: str | Path,
    *,
    remove: int | None = None,
    relabel: int | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write a copy of the input without the removed instances and with the corrected labels.

    By default the decisions made on the page are applied; where there are none, the suggestion.
    Rows of the validation and test parts stay as they are.

    Arguments:
        folder: a folder that `dross.clean` made.
        to: the cleaned copy: a .csv, .tsv or .parquet file, or a folder for pictures.
        remove: leave out the N most harmful instances instead.
        relabel: give the N most probably mislabelled the label that the models predict instead.
        overwrite: replace the copy if it is there.

    Returns:
        Where the copy and the list of decisions are, and how many instances changed.

    Raises:
        BadInput: there is nothing to apply or nothing to copy, `to` is the input itself, or it is
            there already and `overwrite` is not set.
        TapeMismatch: the data have changed since `dross.clean`.
        TapeDamaged: the folder is not a finished project, or a file is damaged.
        StorageFailed: the copy cannot be written.

    Example:
        dross.export("runs/people", "people-cleaned.csv")
    """
    project, to = Project.open(folder), Path(to)
    edits = choose_edits(project, remove, relabel, decisions=False)
    about = project.about
    if about["kind"] == "custom":
        raise BadInput(
            "The data came from a Python function; there is no file to copy. "
            "scores.csv has the places in the training part."
        )
    reopen_inputs(project)  # rows are known by their places: the input must be the scored one
    source = Path(about["request"]["data"])
    listed = to.with_name(f"{to.name}-decisions.csv")
    _check_target(source, to, listed, overwrite)
    try:
        to.parent.mkdir(parents=True, exist_ok=True)
        _write_decisions(listed, project, edits)
        written = _write_copy(project, edits, source, to)
    except StorageFailed as error:
        raise StorageFailed(f"{error} Nothing else was changed.") from error
    except OSError as error:
        reason = error.strerror or error
        raise StorageFailed(
            f"{to} cannot be written: {reason}. Nothing else was changed."
        ) from error
    return Exported(to, listed, len(edits.removed), len(edits.relabelled), written)


def _check_target(source: Path, to: Path, listed: Path, overwrite: bool) -> None:
    if to.exists() and source.exists() and to.samefile(source):
        raise BadInput(f"{to} is the input itself, which is never touched. Choose another name.")
    if not source.is_dir() and to.suffix.lower() not in TABLES:
        raise BadInput(f"{to.name} is to be a table: end its name with {', '.join(TABLES)}.")
    for path in (to, listed):
        if path.exists() and not overwrite:
            raise BadInput(f"{path} is there already. Choose another name, or pass --overwrite.")


def _write_copy(project: Project, edits: Edits, source: Path, to: Path) -> int:
    """The number of instances in the copy."""
    names = project.instances["source"]
    named = _NamedEdits(
        {names.loc[id] for id in edits.removed},
        {names.loc[id]: label for id, label in edits.relabelled.items()},
    )
    if source.is_dir():
        return _copy_pictures(source, to, named)
    return _copy_table(project, source, to, named)


def _copy_table(project: Project, source: Path, to: Path, edits: _NamedEdits) -> int:
    about, changes = project.about, RowEdits(edits.removed, edits.relabelled)
    reading = Request(**about["request"]).reading
    raw, count = copy_table(source, to.suffix.lower(), about["label"], changes, reading)
    write_bytes(to, raw)
    return count


def _copy_pictures(source: Path, to: Path, edits: _NamedEdits) -> int:
    """The copy appears whole: it is made under another name and then renamed."""
    targets = _place_pictures(source, edits)
    unfinished = to.with_name(f".{to.name}.partial")
    shutil.rmtree(unfinished, ignore_errors=True)
    for name, target in targets.items():
        (unfinished / target).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / name, unfinished / target)
    if to.exists():
        shutil.rmtree(to) if to.is_dir() else to.unlink()
    unfinished.rename(to)
    return len(targets)


def _place_pictures(source: Path, edits: _NamedEdits) -> dict[str, str]:
    """{name in the input: name in the copy}.

    A picture that keeps its class keeps its name; a relabelled one gets a free name in its new
    class.
    """
    names = [path.relative_to(source).as_posix() for path in images.list_pictures(source)]
    kept = [name for name in names if name not in edits.removed]
    targets = {name: name for name in kept if name not in edits.relabelled}
    taken = set(targets.values())
    for name in kept:
        if name in edits.relabelled:
            candidates = _candidate_names(name, edits.relabelled[name], len(kept))
            targets[name] = next(free for free in candidates if free not in taken)
            taken.add(targets[name])
    return targets


def _candidate_names(name: str, label: str, count: int) -> Iterator[str]:
    """Its own name in the folder of its new label, then names that tell its old class."""
    path = Path(name)
    old = path.parts[0]
    yield f"{label}/{path.name}"
    yield f"{label}/{old}-{path.name}"
    for number in range(count):
        yield f"{label}/{old}-{number}-{path.name}"


def _write_decisions(path: Path, project: Project, edits: Edits) -> None:
    if edits.what == BY_DECISIONS:
        decided = project.decisions.current()
    else:
        decided: dict[int, Decision] = {int(id): ("remove", None) for id in edits.removed}
        decided |= {id: ("relabel", label) for id, label in edits.relabelled.items()}
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_LISTED)
    for id, (action, label) in sorted(decided.items()):
        if action != "undecided":
            row = project.instances.loc[id]
            score = f"{row['score']:.6g}"
            instance = row["source"], row["label"]
            writer.writerow([id, *instance, action, label or "", score, row["prediction"]])
    write_bytes(path, text.getvalue().encode())

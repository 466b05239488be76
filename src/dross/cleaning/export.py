"""`dross export`: a cleaned copy of the input, and the list of what was decided.

The input itself is never touched, and nothing is deleted that an export did not write.
"""

import csv
import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas

from .._io import delete_stale, hold_lock, make_folder, staged_file, sync_folder
from .._text import disarm_cell
from ..errors import CorruptFile, DrossError, InvalidInput, first_line
from . import images
from .chats import CHATS, check_same_format, copy_chats
from .edits import ChosenEdits, choose_edits
from .images import check_replaceable, write_pictures
from .inputs import check_output_file, check_output_folder, input_paths
from .memory import give_back, name_row, pixels_of
from .modality import PreparedData
from .project import Project
from .project_files import MEND, is_written_by_dross
from .reopen import check_unchanged, compare_inputs, names_code, reopen_data
from .tables import PARQUET, TABLES, RowEdits, copy_table

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


def export(
    folder: str | os.PathLike,
    to: str | os.PathLike,
    *,
    remove: int | None = None,
    relabel: int | None = None,
    plan: str | None = None,
    overwrite: bool = False,
) -> Exported:
    """Write a copy of the input without the removed instances and with the corrected labels.

    By default the decisions made on the page are applied; where there are none, the recommended
    plan. Rows of the validation and test parts stay as they are.

    Arguments:
        folder: a project, or the folder that `dross.clean` made.
        to: the cleaned copy: a .csv, .tsv or .parquet file, or a folder for pictures; for chats
            a file in the input's format, whose rows are kept byte for byte where possible.
        remove: instead, leave out the N most harmful instances.
        relabel: instead, give the N most probably mislabelled the label that the models predict.
        plan: follow a plan other than the recommended one: a name in `Project.plans`.
        overwrite: replace the copy if it is there. A folder of pictures is replaced only if an
            earlier export wrote all that is in it.

    Returns:
        Where the copy and the list of decisions are, and how many instances changed.

    Raises:
        InvalidInput: there is nothing to apply or nothing to copy, `to` is an input or touches one,
            or it is there already and may not be replaced.
        InputChanged: the data have changed since `dross.clean`.
        CorruptFile: the folder is not a finished project, or a file is damaged.
        DrossError: the copy cannot be written.

    Example:
        dross.export("runs/people", "people-cleaned.csv")
    """
    project, to = Project.open(folder), Path(to)
    request = project.request
    if project.info.kind == "custom" or names_code(request):
        raise InvalidInput(
            "The data came from a Python function; there is no file to copy. "
            "scores.csv has the places in the training part."
        )
    edits = choose_edits(project, remove, relabel, decisions=False, plan=plan)
    task = _Task(project, edits, Path(request.data), to)
    task.check_targets(overwrite)
    # rows are known by their places: it must be the scored input
    prepared = compare_inputs(project) if task.has_chats else reopen_data(project)
    try:
        make_folder(to.parent)
        with hold_lock(to.with_name(f".{to.name}.lock"), str(to)):
            task.check_targets(overwrite)
            delete_stale(to.parent, lambda name: name in (to.name, task.listed.name))
            written = task.write(prepared)
    except OSError as error:
        if isinstance(error, DrossError):
            raise DrossError(f"{error} Nothing else was changed.") from error
        reason = error.strerror or error
        raise DrossError(f"{to} cannot be written: {reason}. Nothing else was changed.") from error
    return Exported(to, task.listed, len(edits.removed), len(edits.relabelled), written)


def copy_for_python(project: Project, remove: int | None, relabel: int | None) -> Any:
    """What `Project.cleaned` returns."""
    request = project.request
    if names_code(request) or Path(request.data).is_dir():
        raise InvalidInput(
            "The data are pictures in a folder, or came from a Python function: there is no table "
            "to return. dross.export writes a cleaned folder; scores.csv has the places."
        )
    edits = choose_edits(project, remove, relabel, decisions=False)
    if project.info.kind == CHATS:
        compare_inputs(project)
        raw, _ = copy_chats(Path(request.data), _name_edits(project, edits).removed)
        return _read_rows(Path(request.data), raw)
    reopen_data(project)  # rows are known by their places: it must be the scored input
    source, label = Path(request.data), project.info.label
    named = _name_edits(project, edits)
    if request.given is None:
        kind = source.suffix.lower() if source.suffix.lower() in PARQUET else ".csv"
        raw, _ = copy_table(source, kind, label, named, request.reading)
        return (pandas.read_parquet if kind in PARQUET else pandas.read_csv)(io.BytesIO(raw))
    raw, _ = copy_table(source, ".parquet", label, named)
    try:
        frame = pandas.read_parquet(io.BytesIO(raw))
        return give_back(frame, label, request.given, pixels_of(source))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptFile(
            f"{project.folder} holds no valid record of how its data were given "
            f"({first_line(error)}). {MEND}"
        ) from error


def _read_rows(source: Path, raw: bytes) -> Any:
    """Conversations for Python: a DataFrame of Parquet, a list of rows of JSONL."""
    if source.suffix.lower() in PARQUET:
        return pandas.read_parquet(io.BytesIO(raw))
    return [json.loads(line) for line in raw.split(b"\n") if line.strip()]


def _name_edits(project: Project, edits: ChosenEdits) -> RowEdits:
    """The edits by the names of instances in the input: `row 17`, or a file name."""
    names = project.table["source"]
    if project.request.given is not None:
        names = names.map(name_row)
    return RowEdits(
        {names.loc[id] for id in edits.removed},
        {names.loc[id]: label for id, label in edits.relabelled.items()},
    )


@dataclass(frozen=True)
class _Task:
    """One export. Copy and list are made from the same edits: later decisions touch neither."""

    project: Project
    edits: ChosenEdits
    source: Path
    to: Path

    @property
    def has_chats(self) -> bool:
        """Whether the input is a file of conversations."""
        return self.project.info.kind == CHATS

    @property
    def listed(self) -> Path:
        """Where the list of decisions goes."""
        return self.to.with_name(f"{self.to.name}-decisions.csv")

    def check_targets(self, overwrite: bool) -> None:
        """Compare everything that will be written with everything that must stay."""
        if self.to.name in ("", ".."):
            raise InvalidInput(f"'{self.to}' is not a name for a copy. Give the copy its own name.")
        inputs = input_paths(self.project.request)
        is_folder = self.source.is_dir()
        if self.has_chats:
            check_same_format(self.source, self.to)
        elif not is_folder and self.to.suffix.lower() not in TABLES:
            names = ", ".join(TABLES)
            raise InvalidInput(f"{self.to.name} must be a table: end its name with {names}.")
        for path in (self.to, self.listed):
            check_output_file(path, inputs | self._listed_pictures())
            self._check_outside_of_project(path)
        if is_folder:
            check_output_folder(self.to, inputs | {"project": self.project.folder})
        for path in (self.to, self.listed):
            if path.exists() and not overwrite:
                raise InvalidInput(
                    f"{path} already exists. Choose another name, or pass `overwrite`."
                )
            if path.is_dir() and not (is_folder and path == self.to):
                raise InvalidInput(f"{path} is a folder. Choose another name.")
        if is_folder:
            check_replaceable(self.to)

    def _listed_pictures(self) -> dict[str, Path]:
        """The pictures of a table of pictures that have the name of one of the targets."""
        if self.project.info.kind != "images" or self.source.is_dir():
            return {}
        paths = [self.source.parent / name for name in map(str, self.project.content["path"])]
        targets = {self.to.resolve(), self.listed.resolve()}
        return {path.name: path for path in paths if path.resolve() in targets}

    def _check_outside_of_project(self, path: Path) -> None:
        folder, path = self.project.folder.resolve(), path.resolve()
        if folder in path.parents and is_written_by_dross(path.relative_to(folder).as_posix()):
            raise InvalidInput(f"{path} is a file of the project itself. Choose another name.")

    def write(self, prepared: PreparedData | None) -> int:
        """Write the copy and the list; the number of instances in the copy."""
        named = _name_edits(self.project, self.edits)
        confirm = lambda: _check_unchanged(self.project, prepared)
        with staged_file(self.listed, self._list_decisions()) as staged_list:
            if self.source.is_dir():
                targets = _place_pictures(self.source, named)
                write_pictures(self.source, self.to, targets, confirm=confirm)
                written = len(targets)
            else:
                raw, written = self._copy_table(named)
                confirm()  # it must not have changed since it was read for the copy
                with staged_file(self.to, raw) as staged_copy:
                    os.replace(staged_copy, self.to)
            os.replace(staged_list, self.listed)
            sync_folder(self.to.parent)
        return written

    def _copy_table(self, edits: RowEdits) -> tuple[bytes, int]:
        """The content of the copy, and how many rows it has."""
        if self.has_chats:
            return copy_chats(self.source, edits.removed)
        reading = self.project.request.reading
        kind, label = self.to.suffix.lower(), self.project.info.label
        return copy_table(self.source, kind, label, edits, reading)

    def _list_decisions(self) -> bytes:
        text = io.StringIO(newline="")
        writer = csv.writer(text)
        writer.writerow(_LISTED)
        for id, (action, label) in self.edits.decisions().items():
            row = self.project.table.loc[id]
            cells = [row["source"], row["label"], action, label or "", f"{row['score']:.6g}"]
            writer.writerow([id, *map(disarm_cell, [*cells, row["prediction"]])])
        return text.getvalue().encode()


def _check_unchanged(project: Project, prepared: PreparedData | None) -> None:
    if prepared is None:
        compare_inputs(project)
    else:
        check_unchanged(project, prepared)


def _place_pictures(source: Path, edits: RowEdits) -> dict[str, str]:
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

"""`dross export`: a cleaned copy of the input, and the list of what was decided.

The input itself is never touched. It is read once: the copy is made of the very bytes whose digest
was compared.
"""

import csv
import io
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .._checks import check_file_name, check_reachable
from .._io import delete_stale, digest_bytes, hold_lock, make_folder, staged_file, sync_folder
from .._text import disarm_cell
from ..errors import CorruptFile, DrossError, InvalidInput, first_line
from .chats import CHATS, check_same_format, copy_chats, load_chats
from .edits import ChosenEdits, choose_edits
from .files import Place, find_place, is_folder, read_bytes, split_suffix, stem_of
from .formats import FORMATS, copy_table, find_format, suffix_of_copy
from .images import copy_images
from .inputs import Request, check_output_file, check_output_folder, digest_inputs, input_paths
from .memory import pixels_of, restore_data
from .modality import PARTS, RowEdits
from .project import Project, compare_digests
from .project_files import MEND, is_written_by_dross

_LISTED = ("id", "source", "label", "decision", "new label", "score", "prediction")


@dataclass(frozen=True)
class Exported:
    """The result of `dross.export`.

    Attributes:
        cleaned: the cleaned copy: a file, or a folder of images.
        decisions: the CSV file that lists what was removed, relabeled or kept.
        removed, relabeled: the numbers of removed and of relabeled instances.
        written: the number of instances in the cleaned copy.
        unexamined: the number of further rows or images that were copied unchanged: those without
            a label, and images that cannot be opened.
        note: features of the input that the copy may lack; empty for most formats.
    """

    cleaned: Path
    decisions: Path
    removed: int
    relabeled: int
    written: int
    unexamined: int = 0
    note: str = ""


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

    By default, the decisions made on the review page are applied or, if there are none, the
    recommended plan. Rows of the validation and test sets stay as they are.

    Arguments:
        folder: a project, or the folder that `dross.clean` created.
        to: the cleaned copy: a table in the format that its name ends with, or a new folder for
            images; for chats a file in the input's format. A table in the input's format keeps
            the rows that are not changed as they are.
        remove: leave out the N most harmful instances instead.
        relabel: relabel the N instances most likely to be mislabeled instead: each gets the label
            that the models predict.
        plan: apply a plan other than the recommended one: a name in `Project.plans`.
        overwrite: replace the files if they exist. A folder of images is never replaced.

    Returns:
        Where the copy and the list of decisions are, and how many instances changed.

    Raises:
        InvalidInput: there is nothing to apply or nothing to copy, `to` is an input or touches one,
            or it exists and may not be replaced.
        InputChanged: the data has changed since `dross.clean`.
        CorruptFile: a file of the project is damaged.
        DrossError: the copy cannot be written.

    Example:
        dross.export("runs/people", "people-cleaned.csv")
    """
    project = Project.open(folder)
    check_file_name(os.fspath(to))
    check_reachable(to)
    to = Path(to)
    request = project.request
    if request.is_code:
        raise InvalidInput(
            "The data came from a Python function, so there is no file to copy. "
            "scores.csv lists the position of each instance in the training set."
        )
    edits = choose_edits(project, remove, relabel, decisions=False, plan=plan)
    listed = to.with_name(f"{_stem_of_copy(to, request)}-decisions.csv") if to.name else to
    _check_targets(project, request, to, listed)
    try:
        make_folder(to.parent)
        with hold_lock(to.with_name(f".{to.name}.dross-lock"), str(to)):
            decided = _list_decisions(project, edits)
            may_replace = overwrite and not is_folder(find_place(request.data))
            _check_free(to, may_replace)
            if not _holds(listed, decided):  # of the same copy in another format
                _check_free(listed, may_replace)
            delete_stale(to.parent, lambda name: name in (to.name, listed.name))
            with staged_file(listed, decided) as staged_list:
                copied = _write_copy(project, request, edits, to)
                os.replace(staged_list, listed)
                sync_folder(to.parent)
    except OSError as error:
        if isinstance(error, DrossError):
            raise DrossError(f"{error} No other file was changed.") from error
        reason = error.strerror or error
        raise DrossError(f"{to} cannot be written: {reason}. No other file was changed.") from error
    source = find_place(request.data)
    note = "" if is_folder(source) else find_format(source).not_copied
    written = _count_examined(project, request) - len(edits.removed)
    return Exported(
        cleaned=to,
        decisions=listed,
        removed=len(edits.removed),
        relabeled=len(edits.relabeled),
        written=written,
        unexamined=copied - written,
        note=note,
    )


def _stem_of_copy(to: Path, request: Request) -> str:
    """The name of the copy, without its suffix if the copy is a file."""
    return to.name if is_folder(find_place(request.data)) else stem_of(to)


def _count_examined(project: Project, request: Request) -> int:
    """How many instances were read from the file or folder that is copied."""
    counts = project.info.counts
    elsewhere = [part for part in PARTS[1:] if getattr(request, part) is not None]
    return sum(count for part, count in counts.items() if part not in elsewhere)


def _check_targets(project: Project, request: Request, to: Path, listed: Path) -> None:
    """Compare everything that will be written with everything that must stay."""
    if to.name in ("", ".."):
        raise InvalidInput(f"'{to}' cannot be used as the name of the copy. Choose another name.")
    source, inputs = find_place(request.data), input_paths(request)
    if project.modality is CHATS:
        check_same_format(source, to)
    elif not is_folder(source):
        _check_suffix(source, to)
    if request.images is not None and isinstance(source, Path):
        images = [source.parent / str(name) for name in project.content["path"]]
        targets = {to.resolve(), listed.resolve()}
        inputs |= {path.name: path for path in images if path.resolve() in targets}
    folder = project.folder.resolve()
    for path in (to, listed):
        check_output_file(path, inputs)
        place = path.resolve()
        if folder in place.parents and is_written_by_dross(place.relative_to(folder).as_posix()):
            raise InvalidInput(f"{path} is one of the project's own files. Choose another name.")
    if is_folder(source):
        check_output_folder(to, inputs | {"project": project.folder})


def _check_suffix(source: Place, to: Path) -> None:
    """Refuse the name of a copy that is in no format of tables, or in one that is only read."""
    suffix = split_suffix(to.name)[0]
    if suffix in FORMATS and not FORMATS[suffix].copied_as:
        return
    if suffix == split_suffix(source.name)[0] and suffix not in FORMATS:
        return  # a text with a name such as people.txt
    names = [name for name, form in FORMATS.items() if not form.copied_as]
    raise InvalidInput(
        f"{to.name} must be a table that dross can write, such as "
        f"{to.stem}{suffix_of_copy(source)}: its name must end in {', '.join(names)}."
    )


def _check_free(path: Path, overwrite: bool) -> None:
    if path.is_dir():
        raise InvalidInput(f"{path} is an existing folder. Choose another name.")
    if path.exists() and not overwrite:
        raise InvalidInput(f"{path} already exists. Choose another name, or pass `overwrite=True`.")


def _holds(path: Path, content: bytes) -> bool:
    return path.is_file() and path.read_bytes() == content


def _write_copy(project: Project, request: Request, edits: ChosenEdits, to: Path) -> int:
    """Write the copy; the number of rows or images in it."""
    source = find_place(request.data)
    compare_digests(project, digest_inputs(request, without="data"))
    if isinstance(source, Path) and is_folder(source):
        confirm = lambda digest: compare_digests(project, {"data": digest})
        return copy_images(source, to, _row_edits(project, edits), confirm=confirm)
    raw, written = _copy_file(project, request, edits, "".join(split_suffix(to.name)))
    with staged_file(to, raw) as staged:
        os.replace(staged, to)
    return written


def _copy_file(
    project: Project, request: Request, edits: ChosenEdits, suffix: str
) -> tuple[bytes, int]:
    """The bytes of the copy, and how many rows it has."""
    source = find_place(request.data)
    raw, rows = read_bytes(source), _row_edits(project, edits)
    compare_digests(project, {"data": digest_bytes(raw)})
    if project.modality is CHATS:
        return copy_chats(raw, source, rows)
    return copy_table(raw, source, suffix, project.info.label, rows, request.reading)


def _row_edits(project: Project, edits: ChosenEdits) -> RowEdits:
    """The edits by the rows of the input."""
    rows = project.table["row"].to_numpy()
    return RowEdits(
        set(rows[edits.removed].tolist()),
        {int(rows[id]): label for id, label in edits.relabeled.items()},
    )


def _list_decisions(project: Project, edits: ChosenEdits) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(_LISTED)
    for id, (action, label) in edits.decisions().items():
        row = project.table.loc[id]
        cells = [row["source"], row["label"], action, label or "", f"{row['score']:.6g}"]
        writer.writerow([id, *map(disarm_cell, [*cells, row["prediction"]])])
    return text.getvalue().encode()


def cleaned_data(project: Project, remove: int | None, relabel: int | None) -> Any:
    """What `Project.cleaned` returns."""
    request = project.request
    source = find_place(request.data)
    if request.is_code or is_folder(source):
        raise InvalidInput(
            "The data is a folder of images or was returned by a Python function, so there is no "
            "table to return. dross.export writes a cleaned folder of images; scores.csv lists the "
            "position of each instance."
        )
    edits = choose_edits(project, remove, relabel, decisions=False)
    compare_digests(project, digest_inputs(request, without="data"))
    suffix = suffix_of_copy(source)
    raw, _ = _copy_file(project, request, edits, suffix)
    if project.modality is CHATS:
        return load_chats(raw, source)
    frame = FORMATS[suffix].load(raw, request.reading)
    if request.memory is None:
        return frame
    try:
        return restore_data(
            frame, project.info.label, request.memory, pixels_of(Path(request.data))
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise CorruptFile(
            f"{project.folder} has no valid record of its data types ({first_line(error)}). {MEND}"
        ) from error

"""What `dross clean` leaves in a folder. The page, the verdict, the report and the export read it.

project.json          what was read, how it was split and trained, what is suggested
instances.parquet     one row per training instance: its label, its scores, its predictions
content.parquet       what each training instance looks like: columns, text, or file name of an image
validation.parquet    the same for the validation instances, with their labels
copies.parquet        training instances that occur twice, or in another set as well
labels.parquet        the labels that a person may check: of the validation file, else of all rows
tokens.parquet        for chats: the tokens of each example, and the effect of each
why.json              for the instances that a person looks at first: whom they hurt, what they
                      resemble, what is unusual about them
data/                 the data itself, where it came from Python and not as a file
images/               small copies of the images: train-000012.png, validation-000003.png
decisions.sqlite      what a person decided (decisions.py)
verdicts/             what `dross judge` found: one JSON file each
runs/                 the recorded training runs (tapes)
report.html, scores.parquet, scores.csv

checked.json          the labels that a person had checked when this was made
checks.json           the labels that were drawn for a check, with their weights
begun.json            the job of dross clean; without project.json it has not finished
dross.lock            while dross clean works

project.json is written last. It has the digests of the tables and of why.json, and one of itself.
"""

import importlib
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from .._checks import check_file_name, check_folder
from .._figures import open_axes
from .._io import hold_lock, make_folder
from ..errors import DrossError, InputChanged, InvalidInput
from .decisions import TRAIN, Decision, Decisions, set_decisions_aside
from .duplicates import FILE as COPIES
from .duplicates import Copies, split_content
from .explain import Reasons
from .features import encode_again
from .findings import show_project
from .inputs import Request, check_output_folder, digest_inputs, input_paths, prepare
from .memory import FOLDER as DATA
from .modality import PARTS, Frame, Modality, PreparedData, data_digest
from .plans import PlanResult, draw_plans, list_measures
from .project_files import (
    BEGUN,
    INFO,
    LOCK,
    check_no_links,
    delete_stale_files,
    delete_written,
    explain_missing,
    parse_json,
    read_intact,
    read_sealed,
    read_table,
    read_whole,
    write_sealed,
)
from .project_info import JobInfo, ProjectInfo
from .task import TASKS, Task
from .training import Recipe
from .user_code import import_function, source_digest

if TYPE_CHECKING:
    from .export import Exported
    from .verdict import Verdict

LABELS = "labels.parquet"
TOKENS = "tokens.parquet"
_PAGE = "dross.review.server"  # in a layer above this one
_FOR_PEOPLE = ("report.html", "scores.csv", "scores.parquet")
DIGESTED = (
    "instances.parquet",
    "content.parquet",
    "validation.parquet",
    COPIES,
    LABELS,
    "why.json",
)


@dataclass(frozen=True)
class Project:
    """Everything that `dross clean` found, read lazily from its folder.

    Make one with `dross.clean` or `Project.open`. Functions that take the folder of a project take
    the project as well.

    Example:
        project = dross.Project.open("runs/people")
        worst = project.table.sort_values("harm_rank").head(20)
        print(project.recommended, project.judge().sentence)
        project.export("people-cleaned.csv")
    """

    folder: Path
    info: ProjectInfo  # the content of project.json

    @staticmethod
    def open(folder: str | os.PathLike) -> "Project":
        """Open the folder of a completed `dross clean`.

        Arguments:
            folder: the folder that was passed to `dross.clean` as `out`.

        Returns:
            The project. Its tables are read only when they are used.

        Raises:
            InvalidInput: there is no such folder, or `dross clean` has not made or finished it.
            CorruptFile: project.json is damaged.
            DrossError: project.json cannot be read.
        """
        folder = Path(check_folder(folder, "folder"))
        if not (folder / INFO).is_file():
            raise InvalidInput(explain_missing(folder))
        return Project(folder, read_sealed(folder / INFO, ProjectInfo))

    def __fspath__(self) -> str:
        return str(self.folder)

    @property
    def request(self) -> Request:
        """The data and options that the project was made from."""
        return self.info.request.located(self.folder)

    @property
    def classes(self) -> list[str]:
        """The names of the classes, in the order of the model's outputs; none for a regression."""
        return self.info.classes

    @property
    def task(self) -> Task:
        """The task: whether the models predict classes or numbers."""
        return TASKS[self.info.task]

    @property
    def modality(self) -> Modality:
        """The kind of data in the project."""
        return self.info.modality

    @cached_property
    def table(self) -> Frame:
        """One row per training instance.

        Returns:
            A pandas.DataFrame [N], indexed by id: the position of an instance in the training set.
            Columns: row, its number in the input; source, the same for people; label, score, spread, harmful_in, learned_in, harm_rank, loss,
            training_loss, mislabel_rank, wrong (the probability that the label is wrong),
            prediction, probability, label_probability, outlier, verified, action: what the
            recommended plan does with it (keep, remove, or relabel as the prediction), and
            confidence: how sure that is, from 0 to 1.

            A negative score means that the instance makes the expected held-out error worse. Loss,
            prediction and the like come from models that were not trained on the instance; training_loss
            comes from models that did.

        Raises:
            CorruptFile: the file is missing, cannot be read, or is not as it was written.
        """
        return self._table("instances.parquet")

    @property
    def recommended(self) -> PlanResult | None:
        """The plan that `judge` and `export` use by default; None: do nothing."""
        return self.info.recommendation.plan

    @property
    def plans(self) -> list[PlanResult]:
        """The plans that were compared with changing nothing, the best first."""
        return self.info.recommendation.plans

    @cached_property
    def content(self) -> Frame:
        """What each training instance looks like.

        Returns:
            A pandas.DataFrame [N] in the order of `table`: the columns of a table, the column
            `text`, or the column `path` of images.

        Raises:
            CorruptFile: the file is missing, cannot be read, or is not as it was written.
        """
        return self._table("content.parquet")

    @cached_property
    def tokens(self) -> Frame:
        """For chats, the columns texts and effects, which hold lists. Effects add up to the
        example's score; they are nan for tokens that are not trained on. Raises as `content`.
        """
        return self._table(TOKENS)

    @cached_property
    def validation(self) -> Frame:
        """What each validation instance looks like, with its label.

        Returns:
            A pandas.DataFrame, indexed by position in the validation set: the columns of `content`,
            then ` source` and ` label`, whose names begin with a space.

        Raises:
            CorruptFile: the file is missing, cannot be read, or is not as it was written.
        """
        return self._table("validation.parquet")

    @cached_property
    def copies(self) -> Copies:
        """Training instances that occur twice or in another set as well, exactly or nearly.

        Returns:
            The copies in groups; see `Copies`.

        Raises:
            CorruptFile: the file is missing, cannot be read, or is not as it was written.
        """
        return split_content(self._table(COPIES), self.info.counts, self.folder / COPIES)

    @property
    def labels_to_check(self) -> Frame:
        """The labels that are most informative to check, the most informative first.

        Returns:
            A pandas.DataFrame: rows of `label_table` with a `rank`, in its order.

        Raises:
            CorruptFile: the file is missing, cannot be read, or is not as it was written.
        """
        table = self.label_table
        return table[table["rank"] >= 0].sort_values("rank", kind="stable")

    @cached_property
    def label_table(self) -> Frame:
        """The labels that a person may check: of the validation file, or else of all rows.

        Returns:
            A pandas.DataFrame, indexed by position in that set. Columns: source, label, wrong (the
            probability that it is), prediction, probability, label_probability, checked (right,
            wrong, relabeled, or empty), and rank, which is -1 if no check is requested.

        Raises:
            CorruptFile: the file is missing, cannot be read, or is not as it was written.
        """
        return self._table(LABELS)

    @property
    def checks_training(self) -> bool:
        """Whether the labels to check are training labels, because there is no validation file."""
        return not self.info.counts["validation"]

    @cached_property
    def _reasons(self) -> dict[int, Reasons]:
        path = self.folder / "why.json"
        return parse_json(
            read_whole(path, self.info.digests.get(path.name)), dict[int, Reasons], path
        )

    def why(self, id: int) -> Reasons:
        """Why an instance is suggested.

        Arguments:
            id: the id of a training instance.

        Returns:
            The held-out instances that it hurts, similar training instances, what is unusual about
            it, and the words or columns that speak for and against its label. Each is empty if it
            was not computed.

        Raises:
            CorruptFile: why.json is not JSON, or not as it was written.
        """
        return self._reasons.get(id, Reasons())

    def image(self, part: str, id: int) -> bytes | None:
        """A small copy of an instance's image.

        Arguments:
            part: `train`, `validation` or `test`; for the test set, only copies are kept.
            id: the position of the instance in that set.

        Returns:
            The bytes of a PNG file; None if there is no such image.
        """
        path = self.folder / "images" / f"{part}-{id:06d}.png"
        return path.read_bytes() if part in PARTS and path.is_file() else None

    @cached_property
    def decisions(self) -> Decisions:
        """The log of what people decided; see `Decisions`.

        Raises:
            CorruptFile: decisions.sqlite is damaged or not a file of dross.
            DrossError: it cannot be opened or written.
        """
        return Decisions(self.folder / "decisions.sqlite")

    def current_decisions(self, part: str = TRAIN) -> dict[int, Decision]:
        """The current decisions about a part: {id: (action, label)}. No file is created for it.

        Raises as `decisions`.
        """
        is_new = not (self.folder / "decisions.sqlite").exists()
        return {} if is_new and "decisions" not in self.__dict__ else self.decisions.current(part)

    def verdicts(self) -> list[dict[str, Any]]:
        """Every verdict of `dross judge` so far.

        Returns:
            The fields of each `Verdict` as a dict, newest last.

        Raises:
            CorruptFile: one of the files is not JSON, or not as it was written.
        """
        files = sorted((self.folder / "verdicts").glob("*.json"))
        return [read_sealed(path, dict[str, Any]) for path in files]

    def __repr__(self) -> str:
        count = f"{len(self.table):,} training instances"
        return f"<Project {self.info.name}: {count} in {self.folder}>"

    def _repr_html_(self) -> str:
        """In a notebook: what was found, the first suggestions, and the latest verdict."""
        return show_project(self.folder, self.info, self.table, self.verdicts())

    def plot(self, *, ax: Any = None) -> Any:
        """Plot how each plan changes the first metric, the error; the recommended plan is blue.

        Arguments, Returns, Raises: as `Scores.plot`.
        """
        ax = open_axes(ax)
        first = list_measures(self.plans)[:1]
        draw_plans([ax] * len(first), self.info.recommendation, first)
        return ax

    def judge(self, **options: Any) -> "Verdict":
        """Retrain with and without the edits, and compare: `dross.judge` with this project.

        Arguments, Returns, Raises: as `dross.judge`.
        """
        from .judge import judge

        return judge(self, **options)

    def export(self, to: str | os.PathLike, **options: Any) -> "Exported":
        """Write a cleaned copy of the input: `dross.export` with this project.

        Arguments, Returns, Raises: as `dross.export`.
        """
        from .export import export

        return export(self, to, **options)

    def review(self, **options: Any) -> None:
        """Serve the review page of this project until Ctrl-C is pressed, as `dross review` does.

        Arguments:
            options: `port`, `host`, `open_browser` and `trust_code`, as `dross review` takes them.

        Raises:
            InvalidInput: the port is taken.
        """
        importlib.import_module(_PAGE).serve(self, **options)

    def cleaned(self, *, remove: int | None = None, relabel: int | None = None) -> Any:
        """The data without the removed instances and with the corrected labels, as Python objects.

        The result is as in the file that `dross.export` writes: the decisions made on the review
        page are applied, else the recommended plan; files for validation and test stay as they are.

        Arguments:
            remove: leave out the N most harmful instances instead.
            relabel: relabel the N instances most likely to be mislabeled instead: each gets the
                label that the models predict.

        Returns:
            For `dross.clean(X, y)`, the pair (X, y), each in the type in which it was passed:
            arrays, tensors and sparse matrices with their dtype, frames and Series with the index
            of the remaining rows, lists as lists. Columns with objects of several types contain
            strings. For `dross.clean(frame, "label")`, and for a table in a file, a DataFrame.

        Raises:
            InvalidInput: there is nothing to apply, or the data is images in a folder or came from
                a function.
            InputChanged: the data has changed since `dross.clean`.
        """
        from .export import cleaned_data

        return cleaned_data(self, remove, relabel)

    def check_files(self) -> None:
        """Read and verify every file for which project.json contains a digest.

        Raises:
            CorruptFile: a file is missing or not as it was written.
        """
        for name, digest in self.info.digests.items():
            read_whole(self.folder / name, digest)

    def _table(self, name: str) -> Frame:
        return read_table(self.folder / name, self.info.digests.get(name))


# --- its input, read again ------------------------------------------------------------------------

_RESTORE = "Restore the original, or run dross clean again."


def needed_code(project: Project, *, needs_model: bool = True) -> list[str]:
    """The `module:function`s that `reopen_inputs` imports."""
    options = project.info.options
    needed = []
    if project.request.is_code:
        needed.append(project.request.data)
    if needs_model and options is not None and options.make is not None:
        needed.append(options.make)
    return needed


def reopen_inputs(
    project: Project, trust_code: Sequence[str] = (), *, needs_model: bool = True
) -> tuple[PreparedData, Recipe]:
    """Read the input once more, and make the recipe of the models.

    Arguments:
        project: The project.
        trust_code: The `module:function`s that may be imported. Being named in the project is not
            enough.
        needs_model: Whether the recipe is to build models. If not, no code is needed for them.

    Raises:
        InvalidInput: the project needs code that `trust_code` does not name.
        InputChanged: the input, or the code, has changed since `dross clean` read it.
    """
    info = project.info
    assert info.training is not None and info.options is not None  # only chats have none
    needed = needed_code(project, needs_model=needs_model)
    missing = [entry for entry in needed if entry not in trust_code]
    if missing:
        raise InvalidInput(
            f"{project.folder} was made with code that is not part of dross, and using the project "
            f"runs that code: {', '.join(missing)}. Read the code first; if you trust it, pass "
            f"`trust_code={needed}`."
        )
    compare_digests(project, digest_inputs(project.request))
    prepared = prepare(project.request)
    if data_digest(prepared) != info.digest:
        raise InputChanged(f"{info.request.data} has changed since dross clean read it. {_RESTORE}")
    prepared = encode_again(prepared, info.training.encoding, project.folder, info.digest)
    function = None
    if needs_model and info.options.make is not None:
        function = import_function(info.options.make)
        if source_digest(info.options.make) != info.model_source:
            raise InputChanged(
                f"The module that defines {info.options.make} has changed. {_RESTORE}"
            )
    return prepared, Recipe(**vars(info.training.recipe), make=function)


def compare_digests(project: Project, found: dict[str, str]) -> None:
    """Refuse input files that are not, byte for byte, those that `dross clean` read.

    Raises:
        InputChanged: one of them has changed.
    """
    for name, digest in found.items():
        if project.info.input_files.get(name) != digest:
            path = getattr(project.request, name, name)
            raise InputChanged(
                f"{path} has changed since dross clean read it, possibly only in a column or file "
                f"that the models do not use. {_RESTORE}"
            )


# --- the folder of a project that is being made ---------------------------------------------------


@dataclass(frozen=True)
class Begun:
    """The content of begun.json: which job a folder was claimed for."""

    job: str  # see `JobInfo.job`
    made_by: Literal["dross"] = "dross"


@contextmanager
def claimed_folder(folder: Path, info: JobInfo, overwrite: bool) -> Iterator[Project | None]:
    """Inside, no other process writes to the folder, and begun.json says whose it is.

    Arguments:
        folder: Where the results go.
        info: The job; its inputs must be elsewhere.
        overwrite: Delete the results of another job; without it they are refused.

    Returns:
        The project, if the folder contains the finished result of this job; else None.

    Raises:
        InvalidInput: the folder contains something else, or another process writes to it.
        DrossError: it cannot be written.
    """
    check_file_name(str(folder))
    if info.request.memory is None:  # else the folder itself keeps the inputs
        check_output_folder(folder, input_paths(info.request))
    if folder.exists() and not folder.is_dir():
        raise InvalidInput(f"{folder} is a file. Choose a folder with `out`.")
    if _names(folder) and _find_job(folder) is None:
        raise InvalidInput(
            f"{folder} exists and was not made by dross. Choose another folder with `out`."
        )
    try:
        make_folder(folder)
    except OSError as error:
        raise DrossError(f"{folder} cannot be created: {error.strerror or error}.") from error
    check_no_links(folder)
    with hold_lock(folder / LOCK, f"the folder {folder}"):
        delete_stale_files(folder)
        finished = _enter(folder, info, overwrite)
        if finished is None:
            write_sealed(folder / BEGUN, Begun(info.job))
        yield finished


def _names(folder: Path) -> set[str]:
    try:
        return {path.name for path in folder.iterdir()} - {LOCK} if folder.exists() else set()
    except OSError as error:
        raise DrossError(f"{folder} cannot be read: {error.strerror}.") from error


def _find_job(folder: Path) -> str | None:
    """The job that a folder was claimed for; None if dross did not claim it."""
    begun = read_intact(folder / BEGUN, Begun)
    if begun is not None:
        return begun.job
    info = read_intact(folder / INFO, ProjectInfo)
    return None if info is None else info.job


def _enter(folder: Path, info: JobInfo, overwrite: bool) -> Project | None:
    """Make room for a job, or find that it is done."""
    names = _names(folder)
    if not names:
        return None
    if _find_job(folder) == info.job:
        return _open_whole(folder)
    if overwrite:
        delete_written(folder)
        set_decisions_aside(folder)
        return None
    if BEGUN in names <= {BEGUN, DATA, "features"}:  # features are of one dataset each
        return None  # an attempt that failed before anything else was done
    raise InvalidInput(
        f"{folder} contains results from other data or other settings. Choose another folder with "
        "`out`, or replace it with `overwrite=True` (the decisions in it are set aside, not "
        "deleted)."
    )


def _open_whole(folder: Path) -> Project | None:
    """The project, if no file of it is missing or damaged; otherwise None."""
    try:
        project = Project.open(folder)
        project.check_files()
    except DrossError:
        return None
    return project if all((folder / name).exists() for name in _FOR_PEOPLE) else None

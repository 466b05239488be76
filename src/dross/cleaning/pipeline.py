"""`dross clean` itself: the order of its stages."""

import os
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas

from .._checks import check_folder, check_reachable
from .._figures import encode_png
from .._io import digest_file, sync_folder, temporary_folder, write_bytes, write_json
from .._progress import Overall, overall_progress, report
from .._text import disarm_cell
from .._version import __version__
from ..engine.device import choose_device
from ..errors import InvalidInput
from .checked_labels import CheckedLabels, discard_outdated_results, read_checked, read_earlier
from .csv_text import encode_csv
from .duplicates import FILE as COPIES
from .duplicates import MOST_COMPARED, Copies, CopyCounts, find_copies, join_content
from .examine import Outcome, examine
from .explain import Reasons
from .files import find_place, stem_of
from .images import load_thumbnail
from .inputs import Request, digest_inputs, prepare
from .job import Job, Say
from .memory import file_name, is_in_memory, keep_files, store_data
from .modality import PARTS, Frame, PreparedData, data_digest
from .model_choice import choose_backbone, count_trainings, find_recipe
from .project import DIGESTED, LABELS, Project, claimed_folder
from .project_files import INFO, USUAL, to_json, write_sealed
from .project_info import CheckedInfo, JobInfo, Options, ProjectInfo, TrainingInfo, VerificationInfo
from .report import write_report
from .training import SearchResult
from .user_code import source_digest

_STAGES = {  # how long each takes, compared with the others
    "search": 4,
    "copies": 1,
    "labels": 5,
    "plans": 12,
    "runs": 5,
    "checks": 2,
    "writing": 1,
}
_SEARCH_OF_IMAGES = 60  # the search trains on pixels, and on features that take as long to compute


def clean(
    data: Any,
    label: Any = None,
    *,
    out: str | os.PathLike | None = None,
    text: str | None = None,
    images: str | None = None,
    validation: Any = None,
    test: Any = None,
    task: str | None = None,
    columns: dict[str, str] | None = None,
    group: str | None = None,
    time: str | None = None,
    separator: str | None = None,
    na: Sequence[str] | None = None,
    sheet: str | None = None,
    features: str | os.PathLike | None = None,
    backbone: str | None = None,
    model: str | None = None,
    make: str | None = None,
    labels: str | None = None,
    repeats: int = 4,
    lr: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    check: int = 16,
    validation_is_clean: bool = False,
    seed: int = 0,
    device: str | None = None,
    overwrite: bool = False,
    progress: bool = True,
    say: Say | None = None,
) -> Project:
    """Find the training instances that make a model worse.

    The input is never touched. `dross review`, `dross judge` and `dross export` continue from the
    result. To resume a call that was stopped, repeat it with the same arguments. One that was
    finished scores again if validation labels have been checked on the page since.

    Arguments:
        data: a table (CSV, TSV, Excel, JSON Lines, Parquet or Feather; also compressed, and also
            behind a URL that fsspec reads); a folder of images with one folder per class; or
            module:function, which returns {"train": (x, y), "validation": ..., "test": ...}. Or the
            data itself: a DataFrame (pandas or polars), an Arrow table, a datasets.Dataset, an array, a tensor or a sparse matrix [N, features],
            images as an array [N, H, W] or [N, H, W, C], or a list of texts. The folder keeps a
            copy of them.
        label: the column to learn, or, for the data itself, the labels [N]. Images in folders
            need none.
        out: the folder for everything that is found; runs/NAME by default.
        text: the column that holds the text, where instances are texts.
        images: the column that holds the paths of images, where `data` is a table of them.
        validation, test: files or folders for these parts; where `data` is the data itself, pairs
            (X, y), or frames with the column `label`. They stay as they are. Without them, every
            row of `data` is examined, and plans are compared on rows that had no part in them.
        task: `classification` or `regression`. By default the labels decide.
        columns: {name: kind} for columns that are not what their cells look like. A kind is
            number, category, date, text or ignore.
        group: a column whose rows with the same value belong together, such as all rows of one
            customer: they are held out together. It is not learned from.
        time: a column with dates or numbers. The newest fifth of the rows is the test set: models
            learn the past and are judged on the future.
        separator: between the cells of a CSV file: one character, or `tab`. By default it is
            guessed.
        na: cells treated as missing, in addition to empty ones. By default `?`, `NA`, `N/A`, `nan`,
            `NaN`, `null`, `NULL`, `None` and `-`.
        sheet: the sheet of an Excel workbook. By default the first.
        features: a file of features to learn from instead: .npy [N, d], or Parquet whose columns
            are numbers. One row per instance: rows of a table as they stand, images sorted by
            path; then those of `validation`, then those of `test`.
        backbone: the pretrained model that looks at images or texts: `efficientnet-lite0`,
            `timm:NAME`, `torchvision:NAME`, `transformers:NAME`, `wordllama`,
            `sentence-transformers:NAME`, or `none`. By default the one that is installed, unless
            models do better on the validation set without it.
        model: `linear`, `mlp` or `cnn`. By default the held-out loss decides: for tables, which
            of `linear` and `mlp` is better; for images and texts, which inputs are.
        make: module:function that builds a torch.nn.Module, instead of `model`.
        labels: how the labels came about. `annotated`: annotators assigned them, and careful
            annotators would nearly always agree (topics, objects in images). `observed`: they
            record what happened (income, survival, default), so identical instances can have
            different labels. By default `annotated` for images and texts, and `observed` otherwise.
        repeats: how many independent runs the scores are averaged over.
        lr, epochs, batch_size: for training. By default a search finds the learning rate and the
            epochs.
        check: how many of the most harmful, and how many others, to check by retraining.
        validation_is_clean: treat every label of `validation` as right. Otherwise
            `Project.labels_to_check` lists those that are likely wrong.
        seed: decides the split, the initial weights and the order of the batches.
        device: where features are computed and models trained: `cpu`, `cuda` or `mps` (whose runs
            are recorded on the CPU). By default a CUDA GPU if there is one, otherwise the CPU.
        overwrite: replace what the folder holds. Decisions in it are set aside, not deleted.
        progress: show the progress on stderr: a bar on a terminal, otherwise a line now and then.
        say: a function that gets a sentence about each stage; by default nothing is said.

    Returns:
        The project in the folder `out`.

    Raises:
        InvalidInput: the data or an argument cannot be used, or the folder holds something else.
        Diverged: training diverges at every rate that was tried.
        DrossError: the folder cannot be written.

    Example:
        project = dross.clean("people.csv", "income", out="runs/people")
        worst = project.table.sort_values("harm_rank").head(20)
        X, y = dross.clean(X, y, out="runs/mine").cleaned()
    """
    if data is None:
        raise InvalidInput(
            "Pass the data: a path to a file or a folder, or a DataFrame or an array with its labels."
        )
    options = Options(
        model=model,
        make=make,
        repeats=repeats,
        lr=lr,
        epochs=epochs,
        batch_size=batch_size,
        check=check,
        validation_is_clean=validation_is_clean,
        labels=labels,
    )
    reading: dict[str, Any] = {
        "text": text,
        "images": images,
        "task": task,
        "columns": dict(columns or {}),
        "group": group,
        "time": time,
        "seed": seed,
        "separator": separator,
        "na": None if na is None else list(na),
        "sheet": sheet,
        "features": None if features is None else absolute(features),
        "backbone": backbone,
    }
    parts = {"validation": validation, "test": test}
    folder = default_folder(data) if out is None else Path(check_folder(out, "out"))
    where = choose_device(device)
    say = say or (lambda _: None)
    # for data from Python's memory, until the project's folder keeps them
    with temporary_folder() if is_in_memory(data) else nullcontext(folder) as place:
        request = make_request(data, label, parts, reading, place)
        located = request.located(place)
        files = digest_inputs(located)  # before they are read: what changes later is noticed
        prepared = prepare(located)
        _describe_data(prepared, say)
        backbone, advice = choose_backbone(request, options, prepared)
        if advice:
            say(advice)
        info = JobInfo(
            request=request,
            options=options,
            digest=data_digest(prepared),
            input_files=files,
            model_source=source_digest(make) if make else None,
        )
        job = Job(
            info=info,
            prepared=prepared,
            folder=folder,
            progress=progress,
            say=say,
            backbone=backbone,
            device=where,
        )
        say(_describe_labels(job))
        with claimed_folder(folder, info, overwrite) as finished:
            if request.memory is not None:
                keep_files(place, folder)
            checked = read_checked(folder, prepared)
            outdated = discard_outdated_results(folder, checked)
            if finished is not None and not outdated:
                say(f"There is nothing left to do: the results are already in {folder}.")
                return finished
            if checked:
                say(checked.describe())
            expected = _STAGES
            if prepared.source.modality.has_images:
                expected = _STAGES | {"search": _SEARCH_OF_IMAGES}
            with overall_progress("dross clean", expected, show=progress) as stages:
                project = _run_stages(job, checked, stages)
            report(project.info.recommendation.numbers, 0)
            return project


def make_request(
    data: Any, label: Any, parts: dict[str, Any], reading: dict[str, Any], place: Path
) -> Request:
    """The request for data. parts: the other files; place: where data from memory are written."""
    if is_in_memory(data):
        return _request_memory(data, label, parts, reading, place)
    return _request_files(data, label, parts, reading)


def _request_files(
    data: Any, label: str | None, parts: dict[str, Any], reading: dict[str, Any]
) -> Request:
    """The request for a file, a folder or a function."""
    for name, value in {"label": label, **parts}.items():
        if is_in_memory(value):
            raise InvalidInput(
                f"{name} is a {type(value).__name__}, but the data was passed as a path. Pass "
                "paths and names of columns, or pass the data itself: dross.clean(X, y)."
            )
    paths = {part: absolute(path) for part, path in parts.items() if path is not None}
    return Request(absolute(data), label, **paths, **reading)


def _request_memory(
    data: Any, label: Any, parts: dict[str, Any], reading: dict[str, Any], place: Path
) -> Request:
    """The request for data from Python's memory, which are written under `place` as files."""
    stored = store_data(data, label, parts, place, text=reading["text"], images=reading["images"])
    paths = {
        part: file_name(part) if is_in_memory(value) else absolute(value)
        for part, value in parts.items()
        if value is not None
    }
    reading = reading | {
        "text": stored.text,
        "images": stored.images,
        "columns": stored.columns | reading["columns"],
        "memory": stored.types,
    }
    return Request(file_name("train"), stored.label, **paths, **reading)


def absolute(path: str | os.PathLike) -> str:
    """An absolute path, as a project may be opened from elsewhere; other names stay as they are.

    Raises:
        InvalidInput: it leads to a pipe or the like, which cannot be read more than once, or may
            not be reached.
    """
    place = find_place(path)
    if not isinstance(place, Path):
        return str(path)
    check_reachable(place)
    if not os.path.exists(place):
        return str(path)
    if not os.path.isfile(place) and not os.path.isdir(place):
        raise InvalidInput(
            f"{path} is not a regular file, and dross reads its input more than once. Copy it into "
            "a file."
        )
    return str(place.resolve())


def default_folder(data: Any) -> Path:
    """The default folder of the results: a folder of runs/ in the current folder."""
    if is_in_memory(data):
        return Path(USUAL) / "data"
    place = find_place(data)
    code = place.name.partition(":")[0]  # of module:function
    return Path(USUAL) / (stem_of(Path(code)) or "data")


def _run_stages(job: Job, checked: CheckedLabels, stages: Overall) -> Project:
    """Everything after the data was read."""
    started = time.monotonic()
    stages.begin("search", bars=count_trainings(job))
    job, searched = find_recipe(job)
    stages.begin("copies")
    if len(job.prepared.source) > MOST_COMPARED:
        job.say(f"With more than {MOST_COMPARED:,} rows, dross looks for exact duplicates only.")
    copies, counts = find_copies(job.prepared, progress=job.progress)
    outcome = examine(job, searched, copies, checked, stages)
    stages.begin("writing")
    seconds = time.monotonic() - started
    return write_project(job, searched, outcome, copies=copies, counts=counts, seconds=seconds)


def _describe_data(prepared: PreparedData, say: Say) -> None:
    source = prepared.source
    what = f"predicting the numeric column '{source.label}'"
    if source.classes:
        what = f"predicting '{source.label}' ({len(source.classes)} classes)"
    sizes = {part: len(ids) for part, ids in prepared.parts.items()}
    others = "".join(f", {sizes[part]:,} for {part}" for part in PARTS[1:] if sizes[part])
    say(f"{sizes['train']:,} instances ({source.modality.name}), {what}{others}.")
    for note in prepared.notes:
        say(note)


def _describe_labels(job: Job) -> str:
    """Which kind of labels is taken for granted, and what it changes."""
    other = "observed" if job.labels == "annotated" else "annotated"
    how = "" if job.options.labels else f" (assumed; `labels={other!r}` changes this)"
    if job.labels == "annotated":
        return (
            f"Labels: annotated{how}. Annotators assigned them, and careful annotators would "
            "nearly always agree: a label that models find unlikely is probably wrong."
        )
    return (
        f"Labels: observed{how}. They record what happened, and identical instances can have "
        "different labels: an unlikely label is changed only on strong evidence."
    )


# --- writing the project --------------------------------------------------------------------------


def write_project(
    job: Job,
    searched: SearchResult,
    outcome: Outcome,
    *,
    copies: Copies,
    counts: CopyCounts,
    seconds: float,
) -> Project:
    """Fill the folder. project.json comes last, after the report: it says that the rest is whole.

    Arguments:
        job: What was asked for.
        searched: What the search for a recipe found.
        outcome: What was found about the instances.
        copies: In the data.
        counts: How many copies there are.
        seconds: How long everything took.
    """
    folder = job.folder
    source = job.prepared.source
    validation = job.prepared.part("validation")
    write_parts(
        folder,
        train=job.prepared.part("train").content.reset_index(drop=True).astype(object),
        validation=validation.content.reset_index(drop=True).astype(object),
        validation_names=validation.names,
        validation_labels=[source.task.show(label) for label in validation.labels],
        copies=copies,
        labels=outcome.labels,
        why=outcome.why,
    )
    _write_thumbnails(folder / "images", job.prepared, outcome, copies)
    info = ProjectInfo(
        **vars(job.info),
        dross=__version__,
        name=folder.name,
        kind=source.modality.name,
        task=source.task.name,
        label=source.label,
        classes=source.classes,
        counts={part: len(ids) for part, ids in job.prepared.parts.items()},
        runs=job.options.repeats,
        run_agreement=outcome.agreement,
        notes=job.prepared.notes,
        copies=counts,
        recommendation=outcome.recommendation,
        training=_describe_training(job, searched, outcome),
        seconds=round(seconds, 1),
        made=time.strftime("%Y-%m-%d %H:%M"),
    )
    return write_tables(folder, outcome.instances, info, DIGESTED)


def write_parts(
    folder: Path,
    *,
    train: Frame,
    validation: Frame,
    validation_names: list[str],
    validation_labels: list[str],
    copies: Copies,
    labels: Frame,
    why: dict[int, Reasons],
) -> None:
    """Write what the instances look like, their copies, and labels to check.

    Arguments:
        folder: Of the project.
        train: What training instances look like.
        validation: The same of validation instances.
        validation_names: Where these come from, for people.
        validation_labels: Their labels, as the file writes them.
        copies: In the data.
        labels: The content of labels.parquet.
        why: That of why.json.
    """
    write_bytes(folder / "content.parquet", train.to_parquet())
    named = {" source": validation_names, " label": validation_labels}
    whole = pandas.concat([validation, pandas.DataFrame(named, dtype=object)], axis=1)
    write_bytes(folder / "validation.parquet", whole.to_parquet())
    write_bytes(folder / COPIES, join_content(copies).to_parquet())
    write_bytes(folder / LABELS, labels.to_parquet())
    write_json(folder / "why.json", to_json(why))


def write_tables(
    folder: Path, instances: Frame, info: ProjectInfo, digested: Sequence[str]
) -> Project:
    """Write the scores, the report, and last project.json, which says that the rest is whole.

    Arguments:
        folder: Of the project.
        instances: The content of instances.parquet.
        info: That of project.json without the digests.
        digested: The files that it has digests of.
    """
    write_bytes(folder / "instances.parquet", instances.to_parquet())
    scores = instances.drop(columns="row").reset_index()  # `source` says it for people
    write_bytes(folder / "scores.parquet", scores.to_parquet())
    write_bytes(folder / "scores.csv", encode_csv(_disarm(scores)))
    info = replace(info, digests={name: digest_file(folder / name) for name in digested})
    write_report(Project(folder, info))
    write_sealed(folder / INFO, info)
    return Project.open(folder)


def _disarm(table: Frame) -> Frame:
    """Escape cells that a spreadsheet would run as formulas; all others stay as they are."""
    texts = table.select_dtypes(include=["object", "string"]).columns
    return table.assign(**{name: table[name].map(disarm_cell) for name in texts})


def _describe_training(job: Job, searched: SearchResult, outcome: Outcome) -> TrainingInfo:
    verification = outcome.checked.verification
    return TrainingInfo(
        recipe=outcome.recipe.settings,
        encoding=job.prepared.encoding,
        scale=job.prepared.scale,
        columns=job.prepared.columns,
        search=searched.curves,
        searched_epochs=searched.epochs,
        measure_scale=outcome.scale,
        labels=job.labels,
        noise=outcome.noise,
        verification=VerificationInfo(
            ids=outcome.verified_ids.tolist(),
            estimated=verification.estimated.tolist(),
            actual=verification.actual.tolist(),
            tau=verification.tau,
            spearman=verification.spearman,
        ),
        checked_labels=CheckedInfo(
            part=job.prepared.checked_part,
            count=len(outcome.labels),
            to_check=int((outcome.labels["rank"] >= 0).sum()),
            checked=int((outcome.labels["checked"] != "").sum()),
            wrong=int(outcome.labels["checked"].isin(["wrong", "relabeled"]).sum()),
            before=read_earlier(job.folder),
        ),
    )


def _write_thumbnails(
    folder: Path, prepared: PreparedData, outcome: Outcome, copies: Copies
) -> None:
    """Small copies of every training image, and of others that lists and reasons point at."""
    if prepared.root is None:
        return
    labels = outcome.labels
    hurt = {hurt.id for reasons in outcome.why.values() for hurt in reasons.hurts}
    same = {part: set(copies.ids(part)) for part in PARTS}
    questioned = labels.index[(labels["rank"] >= 0) | (labels["checked"] != "")]
    wanted = {"train": range(len(prepared.parts["train"])), "test": same["test"]}
    if len(prepared.parts["validation"]):
        wanted["validation"] = hurt | same["validation"] | set(questioned)
    folder.mkdir(exist_ok=True)
    for part, ids in wanted.items():
        paths = prepared.part(part).content["path"].tolist()
        for id in ids:
            small = encode_png(load_thumbnail(prepared.root / paths[id]))
            write_bytes(folder / f"{part}-{id:06d}.png", small, sync=False)
    sync_folder(folder)

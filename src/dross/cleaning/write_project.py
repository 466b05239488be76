"""Write everything that `project.py` lists, and the report."""

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pandas

from .._figures import encode_png
from .._io import digest_file, sync_folder, write_bytes, write_json
from .._text import disarm_cell
from .._version import __version__
from .checked_labels import read_earlier
from .duplicates import FILE as COPIES
from .duplicates import Copies, CopyCounts, join_content
from .examine import Outcome
from .images import load_thumbnail
from .job import Job
from .modality import PARTS, Frame, PreparedData
from .project import DIGESTED, LABELS, Project
from .project_files import INFO, to_json, write_sealed
from .project_info import CheckedInfo, ProjectInfo, TrainingInfo, VerificationInfo
from .report import write_report
from .training import SearchResult


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
    _write_content(folder, job.prepared)
    write_bytes(folder / COPIES, join_content(copies).to_parquet())
    write_bytes(folder / LABELS, outcome.labels.to_parquet())
    _write_pictures(folder / "pictures", job.prepared, outcome, copies)
    write_json(folder / "why.json", to_json(outcome.why))
    source = job.prepared.source
    info = ProjectInfo(
        **vars(job.info),
        dross=__version__,
        name=folder.name,
        kind=source.kind,
        task=source.task,
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
    scores = instances.reset_index()
    write_bytes(folder / "scores.parquet", scores.to_parquet())
    write_bytes(folder / "scores.csv", _disarm(scores).to_csv(index=False).encode())
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
            wrong=int(outcome.labels["checked"].isin(["wrong", "relabelled"]).sum()),
            before=read_earlier(job.folder),
        ),
    )


def _write_content(folder: Path, prepared: PreparedData) -> None:
    train, validation = prepared.part("train"), prepared.part("validation")
    content = train.content.reset_index(drop=True).astype(object)
    write_bytes(folder / "content.parquet", content.to_parquet())
    content = validation.content.reset_index(drop=True).astype(object)
    labels = [str(label) for label in validation.labels]
    named = pandas.DataFrame({" source": validation.names, " label": labels}, dtype=object)
    content = pandas.concat([content, named], axis=1)
    write_bytes(folder / "validation.parquet", content.to_parquet())


def _write_pictures(folder: Path, prepared: PreparedData, outcome: Outcome, copies: Copies) -> None:
    """Small copies of every training picture, and of others that lists and reasons point at."""
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

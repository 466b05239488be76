"""Write everything that `project.py` lists, and the report."""

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas

from .._figures import encode_png
from .._io import digest_file, sync_folder, write_bytes, write_json
from .._text import disarm_cell
from .._version import __version__
from .checked_labels import read_earlier
from .duplicates import FILE as COPIES
from .duplicates import Copies, join_content
from .examine import Outcome
from .images import load_thumbnail
from .job import Job
from .modality import PARTS, Frame, PreparedData
from .project import DIGESTED, LABELS, Project
from .project_files import ABOUT, write_sealed
from .report import write_report
from .training import SearchResult


def write_project(
    job: Job,
    searched: SearchResult,
    outcome: Outcome,
    *,
    copies: Copies,
    counts: dict[str, int],
    begun: dict[str, Any],
    seconds: float,
) -> Project:
    """Fill the folder. project.json comes last, after the report: it says that the rest is whole.

    Arguments:
        job: What was asked for.
        searched: What the search for a recipe found.
        outcome: What was found about the instances.
        copies: In the data.
        counts: How many copies there are.
        begun: The content of begun.json.
        seconds: How long everything took.
    """
    folder = job.folder
    _write_content(folder, job.prepared)
    write_bytes(folder / COPIES, join_content(copies).to_parquet())
    write_bytes(folder / LABELS, outcome.labels.to_parquet())
    _write_pictures(folder / "pictures", job.prepared, outcome, copies)
    write_json(folder / "why.json", outcome.why)
    about = begun | _describe_project(job, searched, outcome, seconds)
    about |= {"copies": counts, "checked_labels": _describe_checked(job, outcome.labels)}
    return write_tables(folder, outcome.instances, about, DIGESTED)


def write_tables(
    folder: Path, instances: Frame, about: dict[str, Any], digested: Sequence[str]
) -> Project:
    """Write the scores, the report, and last project.json, which says that the rest is whole.

    instances: the content of instances.parquet; about: that of project.json without the digests;
    digested: the files that it has digests of.
    """
    write_bytes(folder / "instances.parquet", instances.to_parquet())
    scores = instances.reset_index()
    write_bytes(folder / "scores.parquet", scores.to_parquet())
    write_bytes(folder / "scores.csv", _disarm(scores).to_csv(index=False).encode())
    about = about | {"digests": {name: digest_file(folder / name) for name in digested}}
    about = json.loads(json.dumps(about))  # as it is read later
    write_report(Project.describe(folder, about))
    write_sealed(folder / ABOUT, about)
    return Project.open(folder)


def _disarm(table: Frame) -> Frame:
    """Escape cells that a spreadsheet would run as formulas; all others stay as they are."""
    texts = table.select_dtypes(include=["object", "string"]).columns
    return table.assign(**{name: table[name].map(disarm_cell) for name in texts})


def _describe_project(
    job: Job, searched: SearchResult, outcome: Outcome, seconds: float
) -> dict[str, Any]:
    """The content of project.json, without that of begun.json and the digests of the files."""
    prepared, options, verification = job.prepared, job.options, outcome.checked.verification
    source = prepared.source
    return {
        "dross": __version__,
        "name": job.folder.name,
        "kind": source.kind,
        "task": source.task,
        "label": source.label,
        "classes": source.classes,
        "counts": {part: len(ids) for part, ids in prepared.parts.items()},
        "runs": options.repeats,
        "recipe": outcome.recipe.to_json(),
        "encoding": prepared.encoding,
        "notes": prepared.notes,
        "scale": prepared.scale,
        "columns": [asdict(column) for column in prepared.columns],
        "search": {str(rate): losses for rate, losses in searched.curves.items()},
        "searched_epochs": searched.epochs,
        "measure_scale": outcome.scale,
        "run_agreement": outcome.agreement,
        "labels": job.labels,
        "labels_assumed": options.labels is None,
        "validation_is_clean": options.validation_is_clean,
        "noise": outcome.noise,
        "recommendation": outcome.recommendation.to_json(),
        "verification": {
            "ids": outcome.verified_ids.tolist(),
            "estimated": verification.estimated.tolist(),
            "actual": verification.actual.tolist(),
            "tau": verification.tau,
            "spearman": verification.spearman,
        },
        "seconds": round(seconds, 1),
        "made": time.strftime("%Y-%m-%d %H:%M"),
    }


def _describe_checked(job: Job, labels: Frame) -> dict[str, Any]:
    return {
        "part": job.prepared.checked_part,
        "count": len(labels),
        "to_check": int((labels["rank"] >= 0).sum()),
        "checked": int((labels["checked"] != "").sum()),
        "wrong": int(labels["checked"].isin(["wrong", "relabelled"]).sum()),
        "before": read_earlier(job.folder),
        "trusted": job.options.validation_is_clean,
    }


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
    hurt = {entry[0] for reasons in outcome.why.values() for entry in reasons.get("hurts", [])}
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

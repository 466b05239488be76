"""Write everything that `project.py` lists, and the report."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..._version import __version__
from ...support.atomic_files import write_bytes, write_json
from ...support.png import encode_png
from ..inputs.images import load_thumbnail
from ..inputs.prepared import PreparedData
from ..inputs.user_code import source_digest
from ..learning.train_many import SearchResult
from ..project import ABOUT, FORMAT, Project
from ..report import write_report
from .job import Job
from .rounds import Outcome


def write_project(
    job: Job, searched: SearchResult, outcome: Outcome, why: dict[str, Any], seconds: float
) -> Project:
    """Fill the folder. project.json comes after all that it needs: it says that the rest is whole.

    why: the content of why.json; seconds: how long everything took.
    """
    folder = job.folder
    write_bytes(folder / "instances.parquet", outcome.instances.to_parquet())
    _write_content(folder, job.prepared)
    _write_pictures(folder / "pictures", job.prepared, why)
    write_json(folder / "why.json", why)
    write_json(folder / ABOUT, _describe_project(job, searched, outcome, seconds))
    scores = outcome.instances.reset_index()
    write_bytes(folder / "scores.parquet", scores.to_parquet())
    write_bytes(folder / "scores.csv", scores.to_csv(index=False).encode())
    project = Project.open(folder)
    write_report(project)
    return project


def _describe_project(
    job: Job, searched: SearchResult, outcome: Outcome, seconds: float
) -> dict[str, Any]:
    """The content of project.json."""
    prepared, options, verification = job.prepared, job.options, outcome.checked.verification
    source = prepared.source
    return {
        "made_by": "dross",
        "format": FORMAT,
        "dross": __version__,
        "name": job.folder.name,
        "kind": source.kind,
        "task": source.task,
        "label": source.label,
        "classes": source.classes,
        "counts": {part: len(ids) for part, ids in prepared.parts.items()},
        "runs": options.runs,
        "rounds": options.rounds,
        "request": job.request.to_json(),
        "options": asdict(options),
        "digest": job.digest,
        "model_source": None if options.make is None else source_digest(options.make),
        "recipe": outcome.recipe.to_json(),
        "notes": prepared.notes,
        "scale": prepared.scale,
        "columns": [asdict(column) for column in prepared.columns],
        "search": {str(rate): losses for rate, losses in searched.curves.items()},
        "suggested": {"m": outcome.suggested, "reason": outcome.reason},
        "curve": outcome.curve.to_json(),
        "verification": {
            "ids": outcome.active[verification.instances].tolist(),
            "estimated": verification.estimated.tolist(),
            "actual": verification.actual.tolist(),
            "tau": verification.tau,
            "spearman": verification.spearman,
        },
        "seconds": round(seconds, 1),
        "made": time.strftime("%Y-%m-%d %H:%M"),
    }


def _write_content(folder: Path, prepared: PreparedData) -> None:
    train, validation = prepared.part("train"), prepared.part("validation")
    content = train.content.reset_index(drop=True).astype(object)
    write_bytes(folder / "content.parquet", content.to_parquet())
    content = validation.content.reset_index(drop=True).astype(object)
    content[" source"] = validation.names
    content[" label"] = [str(label) for label in validation.labels]
    write_bytes(folder / "validation.parquet", content.to_parquet())


def _write_pictures(folder: Path, prepared: PreparedData, why: dict[str, Any]) -> None:
    """Small copies of every training picture, and of validation pictures that reasons point at."""
    if prepared.root is None:
        return
    hurt = {entry[0] for reasons in why.values() for entry in reasons.get("hurts", [])}
    wanted = {"train": range(len(prepared.parts["train"])), "validation": hurt}
    folder.mkdir(exist_ok=True)
    for part, ids in wanted.items():
        paths = prepared.part(part).content["path"].tolist()
        for id in ids:
            small = encode_png(load_thumbnail(prepared.root / paths[id]))
            write_bytes(folder / f"{part}-{id:06d}.png", small, sync=False)

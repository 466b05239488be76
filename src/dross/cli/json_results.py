"""What `--json` prints: the results of `dross clean` and `dross judge` as one object each."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .._version import __version__

if TYPE_CHECKING:
    from ..cleaning.plans import PlanResult
    from ..cleaning.project import Project
    from ..cleaning.verdict import Verdict


def project_as_json(project: "Project") -> dict[str, Any]:
    """What `dross clean` found, and where the tables are that have a row per instance."""
    from ..cleaning.findings import list_findings

    about, folder = project.about, project.folder
    recommended = project.recommended
    return {
        "dross": __version__,
        "folder": str(folder),
        "report": str(folder / "report.html"),
        "scores": str(folder / "scores.csv"),
        "kind": about["kind"],
        "classes": about["classes"],
        "counts": about["counts"],
        "runs": about["runs"],
        "recommended": None if recommended is None else _plan_as_json(recommended),
        "plans": [_plan_as_json(plan) for plan in project.plans],
        "state": about["recommendation"]["state"],
        "reason": about["recommendation"]["reason"],
        "probably_mislabelled": int((project.instances["mislabel_rank"] >= 0).sum()),
        "labels_to_check": [int(id) for id in project.labels_to_check.index],
        "findings": list_findings(about, project.instances),
    }


def _plan_as_json(plan: "PlanResult") -> dict[str, Any]:
    return {
        "name": plan.name,
        "what": plan.what,
        "removed": [int(id) for id in plan.removed],
        "relabelled": {str(id): label for id, label in plan.relabelled.items()},
        "figures": {name: asdict(figure) for name, figure in plan.figures.items()},
    }


def verdict_as_json(verdict: "Verdict", folder: Path) -> dict[str, Any]:
    """A verdict as it is in the folder `verdicts`, and where the report is."""
    places = {"folder": str(folder), "report": str(folder / "report.html")}
    return {"dross": __version__, **places, **verdict.to_json()}

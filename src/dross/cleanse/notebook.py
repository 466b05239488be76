"""What a project looks like in a notebook."""

from pathlib import Path
from typing import Any

from .findings import list_findings
from .inputs.source import Frame

_COLUMNS = ["source", "label", "prediction", "score", "harmful_in", "loss"]
_SHOWN = 10  # instances


def show_project(
    folder: Path, about: dict[str, Any], instances: Frame, verdicts: list[dict[str, Any]]
) -> str:
    """What was found, the first suggestions, and the latest verdict, as HTML."""
    from ..support.html import render, safe

    first = instances.sort_values("harm_rank").head(_SHOWN)
    return render(
        "project.html",
        findings=list_findings(about, instances),
        table=safe(first[_COLUMNS].to_html(border=0)),
        folder=str(folder),
        verdict=verdicts[-1] if verdicts else None,
    )

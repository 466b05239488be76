"""A project to review that asks for checks of labels of its validation file."""

import json

from dross.cleaning.project import Project
from tests.review.review_project import make_labels


def add_checks(project, wanted=5, trusted=False):
    """Ask for checks of its first labels; the first in the list is validation instance 0."""
    table = make_labels(project.validation, project.classes, wanted)
    table.to_parquet(project.folder / "labels.parquet")
    said = {"part": "validation", "count": len(table), "to_check": wanted, "checked": 0}
    said |= {"before": None}
    about = json.loads((project.folder / "project.json").read_text())
    text = json.dumps(about | {"checked_labels": said | {"trusted": trusted, "wrong": 0}})
    (project.folder / "project.json").write_text(text)
    return Project.open(project.folder)

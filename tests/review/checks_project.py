"""A project to review that asks for checks of labels of its validation file."""

from dataclasses import replace

from dross.cleaning.project import Project
from dross.cleaning.project_files import write_sealed
from dross.cleaning.project_info import CheckedInfo
from tests.review.review_project import make_labels


def add_checks(project, wanted=5, trusted=False):
    """Ask for checks of its first labels; the first in the list is validation instance 0."""
    table = make_labels(project.validation, project.classes, wanted)
    table.to_parquet(project.folder / "labels.parquet")
    info = project.info
    labels = CheckedInfo("validation", len(table), to_check=wanted, checked=0, wrong=0, before=None)
    info = replace(
        info,
        options=replace(info.options, validation_is_clean=trusted),
        training=replace(info.training, checked_labels=labels),
    )
    write_sealed(project.folder / "project.json", info)
    return Project.open(project.folder)

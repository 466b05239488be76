"""What `dross clean` leaves in a folder, and everything that the page, the verdict, the report and the export read from it.

project.json          what was read, how it was split and trained, what is suggested
instances.parquet     one row per training instance: its label, its scores, what the models say of it
content.parquet       what each training instance looks like: its columns, its text, or the name of its picture
validation.parquet    the same of the validation instances, with their labels
why.json              for the instances that a person will look at first: whom they hurt, what they resemble, what is unusual
pictures/             small copies of the pictures: train-000012.png, validation-000003.png
decisions.sqlite      what a person decided (decisions.py)
verdicts/             what `dross judge` found: one JSON file each
runs/                 the recorded training runs (tapes)
report.html, scores.parquet, scores.csv
"""

import json
import os
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import StorageFailed, TapeDamaged, TapeMismatch
from .decisions import Decisions
from .inputs.source import Frame, import_pandas

FORMAT = 1
ABOUT = "project.json"


@dataclass(frozen=True)
class Project:
    folder: Path

    @staticmethod
    def open(folder: str | os.PathLike) -> "Project":
        project = Project(Path(folder))
        if not (project.folder / ABOUT).is_file():
            raise TapeDamaged(_why_not(project.folder))
        about = project.about
        if not isinstance(about, dict) or about.get("made_by") != "dross":
            raise TapeDamaged(f"{project.folder / ABOUT} was not written by dross.")
        if about.get("format") != FORMAT:
            raise TapeMismatch(
                f"{folder} has format {about.get('format')}; this dross reads format {FORMAT}. Run dross clean again."
            )
        return project

    @cached_property
    def about(self) -> dict[str, Any]:
        return read_json(self.folder / ABOUT)

    @property
    def classes(self) -> list[str]:
        """The names of the classes; none for a regression."""
        return self.about["classes"]

    @cached_property
    def instances(self) -> Frame:
        """Indexed by id, the place of an instance in the training part. Columns: source, label, score, spread, harmful_in, harm_rank,
        loss, training_loss, mislabel_rank, prediction, probability, label_probability, agreement, outlier, verified. What the models say of an
        instance (loss, prediction, ...) is asked of models that did not learn it; training_loss of those that did."""
        return self._table("instances.parquet")

    @cached_property
    def content(self) -> Frame:
        return self._table("content.parquet")

    @cached_property
    def validation(self) -> Frame:
        """Indexed by place in the validation part: the content, and the columns `source` and `label`, prefixed with a space."""
        return self._table("validation.parquet")

    @cached_property
    def _why(self) -> dict[str, Any]:
        path = self.folder / "why.json"
        return read_json(path) if path.exists() else {}

    def why(self, id: int) -> dict[str, Any]:
        """hurts: [[validation id, change of its loss without this instance, verified?], ...]; similar: [training ids];
        unusual: {column: in words}; words: [[word, how much it speaks for the given label], ...]. Empty where nothing was worked out."""
        return {"hurts": [], "similar": [], "unusual": {}, "words": []} | self._why.get(str(id), {})

    def picture(self, part: str, id: int) -> bytes | None:
        """The PNG file of an instance, if it has one. part: train or validation."""
        path = self.folder / "pictures" / f"{part}-{id:06d}.png"
        return path.read_bytes() if part in ("train", "validation") and path.is_file() else None

    @cached_property
    def decisions(self) -> Decisions:
        return Decisions(self.folder / "decisions.sqlite")

    def verdicts(self) -> list[dict[str, Any]]:
        """Newest last."""
        return [read_json(path) for path in sorted((self.folder / "verdicts").glob("*.json"))]

    def __repr__(self) -> str:
        return f"<Project {self.about['name']}: {len(self.instances):,} training instances in {self.folder}>"

    def _repr_html_(self) -> str:
        """In a notebook: what was found, the first suggestions, and the latest verdict."""
        from ..support.html import render, safe
        from .report import findings

        first = self.instances.sort_values("harm_rank").head(10)
        columns = ["source", "label", "prediction", "score", "harmful_in", "loss"]
        verdicts = self.verdicts()
        return render(
            "project.html",
            findings=findings(self),
            table=safe(first[columns].to_html(border=0)),
            folder=str(self.folder),
            verdict=verdicts[-1] if verdicts else None,
        )

    def _table(self, name: str) -> Frame:
        path = self.folder / name
        try:
            return import_pandas().read_parquet(path)
        except FileNotFoundError:
            raise TapeDamaged(
                f"{path} is missing. Run dross clean again; decisions that were made are kept."
            ) from None
        except (OSError, ValueError) as error:
            raise TapeDamaged(
                f"{path} cannot be read ({error}). Run dross clean again; decisions that were made are kept."
            ) from None


def _why_not(folder: Path) -> str:
    if not folder.exists():
        return f"There is no folder {folder}. Run dross clean first."
    if (folder / "begun.json").exists():
        return f"dross clean has not finished in {folder}. Give the same command again to go on."
    return f"{folder} is not a folder that `dross clean` made: {ABOUT} is missing. Run dross clean first."


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except ValueError as error:
        raise TapeDamaged(
            f"{path} is not readable JSON ({error}). Run dross clean again; decisions that were made are kept."
        ) from None
    except OSError as error:
        raise StorageFailed(f"{path} cannot be read: {error.strerror}.") from error

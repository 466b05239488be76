"""A project to review whose validation labels are partly doubted."""

import json

import numpy as np
import pandas as pd

from dross.cleanse.project import Project


def add_doubts(project, doubted=5, trusted=False):
    """Write what models say of its validation labels; the first in the list is instance 0."""
    labels, count = list(project.validation[" label"]), len(project.validation)
    rank = np.where(np.arange(count) < doubted, np.arange(count), -1)
    classes = project.classes
    other = lambda label: classes[(classes.index(label) + 1) % len(classes)] if classes else "12.5"
    table = pd.DataFrame(
        {
            "source": project.validation[" source"],
            "label": labels,
            "wrong": np.where(rank < 0, 0.02, 0.96),
            "prediction": [other(x) if k < doubted else x for k, x in enumerate(labels)],
            "probability": 0.9 if classes else np.nan,
            "label_probability": 0.05 if classes else np.nan,
            "change": np.where(rank < 0, 0.0, (0.5 - 0.08 * rank) * (-1.0) ** rank),
            "checked": "",
            "rank": rank,
        },
        index=pd.RangeIndex(count, name="id"),
    )
    table.to_parquet(project.folder / "doubts.parquet")
    said = {"count": count, "doubted": doubted, "trusted": trusted, "checked": 0}
    about = json.loads((project.folder / "project.json").read_text())
    text = json.dumps(about | {"validation_labels": said})
    (project.folder / "project.json").write_text(text)
    return Project.open(project.folder)

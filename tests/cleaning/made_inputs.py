"""Inputs for the tests of cleansing: tables, flipped labels, data and a model of one's own."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas
import pytest
from experiments.datasets import load
from torch import nn

from dross._io import seal
from dross.cleaning.plans import Figure, PlanResult, Recommendation
from dross.cleaning.project import Begun, Project
from dross.cleaning.project_files import write_sealed

QUICK = {"repeats": 2, "epochs": 8, "lr": 0.05, "check": 4, "progress": False}


def flipped(labels: np.ndarray, share: float, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Labels with a share of them changed to another that occurs, and which."""
    rng = np.random.default_rng(seed)
    kinds, wrong, bad = np.unique(labels), labels.copy(), rng.random(len(labels)) < share
    for k in np.flatnonzero(bad):
        wrong[k] = rng.choice(kinds[kinds != labels[k]])
    return wrong, bad


def write_parts(frame: pandas.DataFrame, label: str, folder: Path, share: float) -> np.ndarray:
    """Three files; only the training labels are flipped. Returns which."""
    order = np.random.default_rng(1).permutation(len(frame))
    cut = np.split(order, [int(0.6 * len(order)), int(0.8 * len(order))])
    train = frame.iloc[cut[0]].copy()
    train[label], bad = flipped(train[label].to_numpy(), share)
    parts = {"train": train, "validation": frame.iloc[cut[1]], "test": frame.iloc[cut[2]]}
    for name, part in parts.items():
        part.to_csv(folder / f"{name}.csv", index=False)
    return bad


def other_parts(folder: Path) -> dict[str, str]:
    """The files beside the training part, as options of dross.clean."""
    return {"validation": str(folder / "validation.csv"), "test": str(folder / "test.csv")}


def load_or_skip(name: str):
    try:
        return load(name)
    except OSError as missing:
        pytest.skip(str(missing))


def enrichment(project: Project, bad: np.ndarray, column: str = "harm_rank") -> float:
    """The share of flipped ones among as many first suggestions, over their share everywhere."""
    first = (project.table[column] >= 0) & (project.table[column] < bad.sum())
    return float(bad[first.to_numpy()].mean() / bad.mean())


def small_table(path: Path, count: int = 150, **more) -> Path:
    """A table with a number, a category, a date and the label `kind`."""
    rng = np.random.default_rng(0)
    size, colour = rng.normal(size=count), rng.choice(["red", "blue", None], count)
    days = pandas.date_range("2024-01-01", periods=count).strftime("%d.%m.%Y")
    kind = np.where(size + (colour == "red") > 0.3, "yes", "no")
    frame = pandas.DataFrame({"size": size.round(3), "colour": colour, "when": days, "kind": kind})
    frame.assign(**more).to_csv(path, index=False)
    return path


def copy_project(folder: Path, to: Path) -> Path:
    """A copy of a folder with inputs and the project `run`, whose paths lead to the copy."""
    shutil.copytree(folder, to)
    run = to / "run"
    edit_json(run / "project.json", lambda text: text.replace(str(folder), str(to)))
    write_sealed(run / "begun.json", Begun(Project.open(run).info.job))
    return run


def edit_json(path: Path, change: Callable[[str], str]) -> None:
    """Change the text of one of a project's JSON files, as somebody who can seal it anew."""
    content = json.loads(change(path.read_text()))
    content.pop("sha256", None)
    path.write_text(json.dumps(seal(content)))


def change_json(path: Path, change: Callable[[dict], object]) -> None:
    """Change the content of one of a project's JSON files in place, and seal it anew."""

    def rewrite(text: str) -> str:
        content = json.loads(text)
        change(content)
        return json.dumps(content)

    edit_json(path, rewrite)


def set_in_json(path: Path, **values) -> None:
    """Set some keys of one of a project's JSON files; a key may be `options__make`."""

    def change(text: str) -> str:
        about = json.loads(text)
        for key, value in values.items():
            *outer, last = key.split("__")
            place = about
            for name in outer:
                place = place[name]
            place[last] = value
        return json.dumps(about)

    edit_json(path, change)


def interrupted(*_, **__):
    """Instead of a stage: somebody presses Ctrl-C."""
    raise KeyboardInterrupt


def made_data():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(200, 4)).astype(np.float32), rng.integers(0, 2, 200)
    x[:, 0] += 2 * y
    return {
        "train": (x[:120], y[:120]),
        "validation": (x[120:160], y[120:160]),
        "test": (x[160:], y[160:]),
        "classes": ["no", "yes"],
    }


def made_model():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 2))


def recommend_removing(count: int):
    """Instead of `plans.recommend`: the removal of the first `count` rows is recommended."""

    def recommending(rows, noise, labels, **options):
        figure = Figure(before=0.2, after=0.1, change=-0.1, interval=(-0.12, -0.08))
        plan = PlanResult(
            removed=np.arange(count),
            relabeled={},
            name="remove-50",
            what=f"remove {count}",
            figures={"error": figure, "log loss": figure},
        )
        return Recommendation([plan], plan.name, "recommended", "It won.")

    return recommending

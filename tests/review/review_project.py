"""Project folders as `dross clean` leaves them, made up: no training, any size, hostile data."""

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
from PIL import Image, ImageDraw

from dross.cleaning.duplicates import CopyCounts, join_content, no_copies
from dross.cleaning.inputs import Request
from dross.cleaning.modality import Encoding
from dross.cleaning.plans import Figure, PlanResult, Recommendation
from dross.cleaning.project import Project
from dross.cleaning.project_files import write_sealed
from dross.cleaning.project_info import (
    CheckedInfo,
    NoiseInfo,
    Options,
    ProjectInfo,
    TrainingInfo,
    VerificationInfo,
)
from dross.cleaning.training import RecipeSettings

HOSTILE = [
    "<img src=x onerror=\"window.broken='image'\">",
    "<script>window.broken='script'</script>",
    "javascript:window.broken='address'",
    "\"' onmouseover='window.broken=1' x=\"",
    "</div></main><svg onload=window.broken='svg'>",
    "../../../etc/passwd",
    "{{ 7 * 7 }} ${7*7}",
    "\u202eright to left\u202c مرحبا שלום",
    "🦊👩‍👩‍👧 zero\u200bwidth",
    '=HYPERLINK("http://example.com")',
]
NOTHING = Recommendation(
    [], None, "no gain", "No plan improves models by more than chance would explain."
)
_WORDS = (
    "the film was slow but warm and the end surprised everyone who had hoped for more than "
    "a chase through rain an actor carries it alone with a voice that fills empty rooms while "
    "music does the rest of telling"
)


def make_project(
    folder: Path,
    kind: str = "table",
    n: int = 60,
    *,
    hostile: bool = False,
    task: str = "classification",
    planned: bool = False,
) -> Project:
    """planned: a plan is recommended that relabels and removes; else nothing is."""
    rng = np.random.default_rng(7)
    folder.mkdir(parents=True)
    names = {
        "table": ["<=50K", ">50K"],
        "images": [str(digit) for digit in range(10)],
        "text": ["negative", "positive"],
    }
    classes = names[kind] if task == "classification" else []
    if hostile and classes:
        classes = [*classes, HOSTILE[0]]
    held = max(12, n // 10)
    _write(folder, "content", _content(kind, n, rng, hostile))
    instances = _instances(kind, n, classes, rng, hostile)
    recommendation = _plan(instances) if planned else NOTHING
    _write(folder, "instances", instances)
    validation = _content(kind, held, rng, hostile)
    labels = rng.choice(classes, held) if classes else rng.normal(50, 9, held).round(1).astype(str)
    sources = [f"row {n + i}" for i in range(held)]
    validation = validation.assign(**{" source": sources, " label": labels})
    _write(folder, "validation", validation)
    _write(folder, "labels", make_labels(validation, classes, 0))
    _write(folder, "copies", join_content(no_copies()))
    if kind == "images":
        _draw(folder / "images", instances, labels)
    most_harmful = np.argsort(instances["harm_rank"])[:200].tolist()
    why = {str(id): _why(kind, id, n, held, rng, hostile) for id in most_harmful}
    _json(folder / "why.json", why)
    name = {"table": "adult", "images": "digits", "text": "reviews"}[kind]
    info = make_info(
        name=HOSTILE[4] if hostile else name,
        kind=kind,
        task=task,
        classes=classes,
        counts={"train": n, "validation": held, "test": held},
        run_agreement=0.2 if planned else None,
        recommendation=recommendation,
    )
    noise = replace(info.training.noise, rows=n, likely_wrong=int((instances["wrong"] > 0.5).sum()))
    info = replace(info, training=replace(info.training, noise=noise))
    write_sealed(folder / "project.json", info)
    return Project.open(folder)


def make_info(**changes) -> ProjectInfo:
    """The content of project.json."""
    content = {
        "request": Request("people.csv", "income"),
        "options": Options(),
        "digest": "of the data",
        "input_files": {},
        "dross": "0",
        "name": "adult",
        "kind": "table",
        "task": "classification",
        "label": "income",
        "classes": ["cat", "dog"],
        "counts": {"train": 60, "validation": 12, "test": 12},
        "runs": 4,
        "run_agreement": None,
        "notes": [],
        "copies": CopyCounts(),
        "recommendation": NOTHING,
        "training": _training(),
        "seconds": 1.0,
        "made": "2026-11-20 10:00",
    }
    return ProjectInfo(**content | changes)


def _training() -> TrainingInfo:
    return TrainingInfo(
        recipe=RecipeSettings("linear", (4,), 2),
        encoding=Encoding(),
        scale=(0.0, 1.0),
        columns=[],
        search={0.1: [0.5, 0.4]},
        searched_epochs=[10, 20],
        measure_scale=1.0,
        labels="observed",
        noise=NoiseInfo(rows=60, expected_wrong=3.0, likely_wrong=2),
        verification=VerificationInfo([0, 1], [-0.1, 0.1], [-0.1, 0.1], 1.0, 1.0),
        checked_labels=CheckedInfo("validation", 12, 0, 0, 0, None),
    )


def _plan(instances: pd.DataFrame) -> Recommendation:
    """Relabel half of the suspects and remove the others: in the table, and for project.json."""
    suspects = instances.index[instances["mislabel_rank"] >= 0]
    relabeled, removed = suspects[::2].tolist(), suspects[1::2].tolist()
    instances.loc[relabeled, "action"], instances.loc[removed, "action"] = "relabel", "remove"
    touched = [*relabeled, *removed]
    instances.loc[touched, "wrong"] = np.linspace(0.6, 0.99, len(touched))
    instances.loc[touched, "confidence"] = instances.loc[touched, "wrong"]
    best = PlanResult(
        name="wrong-50",
        what=f"relabel {len(relabeled)} and remove {len(removed)}",
        removed=np.array(removed),
        relabeled={id: str(instances.at[id, "prediction"]) for id in relabeled},
        figures=_figures(-0.0113),
    )
    other = PlanResult(
        name="wrong-90",
        what=f"remove {len(suspects)}",
        removed=suspects.to_numpy(),
        relabeled={},
        figures=_figures(0.004),
    )
    reason = f"Models improve by more than chance would explain if you {best.what} rows."
    return Recommendation([best, other], "wrong-50", "recommended", reason)


def _figures(change: float) -> dict[str, Figure]:
    measures = {"error": 0.15, "log loss": 0.4, "brier": 0.2}
    measures |= {f"noise-aware {name}": before for name, before in measures.items()}
    return {
        name: Figure(
            before=before,
            after=before + change,
            change=change,
            interval=(change - 0.003, change + 0.003),
        )
        for name, before in measures.items()
    }


def make_labels(validation: pd.DataFrame, classes: list[str], wanted: int) -> pd.DataFrame:
    """The labels of the validation part; the first `wanted` of them are to be checked."""
    labels, count = list(validation[" label"]), len(validation)
    rank = np.where(np.arange(count) < wanted, np.arange(count), -1)
    other = lambda label: classes[(classes.index(label) + 1) % len(classes)] if classes else "12.5"
    return pd.DataFrame(
        {
            "source": validation[" source"].to_list(),
            "label": labels,
            "wrong": np.where(rank < 0, 0.02, 0.96 - 0.1 * np.maximum(rank, 0)),
            "prediction": [other(x) if k < wanted else x for k, x in enumerate(labels)],
            "probability": 0.9 if classes else np.nan,
            "label_probability": 0.05 if classes else np.nan,
            "checked": "",
            "rank": rank,
        },
        index=pd.RangeIndex(count, name="id"),
    )


def make_verdict(
    *, made: str = "2026-11-20T10:00:00", seeds: int = 10, sentence: str | None = None
) -> dict:
    rng = np.random.default_rng(3)
    before = 0.152 + 0.004 * rng.standard_normal(seeds)
    after = before - 0.009 + 0.002 * rng.standard_normal(seeds)
    random = before + 0.001 + 0.002 * rng.standard_normal(seeds)
    metric = lambda scale: {
        "before": (scale * before).tolist(),
        "after": (scale * after).tolist(),
        "random": (scale * random).tolist(),
        "difference": scale * -0.009,
        "interval": [scale * -0.0112, scale * -0.0068],
        "p_t": 1e-4,
        "p_signs": 0.002,
        "random_difference": scale * 0.001,
        "random_interval": [scale * -0.0008, scale * 0.0028],
    }
    return {
        "made": made,
        "what": "decisions",
        "removed": 18,
        "relabeled": 3,
        "seeds": seeds,
        "verdict": "improved",
        "model": "RandomForestClassifier",
        "metrics": {"error": metric(1.0), "loss": metric(2.3)},
        "per_class": [
            {"class": "<=50K", "count": 700, "before": 0.09, "after": 0.085},
            {"class": ">50K", "count": 300, "before": 0.3, "after": 0.28},
        ],
        "sentence": sentence
        or "Removing 18 and relabeling 3 instances lowers the test error from 15.2 % to 14.3 %, "
        "more than chance explains.",
        "advice": "10 seeds are enough to see this difference.",
        "plain": {},
        "nested": False,
        "resampled": False,
    }


def write_verdict(project: Project, verdict: dict) -> None:
    folder = project.folder / "verdicts"
    folder.mkdir()
    write_sealed(folder / "1.json", verdict)


def judge_command(folder: Path, script: str) -> list[str]:
    """A command that stands in for `dross judge`; the script knows the `folder`."""
    path = folder / "judge.py"
    head = "import json, pathlib, sys, time\nfolder = pathlib.Path(sys.argv[1])\n"
    path.write_text(head + script)
    return [sys.executable, str(path), str(folder)]


def _instances(
    kind: str, n: int, classes: list[str], rng: np.random.Generator, hostile: bool
) -> pd.DataFrame:
    score = rng.normal(0, 1e-4, n)
    loss = rng.gamma(0.6, 0.8, n)
    suspicious = np.argsort(-loss)[: max(3, n // 6)]
    mislabel = np.full(n, -1)
    mislabel[suspicious] = np.arange(len(suspicious))
    if classes:
        label = rng.choice(classes, n).astype(object)
        other = np.array(
            [classes[(classes.index(name) + 1) % len(classes)] for name in label], object
        )
        prediction = np.where(mislabel >= 0, other, label)
    else:
        label = rng.normal(50, 9, n).round(1).astype(str).astype(object)
        prediction = np.array([f"{float(value) + 3:.1f}" for value in label], object)
    rank = np.argsort(np.argsort(score))
    verified = np.where(rank < n // 5, score * rng.normal(1, 0.2, n), np.nan)
    if hostile:
        sources = [HOSTILE[i % len(HOSTILE)] for i in range(n)]
    else:
        sources = [f"{i:05d}.png" if kind == "images" else f"row {i + 2}" for i in range(n)]
    return pd.DataFrame(
        {
            "source": sources,
            "label": label,
            "score": score,
            "spread": np.abs(rng.normal(0, 4e-5, n)),
            "harmful_in": np.where(score < 0, rng.integers(2, 5, n), rng.integers(0, 3, n)),
            "learned_in": 4,
            "harm_rank": rank,
            "loss": loss,
            "mislabel_rank": mislabel,
            "prediction": prediction,
            "probability": rng.uniform(0.5, 1, n) if classes else np.nan,
            "label_probability": np.exp(-loss) if classes else np.nan,
            "wrong": np.where(mislabel >= 0, 0.8, 0.02),
            "outlier": rng.uniform(0, 1, n),
            "verified": verified,
            "action": "keep",
            "confidence": np.nan,
        },
        index=pd.RangeIndex(n, name="id"),
    )


def _content(kind: str, n: int, rng: np.random.Generator, hostile: bool) -> pd.DataFrame:
    pick = lambda values: rng.choice(values, n).astype(object)
    if kind == "images":
        frame = pd.DataFrame({"path": [f"train/{i:05d}.png" for i in range(n)]})
    elif kind == "text":
        text = lambda: " ".join(rng.choice(_WORDS.split(), rng.integers(8, 160))) + "."
        frame = pd.DataFrame({"text": [text() for _ in range(n)]})
    else:
        frame = pd.DataFrame(
            {
                "age": rng.integers(17, 90, n).astype(str),
                "workclass": pick(["Private", "Self-emp", "Federal-gov"]),
                "education": pick(["Bachelors", "HS-grad", "Masters", "Some-college"]),
                "education-num": rng.integers(1, 16, n).astype(str),
                "marital-status": pick(["Married", "Never-married", "Divorced"]),
                "occupation": pick(["Sales", "Exec-managerial", "Tech-support"]),
                "relationship": pick(["Husband", "Wife", "Own-child"]),
                "capital-gain": pick(["0", "0", "0", "7688", "99999"]),
                "hours-per-week": rng.integers(5, 99, n).astype(str),
                "native-country": pick(["United-States", "Mexico", "India"]),
            }
        )
        frame.loc[::7, "occupation"] = None
    frame.index.name = "id"
    if hostile:
        name = {"images": "path", "text": "text", "table": "workclass"}[kind]
        frame[name] = [HOSTILE[i % len(HOSTILE)] for i in range(n)]
        if kind == "table":
            frame = frame.rename(columns={"age": HOSTILE[1]})
    return frame


def _why(kind: str, id: int, n: int, held: int, rng: np.random.Generator, hostile: bool) -> dict:
    hurts = [
        {"id": int(other), "change": -float(rng.gamma(1, 0.01)), "measured": True}
        for other in rng.choice(held, 3, replace=False)
    ]
    found = {
        "hurts": [*sorted(hurts, key=lambda entry: entry["change"]), {"id": 0}],
        "similar": [int(other) for other in rng.choice(n, 4, replace=False)],
    }
    if kind == "table":
        unusual = {}
        if id % 3:
            unusual["capital-gain"] = "99999 is higher than in 99 % of the rows"
        if id % 4 == 1:
            unusual["hours-per-week"] = "unusually many for this education"
        if hostile:
            unusual = {"workclass": HOSTILE[0], HOSTILE[1]: HOSTILE[4]}
        found["unusual"] = unusual
    if kind == "text":
        found["words"] = [["slow", 0.8], ["warm", -0.6], ["hoped", 0.3], ["surprised", -0.4]]
        if hostile:
            found["words"].append([HOSTILE[0], 0.9])
    return found


def _draw(folder: Path, instances: pd.DataFrame, labels: np.ndarray) -> None:
    folder.mkdir()
    drawn: dict[str, bytes] = {}
    for part, names in (("train", instances["label"]), ("validation", labels)):
        for id, name in enumerate(names):
            path = folder / f"{part}-{id:06d}.png"
            if name not in drawn:
                image = Image.new("L", (28, 28))
                ImageDraw.Draw(image).text((8, 4), str(name)[:1], fill=255, font_size=20)
                image.save(path)
                drawn[name] = path.read_bytes()
            path.write_bytes(drawn[name])


def _write(folder: Path, name: str, frame: pd.DataFrame) -> None:
    frame.to_parquet(folder / f"{name}.parquet")


def _json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value))


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

"""Write a project of chats: the files that `cleaning/project.py` lists, and the tokens' effects."""

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pandas

from .._io import write_bytes, write_json
from .._version import __version__
from ..cleaning.chats import CHATS
from ..cleaning.duplicates import FILE as COPIES
from ..cleaning.duplicates import join_content
from ..cleaning.modality import PARTS, Frame
from ..cleaning.plans import KEEP, REMOVE
from ..cleaning.project import DIGESTED, LABELS, TOKENS, Project
from ..cleaning.scoring import rank, split_half_agreement
from ..cleaning.write_project import write_tables
from .parts import Examples, Found
from .plans import ChatRecommendation
from .score import ChatScores

TASK = "fine-tuning"


def write_project(
    folder: Path,
    examples: Examples,
    scored: ChatScores,
    found: ChatRecommendation,
    copies: Found,
    begun: dict[str, Any],
    seconds: float,
) -> Project:
    """Fill the folder; project.json comes last.

    begun: the content of begun.json; seconds: how long everything took.
    """
    instances = _tabulate(examples, scored, found)
    content = examples.content("train")
    write_bytes(folder / "content.parquet", content.to_parquet())
    held = examples.content("validation")
    held[" source"], held[" label"] = examples.names("validation"), examples.labels("validation")
    write_bytes(folder / "validation.parquet", held.to_parquet())
    write_bytes(folder / COPIES, join_content(copies[0]).to_parquet())
    write_bytes(folder / LABELS, _no_labels().to_parquet())
    write_json(folder / "why.json", {})
    write_bytes(folder / TOKENS, _tabulate_tokens(examples, scored).to_parquet())
    about = begun | _describe(folder, examples, scored, found, instances, seconds)
    about |= {"copies": copies[1]}
    return write_tables(folder, instances, about, (*DIGESTED, TOKENS))


def _tabulate(examples: Examples, scored: ChatScores, found: ChatRecommendation) -> Frame:
    """The content of instances.parquet."""
    train, scores, by_run = examples.parts["train"], scored.scores, scored.by_run
    count = len(train)
    missing = np.full(count, np.nan)
    table = pandas.DataFrame(
        {
            "source": examples.names("train"),
            "label": examples.labels("train"),
            "origin": [examples.chats[place].origin for place in train],
            "score": scores,
            "spread": by_run.std(0),
            "harmful_in": (by_run < 0).sum(0),
            "learned_in": np.full(count, len(by_run)),
            "harm_rank": rank(scores),
            "loss": scored.base_loss,
            "training_loss": scored.training_loss,
            "tokens": np.diff(scored.starts),
            "mislabel_rank": np.full(count, -1),
            "wrong": missing,
            "prediction": [""] * count,
            "probability": missing,
            "label_probability": missing,
            "outlier": missing,
            "verified": missing,
            "action": np.where(np.isin(np.arange(count), found.removed), REMOVE, KEEP),
            "confidence": missing,
        }
    )
    table.index.name = "id"
    return table


def _no_labels() -> Frame:
    """The labels of answers are not checked one by one: a table without rows."""
    texts = ("source", "label", "prediction", "checked")
    numbers = ("wrong", "probability", "label_probability")
    empty = {name: pandas.Series(dtype=object) for name in texts}
    empty |= {name: pandas.Series(dtype=float) for name in numbers}
    return pandas.DataFrame(empty | {"rank": pandas.Series(dtype="int64")})


def _tabulate_tokens(examples: Examples, scored: ChatScores) -> Frame:
    """The content of tokens.parquet: texts of all tokens, effects of the learned ones."""
    rows = []
    for place, effects in zip(examples.parts["train"].tolist(), scored.token_effects()):
        texts = examples.encoded.texts[place]
        each = np.full(len(texts), np.nan)
        each[examples.encoded.learned(place)] = effects
        rows.append({"texts": texts, "effects": each.tolist()})
    return pandas.DataFrame(rows)


def _describe(
    folder: Path,
    examples: Examples,
    scored: ChatScores,
    found: ChatRecommendation,
    instances: Frame,
    seconds: float,
) -> dict[str, Any]:
    """The content of project.json, beside that of begun.json and the digests of the files."""
    about = {
        "dross": __version__,
        "name": folder.name,
        "kind": CHATS,
        "task": TASK,
        "label": "response",
        "classes": [],
        "counts": {part: len(examples.parts[part]) for part in PARTS},
        "runs": len(scored.by_run),
        "notes": examples.notes,
        "origins": sorted(set(instances["origin"]) - {""}),
        "run_agreement": split_half_agreement(scored.by_run),
        "recommendation": found.to_json(),
        "seconds": round(seconds, 1),
        "made": time.strftime("%Y-%m-%d %H:%M"),
    }
    return json.loads(json.dumps(about))

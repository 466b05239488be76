"""The named data sets, as they are: no scaling, no encoding, no sampling."""

import csv
import gzip
import io
import json
import lzma
import tarfile
import warnings
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from .._checks import check_name
from ..errors import InvalidInput
from .sources import Remote, cache_folder, fetch, find_local

Pair = tuple[Any, np.ndarray]  # inputs and integer labels


@dataclass(frozen=True)
class DataSet:
    """A named data set: inputs and integer labels to train on and, if it has them, to test on.

    Inputs are an array [N, ...], a dict of columns (adult) or a list of texts (20news).
    """

    name: str
    train: Pair
    test: Pair | None  # where the set has a test part of its own
    classes: tuple[str, ...]

    def __repr__(self) -> str:
        train = f"{len(self.train[1]):,} instances to train"
        test = "" if self.test is None else f", {len(self.test[1]):,} to test"
        return f"<{self.name}: {train}{test}, {len(self.classes)} classes>"


def load(name: str) -> DataSet:
    """Load a data set by its name.

    Arguments:
        name: one of `dross.datasets.NAMES`.

    Returns:
        The set as it was published: no scaling, no encoding, no sampling.

    Raises:
        InvalidInput: there is no set of this name.
        InvalidInput: the set is not on this machine and cannot be fetched, or it is damaged.

    Example:
        images, labels = dross.datasets.load("mnist").train
    """
    return _LOADERS[check_name("data set", name, NAMES)]()


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
_HOMES = {
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
    home, sums = _HOMES[name]
    images, labels, test_images, test_labels = (
        _read_idx(Remote(f"{name}/{file}.gz", f"{home}{file}.gz", md5))
        for file, md5 in zip(_IDX_FILES, sums)
    )
    train = (images, labels.astype(np.int64))
    return DataSet(name, train, (test_images, test_labels.astype(np.int64)), classes)


def _read_idx(remote: Remote) -> np.ndarray:
    path = fetch(remote)
    try:
        raw = gzip.decompress(path.read_bytes())
        axes = raw[3]
        shape = [int.from_bytes(raw[4 + 4 * k : 8 + 4 * k], "big") for k in range(axes)]
        return np.frombuffer(raw, np.uint8, offset=4 + 4 * axes).reshape(shape)
    except (OSError, EOFError, zlib.error, ValueError, IndexError) as error:
        raise _damaged(path, error) from None


# --- CIFAR10 ---

_CIFAR = Remote(
    "cifar10/cifar-10-binary.tar.gz",
    "https://www.cs.toronto.edu/~kriz/cifar-10-binary.tar.gz",
    "c32a1d4ab5d03f1284b67883e8d87530",
)
_THINGS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
_CIFAR_PARTS = (*(f"data_batch_{k}" for k in range(1, 6)), "test_batch")


def _cifar10() -> DataSet:
    packed = [find_local(f"cifar10/{part}.xz") for part in _CIFAR_PARTS]
    batches = [_unpack_cifar(path) for path in packed if path is not None]
    if len(batches) < len(_CIFAR_PARTS):
        batches = _cifar_from_home()
    images, labels = (np.concatenate(part) for part in zip(*batches[:-1]))
    return DataSet("cifar10", (images, labels), batches[-1], _THINGS)


def _unpack_cifar(path) -> Pair:
    """10,000 label bytes, then the planes G, R-G, B-G.

    Each plane is differenced along columns and rows modulo 256.
    """
    try:
        raw = np.frombuffer(lzma.decompress(path.read_bytes()), np.uint8)
        planes = raw[10_000:].reshape(3, 10_000, 32, 32)
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise _damaged(path, error) from None
    green, red, blue = planes.cumsum(-2, dtype=np.uint8).cumsum(-1, dtype=np.uint8)
    return np.stack([red + green, green, blue + green], -1), raw[:10_000].astype(np.int64)


def _cifar_from_home() -> list[Pair]:
    path = fetch(_CIFAR)
    try:
        with tarfile.open(path) as archive:
            names = [f"cifar-10-batches-bin/{part}.bin" for part in _CIFAR_PARTS]
            files = [file for name in names if (file := archive.extractfile(name)) is not None]
            raw = [np.frombuffer(file.read(), np.uint8).reshape(-1, 3073) for file in files]
    except (tarfile.TarError, KeyError, EOFError, ValueError, zlib.error) as error:
        raise _damaged(path, error) from None
    return [
        (part[:, 1:].reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1), part[:, 0].astype(np.int64))
        for part in raw
    ]


# --- Adult ---

_ADULT_HOME = "https://archive.ics.uci.edu/ml/machine-learning-databases/adult/"
_ADULT = (
    Remote("adult/adult.data", _ADULT_HOME + "adult.data", "5d7c39d7b8804f071cdd1f2a7c460872"),
    Remote("adult/adult.test", _ADULT_HOME + "adult.test", "35238206dfdf7f1fe215bbb874adecdc"),
)
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
        try:
            rows = list(csv.reader(io.StringIO(gzip.decompress(packed.read_bytes()).decode())))
        except (OSError, EOFError, zlib.error, UnicodeDecodeError) as error:
            raise _damaged(packed, error) from None
        parts = [[row[:-1] for row in rows[1:] if row[-1] == split] for split in ("train", "test")]
    else:
        parts = [_adult_rows(fetch(remote).read_text(encoding="utf-8")) for remote in _ADULT]
    train, test = (_adult_part(rows) for rows in parts)
    return DataSet("adult", train, test, ("<=50K", ">50K"))


def _adult_rows(text: str) -> list[list[str]]:
    rows = csv.reader(line for line in text.splitlines() if line and not line.startswith("|"))
    return [[*(cell.strip() for cell in row[:-1]), row[-1].strip().rstrip(".")] for row in rows]


def _adult_part(rows: list[list[str]]) -> Pair:
    columns = dict(zip(_ADULT_COLUMNS, (np.array(column) for column in zip(*rows))))
    labels = (columns.pop("income") == ">50K").astype(np.int64)
    for name in ADULT_NUMBERS:
        columns[name] = columns[name].astype(np.float64)
    return columns, labels


# --- 20 Newsgroups ---

_NEWSGROUPS_FILE = "newsgroups/20news-bydate-all.jsonl.xz"


def _newsgroups() -> DataSet:
    packed = find_local(_NEWSGROUPS_FILE)
    if packed is None:
        return _newsgroups_from_home()
    try:
        posts = [json.loads(line) for line in lzma.decompress(packed.read_bytes()).splitlines()]
    except (lzma.LZMAError, EOFError, ValueError) as error:
        raise _damaged(packed, error) from None
    classes = tuple(sorted({post["category"] for post in posts}))
    parts = []
    for split in ("train", "test"):
        chosen = [post for post in posts if post["split"] == split]
        labels = np.array([classes.index(post["category"]) for post in chosen])
        parts.append(([post["text"] for post in chosen], labels))
    return DataSet("20news", parts[0], parts[1], classes)


def _newsgroups_from_home() -> DataSet:
    from sklearn.datasets import fetch_20newsgroups

    parts, classes = [], ()
    for split in ("train", "test"):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about attempts that fail before one succeeds
                bunch: Any = fetch_20newsgroups(
                    data_home=str(cache_folder()), subset=split, shuffle=False
                )
        except OSError as error:
            raise InvalidInput(
                f"20 Newsgroups is not on this machine and its home cannot be reached ({error}). "
                f"Connect to the network, or put {_NEWSGROUPS_FILE} in a folder and name that "
                "folder in DROSS_DATA."
            ) from None
        labels = np.asarray(bunch.target)
        order = np.lexsort((np.asarray(bunch.filenames), labels))  # by class, then by file name
        parts.append(([bunch.data[i] for i in order], labels[order]))
        classes = tuple(bunch.target_names)
    return DataSet("20news", parts[0], parts[1], classes)


def _damaged(path, error: Exception) -> InvalidInput:
    return InvalidInput(
        f"{path} is damaged ({error}). Remove it, so that it is fetched again, or replace it with "
        "a good copy."
    )


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
NAMES = tuple(_LOADERS)

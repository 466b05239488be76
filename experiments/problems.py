"""What the paper does to each dataset before training, with its choices named.

Section 7.1 draws 200 training and 200 validation instances per repetition from a two-class problem;
Section 7.2 takes MNIST and CIFAR10 whole and holds 10,000 training instances out. Where the paper's
text leaves a choice open, it is made as in the numbers that tests/experiments/ compares with.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .datasets import ADULT_NUMBERS, load

SAMPLE_SIZE = 200  # instances to train, as many to validate, as many unused


@dataclass(frozen=True)
class Sample:
    """One repetition's data, standardized on its training part."""

    x_train: np.ndarray
    y_train: np.ndarray  # float, 0 or 1
    x_validation: np.ndarray
    y_validation: np.ndarray


def draw(problem: tuple[np.ndarray, np.ndarray], seed: int) -> Sample:
    """200 instances to train and 200 to validate, at random.

    A column that is constant in the training part is not scaled.
    """
    from sklearn.model_selection import train_test_split

    x, y = problem
    train, rest = train_test_split(
        np.arange(len(y)), train_size=SAMPLE_SIZE, test_size=2 * SAMPLE_SIZE, random_state=seed
    )
    validation, _ = train_test_split(rest, test_size=SAMPLE_SIZE, random_state=seed + 1)
    mean, deviation = x[train].mean(0), x[train].std(0)
    deviation = np.where(deviation > 0, deviation, 1.0)
    scaled = [((x[part] - mean) / deviation).astype(np.float32) for part in (train, validation)]
    return Sample(
        scaled[0], y[train].astype(np.float32), scaled[1], y[validation].astype(np.float32)
    )


def two_class_problem(name: str) -> tuple[np.ndarray, np.ndarray]:
    """The whole two-class problem that Section 7.1 draws from: "adult", "20news" or "mnist"."""
    loaders = {"adult": load_adult, "20news": load_newsgroups, "mnist": load_one_or_seven}
    return loaders[name]()


_NO_JOB = ("Never-worked", "Without-pay")  # rare job classes, merged
_BEFORE_GRADUATION = ("1st-4th", "5th-6th", "7th-8th", "9th", "10th", "11th", "12th")
_MERGED = {
    "workclass": dict.fromkeys(_NO_JOB, "Not-working"),
    "education": dict.fromkeys(_BEFORE_GRADUATION, "Primary"),
    "marital-status": {"Married-AF-spouse": "Married-civ-spouse"},
    "occupation": {"Armed-Forces": "Protective-serv"},
}
# Five groups of countries by the share of incomes above 50K. The paper does not list its groups;
# these agree with all the countries that the reference sample shows.
_COUNTRIES = {
    "1": ("China", "Italy", "Greece", "South", "Hungary", "Hong", "Ireland"),
    "2": ("Thailand", "Poland", "Portugal", "Scotland", "Ecuador", "Haiti", "Trinadad&Tobago"),
    "3": (
        "Mexico",
        "Puerto-Rico",
        "El-Salvador",
        "Jamaica",
        "Laos",
        "Nicaragua",
        "Peru",
        "Vietnam",
        "Guatemala",
        "Columbia",
        "Dominican-Republic",
        "Honduras",
        "Outlying-US(Guam-USVI-etc)",
        "Holand-Netherlands",
    ),
    "4": ("United-States", "Cuba", "?"),
    "5": (
        "Germany",
        "Philippines",
        "Canada",
        "England",
        "France",
        "India",
        "Iran",
        "Japan",
        "Taiwan",
        "Yugoslavia",
        "Cambodia",
    ),
}
_ADULT_CATEGORIES = (
    "workclass",
    "education",
    "marital-status",
    "occupation",
    "relationship",
    "race",
    "sex",
    "native-country",
)


def load_adult() -> tuple[np.ndarray, np.ndarray]:
    """Income above 50K, both parts of the set: float64 [48842, 62] and integer labels.

    The columns are 6 numbers (fnlwgt as log(1 + x)) and 56 indicators of merged categories.
    """
    data = load("adult")
    assert data.test is not None
    train, test = data.train[0], data.test[0]
    columns = {name: np.concatenate([train[name], test[name]]) for name in train}
    columns["fnlwgt"] = np.log1p(columns["fnlwgt"])
    country = {name: group for group, names in _COUNTRIES.items() for name in names}
    parts = [columns[name][:, None] for name in ADULT_NUMBERS]
    for name in _ADULT_CATEGORIES:
        rename = country if name == "native-country" else _MERGED.get(name, {})
        merged = np.array([rename.get(value, value) for value in columns[name]])
        parts += [(merged == value)[:, None].astype(np.float64) for value in sorted(set(merged))]
    return np.concatenate(parts, axis=1), np.concatenate([data.train[1], data.test[1]])


_PC, _MAC = "comp.sys.ibm.pc.hardware", "comp.sys.mac.hardware"


def load_newsgroups() -> tuple[np.ndarray, np.ndarray]:
    """PC against Mac hardware: tf-idf of the bare text, fitted on the train part.

    English stop words and words in fewer than 0.1 % or more than 20 % of the documents are dropped.
    The posts come in the order in which scikit-learn's loader gives them.
    """
    from sklearn.datasets._twenty_newsgroups import (
        strip_newsgroup_footer,
        strip_newsgroup_header,
        strip_newsgroup_quoting,
    )
    from sklearn.feature_extraction.text import TfidfVectorizer

    data = load("20news")
    assert data.test is not None
    pc, mac = data.classes.index(_PC), data.classes.index(_MAC)
    strip = lambda text: strip_newsgroup_quoting(
        strip_newsgroup_footer(strip_newsgroup_header(text))
    )
    texts, labels = [], []
    for inputs, classes in (data.train, data.test):
        order = np.arange(len(classes))
        np.random.RandomState(0).shuffle(order)
        order = order[np.isin(classes[order], [pc, mac])]
        np.random.RandomState(42).shuffle(order)
        texts.append([strip(inputs[i]) for i in order])
        labels.append((classes[order] == mac).astype(np.int64))
    options: dict[str, Any] = {"stop_words": "english", "min_df": 0.001, "max_df": 0.20}
    words = TfidfVectorizer(**options)
    parts: list[Any] = [words.fit_transform(texts[0]), words.transform(texts[1])]
    return np.concatenate([part.toarray() for part in parts]), np.concatenate(labels)


def load_one_or_seven() -> tuple[np.ndarray, np.ndarray]:
    """MNIST, ones (0) against sevens (1): training images from 5,000 on, pixels / 255."""
    x, y = load("mnist").train
    x, y = x[5_000:].reshape(-1, 784) / 255, y[5_000:]
    ones, sevens = x[y == 1], x[y == 7]
    return np.concatenate([ones, sevens]), np.repeat([0, 1], [len(ones), len(sevens)])

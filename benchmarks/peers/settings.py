"""The models that every method is asked about, their training, and how much truth they get."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from experiments.datasets import load
from experiments.networks import dense, mnist_cnn
from experiments.problems import load_adult
from torch import Tensor, nn

FLIPPED = 0.1  # share of training labels replaced by another class


@dataclass(frozen=True)
class Setting:
    """A dataset, a model, its training, and how much truth is computed."""

    name: str
    what: str
    data: Callable[["Setting"], tuple[Tensor, Tensor, Tensor, Tensor]]
    model: Callable[[], nn.Module]
    optimizer: str  # "SGD", "Adam" or "AdamW"
    lr: float
    train: int
    validation: int
    batch: int
    epochs: int
    loo: int  # leave-one-out runs
    subsets: int  # runs per share removed
    rounds: int  # timings, at most
    queries: int = 10  # validation instances asked one by one
    dvemb: int | None = None  # dattri's DVEmb keeps a p x p matrix: project where p is large

    @property
    def classes(self) -> int:
        """How many classes the labels have."""
        counts = {"digits": 10, "mnist": 10, "adult": 2, "news": len(GROUPS)}
        return counts[self.name.split("-")[0]]


# --- data ---


def _split(x: np.ndarray, y: np.ndarray, setting: Setting) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    order = np.random.default_rng(0).permutation(len(y))
    train, held = order[: setting.train], order[setting.train : setting.train + setting.validation]
    dtype = torch.int64 if x.dtype.kind == "i" else torch.float32
    give = lambda part: (torch.as_tensor(x[part]).to(dtype), torch.as_tensor(y[part]).long())
    return *give(train), *give(held)


def digits(setting: Setting) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """scikit-learn's digits, scaled: x, y, x_val, y_val."""
    x, y = load("digits").train
    return _split(x / 16, y, setting)


def mnist(setting: Setting) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """MNIST, scaled: x, y, x_val, y_val."""
    x, y = load("mnist").train
    return _split(x[:, None] / np.float32(255), y, setting)


def adult_rows(setting: Setting) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Adult as the paper encodes it, standardized: x, y, x_val, y_val."""
    x, y = load_adult()
    x, y, x_val, y_val = _split(x, y, setting)
    mean, deviation = x.mean(0), x.std(0).clamp_min(1e-6)
    deviation[x.std(0) == 0] = 1
    return (x - mean) / deviation, y, (x_val - mean) / deviation, y_val


GROUPS = ("rec.autos", "sci.med", "talk.politics.mideast")
WORDS, LENGTH = 500, 32  # the vocabulary (0 is padding) and how much of a post is read


def news(setting: Setting) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Three newsgroups as word ids [N, LENGTH]: x, y, x_val, y_val."""
    from sklearn.feature_extraction.text import CountVectorizer

    data = load("20news")
    texts, labels = [], []
    for text, label in zip(*data.train):
        if data.classes[label] in GROUPS:
            texts.append(text.split("\n\n", 1)[-1])
            labels.append(GROUPS.index(data.classes[label]))
    counter = CountVectorizer(stop_words="english", max_features=WORDS - 1)
    counter.fit(texts)
    read = counter.build_analyzer()
    rows = np.zeros((len(texts), LENGTH), dtype=np.int64)
    for row, text in zip(rows, texts):
        known = [word for word in read(text) if word in counter.vocabulary_][:LENGTH]
        row[: len(known)] = [counter.vocabulary_[word] + 1 for word in known]
    filled = (rows > 0).sum(1) >= 8
    return _split(rows[filled], np.array(labels)[filled], setting)


# --- models ---


class Block(nn.Module):
    """Self-attention and a feed-forward part, each with a norm before it and a residual.

    It has only plain linear layers, which every library knows.
    """

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h: Tensor, blocked: Tensor) -> Tensor:  # h [B, L, d], blocked [B, 1, 1, L]
        """[B, L, width] -> [B, L, width]; `blocked` is added to the attention."""
        x = self.norm_1(h)
        q, k, v = (
            part(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        weights = (q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5 + blocked).softmax(-1)
        h = h + self.out((weights @ v).transpose(1, 2).flatten(2))
        return h + self.down(nn.functional.gelu(self.up(self.norm_2(h))))


class Transformer(nn.Module):
    """Blocks over word ids, the mean over the words that are there, one linear layer."""

    def __init__(
        self,
        words: int,
        length: int,
        classes: int,
        width: int = 32,
        heads: int = 2,
        blocks: int = 1,
    ):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, ids: Tensor) -> Tensor:  # [B, L] -> [B, classes]
        """The scores of the classes."""
        there = (ids > 0).to(self.words.weight.dtype)
        h = self.words(ids) + self.places.weight
        for block in self.blocks:
            h = block(h, (there - 1)[:, None, None, :] * 1e4)
        pooled = (self.norm(h) * there[..., None]).sum(1) / there.sum(1, keepdim=True).clamp_min(1)
        return self.head(pooled)


def digits_mlp(activation: type[nn.Module]) -> nn.Sequential:
    """One hidden layer of 32."""
    return nn.Sequential(nn.Linear(64, 32), activation(), nn.Linear(32, 10))


def _digits_setting(name: str, activation: type[nn.Module]) -> Setting:
    return Setting(
        name,
        f"digits, MLP 64-32-10 with {activation.__name__}, SGD",
        data=digits,
        model=lambda: digits_mlp(activation),
        optimizer="SGD",
        lr=0.1,
        train=1000,
        validation=400,
        batch=25,
        epochs=15,
        loo=200,
        subsets=100,
        rounds=3,
    )


_ADULT = Setting(
    "adult-adam",
    "Adult, MLP 62-16-16-2 with ReLU, Adam",
    data=adult_rows,
    model=lambda: dense(62, 16, 16, 2),
    optimizer="Adam",
    lr=2e-3,
    train=2000,
    validation=500,
    batch=50,
    epochs=8,
    loo=200,
    subsets=100,
    rounds=3,
)
_NEWS = Setting(
    "news-adamw",
    "20 Newsgroups (3 groups), Transformer with one block, AdamW",
    data=news,
    model=lambda: Transformer(WORDS, LENGTH, len(GROUPS)),
    optimizer="AdamW",
    lr=4e-3,
    train=600,
    validation=200,
    batch=30,
    epochs=5,
    loo=60,
    subsets=40,
    rounds=2,
    queries=10,
    dvemb=512,
)
_MNIST = Setting(
    "mnist-cnn",
    "MNIST, the paper's CNN, SGD",
    data=mnist,
    model=mnist_cnn,
    optimizer="SGD",
    lr=0.05,
    train=5000,
    validation=500,
    batch=100,
    epochs=3,
    loo=32,
    subsets=24,
    rounds=1,
    queries=4,
    dvemb=512,
)
_DIGITS = [_digits_setting("digits-relu", nn.ReLU), _digits_setting("digits-gelu", nn.GELU)]
SETTINGS = {setting.name: setting for setting in (*_DIGITS, _ADULT, _NEWS, _MNIST)}


def quick(setting: Setting) -> Setting:
    """A small version of a setting, to see that everything works."""
    return replace(setting, train=300, validation=100, epochs=12, loo=30, subsets=20, rounds=1)

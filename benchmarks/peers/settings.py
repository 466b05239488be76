"""The models that every method is asked about: what they are, how they are trained, and how much truth is bought."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from dross.datasets import load
from dross.datasets.models import dense, mnist_cnn
from dross.datasets.paper import load_adult

FLIPPED = 0.1  # share of training labels replaced by another class


@dataclass(frozen=True)
class Setting:
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
        return {"digits": 10, "mnist": 10, "adult": 2, "news": len(GROUPS)}[self.name.split("-")[0]]


# --- data ----------------------------------------------------------------------------------------------------------------------


def _split(x: np.ndarray, y: np.ndarray, setting: Setting) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    order = np.random.default_rng(0).permutation(len(y))
    train, held = order[: setting.train], order[setting.train : setting.train + setting.validation]
    dtype = torch.int64 if x.dtype.kind == "i" else torch.float32
    give = lambda part: (torch.as_tensor(x[part]).to(dtype), torch.as_tensor(y[part]).long())
    return *give(train), *give(held)


def digits(setting: Setting) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y = load("digits").train
    return _split(x / 16, y, setting)


def mnist(setting: Setting) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y = load("mnist").train
    return _split(x[:, None] / np.float32(255), y, setting)


def adult_rows(setting: Setting) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    x, y = load_adult()
    x, y, x_val, y_val = _split(x, y, setting)
    mean, deviation = x.mean(0), x.std(0).clamp_min(1e-6)
    deviation[x.std(0) == 0] = 1
    return (x - mean) / deviation, y, (x_val - mean) / deviation, y_val


GROUPS = ("rec.autos", "sci.med", "talk.politics.mideast")
WORDS, LENGTH = 500, 32  # the vocabulary (0 is padding) and how much of a post is read


def news(setting: Setting) -> tuple[Tensor, Tensor, Tensor, Tensor]:
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
        ids = [counter.vocabulary_[word] + 1 for word in read(text) if word in counter.vocabulary_][
            :LENGTH
        ]
        row[: len(ids)] = ids
    filled = (rows > 0).sum(1) >= 8
    return _split(rows[filled], np.array(labels)[filled], setting)


# --- models --------------------------------------------------------------------------------------------------------------------


class Block(nn.Module):
    """Self-attention and a feed-forward part, each with a norm before it and a way around it; only plain linear layers."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, h: Tensor, blocked: Tensor) -> Tensor:  # h [B, L, d], blocked [B, 1, 1, L]
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
        there = (ids > 0).to(self.words.weight.dtype)
        h = self.words(ids) + self.places.weight
        for block in self.blocks:
            h = block(h, (there - 1)[:, None, None, :] * 1e4)
        pooled = (self.norm(h) * there[..., None]).sum(1) / there.sum(1, keepdim=True).clamp_min(1)
        return self.head(pooled)


def digits_mlp(activation: type[nn.Module]) -> nn.Sequential:
    return nn.Sequential(nn.Linear(64, 32), activation(), nn.Linear(32, 10))


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting(
            "digits-relu",
            "digits, MLP 64-32-10 with ReLU, SGD",
            digits,
            lambda: digits_mlp(nn.ReLU),
            "SGD",
            0.1,
            1000,
            400,
            25,
            15,
            200,
            100,
            3,
        ),
        Setting(
            "digits-gelu",
            "digits, MLP 64-32-10 with GELU, SGD",
            digits,
            lambda: digits_mlp(nn.GELU),
            "SGD",
            0.1,
            1000,
            400,
            25,
            15,
            200,
            100,
            3,
        ),
        Setting(
            "adult-adam",
            "Adult, MLP 62-16-16-2 with ReLU, Adam",
            adult_rows,
            lambda: dense(62, 16, 16, 2),
            "Adam",
            2e-3,
            2000,
            500,
            50,
            8,
            200,
            100,
            3,
        ),
        Setting(
            "news-adamw",
            "20 Newsgroups (3 groups), Transformer with one block, AdamW",
            news,
            lambda: Transformer(WORDS, LENGTH, len(GROUPS)),
            "AdamW",
            4e-3,
            600,
            200,
            30,
            5,
            60,
            40,
            2,
            10,
            512,
        ),
        Setting(
            "mnist-cnn",
            "MNIST, the paper's CNN, SGD",
            mnist,
            mnist_cnn,
            "SGD",
            0.05,
            5000,
            500,
            100,
            3,
            32,
            24,
            1,
            4,
            512,
        ),
    )
}


def quick(setting: Setting) -> Setting:
    """A small version of a setting, to see that everything works."""
    return replace(setting, train=300, validation=100, epochs=12, loo=30, subsets=20, rounds=1)

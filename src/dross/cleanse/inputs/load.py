"""From what a person points at to tensors: which kind of input it is, its parts, and its numbers."""

import hashlib
import importlib
import inspect
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import BadInput
from . import images, tables
from .frames import library
from .source import (
    FEWEST,
    PARTS,
    SHARES,
    Encoder,
    Source,
    check_learnable,
    joined,
    rare_classes,
    split,
)
from .tables import Column, TableEncoder
from .texts import TextEncoder


@dataclass(frozen=True)
class Request:
    """What the user asked for. Everything that decides the outcome, and nothing else."""

    data: str
    label: str | None = None
    text: str | None = None  # the column that holds the text
    images: str | None = None  # the column that holds paths of pictures
    validation: str | None = None
    test: str | None = None
    task: str | None = None
    columns: dict[str, str] = field(default_factory=dict)
    seed: int = 0


@dataclass(frozen=True)
class Prepared:
    """Everything that learning needs."""

    source: Source
    parts: dict[str, np.ndarray]  # the ids of each part
    x: dict[str, Tensor]
    y: dict[str, Tensor]
    encoder: Encoder | None
    columns: list[Column]
    notes: list[str]
    scale: tuple[float, float]  # a number to be predicted is (y - scale[0]) / scale[1] to the model
    root: Path | None  # where pictures are

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.x["train"].shape[1:])

    @property
    def outputs(self) -> int:
        return len(self.source.classes) if self.source.task == "classification" else 1

    def pair(self, part: str) -> tuple[Tensor, Tensor]:
        return self.x[part], self.y[part]

    def part(self, part: str) -> Source:
        return self.source.take(self.parts[part])

    def targets(self, labels: np.ndarray) -> Tensor:
        """Labels as the model learns them."""
        if self.source.task == "regression":
            return torch.from_numpy(
                ((labels.astype(np.float64) - self.scale[0]) / self.scale[1]).astype(np.float32)
            )[:, None]
        place = {name: k for k, name in enumerate(self.source.classes)}
        return torch.tensor([place[label] for label in labels])


def prepare(request: Request) -> Prepared:
    """Read, split, and turn into numbers. Categories, medians and scales are those of the training part."""
    path = Path(request.data)
    if ":" in request.data and not path.exists():
        return _prepared(from_python(request.data, request.label or "label"), request)
    given = {
        part: Path(file)
        for part, file in (("validation", request.validation), ("test", request.test))
        if file is not None
    }
    whole = _read(path, request)
    check_learnable(whole)
    if not given:
        return _prepared((whole, split(whole, request.seed)), request, _root(path))
    read = {part: _read(file, request, like=whole) for part, file in given.items()}
    left = split(
        whole,
        request.seed,
        {part: 0.0 if part in given else share for part, share in SHARES.items()},
    )
    sources = {part: read[part] if part in read else whole.take(left[part]) for part in PARTS}
    return _prepared(joined(sources), request, _root(path))


def _root(path: Path) -> Path:
    return path if path.is_dir() else path.parent


def _read(path: Path, request: Request, like: Source | None = None) -> Source:
    if path.is_dir():
        source = images.read_folder(path)
    elif request.label is None:
        raise BadInput("Which column is to be learnt? Pass --label NAME.")
    elif request.images is not None:
        source = images.read_table(path, request.images, request.label)
    else:
        source = tables.read(
            path,
            request.label,
            task=like.task if like else request.task,
            text=request.text,
            columns=request.columns,
        )
    if like is not None:
        _check_like(source, like, path)
        if source.kind == "images":  # they lie elsewhere than the training pictures
            root = _root(path).resolve()
            source = replace(
                source,
                content=source.content.assign(
                    path=[str(root / name) for name in source.content["path"]]
                ),
            )
    return source


def _check_like(source: Source, like: Source, path: Path) -> None:
    unknown = sorted(set(source.classes) - set(like.classes))
    if unknown:
        raise BadInput(
            f"{path} has classes that {like.label} does not have in training: {', '.join(unknown[:5])}. Mend them, or leave them out."
        )
    missing = [str(name) for name in like.content.columns if name not in source.content.columns]
    if missing:
        raise BadInput(f"{path} lacks the columns {', '.join(missing[:5])}.")


def _prepared(
    found: "tuple[Source, dict[str, np.ndarray]] | Prepared",
    request: Request,
    root: Path | None = None,
) -> Prepared:
    if isinstance(found, Prepared):
        return found
    source, parts = found
    notes = list(source.notes)
    if rare := rare_classes(source):
        notes.append(
            f"Too rare to be in every part, and so in training only: {', '.join(rare[:5])} (fewer than 5 instances)."
        )
    for part in PARTS:
        if len(parts[part]) < FEWEST // 5:
            raise BadInput(
                f"The {part} part has only {len(parts[part])} instances. Give more data, or a larger file for it."
            )
    if len(parts["test"]) < 100:
        notes.append(
            f"The test part has {len(parts['test'])} instances: only a large improvement can be proven on so few."
        )
    train = source.take(parts["train"]).content
    columns: list[Column] = []
    if source.kind == "text":
        encoder: Encoder = TextEncoder(train)
    elif source.kind == "images":
        assert root is not None
        encoder = images.ImageEncoder(train, root)
    else:
        columns = tables.infer(train, request.columns)
        notes += tables.described(columns)
        encoder = TableEncoder(train, columns)
    x = {part: encoder(source.take(ids).content) for part, ids in parts.items()}
    labels = source.labels[parts["train"]]
    scale = (
        (float(labels.mean()), float(labels.std())) if source.task == "regression" else (0.0, 1.0)
    )
    made = Prepared(
        source,
        parts,
        x,
        {},
        encoder,
        columns,
        notes,
        scale,
        root if source.kind == "images" else None,
    )
    made.y.update({part: made.targets(source.labels[ids]) for part, ids in parts.items()})
    return made


def from_python(entry: str, label: str) -> Prepared:
    """`module:function`, which returns {"train": (x, y), "validation": ..., "test": ...} as tensors or arrays, and perhaps "classes"."""
    made = loaded(entry, "data")()
    if not isinstance(made, dict) or not set(PARTS) <= set(made):
        raise BadInput(
            f"{entry} must return a dict with train, validation and test, each a pair (x, y); it returned {type(made).__name__}."
        )
    pairs = {
        part: tuple(
            torch.as_tensor(np.asarray(side) if not isinstance(side, Tensor) else side)
            for side in made[part]
        )
        for part in PARTS
    }
    numbers = pairs["train"][1].is_floating_point()
    everyone = [pairs[part][1].reshape(len(pairs[part][1])).numpy() for part in PARTS]
    given = [str(name) for name in made.get("classes", [])]
    names = dict(enumerate(given)) or {
        int(value): str(value) for value in np.unique(np.concatenate(everyone)) if not numbers
    }
    if not numbers and not set(np.concatenate(everyone).tolist()) <= set(names):
        raise BadInput(
            f"{entry} gives {len(given)} classes, but labels run from {min(map(min, everyone))} to {max(map(max, everyone))}: label k is class k."
        )
    labels = np.concatenate(
        [
            y.astype(np.float64) if numbers else np.array([names[int(k)] for k in y], dtype=object)
            for y in everyone
        ]
    )
    ends = np.cumsum([len(y) for y in everyone])
    parts: dict[str, np.ndarray] = dict(zip(PARTS, np.split(np.arange(ends[-1]), ends[:-1])))
    inputs = torch.cat([pairs[part][0].float() for part in PARTS])
    flat = inputs.reshape(len(inputs), -1)[:, :50].numpy()
    content = library().DataFrame(
        {f"input {k}": [f"{value:.4g}" for value in flat[:, k]] for k in range(flat.shape[1])}
    )
    source = Source(
        "custom",
        label,
        content,
        labels,
        [f"{part} {k}" for part in PARTS for k in range(len(parts[part]))],
    )
    check_learnable(source)
    train = labels[parts["train"]]
    scale = (float(train.mean()), float(train.std())) if numbers else (0.0, 1.0)
    x = {
        part: pairs[part][0].float() if pairs[part][0].is_floating_point() else pairs[part][0]
        for part in PARTS
    }
    prepared = Prepared(source, parts, x, {}, None, [], [], scale, None)
    prepared.y.update({part: prepared.targets(labels[ids]) for part, ids in parts.items()})
    return prepared


def loaded(entry: str, option: str) -> Callable[..., Any]:
    """The function that `module:function` names; modules in the current folder count."""
    module, _, name = entry.partition(":")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return getattr(importlib.import_module(module), name)
    except ImportError as error:
        raise BadInput(
            f"{option} {entry}: there is no module '{module}' to import ({error})."
        ) from None
    except AttributeError:
        raise BadInput(f"{option} {entry}: the module has no function '{name}'.") from None


def source_of(entry: str) -> str:
    """Tells whether the code behind `module:function` is still the same."""
    loaded(entry, "--model")
    try:
        return hashlib.sha256(
            inspect.getsource(sys.modules[entry.partition(":")[0]]).encode()
        ).hexdigest()
    except (OSError, TypeError):
        return ""  # compiled: there is no source to compare


def digest(prepared: Prepared) -> str:
    """Tells whether the data are still those that a run was made with."""
    sha = hashlib.sha256(
        "\n".join([*prepared.source.names, *map(str, prepared.source.labels)]).encode()
    )
    for part in PARTS:
        sha.update(
            prepared.x[part].contiguous().numpy().tobytes()
            + prepared.y[part].contiguous().numpy().tobytes()
        )
    return sha.hexdigest()

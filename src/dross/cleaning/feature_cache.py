"""Features of a data set, computed once and kept in the project's folder, chunk by chunk."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..data.tensor_digests import digest_tensors
from ..distributed.result_store import ResultStore
from ..errors import CorruptFile
from ..support.option_names import name_option
from ..support.progress import progress_bar
from .backbones import Compute, load_backbone
from .images import load_picture
from .split_dataset import PreparedData

_CHUNK = 64  # pictures, or texts: the most that an interrupted computation has to repeat
_AT_ONCE = 32  # pass through a network together


def compute_features(
    data: PreparedData,
    backbone: str,
    folder: Path,
    data_digest: str,
    *,
    device: torch.device,
    progress: bool,
) -> Tensor:
    """The features of every instance of a source, or what an earlier attempt kept of them.

    Arguments:
        data: The data set: pictures or texts.
        backbone: The name of a backbone that is installed.
        folder: The project's, where the features are kept.
        data_digest: Of the data; features of other data are kept apart.
        device: Where to compute them.
        progress: Whether to show a progress bar.

    Returns:
        float32 [instances, features], in the order of the source.

    Raises:
        InvalidInput: the weights cannot be fetched or read.
        DrossError: the folder cannot be written.
    """
    store, count = _store(folder, backbone, data_digest), len(data.source)
    store.begin()
    items, compute = _list_items(data), None
    chunks = []
    with progress_bar(f"features by {backbone}", count, show=progress, unit="instances") as bar:
        for number, start in enumerate(range(0, count, _CHUNK)):
            stop = min(start + _CHUNK, count)
            kept = store.get(number)
            if kept is None or len(kept["features"]) != stop - start:
                compute = compute or load_backbone(backbone, device)
                kept = {"features": _compute(compute, items, start, stop)}
                store.put(number, kept)
            chunks.append(kept["features"])
            bar(stop - start)
    return torch.cat(chunks)


def read_features(folder: Path, backbone: str, data_digest: str, count: int, digest: str) -> Tensor:
    """The features that a finished project has kept, float32 [count, features].

    Raises:
        CorruptFile: they are missing, damaged or not those that the project was made with.
    """
    store = _store(folder, backbone, data_digest)
    chunks = [store.get(number) for number in range(-(-count // _CHUNK))]
    whole = [chunk["features"] for chunk in chunks if chunk is not None]
    if len(whole) == len(chunks):
        features = torch.cat(whole)
        if digest_features(features) == digest:
            return features
    raise CorruptFile(
        f"{store.folder} lacks a part of the features that the models of this project learnt, or "
        f"holds others. Run dross clean again with {name_option('overwrite', True)}; your "
        "decisions are set aside, not deleted."
    )


def digest_features(features: Tensor) -> str:
    """A digest of the features."""
    return digest_tensors({"features": features})


def _store(folder: Path, backbone: str, data_digest: str) -> ResultStore:
    settings = {"backbone": backbone, "data": data_digest, "chunk": _CHUNK}
    name = hashlib.sha256(repr(sorted(settings.items())).encode()).hexdigest()[:16]
    return ResultStore((folder / "features" / name).absolute(), settings)


def _list_items(data: PreparedData) -> Callable[[int], Any]:
    """A function from an instance's place in the source to a picture or a text."""
    content, root = data.source.content, data.root
    if root is not None:
        paths = content["path"].tolist()
        return lambda k: load_picture(root / paths[k])
    texts = content["text"].fillna("").astype(str).tolist()
    return texts.__getitem__


def _compute(compute: Compute, items: Callable[[int], Any], start: int, stop: int) -> Tensor:
    places = range(start, stop)
    parts = [
        compute([items(k) for k in places[first : first + _AT_ONCE]])
        for first in range(0, len(places), _AT_ONCE)
    ]
    return torch.cat(parts)

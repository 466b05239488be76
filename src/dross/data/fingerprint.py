"""Digests of the content of tensors, wherever and however it is stored."""

import hashlib
import zlib
from collections.abc import Mapping

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from .batch import AnyBatch


def to_bytes(t: Tensor) -> bytes:
    """The numbers of a tensor as bytes, for a digest."""
    raw = t.detach().cpu().contiguous().view(-1).view(torch.uint8)  # numpy has no bfloat16
    return raw.numpy().tobytes()


def digest_tensors(tensors: Mapping[str, Tensor]) -> str:
    """The digest of named tensors, in whatever order they come: a file may change it."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tuple(tensor.shape)} {tensor.dtype}".encode() + to_bytes(tensor))
    return digest.hexdigest()


def checksum(batch: AnyBatch) -> int:
    """A checksum of what the model sees: it tells a changed dataset from a wrong replay."""
    loaded = batch.load()
    value = 0
    for leaf in tree_leaves((loaded.x, loaded.y)):
        value = zlib.crc32(to_bytes(leaf), value)
    return value

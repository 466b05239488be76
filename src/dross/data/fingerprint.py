"""Digests of tensors: what they hold, not where or how."""

import hashlib
from collections.abc import Mapping

import torch
from torch import Tensor


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

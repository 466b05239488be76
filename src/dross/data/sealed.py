"""Small files of named tensors and what is known about them, in which every changed bit is noticed.

The tensors are a safetensors file. Its metadata are one entry, the digest of everything followed by
a JSON object: safetensors writes several entries in an order that differs from time to time.
"""

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from .._io import read_file, write_bytes
from ..errors import CorruptFile, DrossError
from .fingerprint import digest_tensors

_DIGITS = 64  # of a SHA-256


def write_tensors(path: Path, tensors: dict[str, Tensor], notes: dict[str, Any]) -> None:
    """Write a file completely or not at all.

    Raises:
        DrossError: it cannot be written.
    """
    # cloned, because safetensors refuses tensors that share memory
    tensors = {name: t.detach().cpu().contiguous().clone() for name, t in tensors.items()}
    # safetensors sorts them, and sums round by their order
    text = json.dumps({"order": list(tensors), "notes": notes})
    write_bytes(path, save(tensors, {"dross": _digest(tensors, text) + text}))


def read_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors of a file in the order in which they were written, and the notes about them.

    Raises:
        FileNotFoundError: there is no such file.
        CorruptFile: it is not as it was written.
        DrossError: it cannot be read.
    """
    try:
        raw = read_file(path)
        tensors = load(raw)
        header = json.loads(raw[8 : 8 + int.from_bytes(raw[:8], "little")])
        sealed = header["__metadata__"]["dross"]
        text = sealed[_DIGITS:]
        if sealed[:_DIGITS] != _digest(tensors, text):
            raise CorruptFile(f"{path} is damaged: its digest does not match.")
        about = json.loads(text)
        # copied, because vectorized sums round differently on memory that is not aligned
        return {name: tensors[name].clone() for name in about["order"]}, about["notes"]
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DrossError(f"{path} cannot be read: {error.strerror}.") from error
    except (SafetensorError, LookupError, TypeError, ValueError) as error:
        raise CorruptFile(f"{path} was not written by dross, or it is damaged ({error}).") from None


def _digest(tensors: dict[str, Tensor], text: str) -> str:
    return hashlib.sha256((digest_tensors(tensors) + text).encode()).hexdigest()

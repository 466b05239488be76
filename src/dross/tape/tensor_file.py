"""A safetensors file written tensor by tensor.

safetensors' own `save` builds the whole file in memory. A state of a language model takes
gigabytes, and copying it takes more; here its bytes go straight to the file.

    8 bytes        the length of the header, the lowest byte first
    header         JSON: {"__metadata__": ..., name: {"dtype", "shape", "data_offsets"}, ...},
                   filled up with spaces to a multiple of 8
    the tensors    their bytes, one tensor after the other
"""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping

import torch
from torch import Tensor

#: as safetensors orders them: the widest come first, so that each is aligned
_TYPES = {
    torch.int64: "I64",
    torch.float64: "F64",
    torch.float32: "F32",
    torch.int32: "I32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_PIECE = 1 << 23  # bytes that are handed out at a time


def encode_tensors(tensors: Mapping[str, Tensor], about: dict) -> Iterator[bytes | memoryview]:
    """The bytes of a safetensors file, part by part.

    Arguments:
        tensors: by name, in the memory of the host.
        about: what is kept with them, as the metadata "dross".

    Returns:
        The header, and then the tensors in parts of a few MB. Together they are what
        `safetensors.torch.save` makes.
    """
    order = list(_TYPES)
    names = sorted(tensors, key=lambda name: (order.index(tensors[name].dtype), name))
    header: dict = {"__metadata__": {"dross": json.dumps(about)}}
    end = 0
    for name in names:
        t, start = tensors[name], end
        end = start + t.numel() * t.element_size()
        shape = {"dtype": _TYPES[t.dtype], "shape": list(t.shape)}
        header[name] = shape | {"data_offsets": [start, end]}
    raw = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    raw += b" " * (-len(raw) % 8)
    yield len(raw).to_bytes(8, "little") + raw
    for name in (name for name in names if tensors[name].numel()):
        whole = tensors[name].contiguous().reshape(-1).view(torch.uint8).numpy().data
        yield from (whole[k : k + _PIECE] for k in range(0, len(whole), _PIECE))


class Digested:
    """Parts of a file that are counted and hashed as they are read, once."""

    def __init__(self, parts: Iterable[bytes | memoryview]):
        self.parts, self.size, self._hash = parts, 0, hashlib.sha256()

    def __iter__(self) -> Iterator[bytes | memoryview]:
        for part in self.parts:
            self._hash.update(part)
            self.size += len(part)
            yield part

    @property
    def digest(self) -> str:
        """The SHA-256 of what was taken so far."""
        return self._hash.hexdigest()

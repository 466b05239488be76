"""The bytes of a tape's files are those that safetensors itself would write."""

import json

import pytest
import torch
from safetensors.torch import load, save

from dross.tape.format import _TYPES, encode_tensors

ABOUT = {"steps": 3, "clocks": [{"step": 1.5}], "name": 'Grüße "an" \\ alle'}


@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 0, 3), (3, 7)])
def test_the_bytes_are_those_of_safetensors(shape):
    random = torch.Generator().manual_seed(0)
    tensors = {
        f"{prefix}.{dtype}": torch.randint(0, 2, shape, generator=random).to(dtype)
        for dtype in _TYPES
        for prefix in ("b", "a", "ü")
    }
    expected = save(tensors, {"dross": json.dumps(ABOUT)})
    assert b"".join(encode_tensors(tensors, ABOUT)) == expected


def test_what_does_not_lie_in_one_piece(monkeypatch):
    monkeypatch.setattr("dross.tape.format._PIECE", 7)
    wide = torch.arange(12.0).reshape(3, 4)
    tensors = {"turned": wide.t(), "cut": wide[:, 1:3], "repeated": wide[:1].expand(2, 4)}
    tensors["nothing"] = torch.zeros(1).as_strided((0,), (0,))
    parts = list(encode_tensors(tensors, {}))
    assert max(len(part) for part in parts[1:]) == 7
    found = load(b"".join(parts))
    assert all(torch.equal(found[name], t) for name, t in tensors.items())

"""Files of named tensors: what was written is read, in its order, and nothing else."""

import pytest
import torch

from dross.data.sealed import read_tensors, write_tensors
from dross.errors import CorruptFile


def test_what_was_written_is_read_in_its_order(tmp_path):
    tensors = {"b": torch.randn(3), "a": torch.arange(2), "plain b": torch.randn(2, 2)}
    tensors["c"] = tensors["b"]  # they may share memory
    notes = {"order": "mine", "numbers": [0.1]}
    write_tensors(tmp_path / "x", tensors, notes)
    read, about = read_tensors(tmp_path / "x")
    assert list(read) == list(tensors) and about == notes
    assert all(torch.equal(read[name], tensors[name]) for name in tensors)


def test_every_changed_byte_is_noticed(tmp_path):
    path = tmp_path / "x"
    write_tensors(path, {"b": torch.randn(3), "a": torch.arange(2)}, {})
    whole = path.read_bytes()
    read, _ = read_tensors(path)
    for place in range(len(whole)):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        try:
            again, _ = read_tensors(path)
        except CorruptFile:
            continue
        assert all(torch.equal(again[name], read[name]) for name in read)  # a space in the header
    path.write_bytes(whole[:-1])
    with pytest.raises(CorruptFile):
        read_tensors(path)

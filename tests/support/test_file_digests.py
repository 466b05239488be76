"""Digests notice every change, and a sealed object its own."""

import json
from contextlib import suppress

import pytest

from dross._io import break_seal, digest_file, digest_files, seal
from dross.errors import DrossError


def test_names_and_content_count(tmp_path):
    (tmp_path / "a").write_bytes(b"1")
    (tmp_path / "b").write_bytes(b"2")
    first = digest_files(tmp_path, ["a", "b"])
    assert first != digest_files(tmp_path, ["b", "a"]) and len(digest_file(tmp_path / "a")) == 64
    (tmp_path / "b").write_bytes(b"3")
    assert digest_files(tmp_path, ["a", "b"]) != first
    with pytest.raises(DrossError, match="cannot be read"):
        digest_file(tmp_path / "none")


def test_a_sealed_object_notices_every_change_of_a_character():
    value = {"a": [1, 2.5, float("inf")], "b": {1: (3, None)}, "c": "ü"}
    text = json.dumps(seal(value))
    assert break_seal(json.loads(text)) == json.loads(json.dumps(value))
    unnoticed = []
    for place, letter in enumerate(text):
        if letter.isalnum():
            other = text[:place] + ("7" if letter != "7" else "3") + text[place + 1 :]
            with suppress(ValueError):  # not JSON any more
                if break_seal(json.loads(other)) is not None:
                    unnoticed.append(other)
    assert unnoticed == []
    assert break_seal({"a": 1}) == {"a": 1}  # written by an earlier version

"""A manifest that has been edited, by hand or by a fault of the disk, is refused and says where."""

import json
from copy import deepcopy

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

import dross
from dross.errors import CorruptFile, InputChanged
from dross.tape.format import Manifest, _from_json, check_same_run, encode_manifest
from dross.tape.reader import Tape
from tests.tape.helpers import reopen, train
from tests.zoo import problem

pytestmark = pytest.mark.usefixtures("commit_every_segment")


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    """A problem, the folder of its tape of several segments, and its manifest."""
    p = problem("batchnorm", "adam", epochs=3)
    folder = tmp_path_factory.mktemp("manifest") / "t"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dross.tape.writer.seconds_between_commits", lambda took: 0.0)
        train(p, folder, keep=dross.tape.Checkpoints(every=3), epochs=3)
    manifest = json.loads((folder / "manifest.json").read_text())
    assert len(manifest["segments"]) > 3
    return p, folder, manifest


def _set(*path_and_value):
    *path, last, value = path_and_value

    def edit(manifest):
        inner = manifest
        for key in path:
            inner = inner[key]
        inner[last] = value

    return edit


def _drop(*path):
    *path, last = path

    def edit(manifest):
        inner = manifest
        for key in path:
            inner = inner[key]
        del inner[last]

    return edit


def _swap(manifest):
    segments = manifest["segments"]
    segments[1], segments[2] = segments[2], segments[1]


def _swap_files(manifest):
    one, other = manifest["segments"][1:3]
    for key in ("file", "bytes", "sha256"):
        one[key], other[key] = other[key], one[key]


def _repeat(manifest):
    manifest["segments"].insert(1, manifest["segments"][0])


def _end_earlier(manifest):
    last = manifest["segments"].pop()
    manifest["steps"] -= last["steps"]


EDITS = {
    "more steps": _set("steps", 10**6),
    "negative steps": _set("steps", -3),
    "steps as text": _set("steps", "12"),
    "steps as a float": _set("steps", 12.5),
    "steps that are true": _set("steps", True),
    "infinite steps": _set("steps", float("inf")),
    "huge steps": _set("steps", 10**400),
    "no first segment": _drop("segments", 0),
    "no middle segment": _drop("segments", 1),
    "no last segment": _drop("segments", -1),
    "no segments": _set("segments", []),
    "two segments swapped": _swap,
    "the files of two segments swapped": _swap_files,
    "a segment twice": _repeat,
    "an earlier end": _end_earlier,
    "another first": _set("segments", 1, "first", 4),
    "huge first": _set("segments", 0, "first", 2**70),
    "a segment of no steps": _set("segments", 1, "steps", 0),
    "a segment of other steps": _set("segments", 1, "steps", 4),
    "segments as a dict": _set("segments", {}),
    "a segment as a number": _set("segments", 1, 7),
    "a segment without a file": _drop("segments", 1, "file"),
    "a segment without a digest": _drop("segments", 1, "sha256"),
    "negative bytes": _set("segments", 1, "bytes", -1),
    "a digest that is a number": _set("segments", 1, "sha256", 5),
    "one epoch": _set("segments", 1, "epochs", [0]),
    "a parent folder": _set("segments", 1, "file", "../x.safetensors"),
    "an absolute path": _set("end", "file", "/etc/passwd"),
    "a folder of Windows": _set("end", "file", "..\\x.safetensors"),
    "an empty name": _set("end", "file", ""),
    "the folder itself": _set("end", "file", ".."),
    "no end": _drop("end"),
    "end as null": _set("end", None),
    "complete as text": _set("complete", "yes"),
    "not complete": _set("complete", False),
    "no id": _drop("id"),
    "a model without parameters": _drop("model", "parameters"),
    "shapes that are none": _set("model", "buffers", {"a": 3}),
    "another type of parameters": _set("model", "buffers", {"a": [[3], "float33"]}),
    "layout as null": _set("layout", None),
    "a layout without names": _set("layout", "names", []),
    "an optimizer without columns": _drop("optimizer", "columns"),
    "another optimizer": _set("optimizer", "name", "SGD"),
    "another seed": _set("seed", 77),
    "fewer planned steps": _set("planned", 2),
    "no data": _set("data", None),
    "a digest of nothing": _set("digest", ""),
    "no digest": _drop("digest"),
    "an entry more": _set("note", "mine"),
}

# those that are refused for themselves, whatever the digest says
WRONG_LAYOUTS = {
    "a name more": _set("layout", "names", ["0.weight", "0.bias", "2.weight", "2.bias", "more"]),
    "a shape less": lambda manifest: manifest["layout"]["shapes"].pop(),
    "a huge shape": _set("layout", "shapes", 0, [2**63]),
    "another size": _set("layout", "group_sizes", [3]),
    "other names": _set("layout", "listed", ["a"]),
}
CONTRADICTIONS = ("more steps", "no middle segment", "no last segment", "a segment twice")


def _write(folder, manifest):
    (folder / "manifest.json").write_text(json.dumps(manifest))


def _seal(manifest):
    """The manifest with its own digest, as somebody who knows how would write it."""
    raw = json.dumps(manifest).encode()
    try:
        return encode_manifest(msgspec.json.decode(raw, type=Manifest, dec_hook=_from_json))
    except msgspec.DecodeError:
        return raw


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_manifest_is_refused(recorded, tmp_path, name):
    p, _, manifest = recorded
    edited = deepcopy(manifest)
    EDITS[name](edited)
    _write(tmp_path, edited)
    with pytest.raises(CorruptFile, match=r"manifest\.json is damaged: .*Restore it"):
        reopen(p, tmp_path)


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_segments_with_a_gap_are_refused_whatever_the_digest_says(recorded, tmp_path, name):
    p, _, manifest = recorded
    edited = deepcopy(manifest)
    EDITS[name](edited)
    (tmp_path / "manifest.json").write_bytes(_seal(edited))
    with pytest.raises(CorruptFile, match=r"begins at step|its segments end at step"):
        reopen(p, tmp_path)


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=4,
)


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data(), resealed=st.booleans())
def test_any_other_value_anywhere_is_refused(recorded, data, resealed):
    """A value put anywhere is refused; where the digest was made anew, with one of our errors."""
    p, folder, manifest = recorded
    edited = inner = deepcopy(manifest)
    while True:
        key = data.draw(
            st.sampled_from(sorted(inner) if isinstance(inner, dict) else range(len(inner)))
        )
        if not isinstance(inner[key], (dict, list)) or not inner[key] or data.draw(st.booleans()):
            break
        inner = inner[key]
    old, inner[key] = inner[key], data.draw(_VALUES)
    same = json.dumps(old) == json.dumps(inner[key])
    raw = _seal(edited) if resealed else json.dumps(edited).encode()
    path = folder / "manifest.json"
    kept = path.read_bytes()
    try:
        path.write_bytes(raw)
        with (
            pytest.raises((CorruptFile, InputChanged)) if not resealed and not same else _anything()
        ):
            reopen(p, folder)
    finally:
        path.write_bytes(kept)


@pytest.mark.parametrize("name", WRONG_LAYOUTS)
def test_a_layout_that_contradicts_itself_is_refused(recorded, tmp_path, name):
    p, _, manifest = recorded
    edited = deepcopy(manifest)
    WRONG_LAYOUTS[name](edited)
    (tmp_path / "manifest.json").write_bytes(_seal(edited))
    with pytest.raises(CorruptFile, match=r"the parameters|a parameter is larger"):
        reopen(p, tmp_path)


class _anything:
    """A result, or one of our errors or warnings."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        return kind is not None and issubclass(kind, (dross.DrossError, dross.DrossWarning))


@pytest.mark.parametrize("raw", [b"[" * 100_000, b"9" * 10_000, b"\xff\xfe", b'"' * 3, b"null"])
def test_a_manifest_that_is_no_json_is_refused(tmp_path, raw):
    (tmp_path / "manifest.json").write_bytes(raw)
    with pytest.raises(CorruptFile, match=r"manifest.json is damaged|not written by dross"):
        Tape(tmp_path)


def test_only_a_complete_tape_is_taken_up_on_another_device(recorded):
    now = replace(Tape(recorded[1]).manifest, device="cpu")
    earlier = replace(now, device="cuda:0", complete=True)
    check_same_run(earlier, now)  # there is nothing left to compute
    with pytest.raises(InputChanged, match="device changed from"):
        check_same_run(replace(earlier, complete=False), now)
    with pytest.raises(InputChanged, match="seed changed"):
        check_same_run(earlier, replace(now, seed=77))

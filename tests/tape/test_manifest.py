"""A manifest that has been edited, by hand or by a fault of the disk, is refused and says where."""

import json
from copy import deepcopy

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dross
from dross.errors import CorruptFile, InputChanged
from dross.tape.format import check_same_run, seal
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


# what an edit is, and whether the entries contradict each other even where there is no digest
EDITS = {
    "more steps": (_set("steps", 10**6), True),
    "fewer steps": (_set("steps", 1), True),
    "no steps": (_set("steps", 0), True),
    "negative steps": (_set("steps", -3), True),
    "steps as text": (_set("steps", "12"), True),
    "steps as a float": (_set("steps", 12.0), True),
    "steps that are true": (_set("steps", True), True),
    "infinite steps": (_set("steps", float("inf")), True),
    "huge steps": (_set("steps", 10**400), True),
    "no first segment": (_drop("segments", 0), True),
    "no middle segment": (_drop("segments", 1), True),
    "no last segment": (_drop("segments", -1), True),
    "no segments": (_set("segments", []), True),
    "two segments swapped": (_swap, True),
    "the files of two segments swapped": (_swap_files, False),
    "a segment twice": (_repeat, True),
    "an earlier end": (_end_earlier, True),
    "another first": (_set("segments", 1, "first", 4), True),
    "negative first": (_set("segments", 0, "first", -1), True),
    "huge first": (_set("segments", 0, "first", 2**70), True),
    "a segment of no steps": (_set("segments", 1, "steps", 0), True),
    "a segment of other steps": (_set("segments", 1, "steps", 4), True),
    "segments as a dict": (_set("segments", {}), True),
    "segments as null": (_set("segments", None), True),
    "segments as text": (_set("segments", "all of them"), True),
    "a segment as a list": (_set("segments", 1, []), True),
    "a segment as a number": (_set("segments", 1, 7), True),
    "a segment without a file": (_drop("segments", 1, "file"), True),
    "a segment without bytes": (_drop("segments", 1, "bytes"), True),
    "a segment without a digest": (_drop("segments", 1, "sha256"), True),
    "a segment without epochs": (_drop("segments", 1, "epochs"), True),
    "negative bytes": (_set("segments", 1, "bytes", -1), True),
    "bytes as text": (_set("segments", 1, "bytes", "many"), True),
    "a digest that is a number": (_set("segments", 1, "sha256", 5), True),
    "one epoch": (_set("segments", 1, "epochs", [0]), True),
    "epochs the other way round": (_set("segments", 1, "epochs", [2, 0]), True),
    "epochs as a number": (_set("segments", 1, "epochs", 1), True),
    "epochs out of order": (_set("segments", 0, "epochs", [9, 9]), True),
    "a parent folder": (_set("segments", 1, "file", "../x.safetensors"), True),
    "an absolute path": (_set("end", "file", "/etc/passwd"), True),
    "a folder of Windows": (_set("end", "file", "..\\x.safetensors"), True),
    "an empty name": (_set("end", "file", ""), True),
    "the folder itself": (_set("end", "file", ".."), True),
    "the state of another step": (_set("end", "file", "state-000000000001.safetensors"), True),
    "no end": (_drop("end"), True),
    "end as a list": (_set("end", []), True),
    "end as null": (_set("end", None), True),
    "an end without bytes": (_drop("end", "bytes"), True),
    "complete as text": (_set("complete", "yes"), True),
    "not complete": (_set("complete", False), False),
    "no id": (_drop("id"), True),
    "model as a list": (_set("model", []), True),
    "a model without parameters": (_drop("model", "parameters"), True),
    "a model without constants": (_drop("model", "constants"), True),
    "shapes that are none": (_set("model", "buffers", {"a": 3}), True),
    "layout as null": (_set("layout", None), True),
    "a layout without names": (_set("layout", "names", []), True),
    "a layout of strangers": (_set("layout", "names", 0, "stranger"), True),
    "a layout of other sizes": (_set("layout", "group_sizes", [1]), True),
    "optimizer as text": (_set("optimizer", "Adam"), True),
    "an optimizer without columns": (_drop("optimizer", "columns"), True),
    "flags as a list": (_set("optimizer", "flags", []), True),
    "another optimizer": (_set("optimizer", "name", "SGD"), False),
    "other columns": (_set("optimizer", "columns", []), False),
    "no seed": (_drop("seed"), True),
    "seed as text": (_set("seed", "one"), True),
    "another seed": (_set("seed", 77), False),
    "fewer planned steps": (_set("planned", 2), True),
    "instances as text": (_set("instances", "20"), True),
    "memory as text": (_set("memory", "lots"), True),
    "arithmetic as a number": (_set("arithmetic", 3), True),
    "no data": (_set("data", None), False),
    "a digest of nothing": (_set("digest", ""), False),
    "a digest that is null": (_set("digest", None), False),
    "an entry more": (_set("note", "mine"), False),
}


def _write(folder, manifest):
    (folder / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize("name", EDITS)
def test_an_edited_manifest_is_refused(recorded, tmp_path, name):
    p, _, manifest = recorded
    edited = deepcopy(manifest)
    EDITS[name][0](edited)
    _write(tmp_path, edited)
    with pytest.raises(CorruptFile, match=r"manifest\.json is damaged: .*Restore it"):
        reopen(p, tmp_path)


@pytest.mark.parametrize("name", [name for name, (_, contradicts) in EDITS.items() if contradicts])
def test_without_a_digest_its_parts_are_compared(recorded, tmp_path, name):
    p, _, manifest = recorded
    edited = deepcopy(manifest)
    del edited["digest"]
    EDITS[name][0](edited)
    _write(tmp_path, edited)
    with pytest.raises(CorruptFile, match=r"manifest\.json is damaged"):
        reopen(p, tmp_path)


def test_a_tape_without_a_digest_opens_and_gets_one_when_it_goes_on(recorded, tmp_path):
    p, _, _ = recorded
    folder = tmp_path / "old"
    run = train(p, folder, epochs=3)
    manifest = json.loads((folder / "manifest.json").read_text())
    newer = ("digest", "schedule", "arithmetic", "memory", "autocast", "inner_cast", "kernels")
    for key in newer:  # as earlier versions wrote it
        del manifest[key]
    _write(folder, manifest)
    query = dross.mean_loss((p.X_val, p.Y_val))
    assert (reopen(p, folder).influence(query).values == run.influence(query).values).all()
    train(p, folder, epochs=3, resume=True)
    assert "digest" in Tape(folder).manifest


def test_a_segment_that_is_another_one_is_refused_where_nothing_else_tells(recorded, tmp_path):
    """The files of two entries, with their digests, changed places on a tape without a digest."""
    p, _, _ = recorded
    folder = tmp_path / "t"
    train(p, folder, epochs=3, keep=dross.tape.Checkpoints(every=3))
    manifest = json.loads((folder / "manifest.json").read_text())
    one, other = manifest["segments"][0], manifest["segments"][-1]
    for key in ("file", "bytes", "sha256"):
        one[key], other[key] = other[key], one[key]
    _write(folder, seal(manifest))
    with pytest.raises(CorruptFile, match="does not hold what the manifest says"):
        reopen(p, folder).influence(dross.mean_loss((p.X_val, p.Y_val)))


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
    if resealed:
        edited = seal(edited)  # as somebody who knows how
    path = folder / "manifest.json"
    kept = path.read_bytes()
    try:
        _write(folder, edited)
        with (
            pytest.raises((CorruptFile, InputChanged)) if not resealed and not same else _anything()
        ):
            reopen(p, folder)
    finally:
        path.write_bytes(kept)


class _anything:
    """A result, or one of our errors or warnings."""

    def __enter__(self):
        return self

    def __exit__(self, kind, error, traceback):
        return kind is not None and issubclass(kind, (dross.DrossError, dross.DrossWarning))


@pytest.mark.parametrize("raw", [b"[" * 100_000, b"9" * 10_000, b"\xff\xfe", b'"' * 3, b"null"])
def test_a_manifest_that_is_no_json_is_refused(tmp_path, raw):
    (tmp_path / "manifest.json").write_bytes(raw)
    with pytest.raises(CorruptFile, match=r"JSON|not written by dross"):
        Tape(tmp_path)


def test_only_a_complete_tape_is_taken_up_on_another_device():
    earlier, now = ({"device": device, "seed": 0} for device in ("cuda:0", "cpu"))
    check_same_run({**earlier, "complete": True}, now)  # there is nothing left to compute
    with pytest.raises(InputChanged, match="device was"):
        check_same_run({**earlier, "complete": False}, now)
    with pytest.raises(InputChanged, match="seed was"):
        check_same_run({**earlier, "complete": True}, {**now, "seed": 1})

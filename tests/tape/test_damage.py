"""A damaged, foreign or missing file of a tape is refused and named."""

import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dross
from dross.errors import CorruptFile, DrossError, InputChanged
from dross.tape.reader import Tape
from tests.tape.helpers import reopen, train
from tests.zoo import problem

pytestmark = pytest.mark.usefixtures("commit_every_segment")


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_damage_anywhere_is_noticed(tmp_path_factory, data):
    p = problem("batchnorm", "adam")
    folder = tmp_path_factory.mktemp("tape") / "t"
    run = train(p, folder)
    files = sorted(folder.glob("*.safetensors"))
    victim = data.draw(st.sampled_from(files))
    raw = bytearray(victim.read_bytes())
    kind = data.draw(st.sampled_from(["flip", "truncate", "foreign", "missing", "empty"]))
    if kind == "flip":
        at = data.draw(st.integers(0, len(raw) - 1))
        raw[at] ^= 1 << data.draw(st.integers(0, 7))
    elif kind == "truncate":
        raw = raw[: data.draw(st.integers(0, len(raw) - 1))]
    victim.write_bytes({"foreign": b"PK\x03\x04 not a tensor", "empty": b""}.get(kind, bytes(raw)))
    if kind == "missing":
        victim.unlink()
    with pytest.raises(CorruptFile, match=victim.name):
        reopen(p, folder).influence(dross.mean_loss((p.X_val, p.Y_val)))
    assert run.steps == len(p.batches)


@settings(max_examples=60, deadline=None)
@given(
    raw=st.one_of(
        st.binary(max_size=200),
        st.text(max_size=80).map(str.encode),
        st.sampled_from(
            [b"[]", b"{}", b'{"made_by": "dross"}', b'{"made_by": "dross", "format": 1}']
        ),
    )
)
def test_any_manifest_that_is_not_ours_is_refused(tmp_path_factory, raw):
    folder = tmp_path_factory.mktemp("tape")
    (folder / "manifest.json").write_bytes(raw)
    with pytest.raises(DrossError):
        Tape(folder)


def test_versions_and_paths_of_a_manifest_are_checked(record, tmp_path):
    p = problem("mlp", "sgd")
    run = record(p)
    path = run.path / "manifest.json"
    good = json.loads(path.read_text())
    path.write_text(json.dumps(good | {"format": 99}))
    with pytest.raises(InputChanged, match="format 99, but this version of dross reads format 1"):
        Tape(run.path)
    path.write_text(json.dumps(good | {"end": good["end"] | {"file": "../../etc/passwd"}}))
    with pytest.raises(CorruptFile, match=r"end\.file"):
        Tape(run.path)
    with pytest.raises(DrossError, match="no recorded run"):
        Tape(tmp_path / "nowhere")

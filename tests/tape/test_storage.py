"""Tapes behind a URL: fetched as they are needed, checked, and a missing file named."""

import cloudpickle
import fsspec
import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import dross
from dross import cli
from dross.errors import CorruptFile, DrossError, InvalidInput
from dross.tape import storage
from tests.zoo import problem

FINE = dross.tape.Checkpoints(every=3)


@pytest.fixture(params=["memory", "file"])
def bucket(request, tmp_path):
    """A URL to put a tape to. The whole process shares one memory file system: it is cleared."""
    if request.param == "file":
        return f"file://{tmp_path}/bucket/run"
    system = fsspec.filesystem("memory")
    system.store.clear()
    return "memory://bucket/run"


def upload(run, url):
    """As docs/scale.md says."""
    system, path = fsspec.core.url_to_fs(url)
    system.put(f"{run.path}/", path, recursive=True)
    return system, path


def open_run(p, url, **options):
    model, _ = p.start()
    return dross.load(url, model, (p.X, p.Y), p.loss, penalty=p.penalty, progress=False, **options)


def query(p):
    return dross.mean_loss((p.X_val, p.Y_val))


@pytest.fixture
def fetched(monkeypatch):
    """The names of the files that were fetched, in order."""
    names, read = [], storage.Bucket.read

    def counted(self, name):
        if name not in self.cached:
            names.append(name)
        return read(self, name)

    monkeypatch.setattr(storage.Bucket, "read", counted)
    return names


def test_a_tape_in_a_bucket_says_the_same_and_is_fetched_once(record, bucket, fetched):
    p = problem("batchnorm", "adam", epochs=3)
    run = record(p, keep=FINE)
    upload(run, bucket)
    again = open_run(p, bucket)
    assert fetched == ["manifest.json"] and again.path == bucket  # nothing before it is needed
    np.testing.assert_array_equal(again.influence(query(p)).values, run.influence(query(p)).values)
    np.testing.assert_array_equal(
        again.leave_one_out(query(p), [0, 1]), run.leave_one_out(query(p), [0, 1])
    )
    assert len(fetched) == len(set(fetched)) == len(run.recording.tape.entries) + 2
    for name, value in run.parameters().items():
        assert torch.equal(again.parameters()[name], value)
    held = again.recording.tape.storage.folder
    assert held.is_dir()
    del again
    assert not held.exists()


def test_only_what_a_retrace_needs_is_fetched(record, bucket, fetched):
    p = problem("mlp", "sgd", epochs=6)
    run = record(p, keep=FINE)
    upload(run, bucket)
    again = open_run(p, bucket)
    np.testing.assert_array_equal(
        again.influence(query(p), epochs=1).values, run.influence(query(p), epochs=1).values
    )
    needed = [entry.file for entry in run.recording.tape.entries if entry.epochs[1] == 5]
    assert set(fetched) == {"manifest.json", run.recording.tape.end.file, *needed}
    assert len(needed) < len(run.recording.tape.entries) / 2


def test_what_is_kept_here_stays_within_its_bound(record, bucket, fetched, monkeypatch):
    p = problem("mlp", "sgd", epochs=4)
    run = record(p, keep=FINE)
    upload(run, bucket)
    bound = 3 * max(entry.bytes for entry in run.recording.tape.entries)
    monkeypatch.setattr(storage, "_MAX_CACHED_BYTES", bound)
    again = open_run(p, bucket)
    for _ in range(2):
        np.testing.assert_array_equal(
            again.influence(query(p)).values, run.influence(query(p)).values
        )
        here = [file.stat().st_size for file in again.recording.tape.storage.folder.iterdir()]
        assert 0 < sum(here) <= bound and sum(here) == sum(
            again.recording.tape.storage.cached.values()
        )
    assert len(fetched) > len(set(fetched))  # what did not fit is fetched again
    monkeypatch.setattr(
        storage, "_MAX_CACHED_BYTES", 10
    )  # a file that never fits is used all the same
    np.testing.assert_array_equal(
        open_run(p, bucket).influence(query(p)).values, run.influence(query(p)).values
    )


def test_a_missing_segment_is_named_and_nothing_else_breaks(record, bucket):
    p = problem("mlp", "sgd", epochs=6)
    run = record(p, keep=FINE)
    system, path = upload(run, bucket)
    gone = run.recording.tape.entries[1].file
    system.rm(f"{path}/{gone}")
    again = open_run(p, bucket)
    with pytest.raises(CorruptFile, match=rf"{bucket}/{gone} is missing.*restore it from a copy"):
        again.influence(query(p))
    again.influence(query(p), epochs=1)  # does not need it
    system.put(str(run.path / gone), f"{path}/{gone}")
    np.testing.assert_array_equal(again.influence(query(p)).values, run.influence(query(p)).values)


def test_a_damaged_segment_is_refused_and_not_kept(record, bucket):
    p = problem("mlp", "sgd")
    run = record(p, keep=FINE)
    system, path = upload(run, bucket)
    name = run.recording.tape.entries[1].file
    raw = system.cat_file(f"{path}/{name}")
    system.pipe_file(f"{path}/{name}", raw[:-1] + bytes([raw[-1] ^ 1]))
    again = open_run(p, bucket)
    with pytest.raises(CorruptFile, match=f"{name} is damaged"):
        again.influence(query(p))
    system.pipe_file(f"{path}/{name}", raw)
    np.testing.assert_array_equal(again.influence(query(p)).values, run.influence(query(p)).values)


def test_other_faults(record, bucket, monkeypatch, tmp_path):
    p = problem("mlp", "sgd")
    run = record(p)
    with pytest.raises(DrossError, match=rf"There is no recorded run at {bucket}"):
        open_run(p, bucket)
    upload(run, bucket)
    again = open_run(p, bucket)

    def refused(self, path, **options):
        raise RuntimeError("the token has expired")

    monkeypatch.setattr(type(again.recording.tape.storage.system), "cat_file", refused)
    with pytest.raises(
        DrossError, match=r"segment-00000\d.safetensors cannot be read: the token has expired"
    ):
        again.influence(query(p))
    with pytest.raises(InvalidInput, match="Protocol not known"):
        open_run(p, "nowhere://bucket/run")
    with pytest.raises(InvalidInput, match="copy that to the URL"):
        record(p, path=bucket)
    with pytest.raises(InvalidInput, match="copy that to the URL"):
        model, optimizer = p.start()
        dross.Recorder(model, p.loss, optimizer, path=bucket, resume=True)


def test_info_and_runs_that_travel(record, tmp_path):
    """A run opened by URL is opened by URL at a worker, too."""
    p = problem("mlp", "sgd", count=40)
    url = f"file://{tmp_path}/bucket"
    run = record(p)
    upload(run, url)
    result = CliRunner().invoke(cli.app, ["info", url], catch_exceptions=False)
    assert result.exit_code == 0 and "all intact" in result.output
    again = cloudpickle.loads(cloudpickle.dumps(open_run(p, url)))
    assert again.path == url
    np.testing.assert_array_equal(
        again.leave_one_out(query(p), [0, 3]), run.leave_one_out(query(p), [0, 3])
    )

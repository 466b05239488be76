"""An instance that has changed since the recording is named, wherever its data come from."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import time

import numpy as np
import pytest
import torch

import dross
from dross.errors import CorruptFile, InputChanged
from dross.tape.format import Segment, seal
from dross.tape.reader import Tape

COUNT = 5000
X = torch.randn(COUNT, 8, generator=torch.Generator().manual_seed(0))
Y = torch.arange(COUNT) % 3
CHANGED = [101, 1203, 2404, 3605, 4806]  # none of the 64 that a sample looks at
QUERY = dross.mean_loss((X[:50], Y[:50]))
LITTLE_MEMORY = {"keep": dross.tape.Budget(64 << 20, in_memory=10_000)}  # the data do not fit in it


class MapStyle(torch.utils.data.Dataset):
    """Instances that are given one by one."""

    def __init__(self, x=X, y=Y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], int(self.y[i])


def changed_labels(ids=CHANGED):
    y = Y.clone()
    y[ids] = (y[ids] + 1) % 3
    return y


def start():
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 3)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def train(folder, data=None, **options):
    model, optimizer = start()
    given = {"epochs": 2, "batch_size": 50, "progress": False} | LITTLE_MEMORY | options
    data = MapStyle() if data is None else data
    return dross.train(model, data, "cross_entropy", optimizer, path=folder, **given)


def own_loop(folder, *, stop=None, y=Y, epochs=2, **options):
    """The user's own loop, whose recorder does not know the data set."""
    model, optimizer = start()
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=folder, **options)
    generator, batches = torch.Generator().manual_seed(1), []
    for epoch in range(epochs):
        order = torch.randperm(COUNT, generator=generator)
        batches += [(epoch, ids) for ids in order.split(50)]
    for epoch, ids in batches[recorder.steps : stop]:
        with recorder.step(ids, X[ids], y[ids], epoch=epoch) as losses:
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorder


def reopen(folder, data, **options):
    return dross.load(folder, start()[0], data, "cross_entropy", progress=False, **options)


def ids_of_steps(tape: Tape):
    segments: list[Segment] = [tape.read(k) for k in range(len(tape.entries))]
    return {int(i) for segment in segments for step in segment.steps for i in step.ids}


def test_five_changed_labels_of_five_thousand_are_found_where_they_come_by(tmp_path):
    run = train(tmp_path / "t")
    expected = run.influence(QUERY).values
    run = reopen(tmp_path / "t", MapStyle(y=changed_labels()))  # the sample saw none of them
    for ask in (
        lambda: run.influence(QUERY),
        lambda: run.influence(QUERY, epochs=1),
        lambda: run.leave_one_out(QUERY, [0]),
        lambda: run.counterfactual([[0]]),
        lambda: run.parameter_influence([0]),
    ):
        with pytest.raises(InputChanged, match=r"Instances? (101|1203|2404|3605|4806)\b.* other"):
            ask()
    restored = reopen(tmp_path / "t", MapStyle())  # nothing is lost
    np.testing.assert_array_equal(restored.influence(QUERY).values, expected)


def test_what_is_changed_under_a_live_run_is_named(tmp_path):
    data = MapStyle(X.clone(), Y)
    run = train(tmp_path / "t", data)
    data.x[77, 3] += 1e-6
    with pytest.raises(InputChanged, match=r"Instance 77 has .* must look the same every time"):
        run.influence(QUERY)
    data.x[77] = X[77]
    assert len(run.influence(QUERY)) == COUNT


@pytest.mark.parametrize("keep", [None, dross.tape.Checkpoints(every=20), LITTLE_MEMORY["keep"]])
def test_five_changed_labels_are_named_where_the_recorder_knew_no_data_set(tmp_path, keep):
    own_loop(tmp_path / "t", keep=keep).close()
    everything = "Instances 101, 1203, 2404, 3605, 4806 have other inputs or labels"
    with pytest.raises(InputChanged, match=everything):  # held in memory: all at once
        reopen(tmp_path / "t", (X, changed_labels()))
    with pytest.raises(InputChanged, match=r"Instances? \d+.* other inputs or labels"):
        reopen(tmp_path / "t", MapStyle(y=changed_labels())).influence(QUERY)
    for same in (MapStyle(), (X, Y), (X.double().numpy(), Y.numpy())):
        assert len(reopen(tmp_path / "t", same).influence(QUERY)) == COUNT


def test_tensors_that_are_changed_in_place_after_a_loop_are_named(tmp_path):
    y = Y.clone()
    run = own_loop(tmp_path / "t").run((X, y))
    assert len(run.influence(QUERY)) == COUNT
    y[4321] = (y[4321] + 1) % 3
    with pytest.raises(InputChanged, match="Instance 4321 has"):
        run.influence(QUERY)


def test_augmentation_comes_after_the_look(tmp_path):
    jitter = lambda x, generator: x + torch.randn(x.shape, generator=generator)
    run = train(tmp_path / "t", augment=jitter)
    assert len(run.influence(QUERY)) == COUNT
    run = reopen(tmp_path / "t", MapStyle(y=changed_labels([4806])), augment=jitter)
    with pytest.raises(InputChanged, match="Instance 4806 has"):
        run.influence(QUERY)
    recorder = own_loop(tmp_path / "r", augment=jitter)
    recorder.close()
    with pytest.raises(InputChanged, match="Instance 4806 has"):
        reopen(tmp_path / "r", (X, changed_labels([4806])), augment=jitter)
    assert len(recorder.run((X, Y)).influence(QUERY)) == COUNT


def test_what_is_held_in_memory_is_digested_and_not_hashed_again(tmp_path, monkeypatch):
    monkeypatch.setattr("dross.data.instance_hashes.hash_instances", pytest.fail)
    run = train(tmp_path / "t", keep=None)
    assert "hashes" not in run.recording.tape.manifest
    assert len(run.influence(QUERY)) == COUNT
    run = own_loop(tmp_path / "r", data=(X, Y)).run()
    assert "hashes" not in run.recording.tape.manifest
    assert len(run.influence(QUERY)) == COUNT


def test_a_tape_of_an_earlier_version_has_no_hashes_and_opens(tmp_path):
    expected = train(tmp_path / "t").influence(QUERY).values
    path = tmp_path / "t" / "manifest.json"
    old = json.loads(path.read_text())
    for entry in old.pop("hashes"):
        (tmp_path / "t" / entry["file"]).unlink()
    path.write_text(json.dumps(seal({k: v for k, v in old.items() if k != "digest"})))
    run = reopen(tmp_path / "t", MapStyle())
    np.testing.assert_array_equal(run.influence(QUERY).values, expected)
    assert train(tmp_path / "t", resume=True).complete


@pytest.mark.parametrize("kind", ["a bit", "cut", "missing", "foreign"])
def test_a_damaged_file_of_hashes_is_named(tmp_path, kind):
    train(tmp_path / "t")
    (path,) = (tmp_path / "t").glob("hashes-*.safetensors")
    raw = bytearray(path.read_bytes())
    raw[-5] ^= 4
    path.write_bytes({"a bit": bytes(raw), "cut": raw[:-8], "foreign": b"PK"}.get(kind, b""))
    if kind == "missing":
        path.unlink()
    with pytest.raises(CorruptFile, match=path.name):
        reopen(tmp_path / "t", MapStyle())
    with pytest.raises(CorruptFile, match=path.name):
        train(tmp_path / "t", resume=True)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("instances", 3, r"hashes-0+\d+.safetensors does not hold"),
        ("instances", "3", "'instances' of file 0 of hashes"),
        ("file", "../x", "a file outside the tape"),
        ("file", "segment-000000.safetensors", "which another entry names, too"),
    ],
)
def test_a_manifest_that_contradicts_the_hashes_is_damage(tmp_path, key, value, said):
    train(tmp_path / "t")
    path = tmp_path / "t" / "manifest.json"
    made = json.loads(path.read_text())
    made["hashes"][0][key] = value
    path.write_text(json.dumps(seal({k: v for k, v in made.items() if k != "digest"})))
    with pytest.raises(CorruptFile, match=said):
        reopen(tmp_path / "t", MapStyle())


@pytest.mark.usefixtures("commit_every_segment")
def test_a_complete_tape_has_one_file_of_hashes_and_no_others_lie_about(tmp_path):
    tape = train(tmp_path / "t", keep=dross.tape.Budget(1 << 20, in_memory=10_000)).recording.tape
    names = {file.name for file in (tmp_path / "t").glob("hashes-*")}
    assert names == {entry["file"] for entry in tape.manifest["hashes"]} and len(names) == 1
    assert sorted(tape.hashes()[0]) == list(range(COUNT))
    assert tape.nbytes == sum(file.stat().st_size for file in tape_files(tmp_path / "t"))
    train(tmp_path / "t", (X, Y), keep=None, overwrite=True)
    assert not list((tmp_path / "t").glob("hashes-*"))


def tape_files(folder):
    return [file for file in folder.iterdir() if file.suffix == ".safetensors"]


@pytest.mark.usefixtures("commit_every_segment")
@pytest.mark.parametrize("stop", [1, 70, 130])
def test_an_interrupted_loop_keeps_what_it_has_noted(tmp_path, stop):
    keep = dross.tape.Checkpoints(every=10)
    own_loop(tmp_path / "t", stop=stop, keep=keep)._save_what_there_is()
    tape = Tape(tmp_path / "t")
    assert tape.steps == stop and set(tape.hashes()[0].tolist()) == ids_of_steps(tape)
    assert len(tape.manifest["hashes"]) <= 8  # not one for each commit
    first = int(tape.read(0).steps[0].ids[0])
    # continued on other data: what was noted at first stays
    own_loop(tmp_path / "t", y=changed_labels([first]), keep=keep, resume=True).close()
    assert sorted(Tape(tmp_path / "t").hashes()[0]) == list(range(COUNT))
    with pytest.raises(InputChanged, match=f"Instance {first} has"):
        reopen(tmp_path / "t", (X, changed_labels([first])))


def test_where_old_epochs_are_forgotten_so_is_what_they_looked_like(tmp_path):
    keep = dross.tape.LastEpochs(1)
    recorder = own_loop(tmp_path / "t", stop=100, keep=keep, y=changed_labels())
    recorder._save_what_there_is()
    own_loop(tmp_path / "t", keep=keep, resume=True).close()
    assert len(reopen(tmp_path / "t", (X, Y)).influence(QUERY)) == COUNT
    with pytest.raises(InputChanged, match="Instances 101, 1203, 2404, 3605, 4806 have"):
        reopen(tmp_path / "t", (X, changed_labels()))


SCRIPT = textwrap.dedent(
    """
    import sys
    from tests.tape import test_hashes
    test_hashes.train(sys.argv[1], keep=test_hashes.slow(), epochs=40)
    """
)


def slow():
    """Many small segments, which are committed one by one."""
    return dross.tape.Budget(64 << 20, in_memory=10_000, spacing=2)


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="needs POSIX signals")
def test_after_a_kill_every_recorded_instance_is_known_and_stays_so(tmp_path):
    folder = tmp_path / "t"
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", SCRIPT, str(folder)], env=env()
    )
    while process.poll() is None:
        if (folder / "manifest.json").exists() and Tape(folder).steps > 10:
            break
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    tape = Tape(folder)
    assert not tape.complete
    assert set(tape.hashes()[0].tolist()) == ids_of_steps(tape)
    first = int(tape.read(0).steps[0].ids[0])
    run = train(folder, keep=slow(), epochs=40, resume=True)
    assert run.complete and sorted(run.recording.tape.hashes()[0]) == list(range(COUNT))
    with pytest.raises(InputChanged, match=f"Instance {first} has|another data set"):
        reopen(folder, MapStyle(y=changed_labels([first]))).influence(QUERY, epochs=1)


def env():
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}

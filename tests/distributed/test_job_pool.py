"""Work over processes: the same results, kept as they finish, whichever process dies."""

import contextlib
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import cloudpickle
import joblib
import numpy as np
import pytest
import torch

import dross
from dross.distributed import jobs
from dross.distributed.jobs import ResultStore
from dross.errors import DrossError, InputChanged, InvalidInput
from tests.zoo import problem


def query(p):
    return dross.mean_loss((p.X_val, p.Y_val))


@pytest.fixture
def small_pieces(monkeypatch):
    monkeypatch.setattr("dross.influence.counterfactual._MIN_GROUPS_IN_A_PIECE", 4)


class Doubling:
    """Doubles a number and notes when and where it was done.

    Once the pieces 0 to 2 are kept (or done, where nothing is kept), piece 3 kills its worker, or
    all workers that have done something. It does so only once.
    """

    def __init__(self, notes, kills=""):
        self.notes, self.kills = Path(notes), kills

    def __call__(self, piece):
        if piece == 3 and self.kills and not (self.notes / "died").exists():
            self.wait_for_the_others()
            (self.notes / "died").touch()
            own = os.getpid()
            others = {int(path.name.split("-")[1]) for path in self.notes.glob("?-*")} - {own}
            for pid in [*others, own] if self.kills == "all" else [own]:
                os.kill(pid, signal.SIGKILL)
        (self.notes / f"{piece}-{os.getpid()}-{time.monotonic_ns()}").touch()
        return {"value": torch.tensor([2.0 * piece])}

    def wait_for_the_others(self):
        until = time.monotonic() + 60
        kept = (self.notes / "kept").is_dir()
        while self.count("kept/piece-00000[012]*" if kept else "[012]-*") < 3:
            assert time.monotonic() < until
            time.sleep(0.01)

    def count(self, pattern):
        return len(list(self.notes.glob(pattern)))

    def times(self, piece):
        return self.count(f"{piece}-*")


def run_sweep(work, pieces=6, **options):
    found = dict(jobs.sweep(work, range(pieces), what="doubling", progress=False, **options))
    return [float(found[k]["value"]) for k in range(pieces)]


# --- runs ---


def test_spread_runs_are_the_serial_ones_bit_for_bit(record, small_pieces, tmp_path):
    p = problem("batchnorm", "adam")
    p.loss = "cross_entropy"
    run, groups = record(p), [[j] for j in range(10)]
    here = run.counterfactual(groups, folder=tmp_path / "kept", n_jobs=1)
    there = run.counterfactual(groups, n_jobs=2)
    assert len(here.chunks) == len(there.chunks) == 3
    for ours, theirs in zip(here.chunks, there.chunks):
        assert ours.clock == theirs.clock == run.recording.state_at(run.steps).clock
        for name, tensor in theirs.tensors().items():
            assert torch.equal(ours.tensors()[name], tensor), name
    np.testing.assert_array_equal(here.changes(query(p)), there.changes(query(p)))
    plain = run.counterfactual(groups)
    np.testing.assert_allclose(
        plain.changes(query(p)), there.changes(query(p)), rtol=1e-9, atol=1e-15
    )
    losses = dross.losses((p.X_val, p.Y_val))
    with joblib.parallel_config("loky", n_jobs=2):
        spread = run.leave_one_out(losses, epochs=1)
        check = run.verify(run.influence(query(p)), query(p), np.arange(9))
    np.testing.assert_array_equal(
        spread, run.leave_one_out(losses, epochs=1, n_jobs=1, folder=tmp_path / "loo")
    )
    np.testing.assert_allclose(spread, run.leave_one_out(losses, epochs=1), rtol=1e-9, atol=1e-15)
    assert check.actual.shape == (9,)


def test_a_run_kept_in_a_folder_goes_on(record, small_pieces, tmp_path, monkeypatch):
    p = problem("mlp", "sgd")
    run = record(p)
    whole = run.leave_one_out(query(p), folder=tmp_path / "kept")
    files = sorted((tmp_path / "kept").glob("piece-*"))
    assert len(files) == 4
    files[1].unlink()
    files[2].write_bytes(b"half a fi")
    counted = []
    replayed = dross.influence.counterfactual.replay_without
    monkeypatch.setattr(
        dross.influence.counterfactual,
        "replay_without",
        lambda *a, **k: counted.append(len(a[1])) or replayed(*a, **k),
    )
    np.testing.assert_array_equal(run.leave_one_out(query(p), folder=tmp_path / "kept"), whole)
    assert counted == [4, 4]


def test_results_of_other_settings_are_refused(record, small_pieces, tmp_path):
    p = problem("mlp", "sgd")
    run, folder = record(p), tmp_path / "kept"
    run.leave_one_out(query(p), range(8), folder=folder)
    for other in (
        lambda: run.leave_one_out(query(p), range(7), folder=folder),
        lambda: run.leave_one_out(query(p), range(8), epochs=1, folder=folder),
        lambda: run.leave_one_out(query(p), range(8), absent="batch", folder=folder),
        lambda: run.leave_one_out(
            dross.mean_loss((p.X_val[1:], p.Y_val[1:])), range(8), folder=folder
        ),
        lambda: run.leave_one_out(dross.losses((p.X_val, p.Y_val)), range(8), folder=folder),
        lambda: run.counterfactual([[j] for j in range(8)], folder=folder),
        # the same settings, another tape
        lambda: record(p).leave_one_out(query(p), range(8), folder=folder),
    ):
        with pytest.raises(InputChanged, match="other settings, which must not be mixed"):
            other()
    (folder / "piece-000000.safetensors").unlink()  # what is left still belongs to another sweep
    with pytest.raises(InputChanged, match="piece-000001"):
        run.counterfactual([[0]], folder=folder)


class Drawn(torch.utils.data.Dataset):
    """A large data set that is small to describe, as one that lies in files is."""

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        return torch.randn(32, generator=torch.Generator().manual_seed(index)), index % 3


def test_what_travels_is_lean(tmp_path):
    """The model, the data set as given and the name of the tape; no states, no copied data."""
    model = torch.nn.Linear(32, 3)
    run = dross.train(
        model,
        Drawn(),
        "cross_entropy",
        torch.optim.Adam(model.parameters()),
        path=tmp_path / "tape",
        epochs=1,
        batch_size=500,
        keep=dross.tape.EveryStep(),
        progress=False,
    )
    raw = pickle.dumps(run)
    assert run.recording.instances.stored is not None and len(raw) < 5_000
    again, asked = pickle.loads(raw), dross.mean_loss([Drawn()[k] for k in range(9)])
    np.testing.assert_array_equal(again.influence(asked).values, run.influence(asked).values)
    assert again.path.is_absolute()


def test_a_tape_that_is_another_at_the_worker(record, tmp_path):
    p = problem("mlp", "sgd")
    raw = cloudpickle.dumps(record(p, path=tmp_path / "tape"))
    record(p, path=tmp_path / "tape", overwrite=True)
    with pytest.raises(InputChanged, match="not the one that this work was sent for"):
        pickle.loads(raw)
    for file in (tmp_path / "tape").iterdir():
        file.unlink()
    with pytest.raises(DrossError, match="There is no tape at"):
        pickle.loads(raw)


# --- deaths of workers ---


@pytest.mark.parametrize("in_folder", [True, False])
def test_a_worker_that_is_killed_loses_no_finished_result(tmp_path, in_folder):
    work = Doubling(tmp_path, "own")
    store = ResultStore(tmp_path / "kept", {"of": "this"}) if in_folder else None
    with pytest.warns(
        dross.DrossWarning, match=r"A worker died .* pieces are done.*going on with the rest"
    ):
        assert run_sweep(work, store=store, n_jobs=2) == [0, 2, 4, 6, 8, 10]
    assert (tmp_path / "died").exists() and work.times(3) == 1
    if in_folder:
        assert [work.times(k) for k in range(3)] == [1, 1, 1]
        assert len(list((tmp_path / "kept").glob("piece-*"))) == 6
        assert run_sweep(work, store=store, n_jobs=2) == [0, 2, 4, 6, 8, 10] and work.times(0) == 1


def test_the_caller_dies_and_the_next_call_goes_on(tmp_path):
    store, work = ResultStore(tmp_path / "kept", {}), Doubling(tmp_path)
    sweep = jobs.sweep(work, range(4), what="doubling", n_jobs=1, store=store)
    next(sweep), next(sweep)
    sweep.close()
    assert run_sweep(work, 4, store=store, n_jobs=2) == [0, 2, 4, 6]
    assert [work.times(k) for k in range(4)] == [1, 1, 1, 1]


def test_work_that_always_kills_ends_with_a_message(tmp_path, monkeypatch):
    monkeypatch.setattr(jobs, "_MAX_FAILURES_WITHOUT_PROGRESS", 1)

    def deadly(piece):
        if piece == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"value": torch.tensor([2.0 * piece])}

    store = ResultStore(tmp_path / "kept", {})
    with (
        pytest.warns(dross.DrossWarning),
        pytest.raises(DrossError, match=r"Workers keep dying.* of 3 pieces are done and kept in"),
    ):
        run_sweep(deadly, 3, store=store, n_jobs=2)


def test_a_result_of_a_worker_without_the_folder_is_written_by_the_caller(tmp_path, monkeypatch):
    store = ResultStore(tmp_path / "kept", {})

    def elsewhere(payload, missing, n_jobs):
        yield from ((number, {"value": torch.tensor([1.0 * number])}) for number in list(missing))

    monkeypatch.setattr(jobs, "_dispatch", elsewhere)
    assert run_sweep(None, 2, store=store, n_jobs=2) == [0, 1]
    assert float(store.get(1)["value"]) == 1


def test_a_result_with_a_flipped_bit_is_computed_again(tmp_path):
    store, work = ResultStore(tmp_path / "kept", {}), Doubling(tmp_path)
    assert run_sweep(work, 2, store=store, n_jobs=1) == [0, 2]
    path = tmp_path / "kept" / "piece-000001.safetensors"
    raw = path.read_bytes()
    for place in range(len(raw)):
        path.write_bytes(raw[:place] + bytes([raw[place] ^ 1]) + raw[place + 1 :])
        with contextlib.suppress(InputChanged):  # the settings are others now
            found = store.get(1)
            assert found is None or {name: t.tolist() for name, t in found.items()} == {
                "value": [2.0]
            }
    path.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    assert run_sweep(work, 2, store=store, n_jobs=1) == [0, 2] and work.times(1) == 2


# --- the rest ---


def test_a_sweep_inside_a_piece_stays_in_it():
    outer = os.getpid()

    def inner(piece):
        found = dict(jobs.sweep(lambda _: os.getpid(), range(3), what="inner"))
        assert set(found.values()) == {os.getpid()}
        return os.getpid(), jobs.local_workers()

    found = dict(jobs.sweep(inner, range(4), what="outer", n_jobs=2))
    assert outer not in {pid for pid, _ in found.values()}
    assert {count for _, count in found.values()} == {2} and jobs.local_workers() == 1


def test_threads_take_turns():
    """torch's random numbers and a model's modes belong to the whole process."""
    busy = []

    def work(piece):
        busy.append(piece)
        time.sleep(0.01)
        assert busy == [piece]
        busy.clear()

    with joblib.parallel_config("threading", n_jobs=3):
        assert len(dict(jobs.sweep(work, range(6), what="threads"))) == 6


def test_errors_of_the_work_and_of_its_payload(record):
    def fails(piece):
        raise InvalidInput("this piece cannot be done")

    with pytest.raises(InvalidInput, match="this piece cannot be done"):
        list(jobs.sweep(fails, range(3), what="failing", n_jobs=2))
    lock = threading.Lock()
    with pytest.raises(InvalidInput, match="cannot be sent to another process"):
        list(jobs.sweep(lambda piece: lock, range(3), what="failing", n_jobs=2))
    for wrong in (0, 1.5, "two"):
        with pytest.raises(InvalidInput, match="number of workers"):
            jobs.uses_workers(wrong)
    for many in (1_000_000, 10**40):
        with pytest.raises(
            InvalidInput, match=r"n_jobs must be at most .* not .*process on this machi"
        ):
            jobs.uses_workers(many)
        with joblib.parallel_config(n_jobs=many), pytest.raises(InvalidInput, match="at most"):
            jobs.uses_workers(None)
    assert not jobs.uses_workers(None) and not jobs.uses_workers(1) and jobs.uses_workers(-1)


def test_kept_json_is_still_refused_and_mended(tmp_path):
    path = tmp_path / "result.json"
    path.write_text('{"settings": [1, 2], "value": 3}')
    assert jobs.load(path, (1, 2)) == {"settings": [1, 2], "value": 3}
    with pytest.raises(InputChanged, match="other settings"):
        jobs.load(path, (1, 3))
    path.write_text("{")
    assert jobs.load(path, (1, 2)) is None and not path.exists()


SWEEP_IN_A_STRANGERS_FOLDER = """
import os, random, sys
os.chdir(sys.argv[1])  # what was imported so far is Python's own
from dross.distributed.jobs import sweep
print(sorted(dict(sweep(lambda piece: 2 * piece, [1, 2, 3], what="", n_jobs=2)).values()))
assert "PYTHONSAFEPATH" not in os.environ
"""


def test_workers_run_no_modules_of_the_current_folder(tmp_path):
    for name in ("random", "json", "joblib"):
        ran = str(tmp_path / "ran")
        (tmp_path / f"{name}.py").write_text(f"open({ran!r}, 'w')\nraise SystemExit(3)\n")
    command = [sys.executable, "-P", "-c", SWEEP_IN_A_STRANGERS_FOLDER, str(tmp_path)]
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONSAFEPATH"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)
    assert not (tmp_path / "ran").exists()
    assert done.stdout.strip() == "[2, 4, 6]", done.stderr

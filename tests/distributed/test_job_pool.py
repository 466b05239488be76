"""Work over processes: the same results, kept as they finish, whichever process dies."""

import contextlib
import os
import pickle
import signal
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
        assert ours.counters == theirs.counters == run.recording.state_at(run.steps).counters
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
        check = run.verify(run.influence(query(p)), np.arange(9))
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
    runs = dross.influence.counterfactual.CounterfactualRuns
    chunks = runs.chunks
    counting = lambda self, groups: counted.append(len(groups)) or chunks(self, groups)
    monkeypatch.setattr(runs, "chunks", counting)
    np.testing.assert_array_equal(run.leave_one_out(query(p), folder=tmp_path / "kept"), whole)
    assert counted == [4, 4]


def test_results_of_other_settings_are_refused(record, small_pieces, tmp_path):
    p = problem("mlp", "sgd")
    run, folder = record(p), tmp_path / "kept"
    run.leave_one_out(query(p), range(8), folder=folder)
    for other in (
        lambda: run.leave_one_out(query(p), range(7), folder=folder),
        lambda: run.leave_one_out(query(p), range(8), epochs=1, folder=folder),
        lambda: run.leave_one_out(query(p), range(8), removal="data", folder=folder),
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


class Drawn(torch.utils.data.Dataset):
    """A large dataset that is small to describe, as one that lies in files is."""

    def __len__(self):
        return 2000

    def __getitem__(self, index):
        return torch.randn(32, generator=torch.Generator().manual_seed(index)), index % 3


def test_what_travels_is_lean(tmp_path):
    """The model, the dataset as given and the name of the tape; no states, no copied data."""
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
    with pytest.raises(InputChanged, match="not the one that this task was created for"):
        pickle.loads(raw)
    for file in (tmp_path / "tape").iterdir():
        file.unlink()
    with pytest.raises(DrossError, match="There is no recorded run at"):
        pickle.loads(raw)


# --- deaths of workers ---


def test_a_worker_that_is_killed_loses_no_finished_result(tmp_path):
    work, store = Doubling(tmp_path, "own"), ResultStore(tmp_path / "kept", {"of": "this"})
    with pytest.raises(DrossError, match=r"A worker died .* Finished pieces are kept in .*kept"):
        run_sweep(work, store=store, n_jobs=2)
    assert (tmp_path / "died").exists()
    assert run_sweep(work, store=store, n_jobs=2) == [0, 2, 4, 6, 8, 10]
    assert [work.times(k) for k in range(4)] == [1, 1, 1, 1]
    assert len(list((tmp_path / "kept").glob("piece-*"))) == 6


def test_the_caller_dies_and_the_next_call_goes_on(tmp_path):
    store, work = ResultStore(tmp_path / "kept", {}), Doubling(tmp_path)
    sweep = jobs.sweep(work, range(4), what="doubling", n_jobs=1, store=store)
    next(sweep), next(sweep)
    sweep.close()
    assert run_sweep(work, 4, store=store, n_jobs=2) == [0, 2, 4, 6]
    assert [work.times(k) for k in range(4)] == [1, 1, 1, 1]


def test_a_result_of_a_worker_without_the_folder_is_written_by_the_caller(tmp_path, monkeypatch):
    store = ResultStore(tmp_path / "kept", {})

    def run_elsewhere(raw, workers, number, piece):
        return number, {"value": torch.tensor([1.0 * piece])}

    monkeypatch.setattr(jobs, "_run_piece", run_elsewhere)
    with joblib.parallel_config("threading", n_jobs=2):
        assert run_sweep(None, 2, store=store) == [0, 1]
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
    assert not jobs.uses_workers(None) and not jobs.uses_workers(1) and jobs.uses_workers(-1)

"""A retrace that is killed goes on where it was, to the same bits."""

import signal
from dataclasses import replace
from itertools import pairwise

import fsspec
import numpy as np
import pytest

import dross
from dross.errors import CorruptFile, DrossError, InputChanged, InvalidInput
from dross.influence import totals
from tests.distributed import rank_jobs
from tests.distributed.launch import launched
from tests.zoo import problem, ragged_batches

CASES = {  # a problem, how it is kept, and at which reverse step the kill strikes
    "statistics, checkpoints": ("batchnorm_cnn adam", dross.tape.Checkpoints(every=20), 50),
    "blocks within a segment": ("dropout adamw", dross.tape.Checkpoints(every=90), 40),
}


def query(p):
    return dross.mean_loss((p.X_val, p.Y_val))


def count_pulls(run, monkeypatch) -> list:
    """A list with an entry for every reverse step from now on."""
    taken, pull = [], run.recording.executor.vjp
    counted = lambda *args: taken.append(1) or pull(*args)
    monkeypatch.setattr(run.recording.executor, "vjp", counted)
    return taken


@pytest.mark.parametrize("case", CASES)
def test_a_killed_retrace_goes_on_to_the_same_bits(record, tmp_path, monkeypatch, case):
    monkeypatch.setattr("dross.replay.segments._MAX_BYTES_OF_STATES", 1 << 14)
    name, keep, strike = CASES[case]
    p, _ = rank_jobs.case(name)
    p.batches = ragged_batches(len(p.X), 30)
    run = record(p, keep=keep)
    expected = run.influence(query(p))
    folder = tmp_path / "progress"
    given = (name, str(run.path), str(folder), strike, True)
    (died,) = launched(1, rank_jobs.dying, tmp_path / "job", *given)
    assert died == -signal.SIGKILL and len(list(folder.glob("retrace-*"))) == 1

    taken = count_pulls(run, monkeypatch)
    found = run.influence(query(p), resume=folder)
    # what was left, and what was done since the last progress file
    assert run.steps - strike < len(taken) < run.steps
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.by_epoch, expected.by_epoch)
    assert list(folder.iterdir()) == []


def test_a_retrace_continues_with_less_memory_than_it_had(record, tmp_path, monkeypatch):
    """Its blocks end elsewhere then: no step is counted twice, and none is left out."""
    p = problem("mlp", "momentum", epochs=10)
    run = record(p, keep=dross.tape.Checkpoints(every=30))
    expected = run.influence(query(p))
    limits = [states * run.recording.state_at(0).nbytes for states in (7, 12, 5)]
    for before, after in pairwise(limits):
        monkeypatch.setattr("dross.replay.segments._MAX_BYTES_OF_STATES", before)
        interrupted(run, query(p), tmp_path / "progress", monkeypatch)
        monkeypatch.setattr("dross.replay.segments._MAX_BYTES_OF_STATES", after)
        np.testing.assert_array_equal(
            run.influence(query(p), resume=tmp_path / "progress").values, expected.values
        )


def test_what_goes_on_in_the_middle_of_a_segment_checks_where_it_leads(
    record, tmp_path, monkeypatch
):
    p = problem("mlp", "momentum", epochs=10)
    run = record(p, keep=dross.tape.Checkpoints(every=1000))
    monkeypatch.setattr(
        "dross.replay.segments._MAX_BYTES_OF_STATES", 5 * run.recording.state_at(0).nbytes
    )
    interrupted(run, query(p), tmp_path / "progress", monkeypatch)
    penalty = lambda params: sum(value.square().sum() for value in params.values())
    executor = run.recording.executor
    monkeypatch.setattr(
        executor.splitter, "objective", replace(executor.objective, penalty=penalty)
    )
    with pytest.raises(InputChanged, match="leads to a different theta"):
        run.influence(query(p), resume=tmp_path / "progress")


class Stop(Exception):
    pass


def interrupted(run, asked, folder, monkeypatch, **options):
    """Retrace until the third progress file."""
    write, count = totals.CheckpointFile.write, []

    def third(self, *args):
        write(self, *args)
        count.append(1)
        if len(count) == 3:
            raise Stop

    with monkeypatch.context() as patch:
        patch.setattr(totals, "_SECONDS_BETWEEN_WRITES", 0)
        patch.setattr(totals, "_MIN_TIMES_OF_WRITING", 0)
        patch.setattr(totals.CheckpointFile, "write", third)
        with pytest.raises(Stop):
            run.influence(asked, resume=folder, **options)


def test_another_question_is_another_progress_file(record, tmp_path, monkeypatch):
    """Another query, window or tape, or other data: none uses this progress, none removes it."""
    p = problem("mlp", "sgd", epochs=10)
    keep = dross.tape.Checkpoints(every=4)
    run, twin = record(p, keep=keep), record(p, keep=keep)
    interrupted(run, query(p), run.path, monkeypatch)  # the tape's own folder will do
    kept = list(run.path.glob("retrace-*"))
    assert len(kept) == 1
    Y_val = p.Y_val.clone()
    Y_val[0] = (Y_val[0] + 1) % 3
    others = [
        (run, dross.losses((p.X_val, p.Y_val)), {}),
        (run, dross.mean_loss((p.X_val, Y_val)), {}),
        (run, query(p), {"epochs": 3}),
        (run, query(p), {"step": run.steps - 1}),
        (twin, query(p), {}),
    ]
    for other, asked, options in others:
        expected = other.influence(asked, **options)
        np.testing.assert_array_equal(
            other.influence(asked, resume=run.path, **options).values, expected.values
        )
        assert list(run.path.glob("retrace-*")) == kept
    np.testing.assert_array_equal(
        run.influence(query(p), resume=run.path).values, run.influence(query(p)).values
    )
    assert list(run.path.glob("retrace-*")) == []


@pytest.mark.parametrize(
    "keep", [dross.tape.Checkpoints(every=4), dross.tape.LastEpochs(4, dross.tape.EveryStep())]
)
def test_many_queries_go_on_together(record, tmp_path, monkeypatch, keep):
    p = problem("batchnorm", "adam", epochs=10)
    run = record(p, keep=keep)
    asked = dross.losses((p.X_val, p.Y_val))
    interrupted(run, asked, tmp_path / "progress", monkeypatch)
    np.testing.assert_array_equal(
        run.influence(asked, resume=tmp_path / "progress").values, run.influence(asked).values
    )


def test_a_damaged_progress_file_and_a_folder_that_is_a_file(record, tmp_path, monkeypatch):
    p = problem("mlp", "sgd", epochs=10)
    run = record(p, keep=dross.tape.Checkpoints(every=4))
    interrupted(run, query(p), tmp_path / "progress", monkeypatch)
    (kept,) = (tmp_path / "progress").iterdir()
    whole = kept.read_bytes()
    for damaged in (whole[:-9], whole[:-9] + b"\x01" * 9, b"", b"{}"):
        kept.write_bytes(damaged)
        with pytest.raises(CorruptFile, match="Delete it to retrace from the beginning"):
            run.influence(query(p), resume=kept.parent)
    kept.unlink()
    np.testing.assert_array_equal(
        run.influence(query(p), resume=kept.parent).values, run.influence(query(p)).values
    )
    monkeypatch.setattr(totals, "_SECONDS_BETWEEN_WRITES", 0)
    (tmp_path / "file").write_text("")
    with pytest.raises(DrossError):
        run.influence(query(p), resume=tmp_path / "file")


def test_a_tape_that_is_replaced_takes_its_progress_along(record, monkeypatch):
    p = problem("mlp", "sgd", epochs=10)
    run = record(p, keep=dross.tape.Checkpoints(every=4))
    interrupted(run, query(p), run.path, monkeypatch)
    record(p, path=run.path, overwrite=True)
    assert list(run.path.glob("retrace-*")) == []


def test_a_short_retrace_writes_nothing(record, tmp_path):
    p = problem("mlp", "sgd")
    record(p).influence(query(p), resume=tmp_path / "progress")
    assert not (tmp_path / "progress").exists()


def test_resume_true_keeps_progress_in_the_folder_of_the_tape(record, monkeypatch):
    p = problem("mlp", "momentum", epochs=10)
    run = record(p, keep=dross.tape.Checkpoints(every=4))
    expected, files = run.influence(query(p)), sorted(run.path.iterdir())
    interrupted(run, query(p), True, monkeypatch)
    (kept,) = set(run.path.iterdir()) - set(files)
    assert kept.name.startswith("retrace-")
    taken = count_pulls(run, monkeypatch)
    found = run.influence(query(p), resume=True)
    assert 0 < len(taken) < run.steps  # it went on from there
    np.testing.assert_array_equal(found.values, expected.values)
    np.testing.assert_array_equal(found.by_epoch, expected.by_epoch)
    assert sorted(run.path.iterdir()) == files  # and left nothing behind


def test_resume_true_and_the_folder_of_the_tape_mean_the_same(record, monkeypatch):
    p = problem("mlp", "sgd", epochs=10)
    run = record(p, keep=dross.tape.Checkpoints(every=4))
    for before, after in ((True, run.path), (str(run.path), True)):
        interrupted(run, query(p), before, monkeypatch)
        with monkeypatch.context() as patch:
            taken = count_pulls(run, patch)
            run.influence(query(p), resume=after)
        assert 0 < len(taken) < run.steps


@pytest.mark.parametrize("resume", [None, False])
def test_without_resume_no_progress_is_kept(record, monkeypatch, resume):
    p = problem("mlp", "sgd", epochs=10)
    run = record(p, keep=dross.tape.Checkpoints(every=4))
    files = sorted(run.path.iterdir())
    monkeypatch.setattr(totals, "_SECONDS_BETWEEN_WRITES", 0)
    monkeypatch.setattr(totals, "_MIN_TIMES_OF_WRITING", 0)
    written = []
    monkeypatch.setattr(totals, "write_tensors", lambda *args: written.append(args))
    run.influence(query(p), resume=resume)
    assert not written and sorted(run.path.iterdir()) == files


def test_a_run_behind_a_url_keeps_its_progress_in_a_folder_of_its_own(
    record, tmp_path, monkeypatch
):
    p = problem("mlp", "sgd", epochs=10)
    run = record(p, keep=dross.tape.Checkpoints(every=4))
    system = fsspec.filesystem("memory")
    system.store.clear()
    system.put(f"{run.path}/", "/bucket/run", recursive=True)
    uploaded = sorted(system.find("/bucket"))
    model, _ = p.start()
    opened = dross.load("memory://bucket/run", model, (p.X, p.Y), p.loss, progress=False)
    with pytest.raises(InvalidInput, match=r"memory://bucket/run is read-only.*resume='folder'"):
        opened.influence(query(p), resume=True)
    expected = run.influence(query(p))
    interrupted(opened, query(p), tmp_path / "progress", monkeypatch)
    found = opened.influence(query(p), resume=tmp_path / "progress")
    np.testing.assert_array_equal(found.values, expected.values)
    assert sorted(system.find("/bucket")) == uploaded

"""Ranks that hold a shard of every state each; the retrace of one process is the truth."""

import signal

import numpy as np
import pytest
import torch

import dross
from dross.errors import DrossError, InvalidInput, NotSupported
from tests.distributed import shard_jobs
from tests.distributed.launch import launched

# thetas that a pass receives and sends for one query: the cost model of docs/scale.md
GATHERED = {"gradient": 2, "reverse": 5}
SCATTERED = {"gradient": 1, "reverse": 2}


def close(found, expected, relative=1e-9):
    absolute = relative * np.nanmax(np.abs(expected))
    np.testing.assert_allclose(found, expected, rtol=relative, atol=absolute)


def recorded_in_micro_batches(p, tape):
    """A loop with steps of two and of three micro-batches."""
    model, optimizer = p.start()
    recorder = dross.Recorder(
        model, p.loss, optimizer, path=tape, keep=dross.tape.Checkpoints(every=2)
    )
    for ids in p.batches:
        parts = torch.as_tensor(ids).chunk(2 + len(ids) % 2)
        for part in parts:
            with recorder.step(part, p.X[part], p.Y[part]) as losses:
                (losses.sum() / len(ids)).backward()
        optimizer.step()
        optimizer.zero_grad()
    return recorder.run((p.X, p.Y))


def test_scores_of_shards_on_two_and_four_ranks_are_those_of_one_process(record, tmp_path):
    runs = {}
    for name in shard_jobs.RETRACED:
        p = shard_jobs.case(name)
        if name.startswith("accumulated"):
            runs[name] = p, recorded_in_micro_batches(p, tmp_path / "accumulated")
        else:
            runs[name] = p, record(p, keep=dross.tape.Checkpoints(every=2))
    tapes = {name: str(run.path) for name, (_, run) in runs.items()}
    found = launched(4, shard_jobs.scored, tmp_path / "jobs", tapes)
    choosy, recurrent, hidden = found[0].pop("refused")
    assert "read 'b.weight' here, but 'a.weight' on its first batch" in choosy
    assert "'rnn' is a GRU" in recurrent and "'layer.weight' without reading it" in hidden
    for name, (p, run) in runs.items():
        expected = [run.influence(q) for q in shard_jobs.queries(name, p)]
        every = [(rank, key) for rank in range(4) for key in found[rank] if key[1] == name]
        assert len(every) == (6 if "clipped" in name else 2)
        for rank, key in every:
            for values, scores in zip(found[rank][key], expected, strict=True):
                close(values, scores.values)


def test_a_rank_holds_its_part_of_the_memory(record, tmp_path):
    p = shard_jobs.case("deep adamw")
    run = record(p, keep=dross.tape.EveryStep())
    found = launched(4, shard_jobs.measured, tmp_path / "jobs", str(run.path))
    whole = found[0][1]
    for size in (2, 4):
        for rank in range(size):
            kept = found[rank][size]
            close(kept["values"], whole["values"])
            assert kept["left"] == 0  # no gathered parameter outlives its pass
            assert kept["peak"] <= (1 / size + 0.05) * whole["peak"]
    # the constants of the cost model in docs/scale.md
    for rank in range(2):
        for kind, counted in zip(("gradient", "reverse"), found[rank]["received"], strict=True):
            assert 0.85 * GATHERED[kind] < counted["gathered"] < 1.1 * GATHERED[kind]
            assert 0.95 * SCATTERED[kind] < counted["scattered"] < 1.1 * SCATTERED[kind]


def test_a_rank_that_dies_ends_the_others(record, tmp_path):
    run = record(shard_jobs.case("mlp adamw"))
    survivor, dead = launched(2, shard_jobs.dying, tmp_path / "jobs", str(run.path))
    assert isinstance(survivor, DrossError) and dead == -signal.SIGKILL


REFUSED = {
    "batchnorm sgd": "updates '1.running_mean'",
    "linear muon": "Muon needs unsharded parameters",
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_held_in_shards_is_refused(record, name):
    p = shard_jobs.case(name)
    run = record(p)
    with pytest.raises(NotSupported, match=REFUSED[name]):
        run.influence(shard_jobs.queries("", p)[0], group=object(), sharded=True)


def test_shards_need_a_group_and_keep_no_progress(record, tmp_path):
    p = shard_jobs.case("mlp sgd")
    run, query = record(p), shard_jobs.queries("", p)[0]
    with pytest.raises(InvalidInput, match="pass their group"):
        run.influence(query, sharded=True)
    with pytest.raises(NotSupported, match="resume is not supported with sharded states yet"):
        run.influence(query, sharded=True, group=object(), resume=tmp_path)
    with pytest.raises(NotSupported, match="average is not supported with sharded states yet"):
        run.influence(query, sharded=True, group=object(), weights="average")

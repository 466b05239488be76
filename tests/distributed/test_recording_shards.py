"""Loops under fully_shard are recorded as one tape, a file per rank, and opened by any number."""

import json

import pytest

import dross
from dross.distributed.shards import refuse_with_shards
from dross.errors import CorruptFile, InputChanged, NotSupported
from dross.tape.reader import Tape
from dross.tape.writer import rewind
from tests.distributed import shard_jobs
from tests.distributed.launch import launched
from tests.distributed.test_sharded_retrace import close


def recorded_by_one(p, size, tape):
    """The same steps by one process: the mean over ranks is one over all instances."""
    model, optimizer = p.start()
    recorder = dross.Recorder(model, p.loss, optimizer, path=tape)
    for batches in shard_jobs.fsdp_batches(p, size):
        for ids in batches:
            for part in ids.chunk(2):
                with recorder.step(part, p.X[part], p.Y[part]) as losses:
                    (losses.sum() / len(ids) / size).backward()
        recorder.clip_grad_norm_(0.4)
        optimizer.step()
        optimizer.zero_grad()
    return recorder.run((p.X, p.Y))


def test_options_that_do_not_work_with_shards_are_refused():
    refuse_with_shards(penalty=None, scaler=None)
    with pytest.raises(NotSupported, match="penalty is not supported with sharded states yet"):
        refuse_with_shards(scaler=None, penalty=abs)


def check_damage(tape, made):
    """A shard that is missing, damaged or not named is noticed by whoever reads it."""
    shard = tape / made["segments"][0]["shards"][0]["file"]
    good = shard.read_bytes()
    shard.write_bytes(good[:-1] + b"?")
    with pytest.raises(CorruptFile, match=f"{shard.name} is damaged"):
        Tape(tape).read(0)
    shard.unlink()
    with pytest.raises(CorruptFile, match=f"{shard.name} is missing"):
        Tape(tape).read(0)
    shard.write_bytes(good)


def test_a_loop_under_fully_shard_is_one_tape_for_any_number_of_ranks(tmp_path):
    folder = tmp_path / "tapes"
    folder.mkdir()
    found = launched(4, shard_jobs.trained, tmp_path / "jobs", str(folder))
    p = shard_jobs.case("mlp adamw")
    query = shard_jobs.queries("", p)[0]
    for size in (4, 2):
        expected = recorded_by_one(p, size, tmp_path / f"whole-{size}").influence(query)
        tape = folder / str(size)
        run = dross.load(tape, p.start()[0], (p.X, p.Y), p.loss, progress=False)
        assert run.complete and run.steps == 3
        close(run.influence(query).values, expected.values)  # put together by one process
        for rank in range(2):
            close(found[rank][size], expected.values)  # resharded for two
            assert "Call recorder.close() on every" in found[rank]["refused", size]
        made = json.loads((tape / "manifest.json").read_text())
        named = [e for e in (*made["segments"], made["end"]) for e in (e, *e["shards"])]
        assert made["shards"] == size and len(named) == size * (1 + len(made["segments"]))
        kept = {file.name for file in tape.glob("*.safetensors")}
        assert {entry["file"] for entry in named} <= kept
        assert not [
            name for name in kept if name.startswith("state") and "000000000003" not in name
        ]
        with pytest.raises(
            InputChanged, match=f"shards from {size} ranks, but you are continuing it with 1 rank"
        ):
            rewind(tape, 0)  # one process cannot write the shards of the others
        Tape(tape).check_files()


def test_a_loop_under_fully_shard_goes_on_where_it_was_stopped(tmp_path):
    """What the new processes add is what the old ones would have added."""
    found = launched(4, shard_jobs.continued, tmp_path / "jobs", str(tmp_path))
    p = shard_jobs.case("mlp adamw")
    query = shard_jobs.queries("", p)[0]
    expected = recorded_by_one(p, 2, tmp_path / "whole").influence(query).values
    for rank in range(2):
        assert found[rank]["steps"] == 3
        close(found[rank]["values"], expected)
    for rank in range(4):
        assert (
            "has shards from 2 ranks, but you are continuing it with 4 ranks"
            in found[rank]["refused"]
        )

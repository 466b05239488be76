"""Several real processes share one retrace; the retrace of one process is the truth."""

import math
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import DistributedSampler

import dross
from dross.distributed.ranks import instances_are_independent
from dross.errors import DrossError, InvalidInput
from tests.distributed import rank_jobs
from tests.distributed.launch import free_port, launched
from tests.zoo import problem

KEEPS = {
    "mlp adam clipped": dross.tape.Checkpoints(every=3),
    "cnn momentum": dross.tape.EveryStep(),
    "attention sgd": dross.tape.Checkpoints(every=3),
    "batchnorm adam": dross.tape.Checkpoints(every=3),
    "centered": dross.tape.EveryStep(),
    "augmented": dross.tape.Checkpoints(every=3),
}
WHOLE = {"attention sgd", "centered", "batchnorm adam"}  # batches of these are not cut


def close(found, expected, relative=1e-9):
    absolute = relative * np.nanmax(np.abs(expected))
    np.testing.assert_allclose(found, expected, rtol=relative, atol=absolute)


@pytest.fixture
def recorded(record):
    def of(name, **changes):
        p, options = rank_jobs.case(name)
        return p, record(p, keep=KEEPS[name], **options, **changes)

    return of


def test_one_two_and_four_ranks_give_the_same_scores_for_a_part_of_the_work_each(
    recorded, tmp_path
):
    runs = {name: recorded(name) for name in KEEPS}
    tapes = {name: str(run.path) for name, (_, run) in runs.items()}
    found = launched(4, rank_jobs.scored, tmp_path / "jobs", tapes)
    for name, (p, run) in runs.items():
        work = rank_jobs.counted(run.recording.executor)
        expected = [run.influence(q).values for q in rank_jobs.asked(name, p)]
        for size in (1, 2, 4):
            values, per_rank, warned = zip(*(found[rank][size, name] for rank in range(size)))
            for rank in range(size):
                for one, other in zip(values[rank], expected):
                    close(one, other)
                for one, other in zip(values[rank], values[0]):
                    np.testing.assert_array_equal(one, other)  # all ranks hold the same bits
            pulled = [done.get("vjp", 0) for done in per_rank]
            replayed = [done.get("gradient", 0) for done in per_rank]
            if name == "batchnorm adam":
                assert set(pulled) == {work["vjp"]}
            else:  # together they do what one does: nothing is left out, and nothing done twice
                assert (sum(pulled), sum(replayed)) == (work["vjp"], work["gradient"])
            if name not in WHOLE:
                # batches of 3, 4 and 5: a rank has at most the next whole number of instances
                most = len(expected) * sum(math.ceil(len(ids) / size) for ids in p.batches)
                assert max(pulled) <= most <= work["vjp"] / size * (1 if size == 1 else 1.6)
            warns = any("cannot be split" in message for message in warned[0])
            assert warns == (name in WHOLE and size > 1)
            assert not any(warned[1:])


def test_ranks_that_disagree_are_refused_before_work_begins(record, tmp_path):
    p = problem("mlp", "adam")
    tapes = [str(record(p).path) for _ in range(2)]
    for said in launched(2, rank_jobs.disagreeing, tmp_path / "jobs", tapes):
        another_tape, another_query, other_steps, other_data = said
        assert another_tape.startswith("InputChanged: The ranks do not agree: tape is ")
        assert "open the same tape" in another_tape
        beginning = (
            "InvalidInput: The ranks do not agree: query is mean_loss on rank 0 and losses on"
        )
        assert another_query.startswith(f"{beginning} rank 1")
        assert "steps is [4, 8] on rank 0 and [0, 8] on rank 1" in other_steps
        beginning = "InvalidInput: The query on rank 1 has a different value than on rank 0"
        assert other_data.startswith(beginning)


def union_batches(p, size, batch):
    """The ids of each step of all ranks, in the order of the ranks, by DistributedSampler."""
    steps = []
    for epoch in range(p.epochs):
        orders = []
        for rank in range(size):
            sampler = DistributedSampler(range(len(p.X)), size, rank, seed=5)
            sampler.set_epoch(epoch)
            orders.append(list(sampler))
        assert len({len(order) for order in orders}) == 1
        assert size == 1 or sum(map(len, orders)) > len(p.X)  # with duplicates
        for k in range(0, len(orders[0]), batch):
            steps.append([order[k : k + batch] for order in orders])
    return steps


def test_a_loop_under_ddp_is_one_ordinary_run(record, tmp_path):
    found = launched(4, rank_jobs.trained, tmp_path / "jobs", str(tmp_path))
    for size in (1, 2, 4):
        for kind in rank_jobs.KINDS[size]:
            p = problem("dropout" if kind == "dropout" else "mlp", "momentum", clip_norm=0.7)
            folder = tmp_path / f"{kind}-{size}"
            run = dross.load(folder, p.model(), (p.X, p.Y), p.loss, progress=False)
            assert run.complete
            alone = run.influence(rank_jobs.queries(p)[0]).values
            steps, tape = union_batches(p, size, 3), run.recording.tape
            segments = [tape.read(index) for index in range(len(tape.entries))]
            taken = [step.ids.tolist() for segment in segments for step in segment.steps]
            if kind != "accumulated":
                assert taken == [np.concatenate(parts).tolist() for parts in steps]
            if kind not in ("accumulated", "dropout"):
                # the batches of a step are equally long: the mean of their means is that of all
                p.batches = [np.concatenate(parts) for parts in steps]
                close(alone, record(p).influence(rank_jobs.queries(p)[0]).values)
            if kind == "accumulated":
                close(alone, accumulated_alone(p, size, steps, tmp_path / f"alone-{size}"))
            if kind == "plain":
                average = run.influence(rank_jobs.queries(p)[0], weights="average").values
                assert np.isfinite(average).all() and average.any()
            for rank in range(size):
                close(found[rank][size, kind], alone)


def accumulated_alone(p, size, steps, folder):
    """rank_jobs.accumulate by one process: a loss has 1/ranks of its weight on its rank."""
    model, optimizer = p.start()
    recorder = dross.Recorder(model, p.loss, optimizer, path=folder)
    per_epoch = len(steps) // p.epochs
    for t, parts in enumerate(steps):
        last = (t + 1) % per_epoch == 0
        for rank, ids in enumerate(parts):
            with recorder.step(ids, p.X[ids], p.Y[ids], epoch=t // per_epoch) as losses:
                ((losses.mean() if last else losses.sum()) / size).backward()
                if last and rank + 1 == size:
                    optimizer.step()
                    optimizer.zero_grad()
    return recorder.run((p.X, p.Y)).influence(rank_jobs.queries(p)[0]).values


def test_what_ddp_does_that_cannot_be_recorded(tmp_path):
    (tmp_path / "there already").mkdir()
    (tmp_path / "there already" / "notes.txt").write_text("")
    for said in launched(2, rank_jobs.refused, tmp_path / "jobs", str(tmp_path)):
        batchnorm, noise, there = said
        assert batchnorm.startswith("NotSupported: BatchNorm under DistributedDataParallel")
        assert noise.startswith("NotSupported: The gradient of ")
        assert there.startswith("InvalidInput: ")


def test_a_rank_that_dies_ends_the_job_and_the_others_say_so(recorded, tmp_path):
    p, run = recorded("mlp adam clipped")
    expected = run.influence(rank_jobs.queries(p)[0]).values
    progress = tmp_path / "progress"
    given = ("mlp adam clipped", str(run.path))
    *survivors, died = launched(3, rank_jobs.dying, tmp_path / "jobs", *given, str(progress), 5)
    assert died == -signal.SIGKILL
    for survivor in survivors:
        assert isinstance(survivor, DrossError) and "resume=folder" in str(survivor)
    copied = shutil.copytree(progress, tmp_path / "copied")
    work = rank_jobs.counted(run.recording.executor)
    # one process continues what three have left
    close(run.influence(rank_jobs.queries(p)[0], resume=progress).values, expected)
    assert 0 < work["vjp"] < sum(map(len, p.batches)) and not list(progress.iterdir())
    # and so do two
    found = launched(2, rank_jobs.dying, tmp_path / "two", *given, str(copied), 999)
    for values, taken in found:
        close(values, expected)
        assert 0 < taken < run.steps


def test_a_rank_that_dies_while_a_loop_is_recorded_loses_no_step(record, tmp_path):
    tape = str(tmp_path / "tape")
    alive, dead = launched(2, rank_jobs.killed, tmp_path / "killed", tape)
    assert isinstance(alive, RuntimeError) and dead == -signal.SIGKILL  # torch's, in backward()
    kept = launched(2, rank_jobs.resumed, tmp_path / "resumed", tape)
    assert kept == [3, 3]  # all that were taken
    p = problem("mlp", "momentum", clip_norm=0.7)
    p.batches = [np.concatenate(parts) for parts in union_batches(p, 2, 3)]
    run = dross.load(tape, p.model(), (p.X, p.Y), p.loss, progress=False)
    query = rank_jobs.queries(p)[0]
    assert run.complete
    close(run.influence(query).values, record(p).influence(query).values)


def test_a_rank_that_is_stuck_is_given_up_after_the_timeout(recorded, tmp_path):
    _, run = recorded("mlp adam clipped")
    given_up = str(tmp_path / "given-up")
    lost, _ = launched(2, rank_jobs.stuck, tmp_path / "jobs", str(run.path), given_up)
    assert isinstance(lost, DrossError) and "timeout" in str(lost)


@pytest.mark.parametrize(
    "model, independent", [(rank_jobs.Centred, False), (lambda: torch.nn.Linear(6, 3), True)]
)
def test_whether_batches_can_be_cut_is_seen_where_there_is_something_to_cut(
    tmp_path, model, independent
):
    """The last segment has batches of a single instance only: nothing is to be learned there."""
    model, x = model(), torch.randn(20, 6)
    data, optimizer = (x, torch.arange(20) % 3), torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"batches": [range(8), range(8, 16), [16], [17]], "progress": False}
    options |= {"path": tmp_path, "keep": dross.tape.Checkpoints(every=2)}
    run = dross.train(model, data, "cross_entropy", optimizer, **options)
    assert instances_are_independent(run.recording, run.steps) is independent


def test_a_group_needs_torch_distributed(record):
    p = problem("mlp", "sgd")
    with pytest.raises(InvalidInput, match="init_process_group"):
        group = torch.distributed.group.WORLD or object()
        record(p).influence(rank_jobs.queries(p)[0], group=group)


MINE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

g = torch.Generator().manual_seed(0)
X, Y = torch.randn(41, 6, generator=g, dtype=torch.float64), torch.randint(0, 3, (41,), generator=g)
train_set, val_set = TensorDataset(X, Y), (X[:9] + 0.1, Y[:9])

def make_model():
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)).double()
"""


def test_the_program_of_the_documentation_under_torchrun(tmp_path, monkeypatch):
    text = (Path(__file__).parents[2] / "docs" / "scale.md").read_text()
    blocks = [part.split("```")[0] for part in text.split("```python\n")[1:]]
    (tmp_path / "score.py").write_text(next(block for block in blocks if "# score.py" in block))
    (tmp_path / "mine.py").write_text(MINE)
    address = ["--master-addr", "127.0.0.1", "--master-port", str(free_port())]
    launcher = [sys.executable, "-m", "torch.distributed.run", *address]
    command = [*launcher, "--nproc-per-node", "2", "score.py"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    environment["PYTHONPATH"] = str(Path(dross.__file__).parents[1])
    options = {"capture_output": True, "text": True, "timeout": 240}
    done = subprocess.run(command, cwd=tmp_path, env=environment, **options)
    assert done.returncode == 0, done.stderr
    monkeypatch.syspath_prepend(tmp_path)
    import mine  # type: ignore[import-not-found]

    given = (mine.make_model(), mine.train_set, "cross_entropy")
    run = dross.load(tmp_path / "runs" / "mine", *given, progress=False)
    assert run.steps == 9  # 21 instances per rank, one of them twice: 8 + 8 + 5
    assert not list((tmp_path / "runs").glob("progress/*"))
    scores = dross.Scores.load(tmp_path / "scores.safetensors")
    close(scores.values, run.influence(dross.mean_loss(mine.val_set)).values)

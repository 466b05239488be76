"""What the ranks of test_ranks.py do. Each function runs in processes of its own."""

import time
import warnings
from collections import Counter
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel
from torch.utils.data import DataLoader, DistributedSampler

import dross
from dross.engine.executor import Executor
from dross.errors import DrossError
from dross.influence import totals
from dross.replay import segments
from dross.tape.reader import Tape
from tests.distributed.launch import die
from tests.oracles import Problem
from tests.zoo import F64, problem


class Centred(nn.Module):
    """Instances of a batch know of each other, without BatchNorm."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(6, 5), nn.Linear(5, 3)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        return self.b(h - h.mean(0))


def jitter(x, generator):
    return x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)


def case(name: str) -> tuple[Problem, dict]:
    """A problem by name, and further options of dross.train and dross.load."""
    if name == "centered":
        return replace(problem("mlp", "sgd"), model=lambda: Centred().to(F64)), {}
    if name == "augmented":
        return problem("mlp", "adamw"), {"augment": jitter}
    model, optimizer, *rest = name.split()
    return problem(model, optimizer, clip_norm=0.5 if "clipped" in rest else None), {}


def queries(p: Problem) -> list:
    return [dross.mean_loss((p.X_val, p.Y_val)), dross.losses((p.X_val[:3], p.Y_val[:3]))]


def asked(name: str, p: Problem) -> list:
    """Several queries at once only for one of the problems, to spare time."""
    return queries(p) if name == "mlp adam clipped" else queries(p)[:1]


def groups() -> dict[int, object]:
    return {size: dist.new_group(list(range(size))) for size in (1, 2, 4)}


def counted(executor: Executor) -> Counter:
    """How many instances pass through the passes of this executor."""
    seen, passes = Counter(), {name: getattr(executor, name) for name in ("gradient", "vjp")}
    for name, function in passes.items():

        def count(theta, buffers, batch, *args, name=name, function=function):
            seen[name] += len(batch.c)
            return function(theta, buffers, batch, *args)

        setattr(executor, name, count)
    return seen


def scored(rank: int, tapes: dict[str, str]) -> dict:
    """Scores, work and warnings of every tape on 1, 2 and 4 ranks."""
    found = {}
    for size, group in groups().items():
        for name, tape in tapes.items() if rank < size else ():
            p, options = case(name)
            run = dross.load(tape, p.model(), (p.X, p.Y), p.loss, progress=False, **options)
            work = counted(run.recording.executor)
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                values = [run.influence(q, group=group).values for q in asked(name, p)]
            found[size, name] = values, dict(work), [str(w.message) for w in caught]
    return found


def disagreeing(rank: int, tapes: list[str]) -> list[str]:
    """Another tape, another question, another number of epochs: each refused on both ranks."""
    p = problem("mlp", "adam")
    runs = [dross.load(tape, p.model(), (p.X, p.Y), p.loss, progress=False) for tape in tapes]
    (q, other), X = queries(p), p.X_val + rank
    attempts = [
        lambda: runs[rank].influence(q, group=dist.group.WORLD),
        lambda: runs[0].influence([q, other][rank], group=dist.group.WORLD),
        lambda: runs[0].influence(q, epochs=1 + rank, group=dist.group.WORLD),
        lambda: runs[0].influence(dross.mean_loss((X, p.Y_val)), group=dist.group.WORLD),
    ]
    said = []
    for attempt in attempts:
        try:
            attempt()
        except DrossError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


KINDS = {
    1: ("plain",),
    2: ("plain", "accumulated", "dropout", "continued"),
    4: ("plain", "dropout"),
}


def trained(rank: int, folder: str) -> dict:
    """A loop as in DDP's documentation, recorded on 1, 2 and 4 ranks, and retraced by them."""
    found = {}
    for size, group in groups().items():
        for kind in KINDS[size] if rank < size else ():
            p = problem("dropout" if kind == "dropout" else "mlp", "momentum")
            tape = f"{folder}/{kind}-{size}"
            if "continued" in kind:
                with suppress(KeyboardInterrupt):
                    loop(p, rank, size, group, kind, tape, stop_at=3)
            run = loop(p, rank, size, group, kind, tape).run((p.X, p.Y))
            found[size, kind] = run.influence(queries(p)[0], group=group).values
    return found


def killed(rank: int, tape: str) -> None:
    """The last rank is killed in the middle of a loop."""
    p = problem("mlp", "momentum")
    loop(p, rank, 2, dist.group.WORLD, "killed", tape, stop_at=4)


def resumed(rank: int, tape: str) -> int:
    """The loop goes on. Returns how many steps the tape had kept."""
    p = problem("mlp", "momentum")
    kept = Tape(tape).steps
    dist.barrier()
    loop(p, rank, 2, dist.group.WORLD, "short continued", tape)
    return kept


def loop(
    p: Problem, rank: int, size: int, group, kind: str, tape: str, stop_at: int | None = None
) -> dross.Recorder:
    model, optimizer = p.start()
    model = DistributedDataParallel(model, process_group=group)
    sampler = DistributedSampler(range(len(p.X)), size, rank, seed=5)
    loader = DataLoader(dross.data.indexed((p.X, p.Y)), 3, sampler=sampler)
    keep = dross.tape.Checkpoints(every=1 if kind in ("killed", "short continued") else 4)
    resume = "continued" in kind and stop_at is None
    with dross.Recorder(model, p.loss, optimizer, path=tape, keep=keep, resume=resume) as recorder:
        steps, skipped = 0, recorder.steps
        assert (skipped > 0) == resume
        averaged = AveragedModel(model.module)
        if kind == "plain":
            recorder.watch_average(averaged)
        for epoch in range(p.epochs):
            sampler.set_epoch(epoch)
            if kind == "accumulated":
                accumulate(recorder, model, optimizer, list(loader), epoch)
                continue
            for ids, x, y in loader:
                steps += 1
                if steps <= skipped:
                    continue
                if steps == stop_at and kind != "killed":
                    raise KeyboardInterrupt
                if steps == stop_at and rank == 1:
                    die()
                with recorder.step(ids, x, y, epoch=epoch) as losses:
                    losses.mean().backward()
                    recorder.clip_grad_norm_(0.7)
                    optimizer.step()
                    optimizer.zero_grad()
                averaged.update_parameters(model.module)
    return recorder


def accumulate(recorder, model, optimizer, batches, epoch) -> None:
    """One step per epoch: its batches are added up, and only the last is sent."""
    for k, (ids, x, y) in enumerate(batches):
        last = k + 1 == len(batches)
        with recorder.step(ids, x, y, epoch=epoch) as losses:
            if last:
                losses.mean().backward()
                optimizer.step()
                optimizer.zero_grad()
            else:
                with model.no_sync():
                    losses.sum().backward()


def refused(rank: int, folder: str) -> list[str]:
    """What cannot be recorded under DDP is refused on every rank."""
    p, said = problem("batchnorm", "sgd"), []

    def attempt(kind: str) -> None:
        model, optimizer = (p if kind == "batchnorm" else problem("mlp", "sgd")).start()
        model = DistributedDataParallel(model)
        recorder = dross.Recorder(model, p.loss, optimizer, path=f"{folder}/{kind}")
        ids = torch.arange(4) + 4 * rank
        with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
            losses.mean().backward()
            for parameter in model.parameters() if kind == "noise" else ():
                parameter.grad.add_(0.1)
            optimizer.step()

    for kind in ("batchnorm", "noise", "there already"):
        try:
            attempt(kind)
        except DrossError as error:
            said.append(f"{type(error).__name__}: {error}")
    return said


def stuck(rank: int, tape: str, given_up: str) -> None:
    """Rank 1 stops answering and does not die, until rank 0 has given up on it."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=3))
    p, _ = case("mlp adam clipped")
    run = dross.load(tape, p.model(), (p.X, p.Y), p.loss, progress=False)

    def waiting(*args):
        while not Path(given_up).exists():
            time.sleep(0.1)
        die()

    if rank == 1:
        run.recording.executor.vjp = waiting
    try:
        run.influence(queries(p)[0], group=group)
    finally:
        Path(given_up).touch()


def dying(rank: int, name: str, tape: str, folder: str, after: int, alone: bool = False) -> tuple:
    """The last rank is killed in the middle, after so many passes of its own."""
    totals._SECONDS_BETWEEN_WRITES = totals._MIN_TIMES_OF_WRITING = 0
    segments._MAX_BYTES_OF_STATES = 1 << 14
    p, _ = case(name)
    run = dross.load(tape, p.model(), (p.X, p.Y), p.loss, progress=False)
    vjp, taken = run.recording.executor.vjp, []

    def counting(*args):
        taken.append(1)
        if rank + 1 == dist.get_world_size() and len(taken) == after:
            die()
        return vjp(*args)

    run.recording.executor.vjp = counting
    group = None if alone else dist.group.WORLD
    scores = run.influence(queries(p)[0], group=group, resume=folder)
    return scores.values, len(taken)

"""What the ranks of the tests of shards do. Each function runs in processes of its own."""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import dross
from dross.distributed import gather
from dross.distributed.gather import prepare_shards, shard_objective, shard_recording
from dross.distributed.shards import ShardReducer
from dross.engine.objective import Objective
from dross.engine.state import Layout
from dross.errors import DrossError
from tests.distributed.launch import die
from tests.distributed.rank_jobs import groups
from tests.oracles import Problem
from tests.zoo import F64, problem


class TiedWords(nn.Module):
    """A small Transformer whose embedding is its output layer, too. Its first layer is frozen."""

    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Embedding(12, 8), nn.LayerNorm(8)
        self.block = nn.TransformerEncoderLayer(8, 2, 9, 0.0, "gelu", batch_first=True)
        self.scale = nn.Parameter(torch.tensor(0.7), requires_grad=False)

    def forward(self, x):
        h = self.norm(self.block(self.embed(x) * self.scale)).mean(1)
        return F.linear(h, self.embed.weight)[:, :3]


def deep() -> nn.Module:
    """Many layers of the same size: whole, their weights outweigh everything else."""
    layers = [part for _ in range(4) for part in (nn.Linear(24, 24), nn.Tanh())]
    return nn.Sequential(nn.Linear(6, 24), *layers, nn.Linear(24, 3))


MODELS = {"words": lambda: TiedWords().to(F64), "deep": lambda: deep().to(F64)}
RETRACED = ("mlp adam clipped", "words adamw", "accumulated momentum", "dropout momentum")


def case(name: str) -> Problem:
    """A problem by name, short, with two parameter groups where it is clipped."""
    model, optimizer, *rest = name.split()
    kind = {"words": "embedding", "deep": "mlp", "accumulated": "mlp"}.get(model, model)
    p = problem(kind, optimizer, count=9, epochs=1, clip_norm=0.5 if "clipped" in rest else None)
    p.batches = p.batches[:2]
    if model in MODELS:
        p.model = MODELS[model]
    if "clipped" in rest:
        p.groups = lambda model: [
            {"params": [q for q in model.parameters() if q.dim() > 1]},
            {"params": [q for q in model.parameters() if q.dim() < 2], "lr": 0.01},
        ]
    return p


def queries(name: str, p: Problem) -> list:
    """Several queries at once only for one of the problems, to spare time."""
    both = [dross.mean_loss((p.X_val, p.Y_val)), dross.losses((p.X_val[:3], p.Y_val[:3]))]
    return both[1:] if "clipped" in name else both[:1]


def opened(name: str, tape: str, *, meta: bool = False) -> tuple[Problem, dross.Run]:
    """meta: the model has no weights of its own."""
    p = case(name)
    model = p.start()[0]
    if meta:
        for module in model.modules():
            for key, q in module._parameters.items():
                if q is not None and q.requires_grad:
                    module._parameters[key] = nn.Parameter(q.to("meta"))
    return p, dross.load(tape, model, (p.X, p.Y), p.loss, progress=False)


def scored(rank: int, tapes: dict[str, str]) -> dict:
    """The scores of every tape in shards on 2 and 4 ranks."""
    found, every = {}, groups()
    if rank == 0:
        found["refused"] = refused(every[1])
    for size, group in every.items():
        for name, tape in tapes.items() if rank < size else ():
            if size == 1 or (size == 4 and "clipped" not in name):
                continue
            p, run = opened(name, tape, meta=name.startswith("mlp"))
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", dross.DrossWarning)  # dropout is not cut
                asked = [run.influence(q, group=group, sharded=True) for q in queries(name, p)]
            found[size, name] = [scores.values for scores in asked]
    return found


class Choosy(nn.Module):
    """Reads one layer or the other, by its input."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(2, 2), nn.Linear(2, 2)

    def forward(self, x):
        return self.a(x) + self.b(x) if bool(x[0, 0] > 0) else self.b(x) + self.a(x)


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn = nn.GRU(2, 2)

    def forward(self, x):
        return self.rnn(x)[0]


class Hidden(nn.Module):
    """Reads its weight from a place that is not the module's."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.kept = [self.layer.weight]

    def forward(self, x):
        return F.linear(x, self.kept[0], self.layer.bias)


def refused(group) -> list[str]:
    """What models that cannot be gathered from are told."""

    def passes(model: nn.Module) -> None:
        named = dict(model.named_parameters())
        shapes = tuple(p.shape for p in named.values())
        layout = Layout(tuple(named), shapes, (sum(s.numel() for s in shapes),), ())
        ranks = ShardReducer(group, torch.device("cpu"), layout)
        objective = shard_objective(Objective(model, layout, F.mse_loss), ranks)
        theta = layout.read(model)[0]
        for sign in (1.0, -1.0):
            objective.call(objective.layout.unflatten(theta), {}, sign * torch.ones(1, 2))

    return [said(lambda model=model: passes(model())) for model in (Choosy, Recurrent, Hidden)]


# --- memory ---------------------------------------------------------------------------------------


class LiveBytes(TorchDispatchMode):
    """The most bytes of tensors that were alive at a time, of those made inside."""

    def __init__(self):
        super().__init__()
        self.peak, self._total, self._alive = 0, 0, {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for t in tree_leaves(out):
            if isinstance(t, torch.Tensor):
                storage = StorageWeakRef(t.untyped_storage())
                if storage.cdata not in self._alive:
                    self._alive[storage.cdata] = (storage, t.untyped_storage().nbytes())
                    self._total += self._alive[storage.cdata][1]
        if self._total > self.peak:  # perhaps some of it is gone
            self._alive = {k: v for k, v in self._alive.items() if not v[0].expired()}
            self._total = sum(nbytes for _, nbytes in self._alive.values())
            self.peak = max(self.peak, self._total)
        return out


@contextmanager
def watched(found: dict) -> Iterator[None]:
    with LiveBytes() as live:
        yield
    found["peak"] = live.peak


def measured(rank: int, tape: str) -> dict:
    """Peak bytes of a retrace by one process, and by 2 and 4 ranks that hold shards."""
    found = {}
    for size, group in groups().items():
        if rank < size:
            p, run = opened("deep adamw", tape, meta=size > 1)
            with watched(found.setdefault(size, {})):
                scores = run.influence(queries("deep", p)[0], group=group, sharded=size > 1)
            found[size] |= {"values": scores.values, "left": count_gathered()}
            if size == 2:
                found["received"] = received(run, group)
    return found


def count_gathered() -> int:
    """How many gathered parameters are in memory."""
    return sum(not known[0].expired() for known in gather._WHOLE._known.values())


@contextmanager
def counting_bytes(ranks: ShardReducer, counted: dict[str, int]) -> Iterator[None]:
    """Inside, bytes that come from other ranks are added up."""
    gathers, scatters = ShardReducer.all_gather, ShardReducer.reduce_scatter

    def all_gather(ranks, own):
        found = gathers(ranks, own)
        counted["gathered"] += found.nbytes - own.nbytes
        return found

    def reduce_scatter(ranks, parts):
        found = scatters(ranks, parts)
        counted["scattered"] += parts.nbytes - found.nbytes
        return found

    ShardReducer.all_gather, ShardReducer.reduce_scatter = all_gather, reduce_scatter
    try:
        yield
    finally:
        ShardReducer.all_gather, ShardReducer.reduce_scatter = gathers, scatters


def received(run: dross.Run, group) -> list[dict[str, float]]:
    """What a rank receives in a gradient and in a reverse step, in units of (R - 1) / R theta."""
    recording = shard_recording(run.recording, group)
    prepare_shards(recording, 0, 1, show=False)
    ranks, executor, segment = recording.reducer, recording.executor, recording.segment(0)
    state, (batch,) = segment.states[0], recording.batches(0, segment.steps[:1])[0]
    unit = 8 * sum(ranks.layout.layout.sizes) * (ranks.size - 1) / ranks.size
    passes = [
        lambda: executor.gradient(state.theta, {}, batch),
        lambda: executor.vjp(state.theta, {}, batch, torch.ones_like(state.theta)[None], {}),
    ]
    found = []
    with executor.training():
        for compute in passes:
            counted = {"gathered": 0, "scattered": 0}
            with counting_bytes(ranks, counted):
                compute()
            found.append({kind: n / unit for kind, n in counted.items()})
    return found


def dying(rank: int, tape: str) -> None:
    """The last rank is killed in the middle of a reverse step."""
    p, run = opened("mlp adamw", tape)
    scatter, scattered = ShardReducer.reduce_scatter, []

    def counting(ranks, parts):
        scattered.append(1)
        if rank == 1 and len(scattered) == 12:
            die()
        return scatter(ranks, parts)

    ShardReducer.reduce_scatter = counting
    run.influence(queries("", p)[0], group=dist.group.WORLD, sharded=True)


# --- recording ------------------------------------------------------------------------------------


def fsdp_batches(p: Problem, size: int) -> list[list[torch.Tensor]]:
    """Three steps, and for each the instances of every rank, 8 in all."""
    generator = torch.Generator().manual_seed(3)
    orders = (torch.randperm(len(p.X), generator=generator)[:8] for _ in range(3))
    return [list(order.chunk(size)) for order in orders]


def loop(
    p: Problem, rank: int, size: int, group, tape: str, keep, stop_at: int | None = None, **options
) -> dross.Recorder:
    """A loop as in the documentation of fully_shard, in two parts of one batch per step.

    stop_at: it is left before this step, as if the process had been killed.
    """
    model, _ = p.start()
    mesh = DeviceMesh.from_group(group, "cpu")
    for module in [*model.children(), model]:
        if any(True for _ in module.parameters()):
            fully_shard(module, mesh=mesh)
    optimizer = p.optimizer(model.parameters())
    recorder = dross.Recorder(model, p.loss, optimizer, path=tape, keep=keep, **options)
    for t, ids in enumerate(fsdp_batches(p, size)):
        if t < recorder.steps:
            continue  # before a resume
        if t == stop_at:
            return recorder
        for part in ids[rank].chunk(2):
            with recorder.step(part, p.X[part], p.Y[part]) as losses:
                (losses.sum() / len(ids[rank])).backward()
        recorder.clip_grad_norm_(0.4)
        optimizer.step()
        optimizer.zero_grad()
    recorder.close()
    return recorder


def trained(rank: int, folder: str) -> dict:
    """Loops under fully_shard on 4 and 2 ranks, and their tapes retraced by 2 ranks."""
    found, every = {}, groups()
    p = case("mlp adamw")
    for size in (4, 2):
        if rank < size:
            keep = dross.tape.Checkpoints(every=2) if size == 4 else dross.tape.EveryStep()
            recorder = loop(p, rank, size, every[size], f"{folder}/{size}", keep)
            found["refused", size] = said(lambda r=recorder: r.run((p.X, p.Y)))
        dist.barrier()
        if rank < 2:
            _, run = opened("mlp adamw", f"{folder}/{size}", meta=True)
            found[size] = run.influence(queries("", p)[0], group=every[2], sharded=True).values
    return found


def continued(rank: int, folder: str) -> dict:
    """A loop under fully_shard that stops after a step and goes on in another one."""
    p, every = case("mlp adamw"), groups()
    keep, tape, found = dross.tape.Checkpoints(every=1), f"{folder}/continued", {}
    if rank < 2:
        loop(p, rank, 2, every[2], tape, keep, stop_at=2)
        found["steps"] = loop(p, rank, 2, every[2], tape, keep, resume=True).steps
    dist.barrier()
    if rank < 2:
        _, run = opened("mlp adamw", tape, meta=True)
        found["values"] = run.influence(queries("", p)[0], group=every[2], sharded=True).values
    wrong = lambda: loop(p, rank, 4, every[4], tape, keep, resume=True)
    return found | {"refused": said(wrong)}


def said(attempt) -> str:
    try:
        attempt()
    except DrossError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"

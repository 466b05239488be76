"""Passes as CUDA graphs on a GPU, and with graphs that stand in for them where there is none."""

from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from experiments.augment import ShiftAndFlip
from experiments.networks import mnist_cnn
from torch import nn
from torch.utils._pytree import tree_map

import dross
from dross.engine.cuda_graph import Graphs, _Graph
from dross.engine.memory import VjpPlan
from dross.engine.objective import Objective

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="there is no GPU; this file is run on one by hand",
)


def names_of_trusted(graphs):
    return {key[0] for key, graph in graphs._graphs.items() if graph.trusted}


def recorded(folder, model, **options):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(700, 1, 28, 28, generator=generator)
    data = (x, torch.randint(0, 10, (700,), generator=generator))
    options |= {"path": folder, "epochs": 2, "batch_size": 64, "device": "cuda"}
    options |= {"progress": False, "overwrite": True}
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5)
    run = dross.train(model, data, "cross_entropy", optimizer, **options)
    return run, dross.mean_loss((data[0][:100], data[1][:100]))


@needs_gpu
def test_graphs_give_what_the_steps_give(tmp_path, monkeypatch):
    torch.manual_seed(0)
    start = mnist_cnn().state_dict()
    found = []
    for kind in ("auto", "eager"):
        monkeypatch.setenv("DROSS_EXECUTOR", kind)
        model = mnist_cnn()
        model.load_state_dict(start)
        run, query = recorded(tmp_path / kind, model, augment=ShiftAndFlip(2, fill=-1.0))
        scores = run.influence(query).values
        without = run.counterfactual([[0, 1], [5]]).evaluate(query)
        trusted = [graph.trusted for graph in run.recording.executor.graphs._graphs.values()]
        assert (len(trusted) >= 3 and all(trusted)) == (kind == "auto")
        found.append((run.recording.state_at(run.steps).theta.cpu().numpy(), scores, without))
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6 * np.abs(other).max())


@needs_gpu
def test_data_that_do_not_fit_on_the_gpu_are_sent_batch_by_batch(tmp_path):
    found = []
    for k, keep in enumerate(
        (dross.tape.Checkpoints(), dross.tape.Budget(100 << 20, in_memory=1 << 20))
    ):
        torch.manual_seed(0)
        run, query = recorded(tmp_path / str(k), mnist_cnn(), keep=keep)
        assert run.recording.instances._is_sent_batch_by_batch() == bool(k)
        found.append(run.influence(query).values)
    np.testing.assert_allclose(*found, rtol=1e-4, atol=1e-6 * np.abs(found[0]).max())


class Looks(nn.Module):
    """Decides by a value what to do, which no graph can."""

    def __init__(self):
        super().__init__()
        self.inner = mnist_cnn()

    def forward(self, x):
        return self.inner(x) * (1.0 if float(x.sum()) > -1e9 else 2.0)


@needs_gpu
def test_a_model_that_cannot_be_captured_runs_without(tmp_path):
    torch.manual_seed(0)
    with pytest.warns(dross.DrossWarning, match="cannot be captured"):
        run, query = recorded(tmp_path / "tape", Looks())
        scores = run.influence(query)
    assert np.isfinite(scores.values).all() and run.recording.executor.graphs.refused
    assert F.relu(torch.ones(1, device="cuda")) == 1  # the device is still usable


@needs_gpu
def test_a_gpu_that_is_full_takes_fewer_queries_at_once(tmp_path):
    """256 queries together take six gigabytes. With one, there are fewer, captured all the same."""
    torch.manual_seed(0)
    run, _ = recorded(tmp_path / "tape", mnist_cnn())
    queries = dross.losses((torch.randn(256, 1, 28, 28), torch.randint(0, 10, (256,))))
    whole, executor = run.influence(queries).values, run.recording.executor
    assert set(executor.splitter.plans.values()) == {VjpPlan(True, 256)}
    executor.free_memory()
    limit = torch.cuda.memory_reserved() + (1 << 30)
    torch.cuda.set_per_process_memory_fraction(
        limit / torch.cuda.get_device_properties(0).total_memory
    )
    try:
        with pytest.warns(dross.DrossWarning, match="Out of memory: continuing with"):
            found = run.influence(queries).values
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    np.testing.assert_allclose(found, whole, rtol=1e-3, atol=1e-5 * np.abs(whole).max())
    plans = list(executor.splitter.plans.values())
    assert all(8 <= plan.queries_at_once < 256 for plan in plans), plans
    assert "reverse step" in names_of_trusted(executor.graphs) and not executor.graphs.refused


class StandIn(_Graph):
    """Stands in for a CUDA graph where there is no GPU: a replay calls the captured function."""

    owner: Graphs

    def __init__(self, function, inputs, batch, pool):
        self.function, self.inputs, self.trusted = function, [t.clone() for t in inputs], False

    def replay(self, inputs, batch):
        for held, given in zip(self.inputs, inputs):
            held.copy_(given)
        batch.seed_augmentation()
        self.owner.capturing = True
        try:
            return self.function(*self.inputs)
        finally:
            self.owner.capturing = False


def use_stand_ins(monkeypatch, graph=StandIn):
    """From now on passes are captured here as they are on a GPU."""
    StandIn.owner = Graphs()
    init = Graphs.__init__

    def owning(self, *args):
        init(self, *args)
        StandIn.owner = self

    monkeypatch.setattr(Graphs, "is_available", lambda self, name, _: name not in self.refused)
    monkeypatch.setattr("dross.engine.cuda_graph._Graph", graph)
    monkeypatch.setattr(Graphs, "__init__", owning)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: None)
    monkeypatch.setattr("dross.engine.cuda_graph._leave_pool", lambda device, pool: None)
    monkeypatch.setattr("dross.record.train._count_unchecked", lambda state: 64)


@pytest.mark.parametrize("looked_up_at_once", [1 << 20, 0])
@pytest.mark.parametrize("keep", [dross.tape.EveryStep(), dross.tape.Checkpoints(every=40)])
def test_several_steps_at_once_give_what_they_give_one_by_one(
    tmp_path, monkeypatch, keep, looked_up_at_once
):
    """Which steps are put together, with which instances, seeds and rates.

    test_graphs_give_what_the_steps_give does it on a GPU.
    """
    data = (torch.randn(90, 1, 6, 6, dtype=torch.float64), torch.randint(0, 3, (90,)))
    monkeypatch.setattr("dross.data.batch._MAX_BYTES_AT_ONCE", looked_up_at_once)
    found = []
    for together in (False, True):
        if together:
            use_stand_ins(monkeypatch)
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
        ).double()
        options = {"epochs": 21, "batch_size": 9, "augment": ShiftAndFlip(1, flip=True)}
        options |= {"lr": [0.05] * 150 + [0.01] * 60, "keep": keep, "progress": False}
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5)
        folder = tmp_path / str(together)
        run = dross.train(model, data, "cross_entropy", optimizer, path=folder, **options)
        query = dross.mean_loss((data[0][:30], data[1][:30]))
        scores, last = run.influence(query).values, run.influence(query, epochs=7).values
        found.append((run.recording.state_at(run.steps).theta, scores, last))
        names = names_of_trusted(run.recording.executor.graphs)
        assert {"training steps", "reverse steps"} <= names if together else not names, names
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)


SEEDED = torch.Generator().manual_seed(0)
LINEAR_DATA = (
    torch.randn(90, 5, dtype=torch.float64, generator=SEEDED),
    torch.arange(90) % 3,
)


def linear_run(folder, epochs=5, **options):
    """A small run whose batches are all alike, from the same start each time."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    options |= {"path": folder, "epochs": epochs, "batch_size": 9, "progress": False}
    return dross.train(model, LINEAR_DATA, "cross_entropy", optimizer, **options)


class Wobble:
    def __call__(self, x, generator):
        return x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)


class Uncapturable(StandIn):
    def __init__(self, *args):
        raise RuntimeError("operation not permitted when stream is capturing\nand more lines")


class Different(StandIn):
    """Was captured, and computes something else."""

    def replay(self, inputs, batch):
        change = lambda t: t * 1.01 if t.is_floating_point() else t
        return tree_map(change, super().replay(inputs, batch))


class NoMemoryToCompare(StandIn):
    def replay(self, inputs, batch):
        if not self.trusted:
            raise torch.OutOfMemoryError("no memory for the results")
        return super().replay(inputs, batch)


class NoMemoryToCapture(StandIn):
    def __init__(self, *args):
        raise torch.OutOfMemoryError("no memory for a pool")


@pytest.mark.parametrize(
    "graph, reason, suspected",
    [
        (Uncapturable, "operation not permitted when stream is capturing", True),
        (Different, "the replay differs", True),
        (NoMemoryToCompare, "there is not enough memory", False),
        (NoMemoryToCapture, "no memory for a pool", False),
    ],
)
def test_what_cannot_be_captured_warns_and_goes_on(tmp_path, monkeypatch, graph, reason, suspected):
    """suspected: the pass is tried without the augmentation, unless memory is missing."""
    found = []
    message = f"cannot be captured as a CUDA graph .{reason}"
    for captured in (False, True):
        if captured:
            use_stand_ins(monkeypatch, graph)
        with pytest.warns(dross.DrossWarning, match=message) if captured else nullcontext():
            run = linear_run(tmp_path / str(captured), augment=Wobble())
            found.append(run.influence(dross.mean_loss(LINEAR_DATA)).values)
    assert run.recording.executor.graphs.refused >= {"training step", "reverse step"}
    (batch,) = run.recording.batches(0, run.recording.segment(0).steps[:1])[0]
    assert batch.source.capturable != suspected
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    "queries, told", [(1, "not enough memory"), (8, "continuing with 4 of the queries")]
)
def test_a_graph_is_freed_for_what_does_not_fit_beside_it(tmp_path, monkeypatch, queries, told):
    """A pass of all queries does not fit beside a graph of them.

    That freeing the graph gives its memory back is tested on a GPU.
    """
    found = []
    vjp = Objective.vjp_reverse

    def limited(self, theta, buffers, batch, a_g, *rest):
        graphs = StandIn.owner
        has_graph = any(key[0] == "reverse step" for key in graphs._graphs)
        if len(a_g) == queries and not graphs.capturing and has_graph:
            raise torch.OutOfMemoryError("the graph has it")
        return vjp(self, theta, buffers, batch, a_g, *rest)

    for full in (False, True):
        if full:
            use_stand_ins(monkeypatch)
            monkeypatch.setattr(Objective, "vjp_reverse", limited)
        run = linear_run(tmp_path / str(full), epochs=2, augment=Wobble())
        with pytest.warns(dross.DrossWarning, match=told) if full else nullcontext():
            query = dross.losses((LINEAR_DATA[0][:queries], LINEAR_DATA[1][:queries]))
            found.append(run.influence(query).values)
    np.testing.assert_allclose(*found, rtol=1e-10, atol=1e-15)
    graphs = run.recording.executor.graphs
    assert ("reverse step" in graphs.refused) == (queries == 1)
    assert ("reverse step" in names_of_trusted(graphs)) == (queries > 1)


@pytest.mark.parametrize("why", ["refused", "large"])
def test_a_pass_without_a_graph_gets_the_memory_of_others(tmp_path, monkeypatch, why):
    found, vjp = [], Objective.vjp_reverse

    def limited(self, *args):
        if StandIn.owner._graphs:
            raise torch.OutOfMemoryError("the graphs have it")
        return vjp(self, *args)

    for full in (False, True):
        if full:
            use_stand_ins(monkeypatch)
            monkeypatch.setattr(Objective, "vjp_reverse", limited)
            monkeypatch.setattr("dross.engine.cpu_program._CALLS_BEFORE_WRITING", 1 << 30)
            most = 18 * 8 + 8 if why == "large" else 1 << 30
            monkeypatch.setattr("dross.engine.cuda_graph._MAX_INPUT_BYTES", most)
        run = linear_run(tmp_path / str(full), keep=dross.tape.Checkpoints(every=10))
        if full and why == "refused":
            run.recording.executor.graphs.refused |= {"reverse step", "reverse steps"}
        assert bool(run.recording.executor.graphs._graphs) == full
        found.append(run.influence(dross.mean_loss(LINEAR_DATA)).values)
    np.testing.assert_allclose(*found, rtol=1e-12)

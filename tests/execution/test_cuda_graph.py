"""Passes as CUDA graphs (where there is a GPU), and the parts of them that can be tried anywhere."""

import shutil
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap
from torch.utils._pytree import tree_leaves, tree_map

import dross
from dross.data.batch import Batch, SplitAugment
from dross.data.lazy_batch import BatchSource
from dross.data.pytree import flatten, unflatten
from dross.datasets.augment import ShiftAndFlip
from dross.datasets.models import mnist_cnn
from dross.execution.conv_as_matmul import ConvAsMatmul
from dross.execution.cuda_graph import Graphs, _Graph
from dross.execution.executor import Executor
from dross.execution.pull_plan import PullPlan
from dross.step.layout import Layout
from dross.step.objective import Objective
from dross.support.closeness import SAME_KERNELS

needs_gpu = pytest.mark.skipif(
    not torch.cuda.is_available(),
    reason="no GPU here; benchmarks/on_cuda.py and this file are run on one by hand",
)


@pytest.mark.parametrize(
    "how, channels", [({}, 3), ({"many": True}, 3), ({"wide": 8}, 3), ({"wide": 8}, 8)]
)
@pytest.mark.parametrize(
    "options",
    [{}, {"padding": 1}, {"stride": 2}, {"padding": (2, 1), "stride": (1, 2)}, {"bias": False}],
)
def test_a_convolution_as_a_product_is_the_convolution(options, how, channels):
    torch.manual_seed(0)
    layer = nn.Conv2d(channels, 2, (3, 2), dtype=torch.float64, **options)
    x = torch.randn(2, channels, 7, 6, dtype=torch.float64, requires_grad=True)
    plain = layer(x)
    with ConvAsMatmul(**how):
        product = layer(x)
    np.testing.assert_allclose(product.detach(), plain.detach(), rtol=1e-12, atol=1e-13)
    inputs = [x, *layer.parameters()]
    ours, theirs = (
        torch.autograd.grad((y**2).sum(), inputs, create_graph=True) for y in (product, plain)
    )
    for one, other in zip(ours, theirs):
        np.testing.assert_allclose(one.detach(), other.detach(), rtol=1e-11, atol=1e-12)
    second = [
        torch.autograd.grad(sum(g.square().sum() for g in first), inputs)
        for first in (ours, theirs)
    ]
    for one, other in zip(*second):
        np.testing.assert_allclose(one, other, rtol=1e-10, atol=1e-10)


def test_a_product_for_many_directions_is_one_for_each(recwarn):
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 2, 3, padding=1, stride=2, dtype=torch.float64)
    x, directions = (
        torch.randn(2, 3, 7, 6, dtype=torch.float64),
        torch.randn(4, 2, 3, 7, 6, dtype=torch.float64),
    )

    def second(direction):
        """The derivative of a directional derivative: windows, and windows added up, of many at once."""
        cube = lambda x: (layer(x) ** 3).sum()
        return grad(lambda x: (grad(cube)(x) * direction).sum())(x)

    plain = torch.stack([second(direction) for direction in directions])
    with ConvAsMatmul():
        together = vmap(second)(directions)
    np.testing.assert_allclose(together.detach(), plain.detach(), rtol=1e-10, atol=1e-11)
    assert not [warning for warning in recwarn if "performance drop" in str(warning.message)]


class Sometimes(ShiftAndFlip):
    """Draws more than its parent does, in a way of its own."""

    def __call__(self, x, generator):
        x = super().__call__(x, generator)
        return torch.where(torch.rand((), generator=generator) < 0.5, -x, x)


class Jitter(SplitAugment):
    """Of a dict of tensors."""

    def draw(self, x, generator):
        return (torch.rand(len(x["a"]), generator=generator),)

    def apply(self, x, drawn):
        return {name: value + drawn[0][:, None] for name, value in x.items()}


@pytest.mark.parametrize(
    "augment",
    [
        ShiftAndFlip(1, flip=True),
        Sometimes(1),
        lambda x, g: x + torch.rand(len(x), generator=g)[:, None, None, None],
        None,
    ],
)
def test_a_row_of_batches_is_what_each_batch_is_by_itself(augment):
    x, y = torch.randn(30, 1, 5, 5), torch.arange(30)
    assert_same_rows(lambda ids: (x[ids], y[ids]), augment)


def test_a_row_of_batches_of_several_tensors():
    x, y = {"a": torch.randn(30, 3), "b": torch.randn(30, 4)}, torch.arange(30)
    assert_same_rows(
        lambda ids: ({name: value[ids] for name, value in x.items()}, y[ids]), Jitter()
    )


def assert_same_rows(look_up, augment):
    source, ids = (
        BatchSource(look_up, augment, torch.device("cpu"), True),
        torch.randint(0, 30, (6, 4)),
    )
    seeded = lambda place: source.generator(place).manual_seed(place)
    single = [seeded(k) and source.apply_augment(look_up(each), k) for k, each in enumerate(ids)]
    for place in range(6):
        seeded(place)
    for one, other in zip(tree_leaves(source.load_many(ids)), tree_leaves(single), strict=True):
        assert torch.equal(one, other)


def test_what_is_no_plain_convolution_is_convolved_by_torch():
    x = torch.randn(2, 4, 6, 6, dtype=torch.float64)
    for layer in (
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv1d(4, 2, 2),
    ):
        given = x if isinstance(layer, nn.Conv2d) else x[..., 0]
        plain = layer.double()(given)
        with ConvAsMatmul():
            np.testing.assert_allclose(
                layer(given).detach(), plain.detach(), rtol=1e-12, atol=1e-14
            )


def test_values_come_back_in_their_form():
    a, b, c = torch.ones(1), torch.ones(2), torch.ones(3)
    tensors, form = flatten((a, {"z": b, "a": c}, None, True))
    assert [len(t) for t in tensors] == [1, 3, 2]  # dicts by name, whatever their order
    assert (
        flatten((a, {"a": c, "z": b}, None, True))[1]
        == form
        != flatten((a, {"a": c, "z": b}, None, False))[1]
    )
    one, two, three, four = unflatten(tensors, form)
    assert one is a and two["z"] is b and two["a"] is c and three is None and four is True


def linear_executor() -> Executor:
    model = nn.Linear(2, 1)
    layout = Layout(("weight", "bias"), (torch.Size([1, 2]), torch.Size([1])), (3,), ())
    return Executor(Objective(model, layout, lambda outputs, y: outputs.squeeze(-1)))


def test_on_a_cpu_a_pass_is_the_function_itself():
    executor, batch = linear_executor(), Batch(torch.ones(2), torch.ones(2), torch.ones(2), 0)
    with executor.training():
        assert executor.run("pass", lambda batch, x: batch.x.sum() + x, batch, 3.0) == 5.0
    assert not executor.graphs._graphs and not executor.programs._written


def test_a_graph_is_forgotten_when_a_frozen_tensor_is_replaced():
    executor = linear_executor()
    graphs, layer = executor.graphs, executor.objective.model
    layer.register_buffer("frozen", torch.ones(2))
    with executor.training():
        graphs._graphs["captured"] = object()  # type: ignore[assignment]
    with executor.training():
        assert graphs._graphs
    layer.frozen = torch.ones(2)
    with executor.training():
        assert not graphs._graphs


def recorded(folder, model, **options):
    generator = torch.Generator().manual_seed(0)
    data = (
        torch.randn(700, 1, 28, 28, generator=generator),
        torch.randint(0, 10, (700,), generator=generator),
    )
    run = dross.train(
        model,
        data,
        "cross_entropy",
        torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.5),
        tape=folder,
        epochs=2,
        batch_size=64,
        device="cuda",
        progress=False,
        overwrite=True,
        **options,
    )
    return run, dross.mean_loss((data[0][:100], data[1][:100]))


@needs_gpu
def test_graphs_give_what_the_steps_give(tmp_path, monkeypatch):
    torch.manual_seed(0)
    start = mnist_cnn().state_dict()
    found = []
    for graphs in ("1", "0"):
        monkeypatch.setenv("DROSS_CUDA_GRAPHS", graphs)
        model = mnist_cnn()
        model.load_state_dict(start)
        run, query = recorded(tmp_path / graphs, model, augment=ShiftAndFlip(2, fill=-1.0))
        scores, without = (
            run.influence(query).values,
            run.counterfactual([[0, 1], [5]]).evaluate(query),
        )
        trusted = [graph.trusted for graph in run.recording.executor.graphs._graphs.values()]
        assert (len(trusted) >= 3 and all(trusted)) == (graphs == "1")
        found.append((run.recording.state_at(run.steps).theta.cpu().numpy(), scores, without))
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6 * np.abs(other).max())


@needs_gpu
def test_data_that_do_not_fit_on_the_gpu_are_sent_batch_by_batch(tmp_path):
    found = []
    for k, keep in enumerate((dross.Checkpoints(), dross.Budget(100 << 20, in_memory=1 << 20))):
        torch.manual_seed(0)
        run, query = recorded(tmp_path / str(k), mnist_cnn(), keep=keep)
        assert run.recording.instances._must_travel() == bool(k)
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
    """With a gigabyte to spare where 256 queries together take six: fewer of them, and their pass is captured all the same."""
    torch.manual_seed(0)
    run, _ = recorded(tmp_path / "tape", mnist_cnn())
    queries = dross.losses((torch.randn(256, 1, 28, 28), torch.randint(0, 10, (256,))))
    whole, executor = run.influence(queries).values, run.recording.executor
    assert set(executor.plans) == {PullPlan(True, 256)}
    executor.free_memory()
    room = torch.cuda.memory_reserved() + (1 << 30)
    torch.cuda.set_per_process_memory_fraction(
        room / torch.cuda.get_device_properties(0).total_memory
    )
    try:
        with pytest.warns(dross.DrossWarning, match="Out of memory: going on with"):
            found = run.influence(queries).values
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    np.testing.assert_allclose(found, whole, rtol=1e-3, atol=1e-5 * np.abs(whole).max())
    assert all(8 <= plan.queries_at_once < 256 for plan in executor.plans), list(executor.plans)
    trusted = {key[0] for key, graph in executor.graphs._graphs.items() if graph.trusted}
    assert "reverse step" in trusted and not executor.graphs.refused


class Rehearsed(_Graph):
    """Stands for a CUDA graph where there is no GPU: the same inputs and outputs, the captured function called again at every replay."""

    owner: Graphs

    def __init__(self, function, inputs, batch, pool):
        self.function, self.inputs, self.trusted = function, [t.clone() for t in inputs], False
        self.tolerance = SAME_KERNELS

    def replay(self, inputs, batch):
        for held, given in zip(self.inputs, inputs):
            held.copy_(given)
        batch.seed_augmentation()
        self.owner.capturing = True
        try:
            return self.function(*self.inputs)
        finally:
            self.owner.capturing = False


def rehearse(monkeypatch, graph=Rehearsed):
    """From now on passes are captured here as they are on a GPU."""
    Rehearsed.owner = Graphs()
    init = Graphs.__init__

    def owning(self, *args):
        init(self, *args)
        Rehearsed.owner = self

    monkeypatch.setattr(Graphs, "is_available", lambda self, name, _: name not in self.refused)
    monkeypatch.setattr("dross.execution.cuda_graph._Graph", graph)
    monkeypatch.setattr(Graphs, "__init__", owning)
    monkeypatch.setattr("torch.cuda.graph_pool_handle", lambda: None)
    monkeypatch.setattr("dross.execution.cuda_graph._leave_pool", lambda device, pool: None)
    monkeypatch.setattr("dross.record.training_loop._count_unchecked", lambda state: 64)


@pytest.mark.parametrize("looked_up_at_once", [1 << 20, 0])
@pytest.mark.parametrize("keep", [dross.EveryStep(), dross.Checkpoints(every=40)])
def test_several_steps_at_once_give_what_they_give_one_by_one(
    tmp_path, monkeypatch, keep, looked_up_at_once
):
    """The logic of it: which steps are put together, with which instances, seeds and rates. test_graphs_give_what_the_steps_give does it on a GPU."""
    data = (torch.randn(90, 1, 6, 6, dtype=torch.float64), torch.randint(0, 3, (90,)))
    monkeypatch.setattr("dross.data.lazy_batch._MAX_BYTES_AT_ONCE", looked_up_at_once)
    found = []
    for together in (False, True):
        if together:
            rehearse(monkeypatch)
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(32, 3)
        ).double()
        run = dross.train(
            model,
            data,
            "cross_entropy",
            torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.5),
            tape=tmp_path / str(together),
            epochs=21,
            batch_size=9,
            augment=ShiftAndFlip(1, flip=True),
            eta=[0.05] * 150 + [0.01] * 60,
            keep=keep,
            progress=False,
        )
        query = dross.mean_loss((data[0][:30], data[1][:30]))
        found.append(
            (
                run.recording.state_at(run.steps).theta,
                run.influence(query).values,
                run.influence(query, epochs=7).values,
            )
        )
        names = {
            key[0] for key, graph in run.recording.executor.graphs._graphs.items() if graph.trusted
        }
        assert {"training steps", "reverse steps"} <= names if together else not names, names
    for one, other in zip(*found):
        np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-15)


LINEAR_DATA = (
    torch.randn(90, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0)),
    torch.arange(90) % 3,
)


def linear_run(folder, epochs=5, **options):
    """A small run whose batches are all alike, from the same start each time."""
    torch.manual_seed(0)
    model = nn.Linear(5, 3).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    return dross.train(
        model,
        LINEAR_DATA,
        "cross_entropy",
        optimizer,
        tape=folder,
        epochs=epochs,
        batch_size=9,
        progress=False,
        **options,
    )


class Uncapturable(Rehearsed):
    def __init__(self, *args):
        raise RuntimeError(
            "operation not permitted when stream is capturing\nand more that nobody wants to read"
        )


class Otherwise(Rehearsed):
    """Was captured, and computes something else."""

    def replay(self, inputs, batch):
        return tree_map(
            lambda t: t * 1.01 if t.is_floating_point() else t, super().replay(inputs, batch)
        )


class NoRoomToCompare(Rehearsed):
    def replay(self, inputs, batch):
        if not self.trusted:
            raise torch.OutOfMemoryError("no room for the results")
        return super().replay(inputs, batch)


class NoRoomToCapture(Rehearsed):
    def __init__(self, *args):
        raise torch.OutOfMemoryError("no room for a pool")


@pytest.mark.parametrize(
    "graph, reason, suspected",
    [
        (Uncapturable, "operation not permitted when stream is capturing", True),
        (Otherwise, "the replay differs", True),
        (NoRoomToCompare, "there is no memory for it", False),
        (NoRoomToCapture, "no room for a pool", False),
    ],
)
def test_what_cannot_be_captured_is_told_and_goes_on(
    tmp_path, monkeypatch, graph, reason, suspected
):
    """suspected: the fault was looked for in the augmentation, too; where memory is missing, it is not."""
    found = []
    for told in (False, True):
        if told:
            rehearse(monkeypatch, graph)
        with (
            pytest.warns(dross.DrossWarning, match=f"cannot be captured as a CUDA graph .{reason}")
            if told
            else nullcontext()
        ):
            run = linear_run(tmp_path / str(told), augment=Wobble())
            found.append(run.influence(dross.mean_loss(LINEAR_DATA)).values)
    assert run.recording.executor.graphs.refused >= {"training step", "reverse step"}
    assert (
        run.recording.batches(0, run.recording.segment(0).steps[:1])[0][0].source.capturable
        != suspected
    )
    np.testing.assert_array_equal(*found)


@pytest.mark.parametrize(
    "queries, told", [(1, "no memory for it"), (8, "going on with 4 of the queries")]
)
def test_a_graph_makes_room_for_what_does_not_fit_beside_it(tmp_path, monkeypatch, queries, told):
    """Here a pass of all queries does not fit beside a graph of them; that the memory of a graph is then free is seen on a GPU."""
    found = []
    pull = Objective.pull_reverse

    def limited(self, theta, buffers, batch, a_g, *rest):
        if (
            len(a_g) == queries
            and not Rehearsed.owner.capturing
            and any(key[0] == "reverse step" for key in Rehearsed.owner._graphs)
        ):
            raise torch.OutOfMemoryError("the graph has it")
        return pull(self, theta, buffers, batch, a_g, *rest)

    for full in (False, True):
        if full:
            rehearse(monkeypatch)
            monkeypatch.setattr(Objective, "pull_reverse", limited)
        run = linear_run(tmp_path / str(full), epochs=2, augment=Wobble())
        with pytest.warns(dross.DrossWarning, match=told) if full else nullcontext():
            found.append(
                run.influence(
                    dross.losses((LINEAR_DATA[0][:queries], LINEAR_DATA[1][:queries]))
                ).values
            )
    np.testing.assert_allclose(*found, rtol=1e-10, atol=1e-15)
    graphs = run.recording.executor.graphs
    assert ("reverse step" in graphs.refused) == (queries == 1)
    assert any(
        key[0] == "reverse step" and graph.trusted for key, graph in graphs._graphs.items()
    ) == (queries > 1)


@pytest.mark.parametrize("why", ["refused", "large"])
def test_a_pass_without_a_graph_gets_the_memory_of_others(tmp_path, monkeypatch, why):
    found, pull = [], Objective.pull_reverse

    def limited(self, *args):
        if Rehearsed.owner._graphs:
            raise torch.OutOfMemoryError("the graphs have it")
        return pull(self, *args)

    for full in (False, True):
        if full:
            rehearse(monkeypatch)
            monkeypatch.setattr(Objective, "pull_reverse", limited)
            monkeypatch.setenv("DROSS_PROGRAMS", "0")  # there are none on a GPU
            monkeypatch.setattr(
                "dross.execution.cuda_graph._MAX_INPUT_BYTES",
                18 * 8 + 8 if why == "large" else 1 << 30,
            )
        run = linear_run(tmp_path / str(full), keep=dross.Checkpoints(every=10))
        if full and why == "refused":
            run.recording.executor.graphs.refused |= {"reverse step", "reverse steps"}
        assert bool(run.recording.executor.graphs._graphs) == full
        found.append(run.influence(dross.mean_loss(LINEAR_DATA)).values)
    np.testing.assert_allclose(*found, rtol=1e-12)


def test_what_was_compiled_is_compiled_once(monkeypatch):
    """Also where the graphs have given their memory back."""
    made = []
    monkeypatch.setattr(
        "dross.execution.compiled.compile_function",
        lambda function, inputs: made.append(1) or function,
    )
    graphs, batch = Graphs(), Batch(torch.ones(2), torch.ones(2), torch.ones(2), 0)
    for _ in range(2):
        quick = graphs.compile_pass(
            "pass", "training", lambda batch, x: (batch.x * x,), batch, (torch.full((2,), 3.0),)
        )
        graphs.free_memory()
    assert made == [1] and torch.equal(
        quick(batch, torch.full((2,), 5.0))[0], torch.full((2,), 5.0)
    )


class Wobble:
    def __call__(self, x, generator):
        return x + 0.1 * torch.randn(x.shape, generator=generator, dtype=x.dtype)


@pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"
)
def test_a_compiled_pass_gives_what_the_pass_gives(tmp_path):
    """A reverse step through convolutions (as products) and BatchNorm, forward over reverse, through torch's compiler."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3),
        nn.BatchNorm2d(2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(18, 3),
    ).double()
    data = (torch.randn(32, 1, 8, 8, dtype=torch.float64), torch.randint(0, 3, (32,)))
    run = dross.train(
        model,
        data,
        "cross_entropy",
        torch.optim.SGD(model.parameters(), lr=0.1),
        tape=tmp_path,
        epochs=1,
        batch_size=32,
        progress=False,
    )
    executor, state = run.recording.executor, run.recording.state_at(0)
    batch = Batch(*data, torch.full((32,), 1 / 32, dtype=torch.float64), 0)
    direction = torch.randn(1, len(state.theta), dtype=torch.float64)
    executor.plans.set(len(batch.c), PullPlan(True, 8))  # forward mode, as for large networks
    graphs, args = Graphs(), (state.theta, state.buffers, direction, {}, True)
    with executor.training(), ConvAsMatmul():
        plain = executor.plain_pull
        quick = graphs.compile_pass("reverse step", "training", plain, batch, args)
        assert quick != plain and not graphs.uncompiled
        for found, expected in zip(quick(batch, *args)[:2], plain(batch, *args)[:2]):
            np.testing.assert_allclose(found, expected, rtol=1e-10, atol=1e-13)


def test_what_cannot_be_compiled_goes_on_without():
    graphs, batch = Graphs(), Batch(torch.ones(2), torch.ones(2), torch.ones(2), 0)
    looks = lambda batch, x: (batch.x * (1.0 if float(x.sum()) > 0 else 2.0),)
    with pytest.warns(dross.DrossWarning, match="without torch.compile"):
        assert graphs.compile_pass("pass", "", looks, batch, (torch.ones(1),)) is looks
    assert graphs.compile_pass("pass", "", looks, batch, (torch.ones(1),)) is looks  # told once

"""Compiled passes give what the passes give; what cannot be compiled goes on without."""

import shutil

import numpy as np
import pytest
import torch
from torch import nn

import dross
from dross.data.batch import Batch
from dross.engine.conv import ConvAsMatmul
from dross.engine.cuda_graph import Graphs
from dross.engine.executor import PullPlan


def test_what_was_compiled_is_compiled_once(monkeypatch):
    """Also where the memory of graphs was freed in between."""
    made = []
    count_calls = lambda function, inputs: made.append(1) or function
    monkeypatch.setattr("dross.engine.compiled.compile_function", count_calls)
    graphs, batch = Graphs(), Batch(torch.ones(2), torch.ones(2), torch.ones(2), 0)
    three, five = torch.full((2,), 3.0), torch.full((2,), 5.0)
    scale = lambda batch, x: (batch.x * x,)
    for _ in range(2):
        quick = graphs.compile_pass("pass", "training", scale, batch, (three,))
        graphs.free_memory()
    assert made == [1]
    assert torch.equal(quick(batch, five)[0], five)


@pytest.mark.skipif(
    shutil.which("g++") is None, reason="torch.compile needs a C++ compiler on a CPU"
)
def test_a_compiled_pass_gives_what_the_pass_gives(tmp_path):
    """A reverse step, forward over reverse, through convolutions (as products) and BatchNorm."""
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
        path=tmp_path,
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
    assert (
        graphs.compile_pass("pass", "", looks, batch, (torch.ones(1),)) is looks
    )  # without a second warning

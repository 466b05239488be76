"""Checkpointed blocks, fused attention and compiled parts: trained with, differentiated without."""

import warnings

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import dross
from dross.errors import DrossWarning, NotReplayable
from oracles import derivative, literal_run
from record.user_loops import close, query, recorded_loop
from zoo import mlp, problem


class Checkpointed(nn.Module):
    """Two blocks, the second checkpointed; the name is this file's own."""

    def __init__(self, reentrant, block=None):
        super().__init__()
        self.first, self.last = nn.Linear(6, 5), nn.Linear(5, 3)
        self.block = block or nn.Sequential(nn.Linear(5, 5), nn.Tanh(), nn.Dropout(0.2))
        self.reentrant = reentrant

    def forward(self, x):
        h = torch.tanh(self.first(x))
        if self.reentrant is None or not self.training:
            return self.last(self.block(h))
        return self.last(checkpoint(self.block, h, use_reentrant=self.reentrant))


def with_model(make, optimizer="momentum", **changes):
    p = problem("mlp", optimizer, **changes)
    p.model = lambda: make().double()
    return p


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_blocks(record, tmp_path, reentrant):
    p = with_model(lambda: Checkpointed(reentrant))
    recorder, model = recorded_loop(p, tmp_path / "t")
    for one, other in zip(model.parameters(), literal_run(p).parameters()):
        assert torch.equal(one, other)
    run = recorder.run((p.X, p.Y))
    scores = run.influence(query(p)).values
    close(-scores[p.used], [derivative(p, j) for j in p.used], 1e-7)
    plain = with_model(lambda: Checkpointed(None))
    np.testing.assert_array_equal(scores, recorded_scores(plain, tmp_path / "plain"))
    close(record(p).influence(query(p)).values, scores)
    assert checkpoint(torch.sin, torch.ones(1), use_reentrant=False).item() > 0  # torch's own again


def recorded_scores(p, folder):
    return recorded_loop(p, folder)[0].run((p.X, p.Y)).influence(query(p)).values


@pytest.mark.parametrize("reentrant", [True, False])
def test_statistics_that_a_recomputed_block_moves_twice(tmp_path, reentrant):
    block = lambda: nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
    p = with_model(lambda: Checkpointed(reentrant, block()))
    with pytest.raises(NotReplayable, match=r"'block.1.\w+' moved during backward"):
        recorded_loop(p, tmp_path / "t")

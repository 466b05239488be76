"""Loops with accelerate: accumulation, its clip, autocast in forward, instances that repeat."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, SequentialSampler, TensorDataset

pytest.importorskip("accelerate", reason="accelerate is not installed")

from accelerate import Accelerator
from accelerate.data_loader import BatchSamplerShard

import dross
from tests.oracles import slope

random = np.random.default_rng(0)
X, Y = torch.tensor(random.normal(size=(9, 4))), torch.tensor(random.integers(3, size=9))
X_VAL, Y_VAL = torch.tensor(random.normal(size=(6, 4))), torch.tensor(random.integers(3, size=6))
#: a rank of two, whose batches accelerate fills up with the first instances: 0 and 1 repeat
SHARD = BatchSamplerShard(BatchSampler(SequentialSampler(X), 2, False), 2, 1, even_batches=True)


def loop(folder=None, weights=None):
    """A loop as accelerate's documentation writes it; recorded, or with other weights."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05, eps=1e-4)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    data = DataLoader(dross.data.indexed(TensorDataset(X, Y)), batch_sampler=SHARD)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    model, optimizer, data, scheduler = accelerator.prepare(model, optimizer, data, scheduler)
    if folder is not None:
        recorder = dross.Recorder(model, "cross_entropy", optimizer, path=folder, data=(X, Y))
    for epoch in range(3):
        for ids, x, y in data:
            with accelerator.accumulate(model):
                if folder is None:
                    losses = F.cross_entropy(model(x), y, reduction="none")
                    accelerator.backward((losses * weights[ids]).mean())
                else:
                    with recorder.observe(ids, x, y, epoch=epoch) as watch:
                        loss = F.cross_entropy(model(x), y)
                        watch(loss)
                        accelerator.backward(loss)
                if accelerator.sync_gradients:
                    if folder is None:
                        accelerator.clip_grad_norm_(model.parameters(), 0.3)
                    else:
                        with recorder.clipping(max_norm=0.3):
                            accelerator.clip_grad_norm_(model.parameters(), 0.3)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
    if folder is not None:
        return recorder.run()
    with torch.no_grad():
        return float(F.cross_entropy(model(X_VAL), Y_VAL))


def test_repeated_instances_count_as_often_as_they_come(tmp_path):
    drawn = [i for batch in SHARD for i in batch]
    assert len(drawn) > len(set(drawn)) or set(drawn) & {0, 1}  # even_batches fills up
    run = loop(tmp_path / "tape")
    scores = run.influence(dross.mean_loss((X_VAL, Y_VAL))).values
    assert set(np.flatnonzero(~np.isnan(scores))) == set(drawn)
    for j in (drawn[0], drawn[-1]):

        def loss_with(offset, j=j):
            weights = torch.ones(len(X), dtype=torch.float64)
            weights[j] += offset
            return loop(weights=weights)

        np.testing.assert_allclose(
            -scores[j], slope(loss_with), atol=1e-8 * np.nanmax(np.abs(scores))
        )

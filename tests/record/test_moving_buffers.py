"""Buffers that a model moves by code of its own. tests/zoo.py has those that are followed."""

import numpy as np
import pytest
import torch
from torch import nn

import dross
from dross.errors import NotSupported
from tests.oracles import derivative, literal_leave_one_out
from tests.record.user_loops import close, query, recorded_loop
from tests.zoo import problem


class Own(nn.Module):
    """A model with a buffer `kept`, moved by a function that a test gives."""

    def __init__(self, move, read=lambda kept: kept):
        super().__init__()
        self.inner, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
        self.register_buffer("kept", torch.full((5,), 0.5))
        self.move, self.read = move, read

    def forward(self, x):
        h = torch.tanh(self.inner(x))
        if self.training:
            self.move(self, h)
        return self.head(h * self.read(self.kept.clone()))


def with_model(make):
    p = problem("mlp", "momentum")
    p.model = lambda: make().double()
    return p


def lerp(self, h):
    with torch.no_grad():
        self.kept.lerp_(h.pow(2).mean(0), 0.3)


def by_data(self, h):
    self.kept.data.mul_(0.7).add_(h.data.abs().mean(0) * 0.3)


def copied(self, h):
    self.kept.copy_((0.5 * self.kept + 0.5 * h.std(0)).detach())


def largest(self, h):
    with torch.no_grad():
        torch.maximum(self.kept, h.amax(0), out=self.kept)


@pytest.mark.parametrize("move", [lerp, by_data, copied])
def test_ways_to_write_an_average(record, move, recwarn):
    p = with_model(lambda: Own(move))
    p.batches = [ids for ids in p.batches if len(ids) > 1]
    scores = record(p).influence(query(p)).values
    expected = [derivative(p, j) for j in p.used]
    np.testing.assert_allclose(-scores[p.used], expected, atol=1e-8 * np.abs(scores).max())
    assert not [w for w in recwarn if issubclass(w.category, dross.DrossWarning)]


def by_numpy(self, h):
    mean = h.detach().mean(0).numpy()
    self.kept.copy_(torch.from_numpy(0.7 * self.kept.numpy() + 0.3 * mean))


def by_item(self, h):
    self.kept.fill_(0.7 * self.kept[0].item() + 0.3 * h.mean().item())


@pytest.mark.parametrize("move", [by_numpy, by_item, largest])
def test_what_cannot_be_followed_is_recorded_and_held(tmp_path, record, move):
    """It is said once; replays and leave-one-out are exact, scores treat it as a constant."""
    p = with_model(lambda: Own(move))
    with pytest.warns(dross.DrossWarning, match="moves 'kept' in a way that has no derivative"):
        run = record(p)
    assert run.recording.objective.held == ("kept",)
    model, _ = p.start()
    again = dross.load(run.path, model, (p.X, p.Y), p.loss)
    scores = again.influence(query(p)).values
    assert np.isfinite(scores).all() and scores.any()
    np.testing.assert_array_equal(scores, run.influence(query(p)).values)
    with pytest.warns(dross.DrossWarning, match="one after the other"):
        found = again.leave_one_out(query(p), p.used[:2])
    expected = [literal_leave_one_out(p, j) for j in p.used[:2]]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


def test_a_counter_that_nothing_reads(record):
    def count(self, h):
        self.kept += 1

    p = with_model(lambda: Own(count, read=torch.ones_like))
    run = record(p)
    assert run.recording.state_at(run.steps).buffers["kept"][0] == 0.5 + len(p.batches)
    expected = [derivative(p, j) for j in p.used]
    scores = run.influence(query(p)).values
    np.testing.assert_allclose(-scores[p.used], expected, atol=1e-8 * np.abs(scores).max())


def test_a_buffer_that_moves_later(record):
    """Every third step only: the counter beside it moves at once, so both are recorded."""

    class Seldom(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.head = nn.Linear(6, 5), nn.Linear(5, 3)
            self.register_buffer("mean", torch.zeros(5))
            self.register_buffer("count", torch.zeros((), dtype=torch.int64))

        def forward(self, x):
            h = torch.tanh(self.inner(x))
            if self.training:
                self.count += 1
                if self.count % 3 == 0:
                    self.mean.copy_(h.detach().mean(0))
            return self.head(h - self.mean.clone())

    p = with_model(Seldom)
    scores = record(p, keep=dross.tape.Checkpoints(every=2)).influence(query(p)).values
    expected = [derivative(p, j) for j in p.used]
    np.testing.assert_allclose(-scores[p.used], expected, atol=1e-8 * np.abs(scores).max())


def test_micro_batches_one_after_the_other(tmp_path):
    """Each micro-batch starts from the buffers that the one before it left."""
    p = problem("centred", "adam")

    def loop(weights, recorder=None):
        model, optimizer = p.start()
        model.train()
        if recorder:
            recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine")
        for t in range(3):
            parts = np.split(np.random.default_rng(t).permutation(14), [3, 9])
            for k, ids in enumerate(parts):
                if recorder is None:
                    losses = p.loss(model(p.X[ids]), p.Y[ids]) * weights[ids]
                    (losses.sum() / 14).backward()
                    if k == 2:
                        optimizer.step()
                        optimizer.zero_grad()
                    continue
                with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
                    (losses.sum() / 14).backward()
                    if k == 2:
                        optimizer.step()
                        optimizer.zero_grad()
        if recorder is not None:
            return recorder.run((p.X, p.Y))
        with torch.no_grad():
            return float(p.loss(model.eval()(p.X_val), p.Y_val).mean())

    run = loop(None, recorder=True)
    scores, h = run.influence(query(p)).values, 2e-5
    for j in (2, 5):
        values = []
        for offset in (2 * h, h, -h, -2 * h):
            weights = torch.ones(len(p.X), dtype=torch.float64)
            weights[j] += offset
            values.append(loop(weights))
        slope = (-values[0] + 8 * values[1] - 8 * values[2] + values[3]) / (12 * h)
        np.testing.assert_allclose(-scores[j], slope, atol=1e-8 * np.abs(scores).max())


def test_many_queries_at_once(record):
    p = problem("queue", "sgd")
    run = record(p)
    each = run.influence(dross.losses((p.X_val, p.Y_val))).values
    close(each.mean(0), run.influence(query(p)).values)


def test_float32_and_a_recorder(tmp_path, recwarn):
    p = problem("centred", "sgd")
    p.model, p.X, p.X_val = (lambda make=p.model: make().float()), p.X.float(), p.X_val.float()
    run = recorded_loop(p, tmp_path / "mine")[0].run((p.X, p.Y))
    assert run.recording.objective.followed == ("mean",)
    assert run.verify(run.influence(query(p)), query(p), n=len(p.X)).tau > 0.5


def test_a_frozen_parameter_that_the_forward_pass_changes(record):
    class Momentum(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.slow = nn.Linear(6, 3), nn.Linear(6, 3).requires_grad_(False)

        def forward(self, x):
            with torch.no_grad():
                self.slow.weight.mul_(0.9).add_(self.layer.weight, alpha=0.1)
            return self.layer(x) + self.slow(x)

    with pytest.raises(NotSupported, match=r"the frozen parameter 'slow\.weight'"):
        record(with_model(Momentum))

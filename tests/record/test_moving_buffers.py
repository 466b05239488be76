"""Buffers that a model moves by code of its own: recorded exactly, constant for scores."""

import numpy as np
import pytest
import torch
from torch import nn

import dross
from dross.errors import DrossWarning, NotSupported
from tests.oracles import derivative, literal_leave_one_out, literal_run
from tests.record.user_loops import check_bitwise, close, query, recorded_loop
from tests.zoo import BUFFER_MODELS, problem

IGNORE_WARNING = pytest.mark.filterwarnings("ignore:The forward pass updates")


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
        self.kept.mul_(0.7).add_(h.pow(2).mean(0), alpha=0.3)


def by_data(self, h):
    self.kept.data.mul_(0.7).add_(h.data.abs().mean(0) * 0.3)


def copied(self, h):
    self.kept.copy_((0.5 * self.kept + 0.5 * h.std(0)).detach())


def largest(self, h):
    with torch.no_grad():
        torch.maximum(self.kept, h.amax(0), out=self.kept)


def by_numpy(self, h):
    mean = h.detach().mean(0).numpy()
    self.kept.copy_(torch.from_numpy(0.7 * self.kept.numpy() + 0.3 * mean))


def by_item(self, h):
    self.kept.fill_(0.7 * self.kept[0].item() + 0.3 * h.mean().item())


MOVES = [lerp, by_data, copied, largest, by_numpy, by_item]


@pytest.mark.filterwarnings("ignore:Many copies of this model:dross.errors.DrossWarning")
@pytest.mark.parametrize("move", MOVES)
def test_a_buffer_is_recorded_exactly_and_constant_for_scores(record, move):
    """It is said once; replays and leave-one-out are exact, scores treat it as a constant."""
    p = with_model(lambda: Own(move))
    p.batches = [ids for ids in p.batches if len(ids) > 1]
    with pytest.warns(DrossWarning, match="updates 'kept' with custom code") as said:
        run = record(p)
    assert len(said) == 1 and run.recording.objective.held == ("kept",)
    model, _ = p.start()
    again = dross.load(run.path, model, (p.X, p.Y), p.loss)
    scores = again.influence(query(p)).values
    np.testing.assert_array_equal(scores, run.influence(query(p)).values)
    found = again.leave_one_out(query(p), p.used[:2])
    expected = [literal_leave_one_out(p, j) for j in p.used[:2]]
    np.testing.assert_allclose(found, expected, rtol=1e-9)


class Replay:
    """Moves the buffer to where it was at each step of another run."""

    def __init__(self, values):
        self.values = iter(values)

    def __call__(self, model, h):
        model.kept.copy_(next(self.values))


@IGNORE_WARNING
@pytest.mark.parametrize("move", MOVES)
def test_scores_are_derivatives_with_the_buffer_as_recorded(record, move):
    """Those of a run whose buffer moves as it did, whatever the weights of the instances."""
    p = with_model(lambda: Own(move))
    p.batches = [ids for ids in p.batches if len(ids) > 1]
    run = record(p, keep=dross.tape.EveryStep())
    scores = run.influence(query(p)).values
    moved = [run.recording.state_at(t).buffers["kept"] for t in range(1, run.steps + 1)]
    p.model = lambda: Own(Replay(moved)).double()
    expected = [derivative(p, j) for j in p.used]
    np.testing.assert_allclose(-scores[p.used], expected, atol=1e-8 * np.nanmax(np.abs(scores)))


@IGNORE_WARNING
@pytest.mark.parametrize("model", BUFFER_MODELS)
def test_forwards_and_backwards_agree(record, model):
    p = problem(model, "nesterov")
    run = record(p)
    delta = run.parameter_influence([0, 3, 5])
    seed, _ = query(p).derivative(run.recording.objective, run.recording.state_at(run.steps))
    u = run.recording.objective.layout.unflatten(seed.theta[0])
    products = sum((delta[name] * u[name]).flatten(1).sum(1) for name in delta)
    products = products + sum(
        (delta.buffers[name] * seed.buffers[name][0]).flatten(1).sum(1) for name in delta.buffers
    )
    close(products.numpy(), run.influence(query(p)).values[[0, 3, 5]])


@IGNORE_WARNING
def test_a_counter_that_nothing_reads(record):
    def count(self, h):
        self.kept += 1

    p = with_model(lambda: Own(count, read=torch.ones_like))
    run = record(p)
    assert run.recording.state_at(run.steps).buffers["kept"][0] == 0.5 + len(p.batches)
    expected = [derivative(p, j) for j in p.used]
    scores = run.influence(query(p)).values
    np.testing.assert_allclose(-scores[p.used], expected, atol=1e-8 * np.nanmax(np.abs(scores)))


@IGNORE_WARNING
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
    run = record(p, keep=dross.tape.Checkpoints(every=2))
    assert set(run.recording.objective.held) == {"mean", "count"}
    literal = dict(literal_run(p).named_parameters())
    for name, value in run.parameters().items():
        np.testing.assert_allclose(value, literal[name].detach(), rtol=1e-11, atol=1e-13)
    assert np.isfinite(run.influence(query(p)).values[:-1]).all()  # replays every other step


@IGNORE_WARNING
def test_micro_batches_one_after_the_other(tmp_path):
    """Each micro-batch starts from the buffers that the one before it left."""
    p = problem("centered", "adam")
    model, optimizer = p.start()
    recorder = dross.Recorder(model.train(), p.loss, optimizer, path=tmp_path / "mine")
    for t in range(3):
        for k, ids in enumerate(np.split(np.random.default_rng(t).permutation(14), [3, 9])):
            with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
                (losses.sum() / 14).backward()
                if k == 2:
                    optimizer.step()
                    optimizer.zero_grad()
    run = recorder.run((p.X, p.Y))
    assert torch.equal(run.recording.state_at(3).buffers["mean"], model.mean)
    check_bitwise(run)


@IGNORE_WARNING
def test_many_queries_at_once(record):
    p = problem("queue", "sgd")
    run = record(p)
    each = run.influence(dross.losses((p.X_val, p.Y_val))).values
    close(each.mean(0), run.influence(query(p)).values)


@IGNORE_WARNING
def test_a_recorder_replays_them_bit_for_bit(tmp_path):
    p = problem("centered", "sgd")
    p.model = lambda make=p.model: make().float()
    p.X, p.X_val = p.X.float(), p.X_val.float()
    keep = dross.tape.Checkpoints(every=1000)
    run = recorded_loop(p, tmp_path / "mine", keep=keep)[0].run((p.X, p.Y))
    check_bitwise(run)
    scores = run.influence(query(p))
    assert run.verify(scores, n=len(p.X)).tau > 0.5


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

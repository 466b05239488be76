"""Passes written down as programs give the same bits; what cannot be written down runs as it is."""

import pytest
import torch
from torch import nn

import dross
from dross.engine import cpu_program
from dross.errors import InvalidInput
from tests.zoo import BUFFER_MODELS, MODELS, OPTIMIZERS, problem

# passes with random numbers or with parameters that come and go are never reused, and BatchNorm
# with momentum=None looks at its counter, as models that move buffers of their own may
NEVER = {"dropout", "attention", "partly_used", "batchnorm_cnn", *BUFFER_MODELS}


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(cpu_program, "_CALLS_BEFORE_WRITING", 2)


def has_programs(executor) -> bool:
    programs = executor.programs._written.values()
    return any(program is not None and program.trusted for program in programs)


def train(model, data, folder, optimizer=None, **options):
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.SGD(trained, lr=0.1) if optimizer is None else optimizer
    options = {"path": folder, "progress": False} | options
    return dross.train(model, data, "cross_entropy", optimizer, **options)


def results(p, folder, monkeypatch, kind: str):
    monkeypatch.setenv("DROSS_EXECUTOR", kind)
    model, optimizer = p.start()
    options = {"batches": p.batches, "epochs": p.epochs, "keep": dross.tape.Checkpoints(every=3)}
    options |= {"path": folder / kind, "progress": False}
    run = dross.train(model, (p.X, p.Y), p.loss, optimizer, **options)
    one = dross.mean_loss((p.X_val, p.Y_val))
    found = {
        "theta": run.recording.state_at(run.steps).theta,
        "scores": torch.from_numpy(run.influence(one).values),
        "many": torch.from_numpy(run.influence(dross.losses((p.X_val, p.Y_val))).values),
        "no hessian": torch.from_numpy(dross.estimators.WithoutHessian().score(run, one).values),
        "truth": torch.from_numpy(run.leave_one_out(one, [0, 3])),
    }
    return found, run.recording.executor


# some models cannot be run many at once
def same_bits(one, other):
    """Scores are nan where no step used the instance."""
    torch.testing.assert_close(one, other, rtol=0, atol=0, equal_nan=True)


@pytest.mark.filterwarnings("ignore::dross.errors.DrossWarning")
@pytest.mark.parametrize(
    "model,optimizer",
    [(m, "momentum") for m in (*MODELS, *BUFFER_MODELS)] + [("mlp", o) for o in OPTIMIZERS],
)
def test_the_same_bits(model, optimizer, tmp_path, monkeypatch, soon):
    p = problem(model, optimizer)
    plain, without = results(p, tmp_path, monkeypatch, "eager")
    quick, executor = results(p, tmp_path, monkeypatch, "auto")
    assert not without.programs._written
    for name, value in plain.items():
        same_bits(quick[name], value)
    if model not in NEVER:
        assert has_programs(executor), executor.programs._written


class Peeks(nn.Module):
    """Looks into its tensors, in one of the ways that Python has."""

    def __init__(self, how):
        super().__init__()
        self.how, self.layer = how, nn.Linear(3, 2, dtype=torch.float64)

    def forward(self, x):
        return self.layer(x) * self.how(x)


WAYS = {
    "item": lambda x: 1.0 if x[0, 0].item() > 0 else 2.0,
    "bool": lambda x: 1.0 if x[0, 0] > 0 else 2.0,
    "float": lambda x: float(x[0, 0]),
    "tolist": lambda x: x[0].tolist()[0],
    "numpy": lambda x: float(x.detach().numpy()[0, 0]),
    "a shape": lambda x: x[x[:, 0] > 0].shape[0],
    "nonzero": lambda x: len((x[:, 0] > 0).nonzero()),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_model_that_looks_at_its_values_runs_as_before(way, tmp_path, monkeypatch, soon):
    torch.manual_seed(0)
    x, y = torch.randn(40, 3, dtype=torch.float64), torch.randint(0, 2, (40,))
    start = Peeks(WAYS[way]).state_dict()
    found = []
    for kind in ("eager", "auto"):
        monkeypatch.setenv("DROSS_EXECUTOR", kind)
        model = Peeks(WAYS[way])
        model.load_state_dict(start)
        run = train(model, (x, y), tmp_path / kind, epochs=2, batch_size=4)
        scores = run.influence(dross.mean_loss((x, y)))
        theta = run.recording.state_at(run.steps).theta
        found.append((theta, torch.from_numpy(scores.values)))
        written = run.recording.executor.programs._written
    assert written and all(program is None for program in written.values())
    for one, other in zip(*found, strict=True):
        same_bits(one, other)


def recorded(model, folder):
    x, y = torch.randn(40, 3, dtype=next(model.parameters()).dtype), torch.randint(0, 2, (40,))
    return train(model, (x, y), folder / "t", epochs=2, batch_size=4)


def test_a_frozen_weight_may_change_between_passes(tmp_path, soon):
    """A program reads it where it is."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    model[0].requires_grad_(False)
    run = recorded(model, tmp_path)
    executor, state = run.recording.executor, run.recording.state_at(run.steps)
    (batch,) = run.recording.batches(0, run.recording.segment(0).steps[:1])[0]
    with executor.training():
        before, _, _ = executor.gradient(state.theta, state.buffers, batch)
        assert has_programs(executor)
        with torch.no_grad():
            model[0].weight.mul_(2)
        after, _, _ = executor.gradient(state.theta, state.buffers, batch)
        expected, _, _ = executor.objective.gradient(state.theta, state.buffers, batch.load())
    assert not torch.equal(before, after) and torch.equal(after, expected)


def test_hooks_of_the_users_own_are_called_in_every_pass(tmp_path, soon):
    torch.manual_seed(0)
    model, seen = nn.Linear(3, 2), []
    model.register_forward_hook(lambda *_: seen.append(1) and None)
    run = recorded(model, tmp_path)
    assert len(seen) >= run.steps and not run.recording.executor.programs._written


def test_a_bad_label_is_told_as_before(tmp_path, soon):
    model = nn.Linear(3, 2)
    run = recorded(model, tmp_path)
    executor, state = run.recording.executor, run.recording.state_at(run.steps)
    (batch,) = run.recording.batches(0, run.recording.segment(0).steps[:1])[0]
    batch = batch.load()
    batch.y[0] = 7
    with executor.training(), pytest.raises(InvalidInput, match="does not accept the labels"):
        executor.gradient(state.theta, state.buffers, batch)


def test_a_transformer_in_forward_mode_can_be_written_down(tmp_path, monkeypatch, soon):
    """Its tangents begin as tensors of zeros without memory, which not every function may touch."""
    monkeypatch.setattr("dross.engine.memory.MIN_FLOPS_FOR_FORWARD_MODE", 0)
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    model = nn.Sequential(
        nn.Embedding(20, 8),
        nn.TransformerEncoder(layer, 1, enable_nested_tensor=False),
        nn.Flatten(),
        nn.Linear(32, 3),
    ).double()
    start, x, y = model.state_dict(), torch.randint(0, 20, (30, 4)), torch.randint(0, 3, (30,))
    start = {name: value.clone() for name, value in start.items()}
    scores = []
    for kind in ("eager", "auto"):
        monkeypatch.setenv("DROSS_EXECUTOR", kind)
        model.load_state_dict(start)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        run = train(model, (x, y), tmp_path / kind, optimizer, epochs=4, batch_size=10)
        scores.append(torch.from_numpy(run.influence(dross.mean_loss((x, y))).values))
    assert any(plan.forward_mode for plan in run.recording.executor.splitter.plans.values())
    written = run.recording.executor.programs._written.items()
    passes = {key[0][0] for key, program in written if program is not None and program.trusted}
    assert passes == {"training step", "reverse step"}
    same_bits(*scores)


@pytest.mark.parametrize(
    "how",
    [
        ([2, 2], [2, 2]),
        ([3, 3], [2, 2], [1, 1]),
        ([3, 2], [1, 2], [1, 1], [1, 1], True),
        ([2, 2], [1, 1], [0, 0], [2, 2]),
        ([8, 8], [8, 8]),
    ],
)
def test_pooling_with_the_channels_last_gives_the_same_bits(how):
    x = torch.randn(4, 16, 9, 9).relu()  # many of them 0, and so equal
    x[0, 0, 0, 1], x[1, 1, :2, :2] = float("nan"), -float("inf")
    ours = cpu_program._pool_channels_last(x, *how)
    theirs = torch.ops.aten.max_pool2d_with_indices.default(x, *how)
    for found, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, wanted, rtol=0, atol=0, equal_nan=True)
        assert found.stride() == wanted.stride()


def test_a_wide_layer_is_pooled_with_the_channels_last(tmp_path, monkeypatch, soon):
    data, calls, scores = (torch.randn(40, 1, 8, 8), torch.randint(0, 3, (40,))), [], []
    pool = cpu_program._pool_channels_last
    count_calls = lambda *args, **more: calls.append(1) or pool(*args, **more)
    monkeypatch.setattr(cpu_program, "_pool_channels_last", count_calls)
    for kind in ("eager", "auto"):
        monkeypatch.setenv("DROSS_EXECUTOR", kind)
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(144, 3)
        )
        run = train(model, data, tmp_path / kind, epochs=4, batch_size=8)
        scores.append(torch.from_numpy(run.influence(dross.mean_loss(data)).values))
        assert bool(calls) == (kind == "auto")
    same_bits(*scores)

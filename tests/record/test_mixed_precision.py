"""Runs under autocast: recorded as they were, replayed bit for bit, and differentiated as cast.

The truth is autograd through the unrolled run with the same casts, float32 parameters and float64
weights. Where both go through the same operations they agree to float32's rounding. Where a sum of
16-bit numbers is taken in another order (a weight that is used twice, a norm written out), they
differ by a few units of the narrow type: its eps is 2^-7 for bfloat16 and 2^-10 for float16.
"""

from contextlib import nullcontext
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

import dross
from dross.engine.memory import VjpPlan
from dross.engine.precision import Autocast
from dross.errors import InvalidInput, NotSupported
from tests.oracles import literal_leave_one_out, literal_run, unrolled_scores
from tests.record.user_loops import check_bitwise, query, relative
from tests.zoo import MODELS, problem

NARROW = [torch.bfloat16, torch.float16]
ADAM = {"lr": 0.02, "betas": (0.9, 0.999), "eps": 1e-4, "weight_decay": 0.01}


class InnerCast(nn.Module):
    """A model that casts in its own forward, as accelerate makes of one."""

    def __init__(self, inner: nn.Module, dtype: torch.dtype):
        super().__init__()
        self.inner, self.dtype = inner, dtype

    def forward(self, x):
        with torch.autocast("cpu", self.dtype):
            return self.inner(x).float()


def float32_problem(name: str, optimizer: str = "sgd", dtype: torch.dtype | None = None, **changes):
    """The problem in float32; dtype: cast by the oracles."""
    model = changes.pop("model", MODELS[name])
    p = problem(name, optimizer, **{"epochs": 3, **changes})
    p.model = model
    p.X, p.X_val = (x.float() if x.is_floating_point() else x for x in (p.X, p.X_val))
    p.cast = nullcontext if dtype is None else partial(torch.autocast, "cpu", dtype)
    return p


def recorded(p, folder, *, around=None, **options):
    """The run, through a Recorder. around: the autocast that the loop enters for each step."""
    model, optimizer = p.start()
    model.train()
    recorder = dross.Recorder(model, p.loss, optimizer, path=folder, seed=p.seed, **options)
    for ids in p.batches:
        context = nullcontext() if around is None else torch.autocast("cpu", around)
        with context, recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
            losses.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
    return recorder.run((p.X, p.Y)), model


WHOLE = dross.tape.Checkpoints(every=1000)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", MODELS)
def test_every_model_is_replayed_bit_for_bit(tmp_path, name, dtype):
    p = float32_problem(name, "adam", dtype)
    run, model = recorded(p, tmp_path / "t", autocast=dtype, keep=WHOLE)
    for one, other in zip(model.parameters(), literal_run(p).parameters()):
        assert torch.equal(one, other)  # recording does not change what the loop does
    check_bitwise(run)
    assert run.recording.tape.manifest.precision.autocast == Autocast("cpu", dtype)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", ["tied", "batchnorm_cnn", "attention"])
def test_autocast_around_the_step_and_inside_the_model(tmp_path, name, dtype):
    p = float32_problem(name, "sgd", dtype)
    around, _ = recorded(p, tmp_path / "around", around=dtype, keep=WHOLE)
    check_bitwise(around)
    assert around.recording.objective.precision.autocast == Autocast("cpu", dtype, backward=True)
    p.model = lambda: InnerCast(MODELS[name](), dtype)
    inside, _ = recorded(p, tmp_path / "inside", keep=WHOLE)
    check_bitwise(inside)
    assert inside.recording.tape.manifest.precision.inner_cast == dtype
    assert inside.recording.tape.manifest.precision.autocast is None
    values = [run.influence(query(p)).values for run in (around, inside)]
    assert relative(*values) < 4 * torch.finfo(dtype).eps


@pytest.mark.parametrize("options", [{"lr": 0.1}, ADAM], ids=["sgd", "adam"])
@pytest.mark.parametrize("dtype", [None, *NARROW])
@pytest.mark.parametrize("name", ["linear", "mlp", "cnn", "embedding", "tied"])
def test_against_autograd_through_the_unrolled_cast_run(tmp_path, name, dtype, options):
    p = float32_problem(name, "adam" if "betas" in options else "sgd", dtype)
    run, _ = recorded(p, tmp_path / "t", autocast=dtype)
    error = relative(run.influence(query(p)).values, unrolled_scores(p, options).numpy())
    assert error < (1e-5 if dtype is None else torch.finfo(dtype).eps)


class WideNorm(nn.Module):
    """Layer, group or batch norm by its formula in float32, as torch's kernels compute it."""

    def __init__(self, norm):
        super().__init__()
        self.weight, self.bias, self.eps = norm.weight, norm.bias, norm.eps
        across = {nn.LayerNorm: -1, nn.BatchNorm1d: 0, nn.GroupNorm: 2}
        self.across, self.groups = across[type(norm)], getattr(norm, "num_groups", None)

    def forward(self, x):
        wide = x.float() if self.groups is None else x.float().unflatten(1, (self.groups, -1))
        var, mean = torch.var_mean(wide, self.across, correction=0, keepdim=True)
        scaled = (wide - mean) / torch.sqrt(var + self.eps)
        scaled = scaled if self.groups is None else scaled.flatten(1, 2)
        return (scaled * self.weight + self.bias).to(x.dtype)


NORMS = {
    "layer": lambda: nn.LayerNorm(8),
    "group": lambda: nn.GroupNorm(2, 8),
    "batch": lambda: nn.BatchNorm1d(8, track_running_stats=False),
}


def normed(norm, wide=False):
    torch.manual_seed(4)
    middle = NORMS[norm]()
    first, last = nn.Linear(6, 8), nn.Linear(8, 3)
    return nn.Sequential(first, WideNorm(middle) if wide else middle, nn.Tanh(), last)


@pytest.mark.parametrize("forward_mode", [False, True])
@pytest.mark.parametrize("dtype", [None, *NARROW])
@pytest.mark.parametrize("norm", NORMS)
def test_norms_in_both_modes(tmp_path, norm, dtype, forward_mode):
    """torch's own second derivatives of norms are up to 70 % off in bfloat16."""
    p = float32_problem("mlp", "sgd", dtype, model=lambda: normed(norm))
    run, _ = recorded(p, tmp_path / "t", autocast=dtype)
    for size in range(1, 9):
        run.recording.executor.splitter.plans[size.bit_length()] = VjpPlan(forward_mode, 8)
    found = run.influence(query(p)).values
    p.model = lambda: normed(norm, wide=True)
    error = relative(found, unrolled_scores(p, {"lr": 0.1}).numpy())
    assert error < (1e-4 if dtype is None else 3 * torch.finfo(dtype).eps)


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize(
    "name", ["mlp", "cnn", "batchnorm", "batchnorm_cnn", "groupnorm", "shared"]
)
def test_forward_mode_is_reverse_mode(tmp_path, name, dtype):
    p = float32_problem(name, "sgd", dtype)
    run, _ = recorded(p, tmp_path / "t", autocast=dtype)
    both = []
    for forward_mode in (False, True):
        for size in range(1, 9):
            run.recording.executor.splitter.plans[size.bit_length()] = VjpPlan(forward_mode, 8)
        both.append(run.influence(query(p)).values)
    assert relative(*both) < 2 * torch.finfo(dtype).eps


def test_many_queries_programs_and_runs_side_by_side(tmp_path, monkeypatch):
    p = float32_problem("batchnorm", "momentum", torch.bfloat16, epochs=8)
    run, _ = recorded(p, tmp_path / "t", autocast=torch.bfloat16)
    asked = dross.losses((p.X_val, p.Y_val))
    values = run.influence(asked).values
    assert relative(values.mean(0), run.influence(query(p)).values) < 0.02
    together = run.leave_one_out(query(p), [1, 5, 7])
    literal = [literal_leave_one_out(p, j) for j in (1, 5, 7)]
    np.testing.assert_allclose(together, literal, atol=0.1 * np.abs(literal).max())
    monkeypatch.setenv("DROSS_EXECUTOR", "eager")
    np.testing.assert_array_equal(run.influence(asked).values, values)  # as programs: same bits


def test_parameter_influence_is_the_same_derivative(tmp_path):
    p = float32_problem("mlp", "momentum", torch.bfloat16)
    run, _ = recorded(p, tmp_path / "t", autocast=torch.bfloat16)
    scores = run.influence(query(p)).values
    delta = run.parameter_influence([2, 5])
    seed, _ = query(p).derivative(run.recording.objective, run.recording.state_at(run.steps))
    u = run.recording.objective.layout.unflatten(seed.theta[0])
    products = sum((delta[name] * u[name]).flatten(1).sum(1) for name in delta)
    np.testing.assert_allclose(products, scores[[2, 5]], atol=0.02 * np.nanmax(np.abs(scores)))


def test_what_is_asked_is_asked_under_the_same_autocast(tmp_path):
    p = float32_problem("mlp", "sgd", torch.bfloat16)
    run, model = recorded(p, tmp_path / "t", autocast=torch.bfloat16)
    model.eval()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        expected = p.loss(model(p.X_val), p.Y_val).double()
        outputs = model(p.X_val).double()
    assert torch.equal(torch.as_tensor(run.evaluate(dross.losses((p.X_val, p.Y_val)))), expected)
    found = torch.as_tensor(run.evaluate(dross.outputs(p.X_val)))
    assert torch.equal(found, outputs.reshape(-1))


def test_train_takes_autocast_too(tmp_path):
    p = float32_problem("batchnorm", "adam", torch.bfloat16)
    model, optimizer = p.start()
    options = {"batches": p.batches, "epochs": 3, "progress": False, "autocast": torch.bfloat16}
    given = (model, (p.X, p.Y), p.loss, optimizer)
    run = dross.train(*given, path=tmp_path / "train", **options)
    loop, _ = recorded(p, tmp_path / "loop", autocast=torch.bfloat16)
    for one, other in zip(run.parameters().values(), loop.parameters().values()):
        assert torch.equal(one, other)
    again = dross.load(tmp_path / "train", model, (p.X, p.Y), p.loss)
    assert again.recording.objective.precision.autocast == Autocast("cpu", torch.bfloat16)
    scores = again.influence(query(p)).values
    np.testing.assert_array_equal(scores, loop.influence(query(p)).values)
    with pytest.raises(InvalidInput, match="autocast must be torch"):
        dross.train(*given, path=tmp_path / "no", **{**options, "autocast": "bf16"})
    with pytest.raises(InvalidInput, match="float32 models; this one is float64"):
        dross.train(model.double(), *given[1:], path=tmp_path / "no", **options)


def test_a_loss_that_stays_in_16_bits(tmp_path):
    """On a CPU autocast leaves squares in bfloat16, and so the weights of the losses."""
    loss = lambda outputs, y: ((outputs - nn.functional.one_hot(y, 3)) ** 2).sum(1)
    p = float32_problem("mlp", "sgd", torch.bfloat16, loss=loss)
    run, _ = recorded(p, tmp_path / "t", autocast=torch.bfloat16, keep=WHOLE)
    check_bitwise(run)
    found, expected = run.influence(query(p)).values, unrolled_scores(p, {"lr": 0.1}).numpy()
    assert relative(found, expected) < 2 * torch.finfo(torch.bfloat16).eps


def test_a_whole_loop_inside_autocast_does_not_train_on_stale_casts(tmp_path):
    p = float32_problem("mlp", "sgd", torch.bfloat16)
    each, _ = recorded(p, tmp_path / "each", around=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        whole, _ = recorded(p, tmp_path / "whole")
        scores = whole.influence(query(p)).values
    np.testing.assert_array_equal(scores, each.influence(query(p)).values)


class TestRefusals:
    @pytest.fixture
    def loop(self, tmp_path):
        self.p = float32_problem("mlp")
        self.folder = tmp_path / "t"
        self.model, self.optimizer = self.p.start()
        ids = self.p.batches[0]
        self.batch = (ids, self.p.X[ids], self.p.Y[ids])

    def recorder(self, **options):
        return dross.Recorder(self.model, self.p.loss, self.optimizer, path=self.folder, **options)

    def step(self, recorder, cast=None):
        with cast or nullcontext(), recorder.step(*self.batch) as losses:
            losses.mean().backward()
            self.optimizer.step()
            self.optimizer.zero_grad()

    def test_autocast_that_comes_goes_or_changes(self, loop):
        with self.recorder() as recorder:
            self.step(recorder, torch.autocast("cpu", torch.bfloat16))
            with pytest.raises(NotSupported, match=r"Step 1 is computed with autocast off.*bfloat"):
                self.step(recorder)
            with pytest.raises(NotSupported, match=r"float16 on cpu.*before it with bfloat16"):
                self.step(recorder, torch.autocast("cpu", torch.float16))
            with pytest.raises(NotSupported, match="without its cache"):
                self.step(recorder, torch.autocast("cpu", torch.bfloat16, cache_enabled=False))
            self.step(recorder, torch.autocast("cpu", torch.bfloat16))
        assert recorder.steps == 2

    def test_backward_inside_and_outside(self, loop):
        with self.recorder() as recorder:
            self.step(recorder, torch.autocast("cpu", torch.bfloat16))
            cast = torch.autocast("cpu", torch.bfloat16)
            with pytest.raises(NotSupported, match="step 1 ran outside autocast, but those before"):
                with cast, recorder.step(*self.batch) as losses:
                    with torch.autocast("cpu", enabled=False):
                        losses.mean().backward()

    def test_twice(self, loop):
        recorder = self.recorder(autocast=torch.bfloat16)
        with pytest.raises(InvalidInput, match="leave out one of the two"):
            self.step(recorder, torch.autocast("cpu", torch.bfloat16))
        with pytest.raises(InvalidInput, match="autocast must be torch"):
            self.recorder(autocast=torch.int8)

    @pytest.mark.filterwarnings("ignore:The run in .* continues")
    def test_another_autocast_after_a_resume(self, loop):
        with self.recorder() as recorder:
            self.step(recorder, torch.autocast("cpu", torch.bfloat16))
        with self.recorder(resume=True) as recorder:
            self.step(recorder, torch.autocast("cpu", torch.bfloat16))
        assert recorder.steps == 2
        recorder = self.recorder(resume=True)
        with pytest.raises(dross.InputChanged, match="precision changed"):
            self.step(recorder)

    @pytest.mark.parametrize("dtype", NARROW)
    def test_parameters_of_16_bits(self, loop, dtype):
        self.model.to(dtype)
        message = (
            f"Parameters of type {str(dtype).removeprefix('torch.')} are not supported.*autocast="
        )
        with pytest.raises(NotSupported, match=message):
            self.recorder()
        data = (self.p.X.to(dtype), self.p.Y)
        with pytest.raises(NotSupported, match=message):
            dross.train(self.model, data, self.p.loss, self.optimizer, path=self.folder)

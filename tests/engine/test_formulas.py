"""Optimizers written as formulas: those of packages, and `dross.optim.register`."""

import numpy as np
import pytest
import torch

import dross
from dross.engine import optim_custom as registry
from dross.engine.optim_custom import newton_schulz
from dross.errors import InvalidInput, NotSupported
from tests.oracles import derivative, literal_leave_one_out, orthogonalize
from tests.record.user_loops import recorded_loop
from tests.zoo import OPTIMIZERS, Lion, problem

#: before a fixture changes it; torch has it from 2.9 on
OF_TORCH = getattr(getattr(torch.optim, "_muon", None), "_zeropower_via_newtonschulz", None)


class TanhSGD(torch.optim.Optimizer):
    """An optimizer of somebody's own, with a counter and a slot that begins with 1."""

    def __init__(self, params, lr, decay=0.9):
        super().__init__(params, {"lr": lr, "decay": decay})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in (p for p in group["params"] if p.grad is not None):
                state = self.state[p]
                if not state:
                    state.update(step=0, m=torch.ones_like(p))
                state["step"] += 1
                state["m"].mul_(group["decay"]).add_(p.grad)
                p.sub_(torch.tanh(state["m"]) * group["lr"] / state["step"] ** 0.5)


def tanh_sgd(theta, g, slots, hyperparams):
    m = hyperparams["decay"] * slots["m"] + g
    return theta - hyperparams["lr"] / hyperparams["step"] ** 0.5 * torch.tanh(m), {"m": m}


@pytest.fixture
def forget():
    before = dict(registry._REGISTERED)
    yield
    registry._REGISTERED.clear()
    registry._REGISTERED.update(before)


def query(p):
    return dross.mean_loss((p.X_val, p.Y_val))


def test_an_optimizer_of_ones_own(tmp_path, record, forget):
    p = problem("mlp", "sgd")
    p.optimizer = lambda parameters: TanhSGD(parameters, lr=0.1)
    with pytest.raises(NotSupported, match=r"TanhSGD is not supported yet.*register"):
        record(p)
    dross.optim.register(TanhSGD, {"m": 1.0}, tanh_sgd, options={"lr": 0.1})
    run = record(p)
    scores = run.influence(query(p)).values
    expected = np.array([derivative(p, j) for j in p.used])
    np.testing.assert_allclose(-scores[p.used], expected, atol=1e-8 * np.nanmax(np.abs(scores)))
    recorder, _ = recorded_loop(p, tmp_path / "mine", keep=dross.tape.Checkpoints(every=3))
    again = recorder.run((p.X, p.Y)).influence(query(p)).values
    np.testing.assert_allclose(again, scores, atol=1e-9 * np.nanmax(np.abs(scores)))
    found = run.leave_one_out(query(p), [3])
    np.testing.assert_allclose(found, [literal_leave_one_out(p, 3)], rtol=1e-9)
    registry._REGISTERED.clear()
    model, _ = p.start()
    with pytest.raises(
        NotSupported, match=r"TanhSGD, whose update rule is not registered.*register"
    ):
        dross.load(run.path, model, (p.X, p.Y), p.loss)


def wrong_rate(theta, g, slots, hyperparams):
    theta_after, slots = tanh_sgd(theta, g, slots, hyperparams)
    return theta + 1.01 * (theta_after - theta), slots


def wrong_slope(theta, g, slots, hyperparams):
    m = hyperparams["decay"] * slots["m"] + g
    return theta - hyperparams["lr"] / hyperparams["step"] ** 0.5 * torch.tanh(m).detach(), {"m": m}


@pytest.mark.parametrize(
    "changes, sentence",
    [
        ({"update": wrong_rate}, "a different theta from the optimizer's own step"),
        ({"update": wrong_slope}, "does not match a finite difference"),
        ({"update": lambda theta, g, slots, hyperparams: theta}, "failed|must return"),
        (
            {"update": lambda theta, g, slots, hyperparams: (theta, {})},
            "must return theta and a dict",
        ),
        ({"update": lambda *_: 1 / 0}, "failed"),
        ({"update": 3}, "must be a function"),
        ({"slots": ["m"]}, "a different theta"),
        ({"slots": ["v"]}, "failed"),
        ({"slots": "m"}, "list of names"),
        ({"options": {}}, r"could not be tested.*options=dict"),
        ({"optimizer": TanhSGD([torch.nn.Parameter(torch.ones(1))], 0.1)}, "an optimizer class"),
        ({"optimizer": torch.optim.Adam}, "do not register it"),
    ],
)
def test_what_cannot_be_registered(forget, changes, sentence):
    given = {"optimizer": TanhSGD, "slots": {"m": 1.0}, "update": tanh_sgd, "options": {"lr": 0.1}}
    with pytest.raises(InvalidInput, match=sentence):
        dross.optim.register(**(given | changes))
    assert TanhSGD not in registry._REGISTERED


def test_a_formula_that_mixes_numbers_is_not_elementwise(forget):
    class MeanSGD(torch.optim.Optimizer):
        def __init__(self, params, lr=0.1):
            super().__init__(params, {"lr": lr})

        @torch.no_grad()
        def step(self, closure=None):
            for p in self.param_groups[0]["params"]:
                p.sub_(p.grad.mean() * p.grad, alpha=self.param_groups[0]["lr"])

    def update(theta, g, slots, hyperparams):
        return theta - hyperparams["lr"] * g.mean() * g, {}

    with pytest.raises(
        InvalidInput, match="Check that update treats all elements of a tensor alike"
    ):
        dross.optim.register(MeanSGD, [], update)


def test_a_namesake_is_not_taken_for_what_it_is_not(record):
    class Namesake(Lion):
        def step(self, closure=None):
            super().step()
            for group in self.param_groups:
                for p in group["params"]:
                    p.data.mul_(0.99)

    Namesake.__name__ = "Lion"
    p = problem("mlp", "sgd")
    p.optimizer = Namesake
    with pytest.raises(NotSupported, match=r"is not the Lion that dross supports.*register"):
        record(p)


@pytest.mark.parametrize(
    "name, reason",
    [
        ("AdamWScheduleFree", "exchange the parameters outside of any step"),
        ("SAM", "two gradients"),
        ("AdamW8bit", "8 bits"),
    ],
)
def test_refused_by_name(record, name, reason):
    kind = type(name, (torch.optim.SGD,), {})
    p = problem("mlp", "sgd")
    p.optimizer = lambda parameters: kind(parameters, lr=0.1)
    with pytest.raises(NotSupported, match=f"{name} cannot be retraced: .*{reason}"):
        record(p)


@pytest.mark.parametrize(
    "kind, options",
    [
        (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        (torch.optim.Adam, {"lr": 0.01, "amsgrad": True}),
        (torch.optim.AdamW, {"lr": 0.01}),
        (torch.optim.Adagrad, {"lr": 0.1}),
        (torch.optim.RMSprop, {"lr": 0.01}),
        (torch.optim.NAdam, {"lr": 0.01}),
        (torch.optim.Adafactor, {"lr": 0.01}),
    ],
)
def test_how_torch_computes_does_not_matter(tmp_path, kind, options):
    """Fused and foreach steps, in float32: recorded, rehearsed, and replayed to the same scores."""
    fused = kind in (torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW, torch.optim.Adagrad)
    found = []
    for how in [{"foreach": False}, {"foreach": True}] + [{"fused": True}] * fused:
        p = problem("mlp", "sgd")
        p.model, p.X, p.X_val = (lambda make=p.model: make().float()), p.X.float(), p.X_val.float()
        p.optimizer = lambda parameters, how=how: kind(parameters, **options, **how)
        keep = dross.tape.Checkpoints(every=3)
        recorder, _ = recorded_loop(p, tmp_path / f"{len(found)}", keep=keep)
        found.append(recorder.run((p.X, p.Y)).influence(query(p)).values)
    for other in found[1:]:
        np.testing.assert_allclose(other, found[0], atol=2e-3 * np.nanmax(np.abs(found[0])))


def test_muon_as_torch_rounds_it(monkeypatch, tmp_path, record):
    """In bfloat16: the same bits as torch's own step, and scores near those without rounding."""
    p = problem("mlp", "muon")
    exact = record(p).influence(query(p)).values
    monkeypatch.setattr("torch.optim._muon._zeropower_via_newtonschulz", OF_TORCH)
    monkeypatch.setattr("dross.engine.optim_custom.ORTHOGONALIZED_IN", torch.bfloat16)
    matrix = torch.randn(7, 5, generator=torch.Generator().manual_seed(0))
    given = ((3.4445, -4.7750, 2.0315), 5, 1e-7)
    ours = newton_schulz(matrix, *given, torch.bfloat16)
    assert torch.equal(ours, OF_TORCH(matrix, *given))
    assert not torch.equal(ours.float(), orthogonalize(matrix, *given))
    recorder, _ = recorded_loop(p, tmp_path / "mine", keep=dross.tape.Checkpoints(every=3))
    rounded = recorder.run((p.X, p.Y)).influence(query(p)).values
    assert np.corrcoef(rounded[:-1], exact[:-1])[0, 1] > 0.99


@pytest.mark.parametrize("optimizer", ["muon", "adafactor", "lion"])
def test_true_leave_one_out(record, optimizer):
    """Many models side by side, each with its own blocks."""
    p = problem("mlp", optimizer)
    found = record(p).leave_one_out(query(p), p.used)
    expected = [literal_leave_one_out(p, j) for j in p.used]
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


def test_the_scores_of_a_sign_are_zero(record):
    p = problem("mlp", "lion")
    run = record(p)
    with pytest.warns(dross.DrossWarning, match="All scores are 0"):
        assert not run.influence(query(p)).values[:-1].any()
    assert run.leave_one_out(query(p), [3]).any()  # though removing an instance matters


def test_the_lion_of_a_package(tmp_path):
    """lion-pytorch's own class: recorded, replayed and run again without instances."""
    package = pytest.importorskip("lion_pytorch", reason="lion-pytorch is not installed")
    p = problem("mlp", "sgd")
    p.optimizer = lambda parameters: package.Lion(parameters, lr=0.01, weight_decay=0.1)
    recorder, _ = recorded_loop(p, tmp_path / "mine", keep=dross.tape.Checkpoints(every=3))
    run = recorder.run((p.X, p.Y))
    found = run.leave_one_out(query(p), p.used)
    expected = [literal_leave_one_out(p, j) for j in p.used]
    np.testing.assert_allclose(found, expected, rtol=1e-8, atol=1e-10)


def test_adafactor_with_a_rate_that_a_scheduler_shows(tmp_path):
    """transformers' AdafactorSchedule writes the rate that was used into the group."""
    optimization = pytest.importorskip("transformers.optimization")
    p = problem("mlp", "transformers_adafactor")
    model, optimizer = p.start()
    schedule = optimization.AdafactorSchedule(optimizer)
    model.train()
    recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "mine")
    for ids in p.batches:
        with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
            losses.mean().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    run = recorder.run((p.X, p.Y))
    scores = run.influence(query(p)).values
    assert (
        OPTIMIZERS["transformers_adafactor"]([torch.nn.Parameter(torch.ones(1))]).defaults["lr"]
        is None
    )
    expected = np.array([derivative(p, j) for j in p.used])
    np.testing.assert_allclose(-scores[p.used], expected, atol=1e-7 * np.nanmax(np.abs(scores)))

"""Loops with float16 and a GradScaler: the scale of each step, and the steps that it skips."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from torch import nn
from torch.amp import GradScaler

import dross
from dross.errors import InvalidInput, NotSupported
from tests.oracles import unrolled_scores
from tests.record.test_mixed_precision import float32_problem
from tests.record.user_loops import check_bitwise, query, relative
from tests.zoo import OPTIMIZERS

WHOLE = dross.tape.Checkpoints(every=1000)
HUGE = 2.0**40  # a scale at which gradients overflow


def scaled_loop(p, folder=None, *, clip=None, fused=False, micro=1, **options):
    """The run with a GradScaler that grows and is now and then set so high that it must skip.

    folder: where to record it; None runs the loop as if dross did not exist.
    """
    model, optimizer = p.start()
    if fused:
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.02, fused=True)
    model.train()
    scaler = GradScaler("cpu", init_scale=HUGE, growth_interval=3)
    recorder = None
    if folder is not None:
        options |= {"path": folder, "scaler": scaler, "autocast": torch.float16}
        recorder = dross.Recorder(model, p.loss, optimizer, **options)
    scales = []
    for t, ids in enumerate(p.batches):
        if t == 4:
            scaler.update(HUGE)
        for k, part in enumerate(np.array_split(ids, micro)):
            pair, scale = (p.X[part], p.Y[part]), scaler.get_scale()
            with compute_losses(p, model, recorder, part, *pair) as losses:
                scaler.scale(losses.sum() / len(ids)).backward()
                if k == micro - 1:
                    step(scaler, optimizer, model, recorder, clip)
        if recorder is not None and recorder.steps > len(scales):
            scales.append(scale)
    return model if recorder is None else (recorder, scales)


@contextmanager
def compute_losses(p, model, recorder, ids, x, y):
    """By the recorder, or as a loop without one does."""
    if recorder is not None:
        with recorder.step(ids, x, y) as losses:
            yield losses
        return
    with torch.autocast("cpu", torch.float16):
        losses = p.loss(model(x), y)
    yield losses


def step(scaler, optimizer, model, recorder, clip):
    if clip is not None:
        scaler.unscale_(optimizer)
        if recorder is None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        else:
            recorder.clip_grad_norm_(clip)
    scaler.step(optimizer)
    if scaler.get_scale() == HUGE:
        scaler.update(2.0**12)
    else:
        scaler.update()
    optimizer.zero_grad()


@pytest.mark.parametrize("kind", ["plain", "clip", "fused", "micro"])
@pytest.mark.parametrize("name", ["mlp", "cnn", "batchnorm", "tied"])
def test_scaled_and_skipped_steps_are_replayed_bit_for_bit(tmp_path, name, kind):
    options = {"clip": {"clip": 0.3}, "fused": {"fused": True}, "micro": {"micro": 2}}.get(kind, {})
    p = float32_problem(name, "momentum", torch.float16)
    if kind == "micro":
        p.batches = [ids for ids in p.batches if len(ids) >= 4]  # BatchNorm needs two at a time
    expected = scaled_loop(p, **options)
    recorder, scales = scaled_loop(p, tmp_path / "t", keep=WHOLE, **options)
    assert recorder.skipped >= 2
    assert recorder.steps == len(p.batches) - recorder.skipped
    run = recorder.run((p.X, p.Y))
    for name, value in run.parameters().items():
        assert torch.equal(value, expected.get_parameter(name))
    if kind in ("plain", "micro"):  # fused kernels and clips by norm add in another order
        check_bitwise(run)
    recorded = [step.scale for step in run.recording.segment(0).steps]
    assert recorded == scales
    assert len(set(recorded)) > 1  # it grew
    assert np.isfinite(run.influence(query(p)).values[:-1]).all()
    buffers = dict(expected.named_buffers())
    for name, value in run.recording.tape.end_state().buffers.items():
        assert torch.equal(value, buffers[name])  # skipped steps moved the statistics, too


@pytest.mark.parametrize("name", ["mlp", "cnn", "embedding"])
def test_scores_are_those_of_the_unrolled_cast_run(tmp_path, name):
    p = float32_problem(name, "sgd", torch.float16)
    recorder, _ = scaled_loop(p, tmp_path / "t")
    run = recorder.run((p.X, p.Y))
    p.batches = [ids for t, ids in enumerate(p.batches) if t not in (0, 4)]
    expected = unrolled_scores(p, {"lr": 0.1}).numpy()
    assert relative(run.influence(query(p)).values, expected) < 4 * torch.finfo(torch.float16).eps
    delta = run.parameter_influence([2, 5])
    seed, _ = query(p).derivative(run.recording.objective, run.recording.state_at(run.steps))
    products = delta.flat.double() @ seed.theta[0].double()  # one group: in the order of the names
    assert relative(products, run.influence(query(p)).values[[2, 5]]) < 0.01
    literal = run.leave_one_out(query(p), [2, 5])
    assert np.isfinite(literal).all()


def test_a_tiny_adjoint_does_not_vanish_in_float16(tmp_path):
    p = float32_problem("mlp", "sgd", torch.float16)
    recorder, _ = scaled_loop(p, tmp_path / "t")
    run = recorder.run((p.X, p.Y))
    small = dross.query(lambda params, _: 2.0**-30 * sum(v.square().sum() for v in params.values()))
    large = dross.query(lambda params, _: 2.0**30 * sum(v.square().sum() for v in params.values()))
    one, other = run.influence(small).values * 2.0**30, run.influence(large).values / 2.0**30
    assert np.nanmax(np.abs(one)) > 0
    np.testing.assert_allclose(one, other, atol=1e-5 * np.nanmax(np.abs(one)))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_scaler_that_the_recorder_does_not_know(tmp_path, optimizer):
    p = float32_problem("mlp", optimizer)
    model, optimizer = p.start()
    scaler = GradScaler("cpu", init_scale=1024.0)
    recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "t")
    ids = p.batches[0]
    with pytest.raises(NotSupported, match=r"dross.Recorder\(..., scaler=scaler\)"):
        with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
            scaler.scale(losses.mean()).backward()
            scaler.step(optimizer)
    with pytest.raises(InvalidInput, match=r"scaler must be a torch.amp.GradScaler, not int"):
        dross.Recorder(model, p.loss, optimizer, path=tmp_path / "u", scaler=3)


def test_gradients_changed_before_they_are_unscaled(tmp_path):
    p = float32_problem("mlp", "sgd")
    model, optimizer = p.start()
    scaler = GradScaler("cpu", init_scale=1024.0)
    recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "t", scaler=scaler)
    ids = p.batches[0]
    with pytest.raises(NotSupported, match="was changed between"):
        with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
            scaler.scale(losses.mean()).backward()
            model[0].weight.grad.mul_(2)
            scaler.step(optimizer)
    recorder._save_what_there_is()
    assert "unscale_" not in vars(scaler)  # it is as it was


def test_a_scaler_that_is_switched_off(tmp_path):
    p = float32_problem("mlp", "sgd")
    model, optimizer = p.start()
    scaler = GradScaler("cpu", enabled=False)
    with dross.Recorder(model, p.loss, optimizer, path=tmp_path / "t", scaler=scaler) as recorder:
        for ids in p.batches:
            with recorder.step(ids, p.X[ids], p.Y[ids]) as losses:
                scaler.scale(losses.mean()).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
    assert recorder.steps == len(p.batches)


def test_the_optimizers_of_the_zoo_take_scaled_steps(tmp_path):
    for name in ("adam", "rmsprop"):
        p = float32_problem("mlp", name, torch.float16)
        assert name in OPTIMIZERS
        run = scaled_loop(p, tmp_path / name, keep=WHOLE)[0].run((p.X, p.Y))
        check_bitwise(run)

"""Checkpointed blocks, fused attention and compiled parts: trained with, differentiated without."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.checkpoint import checkpoint

import dross
from dross.errors import DrossWarning, NotSupported
from tests.oracles import cross_entropy, derivative, literal_run, unrolled_scores
from tests.record.user_loops import check_bitwise, close, query, recorded_loop, relative, take_step
from tests.zoo import mlp, problem

MOMENTUM = {"lr": 0.05, "momentum": 0.9, "dampening": 0.1, "weight_decay": 0.01}


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


def compiled(what):
    """By torch.compile's autograd without its code generator: it has no second derivative."""
    return torch.compile(what, backend="aot_eager")


def compiled_inside():
    model = mlp()
    model[0] = compiled(model[0])
    return model


def compiled_in_place():
    model = mlp()
    model.compile(backend="aot_eager")
    return model


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of torch.compile itself
@pytest.mark.parametrize("make", [compiled_inside, compiled_in_place])
def test_compiled_modules_and_losses(record, tmp_path, make):
    plain = problem("mlp", "momentum")
    p = with_model(make)
    p.loss = compiled(cross_entropy)
    recorder, _ = recorded_loop(p, tmp_path / "t")
    run = recorder.run((p.X, p.Y))
    close(run.influence(query(p)).values, record(plain).influence(query(plain)).values)
    again = dross.load(tmp_path / "t", p.model(), (p.X, p.Y), p.loss)
    assert again.steps == len(p.batches)


class Attends(nn.Module):
    """Attention over the words of an input [B, 4], by the kernel that is chosen inside."""

    def __init__(self, kernel=None, dropout=0.0):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(12, 8), nn.Linear(8, 24), nn.Linear(8, 3)
        self.kernel, self.dropout = kernel, dropout

    def forward(self, x):
        q, k, v = self.mix(self.embed(x)).unflatten(-1, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        if self.kernel is None:
            mixed = F.scaled_dot_product_attention(q, k, v)
        else:
            with sdpa_kernel(self.kernel):
                mixed = F.scaled_dot_product_attention(q, k, v)
        return self.head(torch.tanh(mixed.transpose(1, 2).flatten(2)).mean(1))


def attention_problem(*given, dtype=torch.float64):
    p = problem("embedding", "momentum", epochs=3)
    p.model = lambda: Attends(*given).to(dtype)
    return p


@pytest.mark.parametrize("kernel", [None, SDPBackend.FLASH_ATTENTION])
def test_fused_attention_trains_and_the_math_kernel_differentiates(tmp_path, kernel):
    p = attention_problem(kernel)
    recorder, model = recorded_loop(p, tmp_path / "t", keep=dross.tape.Checkpoints(every=1000))
    for one, other in zip(model.parameters(), literal_run(p).parameters()):
        assert torch.equal(one, other)
    run = recorder.run((p.X, p.Y))
    manifest = run.recording.tape.manifest
    assert "flash" in manifest.precision.kernels and manifest.attention_gap < 1e-12
    check_bitwise(run)  # by the loop's own kernel
    scores = run.influence(query(p)).values
    close(-scores[p.used], [derivative(p, j) for j in p.used], 1e-7)
    ids = [int(p.batches[0][0]), int(p.batches[0][1])]
    delta = run.parameter_influence(ids)
    assert delta.flat.abs().max() > 0
    run.leave_one_out(query(p), ids)  # side by side: flash attention has no rule for vmap


def test_attention_under_autocast(tmp_path):
    p = attention_problem(None, dtype=torch.float32)
    model, optimizer = p.start()
    options = {"autocast": torch.bfloat16, "keep": dross.tape.Checkpoints(every=1000)}
    recorder = dross.Recorder(model, p.loss, optimizer, path=tmp_path / "t", **options)
    for ids in p.batches:
        take_step(recorder, optimizer, ids, p.X[ids], p.Y[ids])
    run = recorder.run((p.X, p.Y))
    check_bitwise(run)
    assert 1e-6 < run.recording.tape.manifest.attention_gap < 0.02  # told only where it matters
    p.cast = lambda: torch.autocast("cpu", torch.bfloat16)
    with sdpa_kernel(SDPBackend.MATH):
        expected = unrolled_scores(p, MOMENTUM)
    assert relative(run.influence(query(p)).values, expected.numpy()) < 0.03


class OtherWhenFused(Attends):
    """Its gradient depends on the kernel, as that of attention with dropout does on a GPU."""

    def forward(self, x):
        fused = torch.backends.cuda.flash_sdp_enabled()
        return super().forward(x) * (1.1 if fused else 1.0)


def test_kernels_that_are_far_apart_are_told(tmp_path):
    p = attention_problem()
    p.model = lambda: OtherWhenFused().double()
    with pytest.warns(DrossWarning, match=r"by \S+ %; rounding explains \S+ %.*To get exact"):
        recorded_loop(p, tmp_path / "t")


def test_a_model_without_attention_compares_nothing(tmp_path):
    p = problem("mlp", "sgd")
    run = recorded_loop(p, tmp_path / "t")[0].run((p.X, p.Y))
    assert run.recording.tape.manifest.precision.kernels == ("math",)
    assert run.recording.tape.manifest.attention_gap is None


def recorded_scores(p, folder):
    return recorded_loop(p, folder)[0].run((p.X, p.Y)).influence(query(p)).values


@pytest.mark.parametrize("reentrant", [True, False])
def test_statistics_that_a_recomputed_block_moves_twice(tmp_path, reentrant):
    block = lambda: nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
    p = with_model(lambda: Checkpointed(reentrant, block()))
    with pytest.raises(NotSupported, match=r"'block.1.\w+' after step 0 .*gradient checkpointing"):
        recorded_loop(p, tmp_path / "t")

"""The same as test_mixed_precision.py and test_grad_scaler.py, once, on a GPU."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.amp import GradScaler
from torch.nn.attention import SDPBackend, sdpa_kernel

import dross
from dross.engine.memory import VjpPlan
from tests.record.user_loops import check_bitwise, relative

pytestmark = pytest.mark.skipif(
    not torch.cuda.is_available(), reason="no GPU here; this file is run on one by hand"
)
NARROW = [torch.bfloat16, torch.float16]
WORDS, LENGTH, CLASSES = 50, 16, 4


class Block(nn.Module):
    """A block of a Transformer, by torch's own attention."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.norm, self.mix = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.last = nn.Linear(width, width), nn.LayerNorm(width)
        self.wide, self.back = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        mixed = self.mix(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(*mixed).transpose(1, 2).flatten(2))
        return x + self.back(F.gelu(self.wide(self.last(x))))


class Transformer(nn.Module):
    """Two blocks over words, and a class."""

    def __init__(self, width: int = 64, blocks: int = 2):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, width), nn.Linear(width, CLASSES)
        self.blocks = nn.Sequential(*[Block(width, 4) for _ in range(blocks)])

    def forward(self, x):
        return self.head(self.blocks(self.embed(x)).mean(1))


def perceptron():
    layers = [nn.Embedding(WORDS, 32), nn.Flatten(), nn.Linear(32 * LENGTH, 64), nn.LayerNorm(64)]
    return nn.Sequential(*layers, nn.ReLU(), nn.Linear(64, CLASSES))


def batchnorm():
    layers = [nn.Embedding(WORDS, 32), nn.Flatten(), nn.Linear(32 * LENGTH, 64)]
    return nn.Sequential(*layers, nn.BatchNorm1d(64), nn.Tanh(), nn.Linear(64, CLASSES))


MODELS = {"perceptron": perceptron, "batchnorm": batchnorm, "transformer": Transformer}


def data(count=256):
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, WORDS, (count, LENGTH), generator=generator)
    return x, torch.randint(0, CLASSES, (count,), generator=generator)


def recorded(folder, make, dtype, *, scaler=None, steps=24, keep=None, kernel=None):
    torch.manual_seed(1)
    model = make().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    x, y = (t.cuda() for t in data())
    options = {"autocast": dtype, "scaler": scaler, "keep": keep}
    recorder = dross.Recorder(model, "cross_entropy", optimizer, path=folder, **options)
    rng, scaler = np.random.default_rng(0), scaler or GradScaler("cuda", enabled=False)
    for _ in range(steps):
        ids = rng.choice(len(x), 32, replace=False)
        with sdpa_kernel(kernel or SDPBackend.MATH), recorder.step(ids, x[ids], y[ids]) as losses:
            scaler.scale(losses.mean()).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
    return recorder, recorder.run(data())


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", MODELS)
def test_autocast_is_replayed_bit_for_bit(tmp_path, name, dtype):
    keep = dross.tape.Checkpoints(every=1000)
    _, run = recorded(tmp_path / "t", MODELS[name], dtype, keep=keep)
    check_bitwise(run)
    assert np.isfinite(run.influence(dross.mean_loss(data(64))).values).all()


@pytest.mark.parametrize("name", MODELS)
def test_a_scaler_that_skips_is_replayed_bit_for_bit(tmp_path, name):
    scaler = GradScaler("cuda", init_scale=2.0**40, growth_interval=4, backoff_factor=2.0**-13)
    keep = dross.tape.Checkpoints(every=1000)
    recorder, run = recorded(tmp_path / "t", MODELS[name], torch.float16, scaler=scaler, keep=keep)
    assert recorder.skipped >= 1
    assert len({step.scale for step in run.recording.segment(0).steps}) > 1
    check_bitwise(run)
    assert np.isfinite(run.influence(dross.mean_loss(data(64))).values).all()


@pytest.mark.parametrize("kernel", [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION])
def test_fused_attention(tmp_path, kernel):
    """Its backward pass may add in any order, so it is replayed to rounding."""
    _, run = recorded(tmp_path / "t", Transformer, torch.bfloat16, kernel=kernel)
    assert run.recording.tape.manifest.attention_gap < 0.03
    assert np.isfinite(run.influence(dross.mean_loss(data(64))).values).all()


@pytest.mark.parametrize("dtype", NARROW)
@pytest.mark.parametrize("name", MODELS)
def test_forward_mode_is_reverse_mode(tmp_path, name, dtype):
    """On a GPU autocast computes layer norms and losses in float32, unlike on a CPU."""
    _, run = recorded(tmp_path / "t", MODELS[name], dtype, steps=8)
    both = []
    for forward_mode in (False, True):
        for size in range(1, 10):
            run.recording.executor.splitter.plans[(1 << size).bit_length()] = VjpPlan(
                forward_mode, 8
            )
        both.append(run.influence(dross.mean_loss(data(64))).values)
    assert relative(*both) < 4 * torch.finfo(dtype).eps


def test_scores_in_bfloat16_are_those_in_float32(tmp_path):
    values = []
    for dtype in (None, torch.bfloat16):
        _, run = recorded(tmp_path / str(dtype), Transformer, dtype, steps=12)
        values.append(run.influence(dross.mean_loss(data(64))).values)
    assert np.corrcoef(*values)[0, 1] > 0.95

"""Clipping gives what torch's own functions give."""

import numpy as np
import torch
from torch.nn.utils import clip_grad_norm_, clip_grad_value_

from dross.engine.step import ClipNorm, ClipValue
from dross.tape.format import clip_from_numbers, clip_to_numbers


def test_clipping_is_torchs():
    g = torch.randn(9, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for clip, apply in (
        (ClipNorm(0.7), lambda p: clip_grad_norm_([p], 0.7)),
        (ClipNorm(70.0), lambda p: clip_grad_norm_([p], 70.0)),
        (ClipValue(0.3), lambda p: clip_grad_value_([p], 0.3)),
    ):
        parameter = torch.nn.Parameter(torch.zeros(9, dtype=torch.float64))
        parameter.grad = g.clone()
        apply(parameter)
        np.testing.assert_allclose(clip(g).numpy(), parameter.grad.numpy(), rtol=1e-14)


def test_a_clip_survives_a_tape():
    for clip in (None, ClipNorm(0.7), ClipValue(0.3)):
        assert clip_from_numbers(*clip_to_numbers(clip)) == clip

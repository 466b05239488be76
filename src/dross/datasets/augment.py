"""Random shifts and flips of a whole batch on its device, seeded, so that a replay sees the same pictures."""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from ..data.batch import DrawsApart


@dataclass(frozen=True)
class ShiftAndFlip(DrawsApart):
    """Shift each picture by up to `pixels` in both directions and, if asked, mirror half of them. x: [B, C, H, W].

    What is shifted in is `fill`: black, which is -1 after the paper's scaling of MNIST.
    """

    pixels: int
    flip: bool = False
    fill: float | tuple[float, ...] = 0.0

    def draw(self, x: Tensor, generator: torch.Generator) -> tuple[Tensor, ...]:
        """The random numbers for this batch: how far down and right [2, B] and, if pictures are mirrored, which [B]."""
        by = torch.randint(
            0, 2 * self.pixels + 1, (2, len(x)), generator=generator, device=x.device
        )
        return (
            (by, torch.rand(len(x), generator=generator, device=x.device)) if self.flip else (by,)
        )

    def apply(self, x: Tensor, drawn: tuple[Tensor, ...]) -> Tensor:
        by, *mirrored = drawn
        if isinstance(self.fill, tuple):
            fill = _constant(self.fill, x.dtype, x.device)[None, :, None, None]
            padded = F.pad(x - fill, [self.pixels] * 4) + fill
        else:
            padded = F.pad(x, [self.pixels] * 4, value=self.fill)
        each, channel, row, column = (torch.arange(size, device=x.device) for size in x.shape)
        rows, columns = by[0][:, None] + row, by[1][:, None] + column  # [B, H], [B, W]
        if mirrored:
            columns = torch.where((mirrored[0] < 0.5)[:, None], columns.flip(1), columns)
        # every axis by an index of its own, so that the result lies in memory as x does: convolutions care
        return padded[
            each[:, None, None, None],
            channel[:, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]


@cache  # a captured step may not fetch anything from the host: made once, by the first step, and never let go of
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)

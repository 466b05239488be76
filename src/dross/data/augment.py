"""Random shifts and flips of a whole batch on its device, seeded, so that a replay sees the same pictures."""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class ShiftAndFlip:
    """Shift each picture by up to `pixels` in both directions and, if asked, mirror half of them. x: [B, C, H, W].

    What is shifted in is `fill`: black, which is -1 after the paper's scaling of MNIST.
    """

    pixels: int
    flip: bool = False
    fill: float | tuple[float, ...] = 0.0

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        count, channels, height, width = x.shape
        by = torch.randint(0, 2 * self.pixels + 1, (2, count), generator=generator, device=x.device)
        if isinstance(self.fill, tuple):
            fill = _constant(self.fill, x.dtype, x.device)[None, :, None, None]
            padded = F.pad(x - fill, [self.pixels] * 4) + fill
        else:
            padded = F.pad(x, [self.pixels] * 4, value=self.fill)
        rows = by[0][:, None] + _counted(height, x.device)  # [B, H]
        columns = by[1][:, None] + _counted(width, x.device)
        if self.flip:
            mirrored = torch.rand(count, generator=generator, device=x.device) < 0.5
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        each, channel = (_counted(size, x.device) for size in (count, channels))
        # every axis by an index of its own, so that the result lies in memory as x does: convolutions care
        return padded[each[:, None, None, None], channel[:, None, None], rows[:, None, :, None], columns[:, None, None, :]]


# Made once and never let go of: a captured step may not fetch anything from the host, and reads them where they are.


@cache
def _counted(size: int, device: torch.device) -> Tensor:
    return torch.arange(size, device=device)


@cache
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)

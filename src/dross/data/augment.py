"""Random shifts and flips of a whole batch on its device, seeded, so that a replay sees the same pictures."""

from dataclasses import dataclass

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
        values = self.fill if isinstance(self.fill, tuple) else (self.fill,)
        # filled on the device: a captured step may not fetch anything from the host
        fill = torch.stack([torch.full((), value, dtype=x.dtype, device=x.device) for value in values])
        fill = fill.expand(channels)[None, :, None, None]
        padded = F.pad(x - fill, [self.pixels] * 4)
        rows = by[0][:, None] + torch.arange(height, device=x.device)  # [B, H]
        columns = by[1][:, None] + torch.arange(width, device=x.device)
        if self.flip:
            mirrored = torch.rand(count, generator=generator, device=x.device) < 0.5
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        each, channel = (torch.arange(size, device=x.device) for size in (count, channels))
        # every axis by an index of its own, so that the result lies in memory as x does: convolutions care
        return padded[each[:, None, None, None], channel[:, None, None], rows[:, None, :, None], columns[:, None, None, :]] + fill

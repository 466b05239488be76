"""Random shifts and flips of a batch on its device, seeded: a replay sees the same images."""

from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class ShiftAndFlip:
    """Shift each image at random and, if asked, mirror half of them. x: [B, C, H, W].

    Arguments:
        pixels: the largest shift in each of the four directions.
        flip: whether about half of the images are mirrored left to right.
        fill: the value that is shifted in, one for all channels or one for each. Black is -1 after
            the paper's scaling of MNIST.
    """

    pixels: int
    flip: bool = False
    fill: float | tuple[float, ...] = 0.0

    def __call__(self, x: Tensor, generator: torch.Generator) -> Tensor:
        """The images, moved by numbers from this generator."""
        options = {"generator": generator, "device": x.device}
        down, right = torch.randint(0, 2 * self.pixels + 1, (2, len(x)), **options)
        if isinstance(self.fill, tuple):
            fill = _constant(self.fill, x.dtype, x.device)[None, :, None, None]
            padded = F.pad(x - fill, [self.pixels] * 4) + fill
        else:
            padded = F.pad(x, [self.pixels] * 4, value=self.fill)
        each, channel, row, column = (torch.arange(size, device=x.device) for size in x.shape)
        rows = down[:, None] + row  # [B, H]
        columns = right[:, None] + column  # [B, W]
        if self.flip:
            mirrored = torch.rand(len(x), **options) < 0.5
            columns = torch.where(mirrored[:, None], columns.flip(1), columns)
        # Each axis has an index of its own, so that the result lies in memory as x does:
        # convolutions care.
        return padded[
            each[:, None, None, None],
            channel[:, None, None],
            rows[:, None, :, None],
            columns[:, None, None, :],
        ]


@cache  # a captured step may not copy from the host: the first step makes it, and it stays
def _constant(values: tuple[float, ...], dtype: torch.dtype, device: torch.device) -> Tensor:
    return torch.tensor(values, dtype=dtype, device=device)

"""Random numbers that can be drawn again: each micro-batch of each step has its own seed."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

_MASK = (1 << 64) - 1


def mix_seeds(*parts: int) -> int:
    """One 63-bit seed from several integers, by splitmix64 over each.

    Even close inputs give unrelated streams.
    """
    value = 0
    for part in parts:
        value = (value + (part & _MASK) + 0x9E3779B97F4A7C15) & _MASK
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK
        value ^= value >> 31
    return value >> 1


def make_generator(device: torch.device, *parts: int) -> torch.Generator:
    """A generator on this device that starts from the seed of these integers."""
    return torch.Generator(device).manual_seed(mix_seeds(*parts))


def global_generators(device: torch.device) -> list[torch.Generator]:
    """The generators that a forward pass on this device may draw from."""
    on_gpu = [torch.cuda.default_generators[device.index or 0]] if device.type == "cuda" else []
    return [torch.default_generator, *on_gpu]


@contextmanager
def use_seed(device: torch.device, seed: int) -> Iterator[None]:
    """Inside: torch's global generators start from `seed`. Afterwards they are where they were."""
    generators = global_generators(device)
    before = [g.get_state() for g in generators]
    for g in generators:
        g.manual_seed(seed)
    try:
        yield
    finally:
        for g, state in zip(generators, before):
            g.set_state(state)

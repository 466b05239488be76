"""How long the fuzzers run: a few examples by default, for DROSS_FUZZ_SECONDS in `make fuzz`."""

import os
import random
import time
import zlib
from collections.abc import Iterator

SECONDS = float(os.environ.get("DROSS_FUZZ_SECONDS", "0"))
SEED = os.environ.get("DROSS_FUZZ_SEED")  # begin with this example, to see a failure again


class Seeded(random.Random):
    """Random numbers that say which seed they have, so that pytest shows it."""

    def __init__(self, seed: int):
        super().__init__(seed)
        self.begun_with = seed

    def __repr__(self) -> str:
        return f"DROSS_FUZZ_SEED={self.begun_with}"


def rounds(name: str, quick: int) -> Iterator[Seeded]:
    """A generator of random numbers for each example, so that a failure names its seed.

    The quick form has `quick` examples and is the same every time; the long one begins elsewhere
    every time and goes on for DROSS_FUZZ_SECONDS.
    """
    first = zlib.crc32(name.encode()) if SECONDS == 0 else time.time_ns() % (1 << 48)
    first = first if SEED is None else int(SEED)
    started, done = time.monotonic(), 0
    while done < quick or time.monotonic() - started < SECONDS:
        yield Seeded(first + done)
        done += 1
    if SECONDS > 0:
        print(f"{name}: {done:,} examples from seed {first}")

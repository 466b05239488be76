"""Batches of a data set that does not fit on the GPU, fetched while the step before is computed."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from .pytree import map_pair

_AHEAD = 2  # batches
Pair = tuple[Any, Any]


class Prefetcher:
    """The batches of a row of steps, by their place in it. Whoever asks for them goes through the row forwards (training) or backwards (retracing): the next
    ones in that direction are looked up meanwhile by another thread, into memory from which a GPU can fetch them by itself."""

    def __init__(
        self,
        look_up: Callable[[Tensor], Pair],
        ids: Sequence[Tensor],
        device: torch.device,
        reader: ThreadPoolExecutor,
    ):
        self._look_up, self._ids, self._device, self._reader = look_up, ids, device, reader
        self._jobs: dict[int, Future] = {}
        self._last = -1

    def __call__(self, place: int) -> Pair:
        job = self._jobs.pop(place, None) or self._reader.submit(self._fetched, place)
        towards = -1 if place < self._last else 1
        coming = [
            k
            for k in range(place + towards, place + towards * (_AHEAD + 1), towards)
            if 0 <= k < len(self._ids)
        ]
        self._jobs = {k: self._jobs.get(k) or self._reader.submit(self._fetched, k) for k in coming}
        self._last = place
        pair, there = job.result()
        if there is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(there)
            map_pair(lambda t: t.record_stream(stream) if isinstance(t, Tensor) else t, pair)
        return pair

    def _fetched(self, place: int) -> tuple[Pair, Any]:
        pair = self._look_up(self._ids[place])
        if self._device.type != "cuda":
            return pair, None
        with torch.cuda.stream(torch.cuda.Stream(self._device)):
            sent = map_pair(
                lambda t: (
                    t.pin_memory().to(self._device, non_blocking=True)
                    if isinstance(t, Tensor)
                    else t
                ),
                pair,
            )
            there = torch.cuda.current_stream(self._device).record_event()
        return sent, there

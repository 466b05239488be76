"""Batches of a data set that does not fit on the GPU, fetched while the step before is computed."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor

from .pytree import map_pair

_BATCHES_AHEAD = 2
Pair = tuple[Any, Any]


class Prefetcher:
    """The batches of a row of steps, by their place in it.

    A caller goes through the row forwards (training) or backwards (retracing). Meanwhile another
    thread looks up the next batches in that direction, into memory that a GPU can read by itself.
    """

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
        """The batch at this place, on the device."""
        job = self._jobs.pop(place, None) or self._submit(place)
        towards = -1 if place < self._last else 1
        coming = [place + towards * k for k in range(1, _BATCHES_AHEAD + 1)]
        coming = [k for k in coming if 0 <= k < len(self._ids)]
        self._jobs = {k: self._jobs.get(k) or self._submit(k) for k in coming}
        self._last = place
        pair, arrival = job.result()
        if arrival is not None:
            stream = torch.cuda.current_stream(self._device)
            stream.wait_event(arrival)
            map_pair(lambda t: t.record_stream(stream) if isinstance(t, Tensor) else t, pair)
        return pair

    def _submit(self, place: int) -> Future:
        return self._reader.submit(self._fetch, place)

    def _fetch(self, place: int) -> tuple[Pair, Any]:
        """The batch, and on a GPU the event after which it is there."""
        pair = self._look_up(self._ids[place])
        if self._device.type != "cuda":
            return pair, None
        with torch.cuda.stream(torch.cuda.Stream(self._device)):
            sent = map_pair(self._send, pair)
            arrival = torch.cuda.current_stream(self._device).record_event()
        return sent, arrival

    def _send(self, t: Any) -> Any:
        if not isinstance(t, Tensor):
            return t
        return t.pin_memory().to(self._device, non_blocking=True)

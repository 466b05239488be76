"""Which instances a DataLoader's batches are made of, without a change to the data.

A loader draws the ids of each batch in the main process, in the order in which the batches come,
even when its workers run ahead. They are noted as they are drawn, and taken one batch at a time.
"""

from collections import deque
from collections.abc import Iterator
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from ..errors import InvalidInput, NotSupported


class DrawnIds:
    """Stands in for a loader's batch sampler, and notes what it draws."""

    def __init__(self, batch_sampler: Any):
        self.batch_sampler = batch_sampler
        self._drawn: deque[list[int]] = deque()

    def __iter__(self) -> Iterator[list[int]]:
        self._drawn = drawn = deque()  # of this pass over the data
        return self._note(drawn)

    def _note(self, drawn: deque[list[int]]) -> Iterator[list[int]]:
        for ids in self.batch_sampler:
            drawn.append(list(ids))
            yield ids

    def __len__(self) -> int:
        return len(self.batch_sampler)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "batch_sampler":
            raise AttributeError(name)
        return getattr(self.batch_sampler, name)

    def take(self) -> np.ndarray:
        """The ids of the next batch.

        Raises:
            NotSupported: if more batches came than were drawn.
        """
        if not self._drawn:
            raise NotSupported(
                "A batch did not come from the loader, so its instances are not known. Let the "
                "trainer take its batches from a single DataLoader, unchanged."
            )
        return np.asarray(self._drawn.popleft(), dtype=np.int64)


def replace_batch_sampler(loader: Any) -> DrawnIds:
    """Let the batch sampler of a loader note the ids it draws from now on.

    Raises:
        InvalidInput: for something that is not a DataLoader.
        NotSupported: if batches have no ids, or do not come in the order they are drawn.
    """
    if not isinstance(loader, DataLoader):
        raise InvalidInput(
            "dross supports a single torch DataLoader, but the training data is of type "
            f"{type(loader).__name__}. Pass a single loader over a map-style dataset."
        )
    if isinstance(loader.dataset, IterableDataset) or loader.batch_sampler is None:
        raise NotSupported(
            "The training data is iterable, or is not batched by its loader, so instances have no "
            "ids and cannot be scored. Use a map-style dataset and a batch_size."
        )
    if not getattr(loader, "in_order", True):
        raise NotSupported(
            "The loader returns batches in any order (in_order=False), so their instances are not "
            "known. Use in_order=True."
        )
    if isinstance(loader.batch_sampler, DrawnIds):
        return loader.batch_sampler
    drawn = DrawnIds(loader.batch_sampler)
    object.__setattr__(loader, "batch_sampler", drawn)  # a loader lets nobody else change it
    return drawn

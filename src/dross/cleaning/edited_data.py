"""The training part with edits: which instances are learnt, and with which labels."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from .train_many import ModelSpec

_NONE = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class EncodedEdits:
    """Edits of the training part, with labels as a model learns them."""

    removed: np.ndarray  # ids
    relabelled: np.ndarray  # ids
    labels: Tensor | None = None  # one for each of `relabelled`

    def left(self, count: int, left_out: np.ndarray = _NONE) -> np.ndarray:
        """The ids, of `count`, that are not removed; left_out: others that no model learns."""
        return np.setdiff1d(np.arange(count), np.concatenate([self.removed, left_out]))

    def relabel(self, y: Tensor) -> Tensor:
        """The targets with the new labels; the same tensor where there are none."""
        if self.labels is None:
            return y
        y = y.clone()
        y[self.relabelled] = self.labels
        return y

    def specify(self, seed: int, y: Tensor, rate: float, left_out: np.ndarray = _NONE) -> ModelSpec:
        """A model to train on the edited data; y: the targets as they were; see `left`."""
        labels = None if self.labels is None else self.relabel(y)
        return ModelSpec(seed, self.left(len(y), left_out), rate, labels)

    def to_bytes(self) -> bytes:
        """Bytes that are equal for equal edits."""
        labels = b"" if self.labels is None else self.labels.contiguous().numpy().tobytes()
        return b"/".join([self.removed.tobytes(), self.relabelled.tobytes(), labels])


NO_EDITS = EncodedEdits(_NONE, _NONE)

"""The sums that become scores: one place for the totals and for the progress file."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import torch
from torch import Tensor

from ..engine.device import HostCopy
from ..engine.state import Derivative
from ..engine.step import Step
from ..errors import Diverged
from ..replay.segment_replay import Block
from ..replay.step_range import Window
from .progress_file import Place, ProgressFile


class ScoreTotals:
    """totals [E, Q, N] -= d query / d w_i of every step, in float64.

    A GPU's results are read one block late, while it computes the next block. Progress is saved
    only for blocks that were checked.
    """

    def __init__(
        self, window: Window, queries: int, instances: int, file: ProgressFile | None, lag: int
    ):
        """lag: how many blocks may wait before they are read."""
        self.window, self.file, self.lag = window, file, lag
        self.totals = torch.zeros(window.epochs, queries, instances, dtype=torch.float64)
        self._waiting: list[_Terms] = []

    def add(
        self, block: Block, terms: Sequence[Tensor], adjoint: Derivative, choices: dict
    ) -> None:
        """Add a block's terms, the last step's first.

        Arguments:
            block: its steps.
            terms: [Q, |S_t|] for each step.
            adjoint: before the block's first step.
            choices: how it was computed; another way rounds differently.
        """
        if terms:
            self._waiting.append(_Terms.send(block, terms, adjoint, choices))
        while len(self._waiting) > self.lag:
            self._count(self._waiting.pop(0))

    def wait(self) -> None:
        """Wait until the last block is computed: its states are freed before others are made."""
        if self._waiting:
            self._waiting[-1].sent.wait()

    def finish(self) -> np.ndarray:
        """The scores by epoch, once all blocks are counted: float64 [Q, E, N]."""
        while self._waiting:
            self._count(self._waiting.pop(0))
        if self.file is not None:
            self.file.remove()
        return self.totals.transpose(0, 1).numpy()

    def _count(self, terms: "_Terms") -> None:
        terms.add_to(self.totals, self.window.oldest)
        if self.file is not None and self.file.due:
            self.file.write(Place(terms.first, terms.adjoint, self.totals, terms.choices))


@dataclass(frozen=True)
class _Terms:
    """What a block adds to the scores, on its way to the host."""

    first: int  # the number of the block's first step
    numbered: list[tuple[int, Step]]  # the last step first
    sent: HostCopy
    adjoint: Derivative  # before the block's first step
    choices: dict

    @staticmethod
    def send(block: Block, terms: Sequence[Tensor], adjoint: Derivative, choices: dict) -> "_Terms":
        numbered = list(enumerate(block.steps, start=block.first))[::-1]
        finite = torch.isfinite(adjoint.theta).all()
        together = torch.cat([*terms], dim=1).detach().double()
        sent = HostCopy({"terms": together, "finite": finite})
        return _Terms(block.first, numbered, sent, adjoint, choices)

    def add_to(self, totals: Tensor, oldest: int) -> None:
        """Add the terms at their instances; one may be in a batch several times."""
        seen = self.sent.wait()
        by_step = seen["terms"].split([len(step.ids) for _, step in self.numbered], dim=1)
        if not bool(torch.isfinite(seen["terms"]).all()):
            pairs = zip(self.numbered, by_step)
            raise _not_finite(next(t for (t, _), x in pairs if not bool(torch.isfinite(x).all())))
        for epoch, part in groupby(zip(self.numbered, by_step), lambda item: item[0][1].epoch):
            numbered, terms = zip(*part)
            ids = torch.from_numpy(np.concatenate([step.ids for _, step in numbered]))
            totals[epoch - oldest].index_add_(1, ids, torch.cat(terms, dim=1), alpha=-1)
        if not bool(seen["finite"]):
            raise _not_finite(self.numbered[-1][0])


def _not_finite(t: int) -> Diverged:
    return Diverged(
        f"The adjoint is no longer finite at step {t}: going back from there, the run magnifies "
        "every change without limit. Retrace fewer epochs (epochs=1), train with a smaller rate, "
        "or use float64.",
        step=t,
    )

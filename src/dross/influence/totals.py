"""Adding up the terms of a retrace, and saving how far it has come.

    folder/retrace-3f2a90c41b77d05e.safetensors     the adjoint, the totals, and their step

The name is a digest of everything that the scores depend on: the tape's segments, the part of them
that is retraced, and the query. A query is known by its derivative at the model, which is all that
a retrace uses of it. So one folder can contain the progress of many queries.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .._io import delete_stale
from ..data.fingerprint import digest_tensors
from ..data.sealed import read_tensors, write_tensors
from ..distributed.ranks import Reducer
from ..engine.device import HostCopy
from ..engine.state import Derivative
from ..engine.step import Step
from ..errors import CorruptFile
from ..replay.recording import Recording
from ..replay.schedule import StepRange
from ..replay.segments import Block

_SECONDS_BETWEEN_WRITES = 30.0  # the work that a kill may cost
_MIN_TIMES_OF_WRITING = 20  # at most 1/20 of the time goes into writing, however large the file


@dataclass(frozen=True)
class RetraceCheckpoint:
    """How far a retrace has come."""

    position: int  # every step from this one on has been retraced
    adjoint: Derivative  # d query / d the state before that step
    totals: Tensor  # [E, Q, N]: the scores so far; nan where the epoch did not use the instance
    choices: (
        dict  # how passes are computed (MemorySplitter.to_json); another way rounds differently
    )


class CheckpointFile:
    """The checkpoint of one retrace, kept in a folder."""

    def __init__(
        self,
        folder: Path,
        recording: Recording,
        question: dict[str, Any],
        query_adjoint: Derivative,
    ):
        """Name the file by all that the bits of the scores depend on.

        The number of ranks is not part of it: a job may continue with fewer.
        """
        tape = recording.tape
        stop = question["steps"][1]
        digests = [entry.sha256 for entry in tape.entries if entry.first < stop]
        everything = {
            **question,
            "tape": [tape.manifest.id, *digests],
            "query_adjoint": digest_tensors(query_adjoint.tensors()),
            "torch": torch.__version__,
            "device": recording.device.type,
        }
        digest = hashlib.sha256(json.dumps(everything, sort_keys=True).encode()).hexdigest()
        self.path = folder / f"retrace-{digest[:16]}.safetensors"
        self._next = time.monotonic() + _SECONDS_BETWEEN_WRITES

    @property
    def due(self) -> bool:
        """Whether it is time to write again."""
        return time.monotonic() >= self._next

    def write(self, checkpoint: RetraceCheckpoint) -> None:
        """Replace what was kept before."""
        began = time.monotonic()
        tensors = {"totals": checkpoint.totals, **checkpoint.adjoint.tensors()}
        notes = {"position": checkpoint.position, "choices": checkpoint.choices}
        write_tensors(self.path, tensors, notes)
        now = time.monotonic()
        self._next = now + max(_SECONDS_BETWEEN_WRITES, _MIN_TIMES_OF_WRITING * (now - began))

    def read(self) -> RetraceCheckpoint | None:
        """The progress of an earlier retrace of the same query, if it was interrupted."""
        delete_stale(self.path.parent, lambda name: name.startswith("retrace-"))
        try:
            tensors, notes = read_tensors(self.path)
        except FileNotFoundError:
            return None
        except CorruptFile as error:
            raise CorruptFile(f"{error} Delete it to retrace from the beginning.") from None
        totals = tensors.pop("totals")
        adjoint = Derivative.from_tensors(tensors)
        return RetraceCheckpoint(notes["position"], adjoint, totals, notes["choices"])

    def remove(self) -> None:
        """Remove the file once the scores are finished, and temporary ones that a kill left."""
        for path in [self.path, *self.path.parent.glob(f".{self.path.name}.*")]:
            path.unlink(missing_ok=True)


class NotFinite(Exception):
    """The terms of a step, or the adjoint before it, became inf or nan."""

    def __init__(self, step: int):
        super().__init__(step)
        self.step = step


class ScoreTotals:
    """totals [E, Q, N] -= d query / d w_i of every step, in float64.

    An instance that no step of an epoch used keeps nan there: 0 would say that it has no effect.
    A GPU's results are read one block late, while it computes the next block. Progress is saved
    only for blocks that were checked.
    """

    def __init__(
        self,
        recording: Recording,
        ranks: Reducer,
        steps: StepRange,
        queries: int,
        file: CheckpointFile | None,
    ):
        self.device = recording.device
        self.executor = recording.executor
        self.ranks = ranks
        self.steps = steps
        self.file = file
        shape = (steps.epochs, queries, len(recording.instances))
        self.totals = torch.full(shape, torch.nan, dtype=torch.float64)
        self._late_blocks = int(self.device.type == "cuda")
        self._little_memory = recording.memory_limit is not None
        self._waiting: list[_Terms] = []

    def resume(self, adjoint: Derivative) -> tuple[Derivative, int]:
        """Continue where an interrupted retrace was.

        Arguments:
            adjoint: at the end, where the retrace begins otherwise.

        Returns:
            The adjoint, and the number of the step before which it is.
        """
        kept = None if self.file is None else self.ranks.on_first(self.file.read)
        if kept is None:
            return adjoint, self.steps.stop
        self.totals = kept.totals
        self.executor.splitter.load_json(kept.choices)
        return kept.adjoint.map(lambda t: t.to(self.device)), kept.position

    def subtract(self, block: Block, terms: Sequence[Tensor], adjoint: Derivative) -> None:
        """Subtract a block's terms from the scores of its instances.

        Arguments:
            block: its steps.
            terms: [Q, |S_t|] for each step, the last step's first.
            adjoint: before the block's first step.
        """
        if terms:
            self._waiting.append(_Terms(block, terms, adjoint, self.executor.splitter.to_json()))
            if self._little_memory:  # the block's states are freed before others are made
                self._waiting[-1].copy.wait()
        while len(self._waiting) > self._late_blocks:
            self._count(self._waiting.pop(0))

    def finish(self) -> np.ndarray:
        """The scores by epoch, once all blocks are counted: float64 [Q, E, N]."""
        while self._waiting:
            self._count(self._waiting.pop(0))
        if self.file is not None and self.ranks.rank == 0:
            self.file.remove()
        return self.totals.transpose(0, 1).numpy()

    def _count(self, terms: "_Terms") -> None:
        terms.subtract_from(self.totals, self.steps.oldest)
        if self.file is not None and self.ranks.rank == 0 and self.file.due:
            first = terms.numbered[-1][0]
            self.file.write(RetraceCheckpoint(first, terms.adjoint, self.totals, terms.choices))


class _Terms:
    """What a block adds to the scores, on its way to the host."""

    def __init__(self, block: Block, terms: Sequence[Tensor], adjoint: Derivative, choices: dict):
        numbered = list(enumerate(block.steps, start=block.first))
        self.numbered: list[tuple[int, Step]] = numbered[::-1]  # the last step first
        self.adjoint = adjoint  # before the block's first step
        self.choices = choices
        together = torch.cat([*terms], dim=1).detach().double()
        finite = torch.isfinite(adjoint.theta).all()
        self.copy = HostCopy({"terms": together, "finite": finite})

    def subtract_from(self, totals: Tensor, oldest: int) -> None:
        """Subtract the terms at their instances; one may be in a batch several times."""
        arrived = self.copy.wait()
        by_step = arrived["terms"].split([len(step.ids) for _, step in self.numbered], dim=1)
        if not bool(torch.isfinite(arrived["terms"]).all()):
            pairs = zip(self.numbered, by_step)
            raise NotFinite(next(t for (t, _), x in pairs if not bool(torch.isfinite(x).all())))
        for epoch, part in groupby(zip(self.numbered, by_step), lambda item: item[0][1].epoch):
            numbered, terms = zip(*part)
            ids = torch.from_numpy(np.concatenate([step.ids for _, step in numbered]))
            of_epoch = totals[epoch - oldest]
            so_far = of_epoch[:, ids]
            of_epoch[:, ids] = torch.where(so_far.isnan(), 0.0, so_far)  # they are used
            of_epoch.index_add_(1, ids, torch.cat(terms, dim=1), alpha=-1)
        if not bool(arrived["finite"]):
            raise NotFinite(self.numbered[-1][0])

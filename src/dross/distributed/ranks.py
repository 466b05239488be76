"""Several processes share one retrace: each rank takes its part of S_t, and sums are all-reduced.

    g       = sum over ranks of  sum over i in the rank's part of  c_i grad l_i
    H a_g   = sum over ranks of  sum over i in the rank's part of  c_i H_i a_g
    terms_i = known to the rank that has i, 0 elsewhere

Replaying a step sends p numbers. A reverse step sends Q (p + |S_t|) numbers: H a_g and the terms,
in one message. Every rank computes all the rest (states, the optimizer's table, the scores so far)
from the same sums. So all ranks hold the same bits, and ranks wait for each other in these sums
only.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ..data.lazy_batch import AnyBatch
from ..errors import DrossError, InvalidInput
from .reducer import Piece, Reducer, Value, all_rows


class RankReducer(Reducer):
    """One rank of a torch.distributed group whose ranks share the work."""

    def __init__(self, group: Any, device: torch.device, *, cuts_batches: bool = True):
        """Join the group.

        Arguments:
            group: a torch.distributed group; None is the default one.
            device: where nccl needs its messages.
            cuts_batches: False shares whole micro-batches only.
        """
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidInput(
                "torch.distributed is not initialised: call "
                "torch.distributed.init_process_group first."
            )
        if dist.get_rank(group) < 0:
            raise InvalidInput(
                "This process is not one of the group's ranks: only those may call this."
            )
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        self.group, self.device, self.cuts_batches = group, device, cuts_batches

    def without_cutting(self) -> "RankReducer":
        """The same ranks, sharing whole micro-batches only."""
        return RankReducer(self.group, self.device, cuts_batches=False)

    # --- sharing the work -------------------------------------------------------------------------

    def own_part(self, batches: Sequence[AnyBatch]) -> list[Piece]:
        """This rank's part of a step."""
        if self.size > 1 and (not self.cuts_batches or len(batches) % self.size == 0):
            mine = [k for k in range(len(batches)) if k % self.size == self.rank]
            return [(k, all_rows(batches[k]), batches[k]) for k in mine]
        pieces = ((k, self._rows(k, len(batch.c)), batch) for k, batch in enumerate(batches))
        return [
            (k, rows, batch.rows(rows))
            for k, rows, batch in pieces
            if self.size == 1 or rows.start < rows.stop
        ]

    def _rows(self, k: int, count: int) -> slice:
        turn = (self.rank + k) % self.size  # longer parts do not always go to the same rank
        return slice(count * turn // self.size, count * (turn + 1) // self.size)

    # --- messages between ranks -------------------------------------------------------------------

    def sum(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Each of them summed over the ranks, in one message. All ranks get the same bits."""
        if self.size == 1:
            return parts
        message = torch.cat([part.reshape(-1) for part in parts])
        with self._name_lost_ranks():
            dist.all_reduce(message, group=self.group)
        sums = message.split([part.numel() for part in parts])
        return tuple(one.view(part.shape) for one, part in zip(sums, parts))

    def merge_terms(
        self, found: Sequence[tuple[Piece, Tensor]], batches: Sequence[AnyBatch], like: Tensor
    ) -> Tensor:
        """The terms of this rank's pieces at their places in the step, 0 elsewhere."""
        if self.size == 1:
            return super().merge_terms(found, batches, like)
        columns = [like.new_zeros(len(like), len(batch.c)) for batch in batches]
        for (k, rows, _), terms in found:
            columns[k][:, rows] = terms
        return torch.cat(columns, dim=1) if columns else like.new_zeros(len(like), 0)

    def from_first(self, value: Value) -> Value:
        """The first rank's value, on every rank."""
        if self.size == 1:
            return value
        sent = [value]
        with self._name_lost_ranks():
            first = dist.get_global_rank(self.group, 0)
            dist.broadcast_object_list(sent, first, self.group, self._message_device())
        return sent[0]

    def gather(self, value: Value) -> list[Value]:
        """Every rank's value, in the order of the ranks."""
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with self._name_lost_ranks():
            dist.all_gather_object(values, value, group=self.group)
        return values

    def on_first(self, action: Callable[[], Value]) -> Value:
        """The result of the first rank's `action()`, or its error, on every rank."""
        outcome: Any = None
        if self.rank == 0:
            try:
                outcome = action()
            except DrossError as error:
                outcome = error
        outcome = self.from_first(outcome)
        if isinstance(outcome, DrossError):
            raise outcome
        return outcome

    def _message_device(self) -> torch.device | None:
        return self.device if dist.get_backend(self.group) == "nccl" else None

    @contextmanager
    def _name_lost_ranks(self) -> Iterator[None]:
        on_gpu = self.device.type == "cuda"
        try:
            with torch.cuda.device(self.device) if on_gpu else nullcontext():
                yield
        except RuntimeError as error:
            # the backend's message, without its file name and its advice
            reason = str(error).split("] ", 1)[-1].split(". ")[0]
            raise DrossError(
                f"Rank {self.rank} of {self.size} no longer hears from the others ({reason}): one "
                "of them has died, or takes longer than the process group's timeout. Its own "
                "message, if it left one, says why. Start the job again: a retrace goes on where "
                "it was with resume=folder, a recording with resume=True."
            ) from error

"""Several processes share one retrace: each rank takes its part of S_t, and the sums over S_t are all-reduced.

    g       = sum over ranks of  sum over i in the rank's part of  c_i grad l_i                when a step is replayed: p numbers
    H a_g   = sum over ranks of  sum over i in the rank's part of  c_i H_i a_g                 in a reverse step: Q (p + |S_t|) numbers,
    terms_i = known to the rank that has i, 0 elsewhere                                        H a_g and the terms in one message

All the rest (states, the optimizer's table, the scores so far) every rank computes for itself from the same sums, so all of them hold the same
bits, and no rank has to wait for another but in these sums.
"""

import hashlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..data.batch import AnyBatch
from ..errors import BadInput, DrossError, DrossWarning, RankLost, TapeMismatch

if TYPE_CHECKING:
    from ..replay.recording import Recording
    from ..step.step import Step

Value = TypeVar("Value")
Piece = tuple[int, slice, AnyBatch]  # of which micro-batch, which rows of it, and these rows


@dataclass(frozen=True)
class Ranks:
    """One rank among those that share the work; by default there is only this one."""

    rank: int = 0
    size: int = 1
    group: Any = None
    device: torch.device | None = None  # where nccl wants its messages to be
    cuts: bool = True  # a batch may be cut; otherwise micro-batches are dealt out whole

    @staticmethod
    def of(group: Any, device: torch.device) -> "Ranks":
        if not dist.is_available() or not dist.is_initialized():
            raise BadInput(
                "torch.distributed is not initialised: call torch.distributed.init_process_group first."
            )
        if dist.get_rank(group) < 0:
            raise BadInput(
                "This process is not one of the group's ranks: only those may call this."
            )
        return Ranks(dist.get_rank(group), dist.get_world_size(group), group, device)

    # --- who does what ------------------------------------------------------------------------------------------------

    def share(self, batches: Sequence[AnyBatch]) -> list[Piece]:
        """This rank's part of a step."""
        if self.size > 1 and (not self.cuts or len(batches) % self.size == 0):
            return [
                (k, _all(batch), batch)
                for k, batch in enumerate(batches)
                if k % self.size == self.rank
            ]
        pieces = ((k, self._rows(k, len(batch.c)), batch) for k, batch in enumerate(batches))
        return [
            (k, rows, batch.rows(rows))
            for k, rows, batch in pieces
            if self.size == 1 or rows.start < rows.stop
        ]

    def _rows(self, k: int, count: int) -> slice:
        turn = (
            self.rank + k
        ) % self.size  # so that the longer parts do not always fall to the same rank
        return slice(count * turn // self.size, count * (turn + 1) // self.size)

    # --- what they tell each other ----------------------------------------------------------------------------------------

    def total(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Each of them summed over the ranks, in one message. All ranks get the same bits."""
        if self.size == 1:
            return parts
        message = torch.cat([part.reshape(-1) for part in parts])
        with self._listening():
            dist.all_reduce(message, group=self.group)
        sums = message.split([part.numel() for part in parts])
        return tuple(one.view(part.shape) for one, part in zip(sums, parts))

    def terms(
        self, pieces: Sequence[tuple[Piece, Tensor]], batches: Sequence[AnyBatch], like: Tensor
    ) -> Tensor:
        """The terms [Q, b] of this rank's pieces at their places in the step: [Q, |S_t|], 0 where others know better."""
        if self.size == 1:
            columns = [found for _, found in pieces]
        else:
            columns = [like.new_zeros(len(like), len(batch.c)) for batch in batches]
            for (k, rows, _), found in pieces:
                columns[k][:, rows] = found
        return torch.cat(columns, dim=1) if columns else like.new_zeros(len(like), 0)

    def first(self, value: Value) -> Value:
        """The first rank's value, on every rank."""
        if self.size == 1:
            return value
        sent = [value]
        with self._listening():
            dist.broadcast_object_list(
                sent, dist.get_global_rank(self.group, 0), self.group, self._place()
            )
        return sent[0]

    def all(self, value: Value) -> list[Value]:
        """Every rank's value, in the order of the ranks."""
        if self.size == 1:
            return [value]
        told: list[Any] = [None] * self.size
        with self._listening():
            dist.all_gather_object(told, value, group=self.group)
        return told

    def first_does(self, action: Callable[[], Value]) -> Value:
        """What the action returns on the first rank, or its error, on every rank."""
        outcome: Any = None
        if self.rank == 0:
            try:
                outcome = action()
            except DrossError as error:
                outcome = error
        outcome = self.first(outcome)
        if isinstance(outcome, DrossError):
            raise outcome
        return outcome

    def _place(self) -> torch.device | None:
        return self.device if dist.get_backend(self.group) == "nccl" else None

    @contextmanager
    def _listening(self) -> Iterator[None]:
        try:
            with (
                torch.cuda.device(self.device)
                if self.device is not None and self.device.type == "cuda"
                else nullcontext()
            ):
                yield
        except RuntimeError as error:
            reason = (
                str(error).split("] ", 1)[-1].split(". ")[0]
            )  # the backend's words, without its file and its advice
            raise RankLost(
                f"Rank {self.rank} of {self.size} no longer hears from the others ({reason}): one of them has died, or takes longer than the "
                "process group's timeout. Its own message, if it left one, says why. Start the job again; with resume=folder a retrace "
                "goes on where it was."
            ) from error


ALONE = Ranks()


def _all(batch: AnyBatch) -> slice:
    return slice(0, len(batch.c))


# --- before the work begins -----------------------------------------------------------------------------------------------


def check_agreement(recording: "Recording", ranks: Ranks, asked: dict[str, Any]) -> None:
    """Ranks that hold different tapes, or were asked different things, would add up numbers of different runs."""
    made = recording.tape.manifest
    own = {
        "tape": made["id"],
        "steps of the tape": recording.tape.steps,
        "digest of the tape": hashlib.sha256(
            "".join(e["sha256"] for e in (*recording.tape.entries, made["end"])).encode()
        ).hexdigest(),
        "number of instances": len(recording.instances),
        "dtype": str(recording.instances.dtype),
        **asked,
    }
    first, *others = ranks.all(own)
    for rank, other in enumerate(others, start=1):
        for what, value in first.items():
            if other[what] != value:
                kind = TapeMismatch if "tape" in what else BadInput
                raise kind(
                    f"The ranks do not agree: {what} is {value} on rank 0 and {other[what]} on rank {rank}. Every rank must "
                    "open the same tape, with the same data set, and ask the same question."
                )


def divided(recording: "Recording", ranks: Ranks, stop: int) -> "Recording":
    """The same recording, of whose steps this rank does its part.

    What may be divided is found out, not asked: where an instance's loss depends on who else is in the batch, or on random numbers that
    are drawn for the whole batch, a batch is not cut, and its micro-batches are dealt out whole. Where the forward pass moves
    buffers, each micro-batch begins where the last one ended: then every rank does every step."""
    objective = recording.objective
    if ranks.size == 1 or stop == recording.tape.first:
        return recording
    moving = objective.layout.moving
    cuts = not moving and not objective.stochastic and _instances_are_independent(recording, stop)
    cuts = ranks.first(cuts)
    if (
        ranks.rank == 0
        and not cuts
        and (moving or len(_some_step(recording, stop).micros) < ranks.size)
    ):
        warnings.warn(
            f"A batch of this model cannot be cut between {ranks.size} ranks, because its instances share BatchNorm's statistics or the random "
            "numbers of dropout. The scores are right, and no sooner there than on fewer ranks (docs/scale.md).",
            DrossWarning,
            stacklevel=4,
        )
    return recording if moving else replace(recording, ranks=replace(ranks, cuts=cuts))


def _some_step(recording: "Recording", stop: int) -> "Step":
    return next(recording.backwards(stop - 1, stop))[1].steps[0]


def _instances_are_independent(recording: "Recording", stop: int) -> bool:
    """Whether each loss is the same in half of a batch as in the whole, at the first batch going back that can be cut."""
    objective = recording.objective
    candidates = (
        (segment.states[0].theta, batch)
        for _, segment in recording.backwards(recording.tape.first, stop)
        for batches in recording.batches(segment.first, segment.steps)
        for batch in batches
        if len(batch.c) > 1
    )
    if (found := next(candidates, None)) is None:
        return True  # nothing to cut
    theta, batch = found
    half = len(batch.c) // 2
    with objective.training(), torch.no_grad():
        whole, _ = objective.losses(theta, {}, batch)
        try:
            halves = torch.cat(
                [
                    objective.losses(theta, {}, batch.rows(rows))[0]
                    for rows in (slice(0, half), slice(half, len(whole)))
                ]
            )
        except torch.OutOfMemoryError:
            raise
        except (RuntimeError, ValueError):  # normalising over a single instance
            return False
    return bool(
        (whole - halves).abs().max() <= torch.finfo(whole.dtype).eps ** 0.5 * whole.abs().max()
    )

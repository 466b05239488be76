"""How the work of a step is divided among ranks, and how their parts are added up.

A `Reducer` does everything itself. A `RankReducer` is one process of a torch.distributed group:
each rank takes its part of S_t, and sums are all-reduced.

    g       = sum over ranks of  sum over i in the rank's part of  c_i grad l_i
    H a_g   = sum over ranks of  sum over i in the rank's part of  c_i H_i a_g
    terms_i = known to the rank that has i, 0 elsewhere

Replaying a step sends p numbers. A reverse step sends Q (p + |S_t|) numbers: H a_g and the terms,
in one message. Every rank computes all the rest (states, the optimizer's table, the scores so far)
from the same sums. So all ranks hold the same bits, and ranks wait for each other in these sums
only.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from copy import copy
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from ..data.batch import AnyBatch
from ..engine.memory import losses_are_separate
from ..engine.objective import Objective
from ..engine.state import Derivative, State
from ..engine.step import Clip
from ..engine.tolerance import ROUNDING_OF_LENGTH, is_close
from ..errors import DrossError, DrossWarning, InvalidInput

if TYPE_CHECKING:
    from ..replay.recording import Recording

Value = TypeVar("Value")
Piece = tuple[int, slice, AnyBatch]  # the micro-batch's number, the rows, and their instances


class Question(Protocol):
    """What ranks need to know of a query (influence/query.py)."""

    @property
    def parts(self) -> Callable[[Objective], Iterator[tuple[int, Any]]]:
        """(number of instances, what is computed of them) for each part."""
        ...

    def evaluate(self, objective: Objective, state: State) -> Tensor:
        """The query's value."""
        ...

    def derivative(self, objective: Objective, state: State) -> tuple[Derivative, Tensor]:
        """The query's derivative with respect to the state, and its value."""
        ...


class Reducer:
    """One process that does everything itself."""

    rank = 0
    size = 1

    def own_part(self, batches: Sequence[AnyBatch]) -> list[Piece]:
        """This rank's part of a step."""
        return [(k, all_rows(batch), batch) for k, batch in enumerate(batches)]

    def sum(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Each of them summed over the ranks. All ranks get the same bits."""
        return parts

    def sum_over_theta(self, vector: Tensor, *others: Tensor) -> tuple[Tensor, ...]:
        """A vector over theta and others, each summed over the ranks.

        Where ranks hold shards of theta, passes have summed the vector already.
        """
        return self.sum(vector, *others)

    def largest(self, value: int) -> int:
        """The largest of the ranks' values, where they may differ."""
        return value

    def merge_terms(
        self, terms_of: Sequence[tuple[Piece, Tensor]], batches: Sequence[AnyBatch], like: Tensor
    ) -> Tensor:
        """The terms of this rank's pieces at their positions in the step: [Q, |S_t|].

        Arguments:
            terms_of: this rank's pieces and the terms [Q, b] of each.
            batches: the micro-batches of the step.
            like: [Q, ...], for the number of queries and the type.

        Returns:
            [Q, |S_t|], with 0 at the instances of other ranks.
        """
        columns = [terms for _, terms in terms_of]
        return torch.cat(columns, dim=1) if columns else like.new_zeros(len(like), 0)

    def from_first(self, value: Value) -> Value:
        """The first rank's value, on every rank."""
        return value

    def gather(self, value: Value) -> list[Value]:
        """Every rank's value, in their order."""
        return [value]

    def on_first(self, action: Callable[[], Value]) -> Value:
        """The result of the first rank's `action()`, or its error, on every rank."""
        return action()

    # --- of a retrace -----------------------------------------------------------------------------

    def clip(self, clip: Clip | None) -> Clip | None:
        """The same clip for what this rank holds of a gradient."""
        return clip

    def lengths(self, vectors: Tensor) -> Tensor:
        """The norm of each vector over theta: [Q, p] -> [Q]."""
        return vectors.norm(dim=1)

    def query_adjoint(
        self, query: Question, objective: Objective, state: State
    ) -> tuple[Derivative, Tensor]:
        """`query.derivative`, the same on every rank.

        Raises:
            InvalidInput: where a rank asks something else.
        """
        return query.derivative(objective, state)

    def divide(self, recording: "Recording", stop: int) -> "Recording":
        """The same recording, with this rank doing its part of every step before `stop`."""
        return recording


ALONE = Reducer()


def all_rows(batch: AnyBatch) -> slice:
    """The rows of a whole batch."""
    return slice(0, len(batch.c))


class RankReducer(Reducer):
    """One rank of a torch.distributed group whose ranks share the work."""

    def __init__(self, group: Any, device: torch.device):
        """Join the group.

        Arguments:
            group: a torch.distributed group; None is the default one.
            device: where nccl needs its messages.
        """
        if not dist.is_available() or not dist.is_initialized():
            raise InvalidInput(
                "torch.distributed is not initialized: call "
                "torch.distributed.init_process_group first."
            )
        if dist.get_rank(group) < 0:
            raise InvalidInput(
                "This process is not one of the group's ranks: only those may make this call."
            )
        self.rank = dist.get_rank(group)
        self.size = dist.get_world_size(group)
        self.group = group
        self.device = device
        self.cuts_batches = True  # False: only whole micro-batches are shared

    # --- sharing the work -------------------------------------------------------------------------

    def own_part(self, batches: Sequence[AnyBatch]) -> list[Piece]:
        """This rank's part of a step."""
        if not self.cuts_batches or len(batches) % self.size == 0:
            mine = range(self.rank, len(batches), self.size)
            return [(k, all_rows(batches[k]), batches[k]) for k in mine]
        pieces = ((k, self._rows(k, len(batch.c)), batch) for k, batch in enumerate(batches))
        return [(k, rows, batch.rows(rows)) for k, rows, batch in pieces if rows.start < rows.stop]

    def _rows(self, k: int, count: int) -> slice:
        turn = (self.rank + k) % self.size  # longer parts do not always go to the same rank
        return slice(count * turn // self.size, count * (turn + 1) // self.size)

    # --- messages between ranks -------------------------------------------------------------------

    def sum(self, *parts: Tensor) -> tuple[Tensor, ...]:
        """Each of them summed over the ranks, in one message. All ranks get the same bits."""
        message = torch.cat([part.reshape(-1) for part in parts])
        with self._name_lost_ranks():
            dist.all_reduce(message, group=self.group)
        sums = message.split([part.numel() for part in parts])
        return tuple(one.view(part.shape) for one, part in zip(sums, parts))

    def merge_terms(
        self, terms_of: Sequence[tuple[Piece, Tensor]], batches: Sequence[AnyBatch], like: Tensor
    ) -> Tensor:
        """The terms of this rank's pieces at their positions in the step, 0 elsewhere."""
        columns = [like.new_zeros(len(like), len(batch.c)) for batch in batches]
        for (k, rows, _), terms in terms_of:
            columns[k][:, rows] = terms[:, : rows.stop - rows.start]  # an idle piece has none
        return torch.cat(columns, dim=1) if columns else like.new_zeros(len(like), 0)

    def from_first(self, value: Value) -> Value:
        """The first rank's value, on every rank."""
        sent = [value]
        with self._name_lost_ranks():
            first = dist.get_global_rank(self.group, 0)
            dist.broadcast_object_list(sent, first, self.group, self._message_device())
        return sent[0]

    def gather(self, value: Value) -> list[Value]:
        """Every rank's value, in the order of the ranks."""
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

    # --- of a retrace -----------------------------------------------------------------------------

    def query_adjoint(
        self, query: Question, objective: Objective, state: State
    ) -> tuple[Derivative, Tensor]:
        """The first rank's derivative of the query, so that all start from the same bits."""
        self.check_same_query(query, objective, state)
        adjoint, value = query.derivative(objective, state)
        device = adjoint.theta.device
        first = self.from_first(adjoint.map(lambda t: t.cpu()))
        return first.map(lambda t: t.to(device)), value

    def check_same_query(self, query: Question, objective: Objective, state: State) -> None:
        """Refuse ranks whose queries have other values.

        Raises:
            InvalidInput: it names the rank.
        """
        sizes = self.gather([size for size, _ in query.parts(objective)])
        odd = [rank for rank, other in enumerate(sizes) if other != sizes[0]]
        if not odd:  # ranks with shards exchange messages in every part
            values = self.gather(query.evaluate(objective, state).cpu())
            same = partial(is_close, expected=values[0], tolerance=ROUNDING_OF_LENGTH)
            odd = [rank for rank, other in enumerate(values) if not same(other)]
            if not torch.isfinite(values[0]).all():
                odd = []  # the derivative refuses it
        if odd:
            raise InvalidInput(
                f"The query on rank {odd[0]} has a different value than on rank 0: every rank must "
                "run the same query on the same data."
            )

    def divide(self, recording: "Recording", stop: int) -> "Recording":
        """The same recording, with this rank doing its part of every step before `stop`.

        What may be divided is found out by trying. Where an instance's loss depends on the other
        instances of the batch, or on random numbers drawn for the whole batch, batches are not cut,
        and micro-batches are shared whole. Where the forward pass updates buffers, each micro-batch
        starts where the last one ended; then every rank does every step.
        """
        objective = recording.objective
        if self.size == 1 or stop == recording.tape.first:
            return recording
        moving = bool(objective.layout.moving_buffers)
        cuts = not moving and not objective.stochastic
        cuts = self.from_first(cuts and instances_are_independent(recording, stop))
        if self.rank == 0 and not cuts:
            self._warn_where_nothing_is_shared(recording, stop)
        if moving:
            return recording
        ranks = copy(self)
        ranks.cuts_batches = cuts
        return replace(recording, reducer=ranks)

    def _warn_where_nothing_is_shared(self, recording: "Recording", stop: int) -> None:
        (_, segment) = next(recording.segments_backward(stop - 1, stop))
        shares_micros = len(segment.steps[0].micros) >= self.size
        if shares_micros and not recording.objective.layout.moving_buffers:
            return
        warnings.warn(
            f"A batch of this model cannot be split across {self.size} ranks, because its "
            "instances share BatchNorm statistics or the random numbers of dropout. The scores "
            "are correct, but computing them takes as long as it would on fewer ranks "
            "(docs/scale.md).",
            DrossWarning,
            stacklevel=5,
        )

    # --- messages ---------------------------------------------------------------------------------

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
                f"Rank {self.rank} of {self.size} has lost its connection to the others "
                f"({reason}): one of them has died, or takes longer than the process group's "
                "timeout. The error message of that rank, if any, gives the reason. Start the job "
                "again: pass resume=folder to continue a retrace, or resume=True to continue a "
                "recording."
            ) from error


def instances_are_independent(recording: "Recording", stop: int) -> bool:
    """Whether each loss is the same in half of a batch as in the whole.

    Tried on the first batch, going back, that can be cut.
    """
    executor = recording.executor
    candidates = (
        (segment.states[0].theta, batch)
        for _, segment in recording.segments_backward(recording.tape.first, stop)
        for batches in recording.batches(segment.first, segment.steps)
        for batch in batches
        if len(batch.c) > 1
    )
    first = next(candidates, None)
    if first is None:
        return True  # nothing to cut
    theta, batch = first
    half = len(batch.c) // 2
    parts = [batch.rows(slice(0, half)), batch.rows(slice(half, len(batch.c)))]
    with executor.training():
        losses = lambda batch: executor.losses(theta, {}, batch)[0]
        return losses_are_separate(losses, batch, parts)

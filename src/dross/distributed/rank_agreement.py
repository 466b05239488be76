"""Before ranks share a retrace: do they ask the same of the same run, and what may be divided?"""

import hashlib
import warnings
from dataclasses import replace
from typing import Any

from ..engine.executor import losses_are_separate
from ..engine.state import Derivative
from ..engine.step import Step
from ..errors import DrossWarning, InputChanged, InvalidInput
from ..replay.recording import Recording
from ..support.closeness import ROUNDING_OF_LENGTH, is_close
from .ranks import RankReducer
from .reducer import Reducer


def check_agreement(recording: Recording, reducer: Reducer, asked: dict[str, Any]) -> None:
    """Refuse ranks with different tapes or questions: they would add up unrelated numbers.

    asked: the question, by the names that an error message uses.
    """
    made = recording.tape.manifest
    digests = "".join(e["sha256"] for e in (*recording.tape.entries, made["end"]))
    own = {
        "tape": made["id"],
        "steps of the tape": recording.tape.steps,
        "digest of the tape": hashlib.sha256(digests.encode()).hexdigest(),
        "number of instances": len(recording.instances),
        "dtype": str(recording.instances.dtype),
        **asked,
    }
    first, *others = reducer.gather(own)
    for rank, other in enumerate(others, start=1):
        for what, value in first.items():
            if other[what] != value:
                kind = InputChanged if "tape" in what else InvalidInput
                raise kind(
                    f"The ranks do not agree: {what} is {value} on rank 0 and {other[what]} on "
                    f"rank {rank}. Every rank must open the same tape, with the same data set, and "
                    "ask the same question."
                )


def agree_on_derivative(own: Derivative, reducer: Reducer) -> Derivative:
    """The first rank's seed, on every rank, so that all start from the same bits."""
    if reducer.size == 1:
        return own
    device = own.theta.device
    first = reducer.from_first(own.map(lambda t: t.cpu())).map(lambda t: t.to(device))
    same = first.theta.shape == own.theta.shape
    same = same and is_close(own.theta, first.theta, ROUNDING_OF_LENGTH)
    if odd := [rank for rank, agrees in enumerate(reducer.gather(same)) if not agrees]:
        raise InvalidInput(
            f"The query on rank {odd[0]} has a different derivative than on rank 0: every rank "
            "must ask the same query of the same data."
        )
    return first


def divide_between_ranks(recording: Recording, ranks: RankReducer, stop: int) -> Recording:
    """The same recording, with this rank doing its part of every step.

    What may be divided is found out by trying. Where an instance's loss depends on the other
    instances of the batch, or on random numbers drawn for the whole batch, batches are not cut, and
    micro-batches are shared whole. Where the forward pass moves buffers, each micro-batch starts
    where the last one ended; then every rank does every step.
    """
    objective = recording.objective
    if ranks.size == 1 or stop == recording.tape.first:
        return recording
    moving = objective.layout.moving_buffers
    cuts = not moving and not objective.stochastic and instances_are_independent(recording, stop)
    cuts = ranks.from_first(cuts)
    if ranks.rank == 0 and not cuts:
        _warn_where_nothing_is_shared(recording, ranks, stop)
    if moving:
        return recording
    return replace(recording, reducer=ranks if cuts else ranks.without_cutting())


def _warn_where_nothing_is_shared(recording: Recording, ranks: RankReducer, stop: int) -> None:
    moving = recording.objective.layout.moving_buffers
    if not moving and len(_some_step(recording, stop).micros) >= ranks.size:
        return
    warnings.warn(
        f"A batch of this model cannot be cut between {ranks.size} ranks, because its instances "
        "share BatchNorm's statistics or the random numbers of dropout. The scores are right, but "
        "take as long as on fewer ranks (docs/scale.md).",
        DrossWarning,
        stacklevel=5,
    )


def _some_step(recording: Recording, stop: int) -> Step:
    return next(recording.segments_backward(stop - 1, stop))[1].steps[0]


def instances_are_independent(recording: Recording, stop: int) -> bool:
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
    if (found := next(candidates, None)) is None:
        return True  # nothing to cut
    theta, batch = found
    half, count = len(batch.c) // 2, len(batch.c)
    parts = [batch.rows(slice(0, half)), batch.rows(slice(half, count))]
    with executor.training():
        losses = lambda batch: executor.losses(theta, {}, batch)[0]
        return losses_are_separate(losses, batch, parts)

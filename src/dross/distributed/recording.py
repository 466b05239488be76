"""A recording of which each rank holds a shard of every state."""

from dataclasses import replace
from typing import Any

import torch

from ..errors import InvalidInput, NotSupported
from ..replay.recording import Recording
from .shard_ranks import ShardReducer
from .sharded_objective import ShardedExecutor, ShardedObjective, shard_objective
from .tape_reader import ShardTape


def shard_recording(recording: Recording, group: Any) -> Recording:
    """The same recording, with states, slots and gradients as this rank's shards.

    Arguments:
        recording: of any tape, of one process or of many.
        group: a torch.distributed group; all of its ranks call this.

    Raises:
        InvalidInput: where there is no group.
        NotSupported: where a run cannot be divided this way.
    """
    if group is None:
        raise InvalidInput(
            "sharded=True divides states between ranks: pass their group, such as "
            "group=torch.distributed.group.WORLD."
        )
    _check_shardable(recording)
    ranks = ShardReducer(group, recording.device, recording.objective.layout)
    optimizer = replace(
        recording.optimizer, group_sizes=ranks.layout.group_sizes(ranks.rank), shapes=()
    )
    executor = ShardedExecutor(shard_objective(recording.objective, ranks))
    tape = ShardTape(recording.tape, ranks)
    return replace(recording, tape=tape, executor=executor, optimizer=optimizer, reducer=ranks)


def prepare_shards(recording: Recording, first: int, stop: int, *, show: bool) -> None:
    """Check the files of steps first..stop-1, and learn in which order parameters are gathered.

    All ranks run the same batch for that. From then on a pass that would gather in another order is
    refused, before its messages meet those of other ranks.
    """
    tape, objective = recording.tape, recording.objective
    assert isinstance(tape, ShardTape) and isinstance(objective, ShardedObjective)
    tape.check_steps(first, stop, show=show)
    if stop == tape.first or objective.order:
        return
    _, segment = next(recording.segments_backward(stop - 1, stop))
    batches = recording.batches(segment.first, segment.steps[:1])[0]
    with recording.executor.training():
        for batch in batches[:1]:
            recording.executor.losses(segment.states[0].theta, {}, batch)


def _check_shardable(recording: Recording) -> None:
    objective, optimizer = recording.objective, recording.optimizer
    reason = None
    if moving := objective.layout.moving_buffers:
        reason = f"its forward pass moves '{moving[0]}', and the ranks' batches differ"
    elif optimizer.blocks is not None:
        reason = f"{optimizer.name} takes every parameter as a whole"
    elif objective.precision.narrow is torch.float16:
        reason = "in float16 each rank would scale its adjoint by itself"
    if reason is not None:
        raise NotSupported(
            f"The states of this run cannot be held in shards: {reason}. Retrace with group= and "
            "without sharded=True."
        )

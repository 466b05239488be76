"""A loop under DistributedDataParallel, recorded as one run.

DDP steps with the mean of its ranks' gradients, and each rank has a batch of its own. That is a
step with one micro-batch per rank, in which instance i has the weight c_i / ranks: an ordinary step
of a tape. So the ranks exchange their ids and weights at each step, and one process or many can
retrace the tape. An instance with which DistributedSampler fills up the last batch is in the step
twice, and counts twice.

Every rank has the whole state, and the first one writes the tape.
"""

from collections.abc import Callable
from typing import Any

import torch.distributed as dist
from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from ..data.batch import MicroBatch
from ..engine.objective import Objective
from ..engine.state import State
from ..engine.step import Step
from ..errors import NotSupported
from .ranks import ALONE, RankReducer, Reducer


def find_ddp(model: Any) -> DistributedDataParallel | None:
    """The DistributedDataParallel around a model, if there is one, compiled or not."""
    model = getattr(model, "_orig_mod", model)
    return model if isinstance(model, DistributedDataParallel) else None


def ranks_of(model: Any) -> Reducer:
    """The ranks that train this model together, each on its own batches."""
    wrapper = find_ddp(model)
    if wrapper is None or dist.get_world_size(wrapper.process_group) == 1:
        return ALONE
    return RankReducer(wrapper.process_group, next(wrapper.parameters()).device)


def bare_module(model: Any) -> Any:
    """The module inside DistributedDataParallel, or the model itself."""
    wrapper = find_ddp(model)
    return model if wrapper is None else wrapper.module


def check_recordable(objective: Objective, ranks: Reducer) -> None:
    """Refuse BatchNorm's statistics where several ranks train the model."""
    if ranks.size > 1 and objective.layout.moving_buffers:
        statistic = objective.layout.moving_buffers[0]
        raise NotSupported(
            "BatchNorm under DistributedDataParallel keeps separate statistics on each rank "
            f"('{statistic}'), and SyncBatchNorm shares them between ranks: neither can be "
            "recorded yet. Put BatchNorm into eval mode, use GroupNorm or LayerNorm, or record on "
            "one process."
        )


def place_among_ranks(k: int, ranks: Reducer) -> int:
    """The position of this rank's k-th micro-batch in the step; it seeds its random numbers."""
    return k * ranks.size + ranks.rank


def gather_micro_batches(
    ranks: Reducer, micros: list[MicroBatch], opens_segment: bool
) -> tuple[tuple[MicroBatch, ...], bool]:
    """Every rank's micro-batches, in their places, with their weights in the mean over ranks.

    Arguments:
        ranks: all of them call this.
        micros: this rank's micro-batches.
        opens_segment: whether the step opens a segment; the first rank's answer counts.

    Returns:
        The micro-batches, and whether the step opens a segment.
    """
    if ranks.size == 1:
        return tuple(micros), opens_segment
    weighted = [(micro.ids, micro.weights / ranks.size) for micro in micros]
    gathered = ranks.gather((weighted, opens_segment))
    counts = [len(own) for own, _ in gathered]
    if len(set(counts)) > 1:
        raise NotSupported(
            f"The ranks accumulated different numbers of micro-batches in one step ({counts}): use "
            "the same number on every rank."
        )
    merged = (MicroBatch(*own[k]) for k in range(counts[0]) for own, _ in gathered)
    return tuple(merged), gathered[0][1]


def after_averaging(action: Callable[[], None]) -> None:
    """In a backward pass: call `action` once the gradients hold the mean over the ranks.

    DDP computes the mean in a callback at the end of the pass, queued when the last gradient is
    there. A callback that is queued by a callback runs after it.
    """
    engine = Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(action))


class NoTape:
    """Stands in for the TapeWriter where the first rank writes: counts steps and writes none."""

    def __init__(self, steps: int):
        self.segment_start = self.next_step = steps

    def wants_state(self) -> bool:
        """True: a step that opens a segment is rehearsed from its state.

        Only the first rank knows which step that is. It says so when the step has been taken, too
        late to read the state before it.
        """
        return True

    def opens_segment(self) -> bool:
        """False: the first rank decides."""
        return False

    def make_room(self, epoch: int, after: Callable[[], State] | None = None) -> None:
        """Do nothing: there is nothing to write."""

    def add(self, step: Step, before: State | None, after: State | None, checksum: int = 0) -> None:
        """Count a step."""
        self.next_step += 1

    def end_segment(self, *args: Any, **kwargs: Any) -> None:
        """Begin a new segment."""
        self.segment_start = self.next_step

    flush = save = finish = discard = end_segment

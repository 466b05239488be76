"""A loop under DistributedDataParallel, recorded as one run.

DDP's step is the mean over its ranks of their gradients, each of a batch of its own. That is a step with one micro-batch per rank, in
which instance i of rank r counts c_i / ranks: nothing that a tape does not know already. So the ranks tell each other their ids and weights as
each step is taken, and the first rank writes an ordinary tape, which one process or many can retrace. An instance with which
DistributedSampler fills up the last batch stands in the step twice, and counts twice.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.autograd import Variable
from torch.nn.parallel import DistributedDataParallel

from ..data.batch import MicroBatch
from ..errors import NotSupported
from ..parallel.ranks import RankReducer
from ..parallel.reducer import ALONE, Reducer
from ..step.objective import Objective
from ..step.state import State
from ..step.step import Step


def find_ddp(model: Any) -> DistributedDataParallel | None:
    """The DistributedDataParallel around a model, if there is one, compiled or not."""
    model = getattr(model, "_orig_mod", model)
    return model if isinstance(model, DistributedDataParallel) else None


def ranks_of(model: Any) -> Reducer:
    """The ranks that train this model together. Each of them has batches of its own."""
    wrapper = find_ddp(model)
    if wrapper is None:
        return ALONE
    return RankReducer(wrapper.process_group, next(wrapper.parameters()).device)


def bare_module(model: Any) -> Any:
    """The module inside DistributedDataParallel, or the model itself."""
    wrapper = find_ddp(model)
    return model if wrapper is None else wrapper.module


def check_recordable(objective: Objective, ranks: Reducer) -> None:
    if ranks.size > 1 and objective.layout.moving:
        raise NotSupported(
            f"BatchNorm under DistributedDataParallel has statistics of its own on each rank ('{objective.layout.moving[0]}'), and "
            "SyncBatchNorm's join the ranks: neither can be recorded yet. Put BatchNorm into eval mode, use GroupNorm or LayerNorm, or record "
            "on one process."
        )


@dataclass(frozen=True)
class SharedStep:
    """What the ranks told each other of a step."""

    micros: tuple[MicroBatch, ...]  # of all ranks
    opens_segment: bool


def place_among_ranks(k: int, ranks: Reducer) -> int:
    """Where this rank's k-th micro-batch of a step stands among all of them; its random numbers follow from that."""
    return k * ranks.size + ranks.rank


def share_step(ranks: Reducer, micros: list[MicroBatch], opens_segment: bool) -> SharedStep:
    """Every rank's micro-batches, in their places, as the mean over the ranks counts them."""
    if ranks.size == 1:
        return SharedStep(tuple(micros), opens_segment)
    heard = ranks.gather(
        ([(micro.ids, micro.weights / ranks.size) for micro in micros], opens_segment)
    )
    counts = [len(own) for own, _ in heard]
    if len(set(counts)) > 1:
        raise NotSupported(
            f"The ranks accumulated different numbers of micro-batches in one step ({counts}): let each have as many."
        )
    merged = (MicroBatch(*own[k]) for k in range(counts[0]) for own, _ in heard)
    return SharedStep(tuple(merged), heard[0][1])


def after_averaging(action: Callable[[], None]) -> None:
    """Called in a backward pass: do this once DDP has put the mean over its ranks into the gradients.

    DDP does so in a callback at the end of the pass that it queues when the last gradient is there; one that is queued by a callback runs after it."""
    engine = Variable._execution_engine
    engine.queue_callback(lambda: engine.queue_callback(action))


class NoTape:
    """What a TapeWriter is on the first rank, on the others: the steps are counted, and none is written."""

    def __init__(self, steps: int):
        self.first = self.next = steps

    def wants_state(self) -> bool:
        return True  # the first rank knows which step opens a segment and is rehearsed, and tells with the ids, when it is too late to look

    def opens_segment(self) -> bool:
        return False

    def is_full(self, epoch: int) -> bool:
        return False

    def add(self, step: Step, before: State | None, after: State | None, checksum: int = 0) -> None:
        self.next += 1

    def flush(self, after: State | None = None) -> None:
        self.first = self.next

    def finish(self, after: State | None = None, complete: bool = True) -> None:
        self.first = self.next

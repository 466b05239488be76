"""Several steps in a row as one pass, on a GPU.

A step of a small network is over before Python has asked for the next one. Steps that are alike in everything but their instances (the same
number of them, the same rate) are therefore captured many at a time and launched at once. What is computed is what one step after the other computes.
"""

from collections.abc import Hashable, Sequence
from dataclasses import replace

from ..data.batch import LazyBatch
from ..step.layout import State
from ..step.objective import Objective
from ..step.optimizers import Optimizer
from ..step.step import Step
from ..step.update_rules import SGD

AT_ONCE = 16
_SMALL = 1 << 22  # parameters; the steps of a larger network keep a GPU busy one by one


def cut(
    name: str,
    objective: Objective,
    optimizer: Optimizer,
    start: State,
    steps: Sequence[Step],
    feeds: Sequence[list[LazyBatch]],
) -> list[slice]:
    """A row of steps, the first of which begins at `start`, in parts that can be one pass each: AT_ONCE steps or one."""
    possible = (
        objective.captures(name, start.theta)
        and start.theta.numel() <= _SMALL
        and len(optimizer.group_sizes) == 1
        and isinstance(
            optimizer.rule, SGD
        )  # other rules count their steps, and a captured number does not count
    )
    kinds = [_kind(step, batches) if possible else None for step, batches in zip(steps, feeds)]
    if kinds and start.clock and start.clock[0]["step"] == 0:
        kinds[0] = None  # the first step of momentum is another formula
    parts, at = [], 0
    while at < len(steps):
        row = kinds[at : at + AT_ONCE]
        size = AT_ONCE if len(row) == AT_ONCE and row[0] is not None and len(set(row)) == 1 else 1
        parts.append(slice(at, at + size))
        at += size
    return parts


def _kind(step: Step, batches: Sequence[LazyBatch]) -> Hashable | None:
    """Steps of the same kind may be captured together. None: a step for itself."""
    if len(batches) != 1 or step.clip is not None or not batches[0].feed.capturable:
        return None
    return len(batches[0].ids), step.numbers.tobytes()


def apart(together: State, count: int) -> list[State]:
    """Each step's state, its clock one further than the one before."""
    clocks = [tuple({"step": one["step"] + k} for one in together.clock) for k in range(count)]
    return [replace(together.map(lambda t, k=k: t[k]), clock=clocks[k]) for k in range(count)]

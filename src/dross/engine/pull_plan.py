"""How a reverse step is computed: by forward or by reverse mode, and for how many queries at once.

The choice counts operations and does not measure time: it must be the same in every retrace,
because another way rounds differently.
"""

import warnings
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.utils.flop_counter import FlopCounterMode

from ..data.batch import Batch
from ..support.closeness import OTHER_KERNELS, is_close
from .objective import Buffers, Objective
from .vjp import probe_direction

MIN_FLOPS_FOR_FORWARD_MODE = 2**25  # below, torch.func's own layers cost more than they save
_FLOPS_AT_ONCE = 2**30  # of queries side by side: more leave a processor's caches
_FLOPS_AT_ONCE_GPU = 2**38
_MIN_QUERIES, _MAX_QUERIES = 8, 256


@dataclass(frozen=True)
class PullPlan:
    """How batches of one size are computed."""

    forward_mode: bool
    queries_at_once: int


class PullPlans:
    """The plans of one objective, by the size of the batch, to the next power of two."""

    def __init__(self, objective: Objective):
        self.objective = objective
        self._plans: dict[int, PullPlan] = {}
        self.most_queries: int | None = None  # at once, where memory is planned

    def choose(self, theta: Tensor, buffers: Buffers, batch: Batch, a_buffers: Buffers) -> PullPlan:
        """The plan for batches of this size, made for the first of them."""
        size = _size(batch)
        if size not in self._plans:
            flops = count_flops(self.objective, theta, buffers, batch)
            # what a model hides from autograd (moving_buffers.py) is seen in reverse mode
            large = flops >= MIN_FLOPS_FOR_FORWARD_MODE and not self.objective.followed
            forward = large and forward_mode_is_right(
                self.objective, theta, buffers, batch, a_buffers
            )
            most = (_FLOPS_AT_ONCE_GPU if theta.is_cuda else _FLOPS_AT_ONCE) // max(flops, 1)
            at_once = min(_MAX_QUERIES, max(_MIN_QUERIES, _power_of_two(most)))
            self._plans[size] = PullPlan(forward, at_once)
        return self._limited(self._plans[size])

    def halve(self, batch: Batch, failed: int) -> None:
        """From now on, compute half as many queries at once as did not fit."""
        size = _size(batch)
        self._plans[size] = PullPlan(self._plans[size].forward_mode, failed // 2)

    def set(self, batch_size: int, plan: PullPlan) -> None:
        """Compute batches of this size by this plan."""
        self._plans[batch_size.bit_length()] = plan

    def to_json(self) -> list[list]:
        """The plans for a file: another plan would round differently."""
        return [[size, [p.forward_mode, p.queries_at_once]] for size, p in self._plans.items()]

    def load_json(self, saved: list[list]) -> None:
        """Take over the plans of an earlier process."""
        self._plans = {size: PullPlan(forward, at_once) for size, (forward, at_once) in saved}

    def __iter__(self):
        return (self._limited(plan) for plan in self._plans.values())

    def _limited(self, plan: PullPlan) -> PullPlan:
        most = _MAX_QUERIES if self.most_queries is None else self.most_queries
        return replace(plan, queries_at_once=min(most, plan.queries_at_once))


def forward_mode_is_right(
    objective: Objective, theta: Tensor, buffers: Buffers, batch: Batch, a_buffers: Buffers
) -> bool:
    """Whether forward mode gives what reverse mode gives, on this batch, in a random direction.

    Some operators have no forward mode, and a forward rule can be wrong once it is differentiated
    again (see engine/forward_rules.py).
    """
    a_g = probe_direction(theta)
    a_buffers = {name: a[:1] for name, a in a_buffers.items()}
    try:
        found = objective.pull_forward(theta, buffers, batch, a_g, a_buffers)
    except torch.OutOfMemoryError:
        raise
    except (NotImplementedError, RuntimeError):
        return False
    expected = objective.pull_reverse(theta, buffers, batch, a_g, a_buffers)
    (terms, a_theta, _), (true_terms, true_a_theta, _) = found, expected
    same_terms = is_close(terms, true_terms, OTHER_KERNELS)
    return same_terms and is_close(a_theta, true_a_theta, OTHER_KERNELS)


def count_flops(objective: Objective, theta: Tensor, buffers: Buffers, batch: Batch) -> int:
    """Floating point operations of a forward pass."""
    with FlopCounterMode(display=False) as counter, torch.no_grad(), warnings.catch_warnings():
        # the counter's hooks see a compiled layer twice, which counts nothing twice
        warnings.filterwarnings("ignore", message="Using `torch.compile")
        objective.losses(theta, buffers, batch)
    return counter.get_total_flops()


def _size(batch: Batch) -> int:
    return len(batch.c).bit_length()


def _power_of_two(most: int) -> int:
    """Not more than `most`. Kernels are chosen for round sizes."""
    return 1 << max(0, most.bit_length() - 1)

"""How a pass is made to fit into memory: whole, in parts, or for fewer queries at once.

A batch whose pass does not fit is cut into parts, and their results are added up. The
gradient, its adjoint and H a_g are sums over instances. Where each loss depends on its own instance
alone, the parts may be computed one after the other, with the activations of one of them in memory.
The sums round differently, and nothing else changes. This is not possible where instances share
something: BatchNorm's statistics, the random numbers of dropout, a loss that looks at the whole
batch.

A vjp is computed for as many queries at once as fit, by forward or by reverse mode. That choice
counts operations and does not measure time: it must be the same in every retrace, because another
way rounds differently. For the same reason a retrace that is interrupted saves all these choices.
"""

import traceback
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import TypeVar

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ..data.batch import AnyBatch, Batch, cut_rows
from ..errors import DrossWarning
from .autodiff import probe_direction
from .conv import WIDE, WIDE_FOR_SEVERAL, convolutions
from .cuda_graph import Graphs
from .objective import Buffers, Gradient, Objective, Vjp
from .tolerance import OTHER_KERNELS, ROUNDING, is_close

MIN_FLOPS_FOR_FORWARD_MODE = 2**25  # below, torch.func's own layers cost more than they save
_FLOPS_AT_ONCE = 2**30  # of queries side by side: more leave a processor's caches
_FLOPS_AT_ONCE_GPU = 2**38
_MIN_QUERIES = 8
_MAX_QUERIES = 256

Result = TypeVar("Result")


def halve(
    error: torch.OutOfMemoryError,
    size: int | Callable[[], int],
    *,
    what: str,
    free: Callable[[], object],
    may_halve: bool = True,
    advice: str = "",
) -> int:
    """Half of the size of some work that ran out of memory: its caller continues with that.

    Where it cannot, or where a single thing does not fit, the error is raised again.

    try:
        results.append(train(models))
    except torch.OutOfMemoryError as error:
        count = halve(error, len(models), what="models at a time", free=free_graphs)

    Arguments:
        error: of the work, caught.
        size: on how many things at once it worked, or a function that finds out.
        what: the things, for the warning: "models at a time".
        free: frees memory whose contents can be made again.
        may_halve: False where the caller cannot continue with less.
        advice: a note for the error where a single thing does not fit.
    """
    if not may_halve:
        raise error
    traceback.clear_frames(error.__traceback__)  # they hold the tensors of the failed work
    count = size() if callable(size) else size
    if count == 1:
        if advice:
            error.add_note(f"dross: {advice}")
        raise error
    free()
    message = f"Out of memory: continuing with {count // 2} {what}."
    warnings.warn(message, DrossWarning, stacklevel=3)
    return count // 2


@dataclass(frozen=True)
class VjpPlan:
    """How the vjp of batches of one size is computed."""

    forward_mode: bool
    queries_at_once: int


class MemorySplitter:
    """Runs the passes of one objective in as many parts as memory asks for."""

    def __init__(self, objective: Objective, graphs: Graphs):
        """graphs: captured passes, whose memory can be released."""
        self.objective = objective
        self.graphs = graphs
        self.plans: dict[int, VjpPlan] = {}  # by the size of the batch, to the next power of two
        self.max_rows: dict[tuple[str, int], int] = {}  # at once, by the pass and the size

    # --- the passes -------------------------------------------------------------------------------

    def gradient(self, batch: Batch, theta: Tensor, buffers: Buffers) -> Gradient:
        """`Objective.gradient`, in parts where the batch does not fit."""
        compute = partial(self.objective.gradient, theta, buffers)
        with convolutions(batch.c.device, wide=WIDE):
            return _join_gradients(self._compute_in_parts(compute, "gradient", batch, theta))

    def gradients(
        self, batch: Batch, thetas: Tensor, buffers: Buffers, w: Tensor, cut: bool
    ) -> tuple[Tensor, Buffers]:
        """`Objective.gradients`; the caller knows how many models fit."""
        with convolutions(batch.c.device, many=True):
            return self.objective.gradients(thetas, buffers, batch, w, cut)

    def vjp(
        self,
        batch: Batch,
        theta: Tensor,
        buffers: Buffers,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool,
    ) -> Vjp:
        """`Objective.vjp_forward` or `vjp_reverse`, in parts and for the queries that fit."""

        def vjp(part: Batch) -> Vjp:
            return self._vjp_of_part(part, theta, buffers, a_g, a_buffers, hessian)

        return _join_rows(self._compute_in_parts(vjp, "vjp", batch, theta))

    def _vjp_of_part(
        self,
        batch: Batch,
        theta: Tensor,
        buffers: Buffers,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool,
    ) -> Vjp:
        """The vjp for as many queries at once as fit."""
        results: list[Vjp] = []
        done = 0
        while done < len(a_g):
            plan = self._plan(theta, buffers, batch, a_buffers)
            some = slice(done, min(done + plan.queries_at_once, len(a_g)))
            count = some.stop - some.start
            a_some = {name: a[some] for name, a in a_buffers.items()}
            vjp = self.objective.vjp_reverse
            wide = None
            if plan.forward_mode:
                vjp = self.objective.vjp_forward
                wide = WIDE if count == 1 else WIDE_FOR_SEVERAL
            try:
                with convolutions(batch.c.device, wide=wide):
                    results.append(vjp(theta, buffers, batch, a_g[some], a_some, hessian))
                done = some.stop
            except torch.OutOfMemoryError as error:
                fewer = halve(
                    error,
                    count,
                    what="of the queries at a time",
                    free=self.graphs.free_memory,
                    may_halve=not self.graphs.capturing,
                )
                self.plans[_size_class(batch)] = VjpPlan(plan.forward_mode, fewer)
        return _join_queries(results)

    # --- rows of a batch --------------------------------------------------------------------------

    def _compute_in_parts(
        self, compute: Callable[[Batch], Result], name: str, batch: Batch, theta: Tensor
    ) -> list[Result]:
        """compute(part) for each part of a batch, cut smaller until each of them fits."""
        while True:
            results: list[Result] = []
            parts = self._parts(name, batch)
            try:
                for part in parts:
                    results.append(compute(part))
                return results
            except torch.OutOfMemoryError as error:  # cut anew, into equal parts
                part = parts[len(results)]
                self.max_rows[name, _size_class(batch)] = self._halve(error, name, part, theta)

    def _parts(self, name: str, batch: Batch) -> list[Batch]:
        """The batch, or the parts that this pass takes one after the other."""
        most = self.max_rows.get((name, _size_class(batch)))
        counts = None if most is None else losses_of_rows(self.objective, batch)
        if most is None or counts is None or most >= len(counts):
            return [batch]
        number = -(-len(counts) // most)  # of about the same length
        ends = [len(counts) * k // number for k in range(number + 1)]
        return [_cut(batch, counts, first, stop) for first, stop in pairwise(ends)]

    def _halve(self, error: torch.OutOfMemoryError, name: str, batch: Batch, theta: Tensor) -> int:
        """Half the rows of a part that did not fit."""
        count = len(batch.c)
        whole = "an instance" if count == 1 else f"a batch of {count}, which cannot be split,"
        return halve(
            error,
            lambda: count_rows(self.objective, batch) if self._can_cut(theta, batch) else 1,
            what=f"instances of a batch at a time ({name})",
            free=self.graphs.free_memory,
            # where there are graphs, `Graphs` frees them, and runs the pass again
            may_halve=not self.graphs.capturing and not self.graphs.has_graphs,
            advice=f"{whole} and one query do not fit into memory. Retrace with group=, or on a "
            "machine with more memory.",
        )

    def _can_cut(self, theta: Tensor, batch: Batch) -> bool:
        """Whether the parts of this batch add up to the whole, as far as its losses tell.

        A model may draw random numbers, as long as they are the same for every part.
        """
        objective = self.objective
        counts = losses_of_rows(objective, batch)
        if objective.layout.moving_buffers or counts is None or len(counts) < 2:
            return False
        half = len(counts) // 2
        parts = [_cut(batch, counts, 0, half), _cut(batch, counts, half, len(counts))]

        def losses(batch: AnyBatch) -> Tensor:
            with torch.no_grad():
                return objective.losses(theta, {}, batch.load())[0]

        return losses_are_separate(losses, batch, parts)

    # --- forward or reverse mode ------------------------------------------------------------------

    def _plan(self, theta: Tensor, buffers: Buffers, batch: Batch, a_buffers: Buffers) -> VjpPlan:
        """The plan for batches of this size, made for the first of them."""
        size = _size_class(batch)
        if size not in self.plans:
            with convolutions(batch.c.device):
                flops = count_flops(self.objective, theta, buffers, batch)
                forward = flops >= MIN_FLOPS_FOR_FORWARD_MODE and forward_mode_is_right(
                    self.objective, theta, buffers, batch, a_buffers
                )
            most = (_FLOPS_AT_ONCE_GPU if theta.is_cuda else _FLOPS_AT_ONCE) // max(flops, 1)
            at_once = 1 << max(0, most.bit_length() - 1)  # kernels are chosen for round sizes
            self.plans[size] = VjpPlan(forward, min(_MAX_QUERIES, max(_MIN_QUERIES, at_once)))
        return self.plans[size]

    # --- for a file -------------------------------------------------------------------------------

    def to_json(self) -> dict:
        """How passes are computed: another way would round differently."""
        plans = self.plans.items()
        return {
            "plans": [[size, [plan.forward_mode, plan.queries_at_once]] for size, plan in plans],
            "rows": [[name, size, rows] for (name, size), rows in self.max_rows.items()],
        }

    def load_json(self, saved: dict) -> None:
        """Take over the choices of an earlier process."""
        self.plans = {size: VjpPlan(*plan) for size, plan in saved["plans"]}
        self.max_rows = {(name, size): rows for name, size, rows in saved["rows"]}


# --- rows of a batch ------------------------------------------------------------------------------


def losses_of_rows(objective: Objective, batch: Batch) -> list[int] | None:
    """How many losses each row of the batch has, or None if that is not known."""
    of_rows: Callable | None = getattr(objective.loss, "losses_of_rows", None)
    counts = [1] * len(batch.c) if of_rows is None else of_rows(batch.y).tolist()
    leaves = [t for t in tree_leaves((batch.x, batch.y)) if isinstance(t, Tensor)]
    whole = all(t.dim() > 0 and len(t) == len(counts) for t in leaves)
    return counts if whole and sum(counts) == len(batch.c) else None


def count_rows(objective: Objective, batch: Batch) -> int:
    """How many rows a batch has; 1 where it cannot be cut."""
    counts = losses_of_rows(objective, batch)
    return 1 if counts is None else len(counts)


def losses_are_separate(
    losses: Callable[[AnyBatch], Tensor], whole: AnyBatch, parts: Sequence[AnyBatch]
) -> bool:
    """Whether each loss is the same in a part of a batch as in the whole."""
    together = losses(whole)
    try:
        apart = torch.cat([losses(part) for part in parts])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError):  # normalizing over a single instance
        return False
    return is_close(apart, together, ROUNDING)


def _cut(batch: Batch, counts: list[int], first: int, stop: int) -> Batch:
    x, y = cut_rows((batch.x, batch.y), slice(first, stop))
    return Batch(x, y, batch.c[sum(counts[:first]) : sum(counts[:stop])], batch.seed)


def _size_class(batch: Batch) -> int:
    return len(batch.c).bit_length()


def _join_gradients(parts: Sequence[Gradient]) -> Gradient:
    """What `Objective.gradient` returns for the whole batch."""
    if len(parts) == 1:
        return parts[0]
    g, losses, buffers = zip(*parts)
    return _add(g), torch.cat(losses), buffers[-1]


def _join_rows(parts: Sequence[Vjp]) -> Vjp:
    """The vjp of the whole batch. Buffers are not updated where batches are split."""
    if len(parts) == 1:
        return parts[0]
    terms, a_theta, a_buffers = zip(*parts)
    return torch.cat(terms, dim=1), _add(a_theta), a_buffers[-1]


def _join_queries(parts: Sequence[Vjp]) -> Vjp:
    """The vjp of all queries."""
    if len(parts) == 1:
        return parts[0]
    terms, a_theta, a_buffers = zip(*parts)
    joined = {name: torch.cat([a[name] for a in a_buffers]) for name in a_buffers[0]}
    return torch.cat(terms), torch.cat(a_theta), joined


def _add(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for other in tensors[1:]:
        total = total + other
    return total


# --- the size of a pass ---------------------------------------------------------------------------


def forward_mode_is_right(
    objective: Objective, theta: Tensor, buffers: Buffers, batch: Batch, a_buffers: Buffers
) -> bool:
    """Whether forward mode returns what reverse mode returns, on this batch, in a random direction.

    Some operators have no forward mode, and a forward rule can be wrong once it is differentiated
    again (see forward_rules.py).
    """
    a_g = probe_direction(theta)
    a_buffers = {name: a[:1] for name, a in a_buffers.items()}
    try:
        forward = objective.vjp_forward(theta, buffers, batch, a_g, a_buffers)
    except torch.OutOfMemoryError:
        raise
    except (NotImplementedError, RuntimeError):
        return False
    reverse = objective.vjp_reverse(theta, buffers, batch, a_g, a_buffers)
    return all(is_close(*pair, OTHER_KERNELS) for pair in zip(forward[:2], reverse[:2]))


def count_flops(objective: Objective, theta: Tensor, buffers: Buffers, batch: Batch) -> int:
    """Floating point operations of a forward pass."""
    with FlopCounterMode(display=False) as counter, torch.no_grad(), warnings.catch_warnings():
        # the counter's hooks see a compiled layer twice, which counts nothing twice
        warnings.filterwarnings("ignore", message="Using `torch.compile")
        objective.losses(theta, buffers, batch)
    return counter.get_total_flops()

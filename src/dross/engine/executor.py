"""Runs the passes of an objective: the plain mathematics, or faster ways to the same numbers.

    eager          the functions of step/objective.py as they stand
    CPU program    the operations of a pass, written down once and called as straight code
    CUDA graph     the kernels of a pass, launched at once

Training and retracing ask an `Executor` for a gradient or a pull, and it chooses the way. Where a
fast way fails (a model that looks at its values, no memory), the plain one is taken, and the
numbers stay the same. `DROSS_EXECUTOR=eager` takes the plain way everywhere, for a debugger.
"""

import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from ..data.batch import AnyBatch, Batch, LazyBatches, cut_rows
from ..engine.tolerance import OTHER_KERNELS, ROUNDING, is_close
from ..errors import InvalidInput
from .autodiff import has_hooks, probe_direction
from .conv import WIDE, WIDE_FOR_SEVERAL, convolutions
from .cpu_program import Programs
from .cuda_graph import Graphs
from .device import manage_threads, set_threads_for, try_to_fit
from .narrow_range import pull_in_range
from .objective import Buffers, Objective, Pulled

_KINDS = ("auto", "eager")
Result = TypeVar("Result")


class Executor:
    """Runs the passes of one objective."""

    def __init__(self, objective: Objective):
        self.objective = objective
        self.plans = PullPlans(objective)
        self.cuts = BatchCuts(objective)
        self.graphs = Graphs()
        self.programs = Programs()
        self._mode = ""  # "training" or "evaluating", inside those contexts
        self._hooked = False  # the model has hooks, which every pass must call
        self._constants: tuple[list[Tensor], list[int]] = ([], [])
        self._flops_each: float | None = None

    # --- the passes -------------------------------------------------------------------------------

    def gradient(
        self, theta: Tensor, buffers: Buffers, batch: AnyBatch, w: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Buffers]:
        """`Objective.gradient`, run the fastest way."""
        return self._run_pass("training step", self.plain_gradient, batch, 1, theta, buffers, w)

    def plain_gradient(self, batch: Batch, theta: Tensor, buffers: Buffers, w: Tensor | None):
        """`Objective.gradient`, always as it stands; in parts where it does not fit."""

        def gradient(part: Batch, own: Tensor | None) -> tuple[Tensor, Tensor, Buffers] | None:
            with convolutions(part.c.device, wide=WIDE):
                action = partial(self.objective.gradient, theta, buffers, part, own)
                return self._fit_rows("gradient", action, theta, part)

        def compute(part: Batch, losses: slice) -> tuple[Tensor, Tensor, Buffers] | None:
            return gradient(part, None if w is None else w[losses])

        return self._in_parts("gradient", batch, compute, join_gradients)

    def gradients(
        self, thetas: Tensor, buffers: Buffers, batch: AnyBatch, w: Tensor, cut: bool = False
    ) -> tuple[Tensor, Buffers]:
        """`Objective.gradients`, run the fastest way."""
        name, given = "step of many models", (thetas, buffers, w, cut)
        return self._run_pass(name, self.plain_gradients, batch, len(thetas), *given)

    def plain_gradients(self, batch: Batch, thetas: Tensor, buffers: Buffers, w: Tensor, cut: bool):
        """`Objective.gradients`, always as it stands."""
        with convolutions(batch.c.device, many=True):
            return self.objective.gradients(thetas, buffers, batch, w, cut)

    def pull(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: AnyBatch,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool = True,
    ) -> Pulled:
        """`Objective.pull_forward` or `pull_reverse`, for as many queries at once as fit.

        Arguments:
            theta: the parameters [p].
            buffers: the model's buffers before the batch.
            batch: of b instances.
            a_g: the adjoint of the gradient [Q, p].
            a_buffers: the adjoint of the buffers after the batch, each [Q, ...].
            hessian: False leaves the Hessian-vector product out.

        Returns:
            The terms [Q, b], the product [Q, p] and the adjoint of the buffers before the batch.
        """

        def pull(batch: AnyBatch, a_g: Tensor, a_buffers: Buffers) -> Pulled:
            given = (theta, buffers, a_g, a_buffers, hessian)
            return self._run_pass("reverse step", self.plain_pull, batch, len(a_g), *given)

        if self.objective.precision.narrow is torch.float16:
            return pull_in_range(pull, batch, a_g, a_buffers)
        return pull(batch, a_g, a_buffers)

    def plain_pull(
        self,
        batch: Batch,
        theta: Tensor,
        buffers: Buffers,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool,
    ) -> Pulled:
        """`pull`, always as it stands; in parts where it does not fit."""

        def compute(part: Batch, _: slice) -> Pulled | None:
            return self._pull_part(part, theta, buffers, a_g, a_buffers, hessian)

        return self._in_parts("pull", batch, compute, join_pulls)

    def _pull_part(
        self,
        batch: Batch,
        theta: Tensor,
        buffers: Buffers,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool,
    ) -> Pulled | None:
        """The pull of a batch or a part of one, or None where one query of it does not fit."""
        parts, done = [], 0
        while done < len(a_g):
            with convolutions(batch.c.device):
                choose = partial(self.plans.choose, theta, buffers, batch, a_buffers)
                if (plan := self._fit_rows("pull", choose, theta, batch)) is None:
                    return None
            rows = slice(done, min(done + plan.queries_at_once, len(a_g)))
            count = rows.stop - done
            some = (theta, buffers, batch, a_g[rows], {n: a[rows] for n, a in a_buffers.items()})
            action = partial(self._pull_together, plan.forward_mode, *some, hessian)
            if count == 1:
                part = self._fit_rows("pull", action, theta, batch)
            else:
                may_halve, free = not self.graphs.capturing, self.free_memory
                what = "of the queries at once"
                part = try_to_fit(action, count, what=what, free=free, may_halve=may_halve)
            if part is None and count == 1:
                return None
            if part is None:
                self.plans.halve(batch, count)
                continue
            parts.append(part)
            done = rows.stop
        if len(parts) == 1:
            return parts[0]
        terms, a_theta, a_before = zip(*parts)
        joined = {name: torch.cat([a[name] for a in a_before]) for name in a_buffers}
        return torch.cat(terms), torch.cat(a_theta), joined

    def _in_parts(
        self,
        name: str,
        batch: Batch,
        compute: Callable[[Batch, slice], Result | None],
        join: Callable[[list[Result]], Result],
    ) -> Result:
        """compute(batch, all its losses), or of its parts, smaller until each of them fits."""
        while True:
            parts, found, at = self.cuts.parts(name, batch), [], 0
            for part in parts:
                result = compute(part, slice(at, at + len(part.c)))
                if result is None:  # it did not fit, and can be cut
                    self.cuts.limit(name, batch, max(1, self.cuts.rows(part) // 2))
                    break
                found.append(result)
                at += len(part.c)
            else:
                return found[0] if len(found) == 1 else join(found)

    def _fit_rows(
        self, name: str, action: Callable[[], Result], theta: Tensor, batch: Batch
    ) -> Result | None:
        """action(), or None where it does not fit and the batch can be cut."""
        try:
            return action()
        except torch.OutOfMemoryError:
            if self.graphs.has_graphs:  # `Graphs` frees them, and runs the pass again
                raise
        can_cut = not self.graphs.capturing and self.cuts.can_cut(theta, batch)
        rows = self.cuts.rows(batch) if can_cut else 1
        count = len(batch.c)
        size = "an instance" if count == 1 else f"a batch of {count}, which cannot be cut,"
        return try_to_fit(
            action,
            rows,
            what=f"instances of a batch at once ({name})",
            free=self.free_memory,
            advice=f"{size} and one query do not fit into memory. Retrace with group=, or on a "
            "machine with more memory.",
        )

    def _pull_together(self, forward_mode: bool, theta, buffers, batch, a_g, a_buffers, hessian):
        objective, device = self.objective, batch.c.device
        if not forward_mode:
            with convolutions(device):
                return objective.pull_reverse(theta, buffers, batch, a_g, a_buffers, hessian)
        with convolutions(device, wide=WIDE if len(a_g) == 1 else WIDE_FOR_SEVERAL):
            return objective.pull_forward(theta, buffers, batch, a_g, a_buffers, hessian)

    def push(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: AnyBatch,
        theta_dot: Tensor,
        buffers_dot: Buffers,
        w_dot: Tensor,
    ) -> tuple[Tensor, Buffers]:
        """`Objective.push`, always as it stands."""
        with convolutions(batch.c.device):
            loaded = batch.load()
            return self.objective.push(theta, buffers, loaded, theta_dot, buffers_dot, w_dot)

    def losses(self, theta: Tensor, buffers: Buffers, batch: AnyBatch) -> tuple[Tensor, Buffers]:
        """`Objective.losses`, always as it stands and without derivatives."""
        with convolutions(batch.c.device), torch.no_grad():
            return self.objective.losses(theta, buffers, batch.load())

    # --- the choice -------------------------------------------------------------------------------

    def _run_pass(
        self, name: str, function: Callable, batch: AnyBatch, count: int, *args: Any
    ) -> Any:
        """`run`, on as many threads as a pass for `count` models or queries is worth."""
        if batch.c.device.type == "cpu" and not self._hooked:
            flops = self._count_flops_each(batch, args[0], args[1])
            set_threads_for(flops * len(batch.c) * count)
        return self.run(name, function, batch, *args)

    def run(self, name: str, function: Callable, batch: AnyBatch | LazyBatches, *args: Any) -> Any:
        """function(batch, *args), by the fastest way that gives the same numbers.

        Arguments:
            name: identifies the pass, together with the shapes of its inputs.
            function: a pure function. All tensors that differ from call to call are arguments.
            batch: what the pass sees; `function` gets it loaded.
            args: tensors, dicts of tensors, and values that are part of what the pass does.
        """
        if self.cannot_reuse_passes or not self._mode or is_eager():
            return function(batch.load(), *args)
        if self.graphs.is_available(name, batch.c):
            return self.graphs.run(name, self._mode, function, batch, args)
        if self.graphs.has_graphs:
            return self.graphs.run_uncaptured(name, function, batch, args)
        loaded = batch.load()
        if isinstance(loaded, Batch) and self.programs.are_available(loaded.c):
            return self.programs.run((name, self._mode), function, loaded, args)
        return function(loaded, *args)

    @property
    def cannot_reuse_passes(self) -> bool:
        """Whether no pass may be reused: random numbers, hooks, parameters that come and go.

        Nor may that of a model with buffers of its own, which may look at their values.
        """
        objective = self.objective
        comes_and_goes = bool(objective.unused) or bool(objective.held)
        return objective.stochastic or self._hooked or comes_and_goes

    def would_capture(self, name: str, theta: Tensor) -> bool:
        """Whether a pass of this name would be captured as a CUDA graph."""
        usable = bool(self._mode) and not self.cannot_reuse_passes and not is_eager()
        return usable and self.graphs.is_available(name, theta)

    def free_memory(self) -> None:
        """Free memory whose contents can be made again: that of captured passes."""
        self.graphs.free_memory()

    @contextmanager
    def limited(self, queries: int | None, rows: int | None) -> Iterator[None]:
        """Inside, a pull takes at most so many queries, and rows of a batch, at once."""
        before = (self.plans.most_queries, self.cuts.most_rows)
        self.plans.most_queries, self.cuts.most_rows = queries, rows
        try:
            yield
        finally:
            self.plans.most_queries, self.cuts.most_rows = before

    def choices(self) -> dict:
        """How passes are computed, for a file: another way would round differently."""
        return {"pulls": self.plans.to_json(), "cuts": self.cuts.to_json()}

    def load_choices(self, saved: dict) -> None:
        """Take over the choices of an earlier process."""
        self.plans.load_json(saved["pulls"])
        self.cuts.load_json(saved["cuts"])

    def _count_flops_each(self, batch: AnyBatch, theta: Tensor, buffers: Buffers) -> float:
        """Operations of the forward pass for one instance, counted at the first batch."""
        if self._flops_each is None:
            loaded = batch.load()
            first = lambda t: t[0] if theta.dim() > 1 else t  # one model of many
            one = {name: first(b) for name, b in buffers.items()}
            flops = count_flops(self.objective, first(theta), one, loaded)
            self._flops_each = flops / max(1, len(loaded.c))
        return self._flops_each

    # --- contexts ---------------------------------------------------------------------------------

    @contextmanager
    def training(self) -> Iterator[None]:
        """Inside: `Objective.training`, and passes may be reused."""
        with manage_threads(), self.objective.training(), self._reuse("training"):
            yield

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside: `Objective.evaluating`, and passes may be reused."""
        with self.objective.evaluating(), self._reuse("evaluating"):
            yield

    @contextmanager
    def _reuse(self, mode: str) -> Iterator[None]:
        """Inside, passes may be written down or captured, separately for each mode.

        A pass reads frozen tensors without getting them as arguments. Where one was replaced, all
        passes are forgotten.
        """
        self._hooked = has_hooks(self.objective.model)
        constants = list(self.objective.layout.constants(self.objective.model).values())
        places = [t.data_ptr() for t in constants]
        if places != self._constants[1]:
            self.graphs.forget()
            self.programs.forget()
        self._constants = (constants, places)  # kept alive, so that no address is used twice
        before, self._mode = self._mode, mode
        try:
            yield
        finally:
            self._mode = before


def is_eager() -> bool:
    """Whether every pass runs as it stands: DROSS_EXECUTOR, or a dispatch mode is watching."""
    kind = os.environ.get("DROSS_EXECUTOR", "auto")
    if kind not in _KINDS:
        raise InvalidInput(f"DROSS_EXECUTOR is {' or '.join(_KINDS)}, not {kind!r}.")
    return kind == "eager" or _get_current_dispatch_mode() is not None


# --- microbatching --------------------------------------------------------------------------------

# A batch whose pass does not fit into memory is cut into parts, and their results are added up.
#
# g = sum_i c_i grad l_i, its adjoint and H a_g are sums over instances. Where each loss depends on
# its own instance alone, the parts may be computed one after the other, with the activations of one
# part in memory. The sums round differently, and nothing else changes. This is not possible where
# instances share something: BatchNorm's statistics, the random numbers of dropout, a loss that looks
# at the whole batch.

Result = TypeVar("Result")


class BatchCuts:
    """How many rows of a batch a pass takes at once, by the pass and the size of the batch."""

    def __init__(self, objective: Objective):
        self.objective = objective
        self._limits: dict[tuple[str, int], int] = {}
        self.most_rows: int | None = None  # of any batch in a pull, where memory is planned

    def limit(self, name: str, batch: Batch, rows: int) -> None:
        """From now on, the pass takes at most so many rows of batches of this size at once."""
        self._limits[name, _size_class(batch)] = rows

    def parts(self, name: str, batch: Batch) -> list[Batch]:
        """The batch, or the parts that it is cut into."""
        planned = self.most_rows if name == "pull" else None
        limits = [self._limits.get((name, _size_class(batch))), planned]
        most = min((limit for limit in limits if limit is not None), default=None)
        counts = None if most is None else self._losses_of_rows(batch)
        if most is None or counts is None or most >= len(counts):
            return [batch]
        pieces = -(-len(counts) // most)  # of about the same length
        ends = [len(counts) * k // pieces for k in range(pieces + 1)]
        return [_cut(batch, counts, a, b) for a, b in pairwise(ends)]

    def rows(self, batch: Batch) -> int:
        """How many rows a batch has; 1 where it cannot be cut."""
        counts = self._losses_of_rows(batch)
        return 1 if counts is None else len(counts)

    def can_cut(self, theta: Tensor, batch: Batch) -> bool:
        """Whether the parts of this batch add up to the whole, as far as its losses tell.

        A model may draw random numbers, as long as they are the same for every part.
        """
        objective, counts = self.objective, self._losses_of_rows(batch)
        if objective.layout.moving_buffers or counts is None or len(counts) < 2:
            return False
        half = len(counts) // 2
        parts = [_cut(batch, counts, 0, half), _cut(batch, counts, half, len(counts))]

        def losses(batch: "AnyBatch", theta: Tensor = theta) -> Tensor:
            with torch.no_grad():
                return objective.losses(theta, {}, batch.load())[0]

        return losses_are_separate(losses, batch, parts)

    def to_json(self) -> list[list]:
        """The limits for a file."""
        return [[name, size, rows] for (name, size), rows in self._limits.items()]

    def load_json(self, saved: list[list]) -> None:
        """Take over the limits of an earlier process."""
        self._limits = {(name, size): rows for name, size, rows in saved}

    def _losses_of_rows(self, batch: Batch) -> list[int] | None:
        """How many losses each row of the batch has, or None where rows cannot be told apart."""
        of_rows: Callable | None = getattr(self.objective.loss, "losses_of_rows", None)
        counts = [1] * len(batch.c) if of_rows is None else of_rows(batch.y).tolist()
        leaves = [t for t in tree_leaves((batch.x, batch.y)) if isinstance(t, Tensor)]
        whole = all(t.dim() > 0 and len(t) == len(counts) for t in leaves)
        return counts if whole and sum(counts) == len(batch.c) else None


def losses_are_separate(
    losses: "Callable[[AnyBatch], Tensor]", whole: "AnyBatch", parts: "Sequence[AnyBatch]"
) -> bool:
    """Whether each loss is the same in a part of a batch as in the whole."""
    together = losses(whole)
    try:
        apart = torch.cat([losses(part) for part in parts])
    except torch.OutOfMemoryError:
        raise
    except (RuntimeError, ValueError):  # normalising over a single instance
        return False
    return is_close(apart, together, ROUNDING)


def join_gradients(parts: list[tuple[Tensor, Tensor, Buffers]]) -> tuple[Tensor, Tensor, Buffers]:
    """What `Objective.gradient` gives for the whole batch."""
    g, losses, buffers = zip(*parts)
    return _add(g), torch.cat(losses), buffers[-1]


def join_pulls(parts: list[tuple[Tensor, Tensor, Buffers]]) -> tuple[Tensor, Tensor, Buffers]:
    """What a pull gives for the whole batch. Buffers do not move where batches are cut."""
    terms, a_theta, buffers = zip(*parts)
    return torch.cat(terms, dim=1), _add(a_theta), buffers[-1]


def _add(tensors: Sequence[Tensor]) -> Tensor:
    total = tensors[0]
    for other in tensors[1:]:
        total = total + other
    return total


def _cut(batch: Batch, counts: list[int], first: int, stop: int) -> Batch:
    start, end = sum(counts[:first]), sum(counts[:stop])
    return Batch(*cut_rows((batch.x, batch.y), slice(first, stop)), batch.c[start:end], batch.seed)


def _size_class(batch: Batch) -> int:
    return len(batch.c).bit_length()


# --- pull_plan ------------------------------------------------------------------------------------

# How a reverse step is computed: by forward or by reverse mode, and for how many queries at once.
#
# The choice counts operations and does not measure time: it must be the same in every retrace,
# because another way rounds differently.

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
        size = _size_class(batch)
        if size not in self._plans:
            flops = count_flops(self.objective, theta, buffers, batch)
            large = flops >= MIN_FLOPS_FOR_FORWARD_MODE
            forward = large and forward_mode_is_right(
                self.objective, theta, buffers, batch, a_buffers
            )
            most = (_FLOPS_AT_ONCE_GPU if theta.is_cuda else _FLOPS_AT_ONCE) // max(flops, 1)
            at_once = min(_MAX_QUERIES, max(_MIN_QUERIES, _power_of_two(most)))
            self._plans[size] = PullPlan(forward, at_once)
        return self._limited(self._plans[size])

    def halve(self, batch: Batch, failed: int) -> None:
        """From now on, compute half as many queries at once as did not fit."""
        size = _size_class(batch)
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


def _size_class(batch: Batch) -> int:
    return len(batch.c).bit_length()


def _power_of_two(most: int) -> int:
    """Not more than `most`. Kernels are chosen for round sizes."""
    return 1 << max(0, most.bit_length() - 1)

"""Runs the passes of an objective: the plain mathematics, or faster ways to the same numbers.

    eager          the functions of step/objective.py as they stand
    CPU program    the operations of a pass, written down once and called as straight code
    CUDA graph     the kernels of a pass, launched at once; with DROSS_COMPILE=1 compiled first

Training and retracing ask an `Executor` for a gradient or a pull, and it chooses the way. Where a
fast way fails (a model that looks at its values, no memory), the plain one is taken, and the
numbers stay the same. `DROSS_EXECUTOR=eager` takes the plain way everywhere, for a debugger.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..data.batch import Batch
from ..data.lazy_batch import AnyBatch, LazyBatches
from ..errors import InvalidInput
from . import threads
from .conv import WIDE, WIDE_FOR_SEVERAL, convolutions
from .cpu_program import Programs
from .cuda_graph import Graphs
from .functional import has_hooks
from .memory import try_to_fit
from .microbatching import BatchCuts, join_gradients, join_pulls
from .narrow_range import pull_in_range
from .objective import Buffers, Objective, Pulled
from .pull_plan import PullPlans, count_flops

_KINDS = ("auto", "eager")
Result = TypeVar("Result")


class Executor:
    """Runs the passes of one objective."""

    def __init__(self, objective: Objective, *, usual_batch: int | None = None):
        """usual_batch: the size of a run's batches; passes of other sizes are not compiled."""
        self.objective = objective
        self.plans = PullPlans(objective)
        self.cuts = BatchCuts(objective)
        self.graphs = Graphs(usual_batch)
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
            threads.set_threads_for(flops * len(batch.c) * count)
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
        comes_and_goes = bool(objective.unused) or bool(objective.own_moving)
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
        with threads.manage_threads(), self.objective.training(), self._reuse("training"):
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

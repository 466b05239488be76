"""Runs the passes of an objective: the plain mathematics, or faster ways to the same numbers.

A pass goes through two layers, which know nothing of each other:

    reuse  how it is run again: as it stands, as a CPU program (cpu_program.py: its operations,
           written down once and called as straight code) or as a CUDA graph (cuda_graph.py: its
           kernels, launched at once)
    split  how it is made to fit into memory (memory.py): whole, in parts, or for fewer queries at
           once

    Executor.gradient -> Executor.run -> MemorySplitter.gradient -> Objective.gradient

Where a fast way fails (a model that looks at its values, no memory), the plain one is taken, and
the numbers stay the same. `DROSS_EXECUTOR=eager` takes the plain way everywhere, for a debugger.
"""

import os
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..data.batch import AnyBatch, Batch, LazyBatches
from ..errors import InvalidInput
from .autodiff import has_hooks, times, unit_factor
from .conv import convolutions
from .cpu_program import Programs
from .cuda_graph import Graphs
from .device import manage_threads, set_threads, set_threads_for
from .memory import MemorySplitter, count_flops
from .objective import Buffers, Gradient, Objective, Vjp

_LEAST_SHRINK = 2.0**-16  # how much less the losses count, at the least, to stay in float16


class Executor:
    """Runs the passes of one objective.

    Arguments:
        objective: the losses and their derivatives.
        threads: CPU threads of the loop whose gradients are to be computed again; by default the
            size of the pass decides. Sums by another number of threads round differently, and Adam
            makes a whole step of a gradient that is rounding only (a bias before BatchNorm).
    """

    def __init__(self, objective: Objective, threads: int | None = None):
        self.objective = objective
        self.threads = threads
        self.graphs = Graphs()
        self.programs = Programs()
        self.splitter = MemorySplitter(objective, self.graphs)
        self._mode = ""  # "training" or "evaluating", inside those contexts
        self._hooked = False  # the model has hooks, which every pass must call
        self._constants: tuple[list[Tensor], list[int]] = ([], [])
        self._flops_each: float | None = None

    # --- the passes -------------------------------------------------------------------------------

    def gradient(self, theta: Tensor, buffers: Buffers, batch: AnyBatch) -> Gradient:
        """`Objective.gradient`, run the fastest way."""
        if self.threads is None:
            self._choose_threads(theta, buffers, batch, 1)
        else:
            set_threads(self.threads)
        return self.run("training step", self.splitter.gradient, batch, theta, buffers)

    def gradients(
        self, thetas: Tensor, buffers: Buffers, batch: AnyBatch, w: Tensor, cut: bool = False
    ) -> tuple[Tensor, Buffers]:
        """`Objective.gradients`, run the fastest way."""
        first = {name: b[0] for name, b in buffers.items()}
        self._choose_threads(thetas[0], first, batch, len(thetas))
        return self.run(
            "step of many models", self.splitter.gradients, batch, thetas, buffers, w, cut
        )

    def vjp(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: AnyBatch,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool = True,
    ) -> Vjp:
        """The adjoint of (theta, w, buffers) -> (g, updated buffers), run the fastest way.

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
        self._choose_threads(theta, buffers, batch, len(a_g))

        def vjp(batch: AnyBatch, a_g: Tensor, a_buffers: Buffers) -> Vjp:
            return self.run(
                "reverse step", self.splitter.vjp, batch, theta, buffers, a_g, a_buffers, hessian
            )

        if self.objective.precision.narrow is torch.float16:
            return _vjp_in_range(vjp, batch, a_g, a_buffers)
        return vjp(batch, a_g, a_buffers)

    def jvp(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: AnyBatch,
        theta_dot: Tensor,
        buffers_dot: Buffers,
        w_dot: Tensor,
    ) -> tuple[Tensor, Buffers]:
        """`Objective.jvp`, always as it stands."""
        with convolutions(batch.c.device):
            return self.objective.jvp(theta, buffers, batch.load(), theta_dot, buffers_dot, w_dot)

    def losses(self, theta: Tensor, buffers: Buffers, batch: AnyBatch) -> tuple[Tensor, Buffers]:
        """`Objective.losses`, always as it stands and without derivatives."""
        with convolutions(batch.c.device), torch.no_grad():
            return self.objective.losses(theta, buffers, batch.load())

    def _choose_threads(self, theta: Tensor, buffers: Buffers, batch: AnyBatch, count: int) -> None:
        """Use as many threads as a pass for `count` models or queries is worth."""
        if batch.c.device.type != "cpu" or self._hooked:
            return
        if self._flops_each is None:
            loaded = batch.load()
            flops = count_flops(self.objective, theta, buffers, loaded)
            self._flops_each = flops / max(1, len(loaded.c))
        set_threads_for(self._flops_each * len(batch.c) * count)

    # --- reuse ------------------------------------------------------------------------------------

    def run(
        self,
        name: str,
        function: Callable,
        batch: AnyBatch | LazyBatches,
        *args: Any,
        key: tuple[Hashable, ...] = (),
    ) -> Any:
        """function(batch, *args), by the fastest way that returns the same numbers.

        Arguments:
            name: identifies the pass, together with the shapes of its inputs.
            function: a pure function. All tensors that differ from call to call are arguments.
            batch: what the pass sees; `function` gets it loaded.
            args: tensors, dicts of tensors, and values that are part of what the pass does.
            key: other values that are, where `function` has them by itself.
        """
        if not self.may_reuse:
            return function(batch.load(), *args)
        if self.graphs.is_available(name, batch.c):
            return self.graphs.run(name, (self._mode, *key), function, batch, args)
        if self.graphs.has_graphs:
            return self.graphs.run_uncaptured(name, function, batch, args)
        loaded = batch.load()
        if isinstance(loaded, Batch) and loaded.c.device.type == "cpu":
            return self.programs.run((name, self._mode, *key), function, loaded, args)
        return function(loaded, *args)

    @property
    def may_reuse(self) -> bool:
        """Whether a pass may be reused now.

        Not where it draws random numbers, must call hooks or has parameters that come and go; nor
        where custom code of the model updates buffers, and may read their values.
        """
        objective = self.objective
        differs = objective.stochastic or self._hooked or objective.unused or objective.held
        return bool(self._mode) and not differs and not is_eager()

    def would_capture(self, name: str, theta: Tensor) -> bool:
        """Whether a pass of this name would be captured as a CUDA graph."""
        return self.may_reuse and self.graphs.is_available(name, theta)

    def free_memory(self) -> None:
        """Free memory whose contents can be made again: that of captured passes."""
        self.graphs.free_memory()

    # --- contexts ---------------------------------------------------------------------------------

    @contextmanager
    def training(self) -> Iterator[None]:
        """Inside: `Objective.training`, and passes may be reused."""
        with manage_threads(), self.objective.training(), self._reusing("training"):
            yield

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside: `Objective.evaluating`, and passes may be reused."""
        with self.objective.evaluating(), self._reusing("evaluating"):
            yield

    @contextmanager
    def _reusing(self, mode: str) -> Iterator[None]:
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
        before = self._mode
        self._mode = mode
        try:
            yield
        finally:
            self._mode = before


def is_eager() -> bool:
    """Whether every pass runs as it stands: DROSS_EXECUTOR, or a dispatch mode is watching."""
    kind = os.environ.get("DROSS_EXECUTOR", "auto")
    if kind not in ("auto", "eager"):
        raise InvalidInput(f"DROSS_EXECUTOR must be auto or eager, not {kind!r}.")
    return kind == "eager" or _get_current_dispatch_mode() is not None


def _vjp_in_range(
    vjp: Callable[[AnyBatch, Tensor, Buffers], Vjp],
    batch: AnyBatch,
    a_g: Tensor,
    a_buffers: Buffers,
    shrink: float = 1.0,
) -> Vjp:
    """vjp(batch, a_g, a_buffers) in float16, whose numbers lie between 6e-8 and 65504.

    A loop's GradScaler keeps gradients in that range, but an adjoint may have any size. A vjp is
    linear in it, so it is computed for adjoints of length about 1 and scaled back. Where it
    overflows nevertheless, the losses count less, as a GradScaler would have it. All factors are
    powers of two, which round nothing.
    """
    factor = unit_factor(a_g)
    moved = {name: times(a, factor * shrink) for name, a in a_buffers.items()}
    terms, product, before = vjp(batch.scaled(shrink), times(a_g, factor), moved)
    finite = bool(torch.isfinite(terms).all() & torch.isfinite(product).all())
    if not finite and shrink > _LEAST_SHRINK:
        return _vjp_in_range(vjp, batch, a_g, a_buffers, shrink * 2.0**-8)
    back = 1 / (factor * shrink)
    a_before = {name: times(a, back) for name, a in before.items()}
    return times(terms.to(a_g.dtype), back), times(product, back), a_before

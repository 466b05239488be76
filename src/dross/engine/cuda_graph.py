"""Passes over a model captured as CUDA graphs.

A small model's step is a hundred kernels of a few microseconds, and launching them from Python
takes ten times longer than running them. A graph launches them all at once. This happens by itself:
the third time that a pass gets inputs of the same shapes it is captured, the fourth time the replay
is compared with the pass itself, and from then on it is replayed. What cannot be captured (a model
that looks at its values to decide what to do) runs as before.

A graph holds the memory of its pass for as long as it lives. Where other work needs that memory it
is freed, and where there is memory for the pass but not also for its graph, the pass runs without
one. A graph reads and writes the memory that it was captured with, so inputs are copied
into buffers that never change and results are copied out. On a CPU the same passes become programs
(cpu_program.py).
"""

import warnings
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from ..data.batch import AnyBatch, LazyBatch, LazyBatches
from ..data.pytree import flatten, unflatten
from ..errors import DrossWarning, first_line
from .tolerance import SAME_KERNELS, is_close

_WARM_UPS = 2
_MAX_GRAPHS = 64  # of one model; more shapes (texts of every length) are not worth their memory
# a pass with larger inputs keeps a GPU busy by itself, and its inputs would be in memory twice
_MAX_INPUT_BYTES = 1 << 28

GraphBatch = AnyBatch | LazyBatches


class Graphs:
    """The graphs of one model's passes."""

    def __init__(self):
        self.refused: set[str] = set()  # passes that cannot be captured
        self.capturing = False
        self._calls: dict[Any, int] = {}
        self._graphs: dict[Any, _Graph] = {}
        self._pool: Any = None

    # --- memory -----------------------------------------------------------------------------------

    def forget(self) -> None:
        """Drop all graphs; passes are captured again."""
        self._calls = {}
        self._graphs = {}
        self._pool = None

    def free_memory(self) -> None:
        """Free the memory of all graphs; passes are captured again."""
        self.forget()
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()

    @property
    def has_graphs(self) -> bool:
        """Whether there is memory to free."""
        return bool(self._graphs)

    # --- running ----------------------------------------------------------------------------------

    def is_available(self, name: str, tensor: Tensor) -> bool:
        """Whether this pass, over tensors on this one's device, would be captured."""
        return name not in self.refused and tensor.is_cuda

    def run(
        self, name: str, kind: tuple, function: Callable, batch: GraphBatch, args: tuple
    ) -> Any:
        """function(batch, *args), as a graph where that is possible.

        Arguments:
            name: of the pass.
            kind: "training" or "evaluating", and more; a pass is captured once for each.
            function: the pass.
            batch, args: its arguments.
        """
        if self.capturing:  # one of several steps that are captured together
            return function(batch, *args)
        parts, build, structure = batch.to_tensors()
        tensors, form = flatten(args)
        if sum(t.nbytes for t in tensors) > _MAX_INPUT_BYTES:
            return self.run_uncaptured(name, function, batch, args)
        inputs = [*parts, *tensors]
        key = (name, kind, structure, form, *[(t.shape, t.dtype) for t in inputs])
        if key in self._graphs and self._graphs[key].trusted:
            return self._graphs[key].replay(inputs, batch)
        expected = self.run_uncaptured(name, function, batch, args, key)
        if key in self._graphs:
            self._try(key, inputs, batch, expected, name)
            return expected
        if len(self._graphs) >= _MAX_GRAPHS:
            return expected
        self._calls[key] = self._calls.get(key, 0) + 1
        if self._calls[key] > _WARM_UPS:
            count = len(parts)
            flat = lambda *t: function(build(t[:count]), *unflatten(t[count:], form))
            self._capture(key, flat, inputs, batch, name)
        return expected

    def run_uncaptured(
        self, name: str, function: Callable, batch: GraphBatch, args: tuple, key: Any = None
    ) -> Any:
        """function(batch, *args) as it stands. Where memory is missing, that of graphs is freed.

        key: of the pass's own graph, if it may have one.
        """
        has_graph = key in self._graphs
        try:
            return function(batch.load(), *args)
        except torch.OutOfMemoryError:
            if not self._graphs or self.capturing:
                raise
        # outside the handler, because the error itself holds memory
        if has_graph:  # the pass fits, but not a second time beside its graph
            self._give_up_graph(batch, name)
        else:
            self.free_memory()
        return function(batch.load(), *args)

    # --- capturing --------------------------------------------------------------------------------

    def _capture(
        self, key: Any, flat: Callable, inputs: list[Tensor], batch: GraphBatch, name: str
    ) -> None:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        self.capturing = True
        try:
            self._graphs[key] = _Graph(flat, inputs, batch, self._pool)
        except (RuntimeError, NotImplementedError) as error:
            _leave_pool(inputs[0].device, self._pool)
            self._pool = None
            no_memory = isinstance(error, torch.OutOfMemoryError)
            give_up = self._refuse if no_memory else self._retry_without_augmentation
            give_up(batch, name, first_line(error))
        finally:
            self.capturing = False

    def _try(
        self, key: Any, inputs: list[Tensor], batch: GraphBatch, expected: Any, name: str
    ) -> None:
        """Trust a graph if it returns on new inputs what the function returns."""
        wanted = flatten(expected)[0]
        if not all(bool(torch.isfinite(t).all()) for t in wanted if t.is_floating_point()):
            return  # the run is about to end, and such numbers prove nothing
        try:
            same = self._graphs[key].compare(wanted, inputs, batch)
        except torch.OutOfMemoryError:
            same = None
        if same is None:
            self._give_up_graph(batch, name)
        elif not same:
            del self._graphs[key]
            reason = "the replay differs from the step itself"
            self._retry_without_augmentation(batch, name, reason)

    def _give_up_graph(self, batch: GraphBatch, name: str) -> None:
        """Go on without a graph of this pass."""
        self.free_memory()
        self._refuse(batch, name, "there is not enough memory")

    def _retry_without_augmentation(self, batch: GraphBatch, name: str, reason: str) -> None:
        """Try again with the augmentation outside of the graph; refuse the pass after that."""
        if isinstance(batch, LazyBatch) and batch.source.capturable:
            batch.source.capturable = False
        else:
            self._refuse(batch, name, reason)

    def _refuse(self, batch: GraphBatch, name: str, reason: str) -> None:
        self.refused.add(name)
        if isinstance(batch, LazyBatches):
            return  # single steps are captured as before
        warnings.warn(
            f"The {name} of this model cannot be captured as a CUDA graph ({reason}). It runs "
            "without one, which is slower but gives the same numbers.",
            DrossWarning,
            stacklevel=4,
        )


class _Graph:
    """One captured pass."""

    def __init__(self, function: Callable, inputs: list[Tensor], batch: GraphBatch, pool: Any):
        contiguous = torch.contiguous_format
        self.inputs = [t.detach().clone(memory_format=contiguous) for t in inputs]
        self.graph = torch.cuda.CUDAGraph()
        self.trusted = False
        for generator in batch.generators():
            self.graph.register_generator_state(generator)
        batch.seed_augmentation()
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            outputs, self.form = flatten(function(*self.inputs))
            self.outputs = [t.detach() for t in outputs]
        self.copies_in = _by_type(self.inputs)
        self.copies_out = _by_type(self.outputs)

    def compare(self, wanted: list[Tensor], inputs: list[Tensor], batch: GraphBatch) -> bool:
        """Whether a replay returns the expected values; then the graph is trusted."""
        results = flatten(self.replay(inputs, batch))[0]
        self.trusted = all(is_close(*pair, SAME_KERNELS) for pair in zip(results, wanted))
        return self.trusted

    def replay(self, inputs: list[Tensor], batch: GraphBatch) -> Any:
        """The pass on other inputs."""
        with torch.no_grad():
            _copy_by_type(self.copies_in, self.inputs, inputs)
            batch.seed_augmentation()
            self.graph.replay()
            results = [torch.empty_like(t) for t in self.outputs]
            _copy_by_type(self.copies_out, results, self.outputs)
        return unflatten(results, self.form)


def _by_type(tensors: list[Tensor]) -> list[list[int]]:
    """Which of the tensors have the same type."""
    dtypes = dict.fromkeys(t.dtype for t in tensors)
    return [[k for k, t in enumerate(tensors) if t.dtype == dtype] for dtype in dtypes]


def _copy_by_type(groups: list[list[int]], to: list[Tensor], source: list[Tensor]) -> None:
    """Copy with one launch for all tensors of a type."""
    copy: Callable = torch._foreach_copy_  # type: ignore[attr-defined]  # not in the type stubs
    for places in groups:
        copy([to[k] for k in places], [source[k] for k in places])


def _leave_pool(device: torch.device, pool: Any) -> None:
    """Leave the pool in which a failed capture left the allocator.

    torch has no public way to do this.
    """
    torch.cuda.synchronize(device)
    with suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(device.index or 0, pool)  # type: ignore[attr-defined]

"""Passes over a model captured as CUDA graphs.

A small model's step is a hundred kernels of a few microseconds, and launching them from Python takes ten times longer than running
them. A graph launches them all at once. Nobody has to ask for it: the third time that a function meets inputs of the same shapes it is
captured, the fourth time the replay is compared with the function itself, and from then on it is replayed. What cannot be captured
(a model that looks at its values to decide what to do, dropout) runs as before.

A graph reads and writes the memory that it was captured with, so inputs are copied into buffers that never change and results are copied
out; tensors it reads without being given them (frozen weights) are watched, and when one has been replaced the graphs are forgotten.
`DROSS_CUDA_GRAPHS=0` switches all of this off.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode
from torch.utils._pytree import tree_flatten, tree_unflatten

from .batch import AnyBatch, Fed
from .errors import DrossWarning

_WARM_UPS = 2
_MOST = 64  # graphs of one model; shapes beyond these (texts of every length) are not worth their memory


class Graphs:
    """The graphs of one model's passes."""

    def __init__(self):
        self.mode = ""  # "training" or "evaluating": a graph belongs to the mode it was captured in
        self.refused: set[str] = set()  # passes that cannot be captured
        self._seen: dict[Any, int] = {}
        self._graphs: dict[Any, _Graph] = {}
        self._watched: tuple[list[Tensor], list[int]] = ([], [])
        self._pool: Any = None

    @contextmanager
    def within(self, mode: str, constants: Iterable[Tensor]) -> Iterator[None]:
        """Inside, passes may be captured. `constants`: tensors that they read without being given them."""
        held = list(constants)
        places = [t.data_ptr() for t in held]
        if places != self._watched[1]:
            self.forget()
        self._watched = (held, places)  # held, so that their memory is not given to others
        before, self.mode = self.mode, mode
        try:
            yield
        finally:
            self.mode = before

    def forget(self) -> None:
        self._seen, self._graphs = {}, {}

    def run(self, name: str, function: Callable, batch: AnyBatch, *args: Any) -> Any:
        """function(batch, *args), as a graph where that is possible. All tensors that differ from call to call must be arguments."""
        if not self.mode or name in self.refused or not batch.c.is_cuda or _switched_off():
            return function(batch.realized(), *args)
        parts, assemble, kind = batch.disassembled()
        leaves, structure = tree_flatten(args)
        inputs = [*parts, *(leaf for leaf in leaves if isinstance(leaf, Tensor))]
        key = (name, self.mode, kind, str(structure), tuple((t.shape, t.dtype) for t in inputs), _others(leaves))
        if (graph := self._graphs.get(key)) is not None and graph.trusted:
            return graph.replay(inputs, batch)
        expected = function(batch.realized(), *args)
        if graph is not None:
            self._try(key, graph, inputs, batch, expected, name)
        elif len(self._graphs) < _MOST:
            self._seen[key] = self._seen.get(key, 0) + 1
            if self._seen[key] > _WARM_UPS:

                def flat(*tensors: Tensor) -> Any:
                    rest = iter(tensors[len(parts) :])
                    refilled = [next(rest) if isinstance(leaf, Tensor) else leaf for leaf in leaves]
                    return function(assemble(tensors[: len(parts)]), *tree_unflatten(refilled, structure))

                self._capture(key, flat, inputs, batch, name)
        return expected

    def _capture(self, key: Any, flat: Callable, inputs: list[Tensor], batch: AnyBatch, name: str) -> None:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            self._graphs[key] = _Graph(flat, inputs, batch, self._pool)
        except (RuntimeError, NotImplementedError) as error:
            torch.cuda.synchronize()
            self._refuse(key, batch, name, str(error).splitlines()[0] if str(error) else type(error).__name__)

    def _try(self, key: Any, graph: "_Graph", inputs: list[Tensor], batch: AnyBatch, expected: Any, name: str) -> None:
        """A graph is trusted once it has given on new inputs what the function gives."""
        found = tree_flatten(graph.replay(inputs, batch))[0]
        if all(_agree(one, other) for one, other in zip(found, tree_flatten(expected)[0])):
            graph.trusted = True
        else:
            del self._graphs[key]
            self._refuse(key, batch, name, "the replay differs from the step itself")

    def _refuse(self, key: Any, batch: AnyBatch, name: str, reason: str) -> None:
        if isinstance(batch, Fed) and batch.feed.capturable:
            batch.feed.capturable = False  # the fault may lie in the augmentation: try again without it
            return
        self.refused.add(name)
        warnings.warn(
            f"The {name} of this model cannot be captured as a CUDA graph ({reason}). It goes on without one: slower, and the same numbers.",
            DrossWarning,
            stacklevel=4,
        )


class _Graph:
    def __init__(self, function: Callable, inputs: list[Tensor], batch: AnyBatch, pool: Any):
        self.inputs = [t.detach().clone(memory_format=torch.contiguous_format) for t in inputs]
        self.graph, self.trusted = torch.cuda.CUDAGraph(), False
        if isinstance(batch, Fed):
            self.graph.register_generator_state(batch.feed.generator)
        batch.seed_augmentation()
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            outputs, self.structure = tree_flatten(function(*self.inputs))
            self.outputs = [t.detach() for t in outputs]

    def replay(self, inputs: list[Tensor], batch: AnyBatch) -> Any:
        _copy(self.inputs, inputs)
        batch.seed_augmentation()
        self.graph.replay()
        results = [torch.empty_like(t) for t in self.outputs]
        _copy(results, self.outputs)
        return tree_unflatten(results, self.structure)


def _copy(to: list[Tensor], of: list[Tensor]) -> None:
    """One launch for all tensors of a type."""
    for dtype in {t.dtype for t in to}:
        pairs = [(a, b) for a, b in zip(to, of) if a.dtype == dtype]
        torch._foreach_copy_([a for a, _ in pairs], [b.detach() for _, b in pairs])  # type: ignore[attr-defined]


def _agree(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point() or one.numel() == 0:
        return bool(torch.equal(one, other))
    if not bool(torch.isfinite(other).all()):
        return True  # the run is about to end for another reason
    return bool((one - other).abs().max() <= torch.finfo(one.dtype).eps ** 0.75 * other.abs().max())


def _others(leaves: list[Any]) -> tuple:
    """What is no tensor is part of the graph: another value is another graph."""
    return tuple("tensor" if isinstance(leaf, Tensor) else leaf for leaf in leaves)


def _switched_off() -> bool:
    return os.environ.get("DROSS_CUDA_GRAPHS") == "0" or _get_current_dispatch_mode() is not None

"""Passes over a model captured as CUDA graphs.

A small model's step is a hundred kernels of a few microseconds, and launching them from Python takes ten times longer than running
them. A graph launches them all at once. Nobody has to ask for it: the third time that a function meets inputs of the same shapes it is
captured, the fourth time the replay is compared with the function itself, and from then on it is replayed. What cannot be captured
(a model that looks at its values to decide what to do, dropout) runs as before.

A graph holds the memory of its pass for as long as it lives. Where that is missing elsewhere it is given back, and where there is room for the pass but not for
its graph as well, the pass goes on without one. It reads and writes the memory that it was captured with, so inputs are copied into buffers that never change and results are copied
out; tensors it reads without being given them (frozen weights) are watched, and when one has been replaced the graphs are forgotten.
`DROSS_CUDA_GRAPHS=0` switches all of this off. On a CPU the same passes become programs (programs.py).
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import _get_current_dispatch_mode

from ..data.batch import AnyBatch, Batch, LazyBatch, LazyBatches
from ..data.pytree import flattened, unflattened
from ..errors import DrossWarning, first_line
from . import compiled, cpu_program

_WARM_UPS = 2
_MOST = 64  # graphs of one model; shapes beyond these (texts of every length) are not worth their memory
_LARGEST = (
    1 << 28
)  # bytes of a pass's inputs beside its batch: a larger one keeps a GPU busy by itself, and would lie in memory twice


class Graphs:
    """The graphs of one model's passes."""

    def __init__(self):
        self.mode = ""  # "training" or "evaluating": a graph belongs to the mode it was captured in
        self.refused: set[str] = set()  # passes that cannot be captured
        self.uncompiled: set[str] = set()  # passes that torch.compile failed on
        self.usual: int | None = (
            None  # the size of a run's batches: an odd one is not worth the compiler's time
        )
        self._seen: dict[Any, int] = {}
        self._graphs: dict[Any, _Graph] = {}
        self._watched: tuple[list[Tensor], list[int]] = ([], [])
        self._pool: Any = None
        self._quick: dict[
            Any, Callable
        ] = {}  # compiled passes, which several steps captured together are made of
        self.capturing = False
        self._programs = cpu_program.Programs()  # what there is instead of graphs on a CPU

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
        self._seen, self._graphs, self._pool, self._quick, self._programs = (
            {},
            {},
            None,
            {},
            cpu_program.Programs(),
        )

    def give_back(self) -> bool:
        """The memory of all graphs, after something did not fit; passes are captured anew. False: there was none."""
        held = bool(self._graphs)
        self._seen, self._graphs, self._pool = {}, {}, None
        if torch.cuda.is_initialized():
            torch.cuda.empty_cache()
        return held

    def available(self, name: str, tensor: Tensor) -> bool:
        """Whether this pass, over tensors where this one is, would be captured."""
        return (
            bool(self.mode) and name not in self.refused and tensor.is_cuda and not _switched_off()
        )

    def _writable(self, batch: Batch) -> bool:
        """Whether a pass over this batch may become a program."""
        on_cpu = batch.c.device.type == "cpu"
        return (
            on_cpu
            and bool(self.mode)
            and not cpu_program.switched_off()
            and _get_current_dispatch_mode() is None
        )

    def run(self, name: str, function: Callable, batch: AnyBatch | LazyBatches, *args: Any) -> Any:
        """function(batch, *args), as a graph where that is possible. All tensors that differ from call to call must be arguments."""
        if not self.available(name, batch.c):
            if self._graphs:
                return self._beside_graphs(None, name, function, batch, args)
            at_hand = batch.realized()
            if isinstance(at_hand, Batch) and self._writable(at_hand):
                return self._programs.run((name, self.mode), function, at_hand, args)
            return function(at_hand, *args)
        if self.capturing:  # one of several steps that are captured together
            return self._quick.get(self._form(name, batch, args), function)(batch, *args)
        parts, assemble, kind = batch.disassembled()
        given, form = flattened(args)
        if sum(t.nbytes for t in given) > _LARGEST:
            return self._beside_graphs(None, name, function, batch, args)
        inputs = [*parts, *given]
        key = (name, self.mode, kind, form, *[(t.shape, t.dtype) for t in inputs])
        if key in self._graphs and self._graphs[key].trusted:
            return self._graphs[key].replay(inputs, batch)
        expected = self._beside_graphs(key, name, function, batch, args)
        if key in self._graphs:
            self._try(key, inputs, batch, expected, name)
        elif len(self._graphs) < _MOST:
            self._seen[key] = self._seen.get(key, 0) + 1
            quick = function
            # several steps are made of compiled ones already
            if (
                compiled.asked_for()
                and not isinstance(batch, LazyBatches)
                and self.usual in (None, len(batch.c))
            ):
                quick = self._compiled(name, function, batch, args)
            if quick is not function or self._seen[key] > _WARM_UPS:
                flat = lambda *tensors: quick(
                    assemble(tensors[: len(parts)]), *unflattened(tensors[len(parts) :], form)
                )
                self._capture(key, flat, inputs, batch, name)
            if quick is not function and key in self._graphs:
                # other kernels round otherwise: a run is compiled from its first step to its last, so that a replay arrives where it did
                self._graphs[key].close_enough = _about
                if self._try(key, inputs, batch, expected, name):
                    return self._graphs[key].replay(inputs, batch)
        return expected

    def _beside_graphs(
        self, key: Any, name: str, function: Callable, batch: AnyBatch | LazyBatches, args: tuple
    ) -> Any:
        """function(batch, *args), for which graphs have to make room if there is none. key: of its own graph, if it may have one."""
        own = key in self._graphs
        try:
            return function(batch.realized(), *args)
        except torch.OutOfMemoryError:
            if not self._graphs or self.capturing:
                raise
        # here, where the error and what it holds are gone
        if own:  # the pass fits, and not a second time beside its graph
            self._do_without(batch, name)
        else:
            self.give_back()
        return function(batch.realized(), *args)

    def _do_without(self, batch: AnyBatch | LazyBatches, name: str) -> None:
        self.give_back()
        self._refuse(batch, name, "there is no memory for it")

    def _compiled(self, name: str, function: Callable, batch: AnyBatch, args: tuple) -> Callable:
        """The function after torch's compiler, if that succeeds and gives what the function gives."""
        if name in self.uncompiled:
            return function
        if (made := self._quick.get(self._form(name, batch.realized(), args))) is not None:
            return made
        given, form = flattened(args)
        leaves, assemble, _ = batch.realized().disassembled()
        count = len(leaves)
        flat = lambda *tensors: function(
            assemble(tensors[:count]), *unflattened(tensors[count:], form)
        )
        try:
            quick = compiled.compiled(flat, [*leaves, *given])
            pairs = zip(flattened(quick(*leaves, *given))[0], flattened(flat(*leaves, *given))[0])
            if all(_about(one, other) for one, other in pairs):
                made = lambda batch, *args: quick(*batch.disassembled()[0], *flattened(args)[0])
                self._quick[self._form(name, batch.realized(), args)] = made
                return made
            reason = "it gives other numbers"
        except Exception as error:  # the compiler's own errors are of many kinds
            reason = first_line(error)
        self.uncompiled.add(name)
        warnings.warn(
            f"The {name} of this model goes on without torch.compile: {reason}.",
            DrossWarning,
            stacklevel=4,
        )
        return function

    def _form(self, name: str, batch: AnyBatch | LazyBatches, args: tuple) -> tuple:
        given, form = flattened(args)
        return (
            name,
            self.mode,
            form,
            *[(t.shape, t.dtype) for t in [*batch.disassembled()[0], *given]],
        )

    def _capture(
        self,
        key: Any,
        flat: Callable,
        inputs: list[Tensor],
        batch: AnyBatch | LazyBatches,
        name: str,
    ) -> None:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        self.capturing = True
        try:
            self._graphs[key] = _Graph(flat, inputs, batch, self._pool)
        except (RuntimeError, NotImplementedError) as error:
            _leave_pool(inputs[0].device, self._pool)
            self._pool = None
            blame = self._refuse if isinstance(error, torch.OutOfMemoryError) else self._suspect
            blame(batch, name, first_line(error))
        finally:
            self.capturing = False

    def _try(
        self,
        key: Any,
        inputs: list[Tensor],
        batch: AnyBatch | LazyBatches,
        expected: Any,
        name: str,
    ) -> bool:
        """A graph is trusted once it has given on new inputs what the function gives."""
        wanted = flattened(expected)[0]
        if not all(bool(torch.isfinite(t).all()) for t in wanted if t.is_floating_point()):
            return False  # the run is about to end for another reason; this call proves nothing
        try:
            same = self._graphs[key].gives(wanted, inputs, batch)
        except torch.OutOfMemoryError:
            same = None
        if same is None:
            self._do_without(batch, name)
        elif not same:
            del self._graphs[key]
            self._suspect(batch, name, "the replay differs from the step itself")
        return bool(same)

    def _suspect(self, batch: AnyBatch | LazyBatches, name: str, reason: str) -> None:
        if isinstance(batch, LazyBatch) and batch.feed.capturable:
            batch.feed.capturable = (
                False  # the fault may lie in the augmentation: try again without it
            )
        else:
            self._refuse(batch, name, reason)

    def _refuse(self, batch: AnyBatch | LazyBatches, name: str, reason: str) -> None:
        self.refused.add(name)
        if isinstance(batch, LazyBatches):
            return  # each step for itself is captured as before
        warnings.warn(
            f"The {name} of this model cannot be captured as a CUDA graph ({reason}). It goes on without one: slower, and the same numbers.",
            DrossWarning,
            stacklevel=4,
        )


class _Graph:
    def __init__(
        self, function: Callable, inputs: list[Tensor], batch: AnyBatch | LazyBatches, pool: Any
    ):
        self.inputs = [t.detach().clone(memory_format=torch.contiguous_format) for t in inputs]
        self.graph, self.trusted = torch.cuda.CUDAGraph(), False
        self.close_enough: Callable[[Tensor, Tensor], bool] = _agree
        for generator in batch.generators():
            self.graph.register_generator_state(generator)
        batch.seed_augmentation()
        with torch.cuda.graph(self.graph, pool=pool, capture_error_mode="thread_local"):
            outputs, self.form = flattened(function(*self.inputs))
            self.outputs = [t.detach() for t in outputs]
        self.copies_in, self.copies_out = _by_type(self.inputs), _by_type(self.outputs)

    def gives(
        self, wanted: list[Tensor], inputs: list[Tensor], batch: AnyBatch | LazyBatches
    ) -> bool:
        found = flattened(self.replay(inputs, batch))[0]
        self.trusted = all(self.close_enough(one, other) for one, other in zip(found, wanted))
        return self.trusted

    def replay(self, inputs: list[Tensor], batch: AnyBatch | LazyBatches) -> Any:
        with torch.no_grad():
            for places in self.copies_in:  # one launch for all tensors of a type
                torch._foreach_copy_([self.inputs[k] for k in places], [inputs[k] for k in places])  # type: ignore[attr-defined]
            batch.seed_augmentation()
            self.graph.replay()
            results = [torch.empty_like(t) for t in self.outputs]
            for places in self.copies_out:
                torch._foreach_copy_(
                    [results[k] for k in places], [self.outputs[k] for k in places]
                )  # type: ignore[attr-defined]
        return unflattened(results, self.form)


def _by_type(tensors: list[Tensor]) -> list[list[int]]:
    return [
        [k for k, t in enumerate(tensors) if t.dtype == dtype]
        for dtype in dict.fromkeys(t.dtype for t in tensors)
    ]


def _agree(one: Tensor, other: Tensor) -> bool:
    if not one.is_floating_point() or one.numel() == 0:
        return bool(torch.equal(one, other))
    return bool((one - other).abs().max() <= torch.finfo(one.dtype).eps ** 0.75 * other.abs().max())


def _about(one: Tensor, other: Tensor) -> bool:
    """Two right float32 programs differ where a ReLU has its kink; a wrong one is off by far more."""
    if not one.is_floating_point() or one.numel() == 0:
        return bool(torch.equal(one, other))
    return bool((one - other).norm() <= 30 * torch.finfo(one.dtype).eps ** 0.5 * other.norm())


def _leave_pool(device: torch.device, pool: Any) -> None:
    """A capture that fails leaves the allocator in its pool; torch offers no public way out of it."""
    torch.cuda.synchronize(device)
    with suppress(RuntimeError, AttributeError):
        torch._C._cuda_endAllocateToPool(device.index or 0, pool)  # type: ignore[attr-defined]


def _switched_off() -> bool:
    return os.environ.get("DROSS_CUDA_GRAPHS") == "0" or _get_current_dispatch_mode() is not None

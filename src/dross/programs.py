"""Passes over a model written down as straight programs, for the CPU.

A pass over a small model spends more time in the layers between Python and the arithmetic (autograd, torch.func, modules) than in the arithmetic.
The operations that they end in are always the same ones, so the third hundred of calls is worth a look at what they are: they are traced once,
in their order, and from then on called directly. The results are the same to the last bit, which is checked on other inputs before a program
is trusted. A model that looks at its values to decide what to do cannot be written down; it runs as before.
`DROSS_PROGRAMS=0` switches this off.
"""

import os
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch._ops import OpOverload
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from .batch import Batch
from .flat import flattened, unflattened

_WORTH = 200  # calls: tracing takes as long as it saves on about as many
_MOST = 64  # programs of one model
_aten = torch.ops.aten


class Programs:
    """The programs of one model's passes."""

    def __init__(self):
        self._calls: dict[Any, int] = {}
        self._written: dict[Any, _Program | None] = {}  # None: it cannot be written down

    def run(self, kind: tuple, function: Callable, batch: Batch, args: tuple) -> Any:
        """function(batch, *args). kind: what tells this pass from others, beside the shapes of its inputs."""
        parts, assemble, structure = batch.disassembled()
        if not all(isinstance(part, Tensor) for part in parts):
            return function(batch, *args)
        given, form = flattened(args)
        inputs = [*parts, *given]
        key = (kind, structure, form, *[(t.shape, t.stride(), t.dtype) for t in inputs])
        program = self._written.get(key)
        if program is not None and program.trusted:
            try:
                return program(inputs)
            except (RuntimeError, IndexError):
                return function(batch, *args)  # which says better what is wrong
        expected = function(batch, *args)
        if program is not None:
            self._written[key] = program if program.gives(expected, inputs) else None
        elif key not in self._written and len(self._written) < _MOST:
            self._calls[key] = self._calls.get(key, 0) + 1
            if self._calls[key] >= _WORTH:
                flat = lambda *tensors: function(assemble(tensors[: len(parts)]), *unflattened(tensors[len(parts) :], form))
                self._written[key] = _written_down(flat, inputs)
        return expected


def switched_off() -> bool:
    return os.environ.get("DROSS_PROGRAMS") == "0"


class _Program:
    def __init__(self, steps: Callable[..., list[Tensor]], form: tuple):
        self.steps, self.form, self.trusted = steps, form, False

    def __call__(self, inputs: list[Tensor]) -> tuple:
        with torch.no_grad():
            return unflattened(self.steps(*inputs), self.form)

    def gives(self, expected: Any, inputs: list[Tensor]) -> bool:
        """Whether it gives the same bits on these inputs. What is not finite proves nothing."""
        wanted, form = flattened(expected)
        if not all(bool(torch.isfinite(t).all()) for t in wanted):
            return True
        try:
            found, own = flattened(self(inputs))
        except (RuntimeError, IndexError):
            return False
        self.trusted = own == form and all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        return self.trusted


def _written_down(function: Callable, inputs: list[Tensor]) -> _Program | None:
    form: tuple = ()

    def flat(*tensors: Tensor) -> list[Tensor]:
        nonlocal form
        found, form = flattened(function(*tensors))
        return found

    try:
        with _NoPeeking():
            traced = make_fx(flat)(*inputs)
        _shorten(traced, inputs)
    except (RuntimeError, NotImplementedError, TypeError, ValueError):  # whatever a model does that cannot be traced
        return None
    return _Program(traced.forward, form)


class _NoPeeking(TorchFunctionMode):
    """Inside, Python may not look into a tensor: what it sees there would be written down for good."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in _PEEKS:
            raise RuntimeError(f"{func.__name__} looks at a value")
        return func(*args, **(kwargs or {}))


_PEEKS = {
    "item", "tolist", "numpy", "__array__", "__bool__", "__int__", "__float__", "__index__", "__complex__", "is_nonzero",
    "equal", "allclose", "data_ptr", "untyped_storage", "__dlpack__",
}  # fmt: skip


# --- shorter programs that do the same ---------------------------------------------------------------------------------------------------


def _shorten(traced: fx.GraphModule, inputs: list[Tensor]) -> None:
    """Leave out what only passes a tensor on, and call torch's functions where they do what the traced operator does: they are quicker to call."""
    with torch.no_grad():
        seen = _Look(traced)
        seen.run(*inputs)
    for node in traced.graph.nodes:
        if node.op != "call_function":
            continue
        if (same := _passed_on(node, seen.layouts)) is not None:
            node.replace_all_uses_with(same)
        else:
            node.target = seen.quicker.get(node, node.target)
    traced.graph.eliminate_dead_code()
    traced.recompile()


def _passed_on(node: fx.Node, layouts: dict[fx.Node, tuple]) -> fx.Node | None:
    """The tensor that a node gives as it got it."""
    source = node.args[0] if node.args and isinstance(node.args[0], fx.Node) else None
    if source is None:
        return None
    if node.target in (_aten.detach.default, _aten.alias.default):
        return source
    if node.target is _aten.t.default and source.meta.get("transposed") is not None:
        return source.meta["transposed"]
    if node.target is _aten.t.default:
        node.meta["transposed"] = source
    if node.target is _aten.view.default and layouts[node] == layouts.get(source):
        return source
    return None


class _Look(fx.Interpreter):
    """Runs a program once, to see how its tensors lie in memory and which operators have a quicker name."""

    def __init__(self, traced: fx.GraphModule):
        super().__init__(traced)
        self.layouts: dict[fx.Node, tuple] = {}
        self.quicker: dict[fx.Node, Callable] = {}

    def run_node(self, n: fx.Node) -> Any:
        args, kwargs = self.fetch_args_kwargs_from_env(n)
        if isinstance(n.target, OpOverload) and _hangs_on_values(n.target, args):
            raise RuntimeError(f"{n.target} gives another shape, or another value, each time")
        result = super().run_node(n)
        if isinstance(result, Tensor):
            self.layouts[n] = (result.shape, result.stride())
        if isinstance(n.target, OpOverload) and not n.target._schema.is_mutable:
            name = n.target._schema.name.removeprefix("aten::").replace("_unsafe_view", "view")
            places = (torch.Tensor, torch, torch._C._nn)  # type: ignore[attr-defined]
            found = (getattr(place, name) for place in places if hasattr(place, name))
            quick = next((function for function in found if _does_the_same(function, args, kwargs, result)), None)
            if quick is not None:
                self.quicker[n] = quick
        return result


def _hangs_on_values(operator: OpOverload, args: tuple) -> bool:
    """Whether the shape of what it gives is not known beforehand, or it draws random numbers."""
    if operator is _aten.index.Tensor:  # by numbers it is a plain lookup
        return any(index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1])
    return bool(
        {torch.Tag.dynamic_output_shape, torch.Tag.data_dependent_output, torch.Tag.nondeterministic_seeded} & set(operator.tags)
    )


def _does_the_same(function: Callable, args: tuple, kwargs: dict, result: Any) -> bool:
    try:
        found = function(*args, **kwargs)
    except (TypeError, RuntimeError, ValueError):
        return False
    pairs = (
        [(found, result)] if isinstance(result, Tensor) else list(zip(found, result)) if isinstance(found, (tuple, list)) else []
    )
    return bool(pairs) and all(
        isinstance(a, Tensor) and a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b) for a, b in pairs
    )

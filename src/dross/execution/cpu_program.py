"""Passes over a model written down as straight programs, for the CPU.

A pass over a small model spends more time in the layers between Python and the arithmetic (autograd, torch.func, modules) than in the arithmetic.
The operations that they end in are the same ones every time, so they are noted down once, in their order, and from then on called directly. The results
are the same to the last bit, which is checked on other inputs before a program is trusted. A model that looks at its values to decide what to do
cannot be written down; it runs as before. `DROSS_PROGRAMS=0` switches this off.
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from ..data.batch import Batch
from ..data.pytree import flatten, unflatten

_CALLS_WORTH_IT = 16  # calls: writing a pass down takes as long as it saves on about as many
_MAX_PROGRAMS = 64  # programs of one model
_SMALL = 1 << 16  # numbers: what takes longer to compute than to call need not be called quicker
_WIDE = 16  # channels
_aten = torch.ops.aten


class Programs:
    """The programs of one model's passes."""

    def __init__(self):
        self._calls: dict[Any, int] = {}
        self._written: dict[Any, _Program | None] = {}  # None: it cannot be written down

    def forget(self) -> None:
        """Write everything down anew."""
        self._calls, self._written = {}, {}

    def are_available(self, tensor: Tensor) -> bool:
        """Whether a pass over tensors where this one is may become a program."""
        return tensor.device.type == "cpu" and os.environ.get("DROSS_PROGRAMS") != "0"

    def run(self, kind: tuple, function: Callable, batch: Batch, args: tuple) -> Any:
        """function(batch, *args), as a program where that is possible.

        kind: what tells this pass from others, beside the shapes of its inputs.
        """
        parts, build, structure = batch.to_tensors()
        if not all(isinstance(part, Tensor) for part in parts):
            return function(batch, *args)
        given, form = flatten(args)
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
            self._written[key] = program if program.compare(expected, inputs) else None
        elif key not in self._written and len(self._written) < _MAX_PROGRAMS:
            self._calls[key] = self._calls.get(key, 0) + 1
            if self._calls[key] >= _CALLS_WORTH_IT:
                count = len(parts)
                flat = lambda *t: function(build(t[:count]), *unflatten(t[count:], form))
                self._written[key] = _write_down(flat, inputs)
        return expected


class _Program:
    def __init__(self, steps: Callable[..., list[Tensor]], form: tuple):
        self.steps, self.form, self.trusted = steps, form, False

    def __call__(self, inputs: list[Tensor]) -> tuple:
        with torch.no_grad():
            return unflatten(self.steps(*inputs), self.form)

    def compare(self, expected: Any, inputs: list[Tensor]) -> bool:
        """Whether it gives the same bits on these inputs. What is not finite proves nothing."""
        wanted, form = flatten(expected)
        if not all(bool(torch.isfinite(t).all()) for t in wanted):
            return True
        try:
            found, own = flatten(self(inputs))
        except (RuntimeError, IndexError):
            return False
        self.trusted = own == form and all(
            torch.equal(a, b) for a, b in zip(found, wanted, strict=True)
        )
        return self.trusted


def _write_down(function: Callable, inputs: list[Tensor]) -> _Program | None:
    notes = _Notes(inputs)
    try:
        with _NoPeeking(), notes:
            outputs, form = flatten(function(*inputs))
        names = [notes.names[id(t)] for t in outputs]
        notes.quicken(inputs)
        return _Program(notes.as_function(names), form)
    except (
        RuntimeError,
        TypeError,
        ValueError,
        KeyError,
    ):  # whatever a model does that cannot be written down
        return None


class _NoPeeking(TorchFunctionMode):
    """Inside, Python may not look into a tensor: what it sees there would be written down for good."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in _PEEKS:
            raise RuntimeError(f"{func.__name__} looks at a value")
        return func(*args, **(kwargs or {}))


_PEEKS = {
    "item",
    "tolist",
    "numpy",
    "__array__",
    "__bool__",
    "__int__",
    "__float__",
    "__index__",
    "__complex__",
    "is_nonzero",
    "equal",
    "allclose",
    "data_ptr",
    "untyped_storage",
    "__dlpack__",
}


@dataclass
class _Line:
    results: list[str]
    unpacked: bool  # the function returns several tensors
    function: str
    given: str  # its arguments
    uses: set[str]
    needed: bool  # whatever becomes of its results: it writes into a tensor


class _Notes(TorchDispatchMode):
    """Notes down every operation, below autograd and torch.func, as a line of Python."""

    def __init__(self, inputs: Sequence[Tensor]):
        super().__init__()
        self.inputs = [f"a{k}" for k in range(len(inputs))]
        self.names = {id(t): name for t, name in zip(inputs, self.inputs)}
        self.lines: list[_Line] = []
        self.known: dict[str, Any] = {}  # functions and constants by their names
        self.held: list[Any] = list(inputs)  # so that no two tensors have the same id
        self.transposed: dict[str, str] = {}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _hangs_on_values(func, args):
            raise RuntimeError(f"{func} gives another shape, or another value, each time")
        result = func(*args, **kwargs)
        self.held.append(result)
        if (same := self._passed_on(func, args, result)) is not None:
            self.names[id(result)] = same
            return result
        uses: set[str] = set()
        given = [self._written(arg, uses) for arg in args]
        given += [f"{key}={self._written(value, uses)}" for key, value in kwargs.items()]
        several = isinstance(result, (tuple, list))
        results = [self._named(t) for t in (result if several else [result])]
        self.lines.append(
            _Line(
                results,
                several,
                self._known("f", func),
                ", ".join(given),
                uses,
                func._schema.is_mutable,
            )
        )
        if func is _aten.t.default:
            self.transposed[results[0]] = given[0]
        return result

    def _passed_on(self, func: OpOverload, args: tuple, result: Any) -> str | None:
        """The name of the tensor that an operation gives as it got it."""
        source = self.names.get(id(args[0])) if args else None
        if source is None:
            return None
        if func in (_aten.detach.default, _aten.alias.default):
            return source
        if func is _aten.t.default:
            return self.transposed.get(source)
        if func is _aten.view.default and (args[0].shape, args[0].stride()) == (
            result.shape,
            result.stride(),
        ):
            return source
        return None

    def _named(self, t: Any) -> str:
        """A new name; an operation that writes into a tensor returns that one."""
        if id(t) not in self.names:
            self.names[id(t)] = f"v{len(self.names)}"
        return self.names[id(t)]

    def _written(self, value: Any, uses: set[str]) -> str:
        if isinstance(value, Tensor):
            name = self.names.get(id(value)) or self._known(
                "c", value
            )  # frozen weights are read where they are
            uses.add(name)
            return name
        if isinstance(value, (list, tuple)):
            inside = "".join(f"{self._written(one, uses)}, " for one in value)
            return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
        return (
            repr(value)
            if value is None or isinstance(value, (bool, int))
            else self._known("c", value)
        )

    def _known(self, kind: str, value: Any) -> str:
        self.held.append(value)
        name = f"{kind}{len(self.known)}"
        self.known[name] = value
        if isinstance(value, Tensor):
            self.names[id(value)] = name
        return name

    def quicken(self, inputs: Sequence[Tensor]) -> None:
        """Run the lines once more, by themselves, to find for each operator torch's own function of the same name: it takes half as long to call."""
        values = {
            **self.known,
            **dict(zip(self.inputs, inputs)),
            "arguments": lambda *args, **kwargs: (args, kwargs),
        }
        with torch.no_grad():
            for line in self.lines:
                operator = self.known[line.function]
                args, kwargs = eval(f"arguments({line.given})", values)
                result = operator(*args, **kwargs)
                if not line.needed:
                    self.known[line.function] = _quicker(operator, args, kwargs, result)
                values.update(zip(line.results, result if line.unpacked else [result]))

    def as_function(self, outputs: list[str]) -> Callable[..., list[Tensor]]:
        """The lines that lead to these results; each tensor is let go of after its last use."""
        wanted, kept = set(outputs), []
        for line in reversed(self.lines):
            if line.needed or wanted & set(line.results):
                gone = [name for name in {*line.uses, *line.results} - wanted if name[0] in "av"]
                kept.append((line, sorted(gone)))
                wanted |= line.uses
        text = [f"def program({', '.join(self.inputs)}):"]
        for line, gone in reversed(kept):
            text.append(
                f"    {', '.join(line.results)}{',' if line.unpacked else ''} = {line.function}({line.given})"
            )
            text += [f"    del {', '.join(gone)}"] if gone else []
        text.append(f"    return [{', '.join(outputs)}]")
        made: dict[str, Any] = dict(self.known)
        exec("\n".join(text), made)
        return made["program"]


def _hangs_on_values(operator: OpOverload, args: tuple) -> bool:
    """Whether the shape of what it gives is not known beforehand, or it draws random numbers."""
    if operator is _aten.index.Tensor:  # by numbers it is a plain lookup
        return any(
            index is not None and index.dtype in (torch.bool, torch.uint8) for index in args[1]
        )
    return bool(_UNFORESEEABLE & set(operator.tags))


_UNFORESEEABLE = {
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
    torch.Tag.nondeterministic_seeded,
}


def _quicker(operator: OpOverload, args: tuple, kwargs: dict, result: Any) -> Callable:
    """What does the same and takes less time: pooling in another order, or else torch's own function of the same name."""
    if (
        operator is _aten.max_pool2d_with_indices.default
        and args[0].dim() == 4
        and args[0].is_contiguous()
        and args[0].shape[1] >= _WIDE
    ):
        return _pooled
    name = operator._schema.name.removeprefix("aten::").replace("_unsafe_view", "view")
    if (
        isinstance(result, Tensor) and result.numel() <= _SMALL and not result._is_zerotensor()
    ):  # which have no memory to look into
        for place in (torch.Tensor, torch, torch._C._nn):  # type: ignore[attr-defined]
            if hasattr(place, name) and _does_the_same(getattr(place, name), args, kwargs, result):
                return getattr(place, name)
    return operator


def _pooled(x: Tensor, *how: Any, **more: Any) -> tuple[Tensor, Tensor]:
    """Max pooling with the channels last, where a processor takes many at a time: the same numbers in half of the time, to and fro included."""
    out, places = _aten.max_pool2d_with_indices.default(
        x.contiguous(memory_format=torch.channels_last), *how, **more
    )
    plain = torch.contiguous_format
    return out.clone(memory_format=plain), places.clone(
        memory_format=plain
    )  # t.contiguous() leaves single pixels as they are


def _does_the_same(function: Callable, args: tuple, kwargs: dict, result: Tensor) -> bool:
    try:
        found = function(*args, **kwargs)
        same = (
            isinstance(found, Tensor)
            and found.dtype == result.dtype
            and found.stride() == result.stride()
        )
        return same and torch.equal(found, result)
    except (
        TypeError,
        RuntimeError,
        ValueError,
    ):  # it takes other arguments, or tensors of this kind cannot be compared
        return False

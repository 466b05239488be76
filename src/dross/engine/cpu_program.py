"""Passes over a model written down as straight programs, for the CPU.

A pass over a small model spends more time in the layers between Python and the arithmetic
(autograd, torch.func, modules) than in the arithmetic. These layers end in the same operations
every time. So the operations are written down once, in order, and called directly from then on. The
results are the same to the last bit, which is checked on other inputs before a program is trusted.
A model that looks at its values to decide what to do cannot be written down and runs as before.

torch's make_fx writes down the same operations. Its graphs, with the same quick functions, took 6 to
30 % longer to run and 10 to 25 times longer to write (training and reverse steps of three small
networks, torch 2.13 on one thread: 66 instead of 51 us, 69 instead of 3 ms for the smallest).
"""

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

_CALLS_BEFORE_WRITING = 16  # writing a pass down takes as long as this many calls save
_MAX_PROGRAMS = 64  # of one model
_MAX_NUMBERS_OF_SMALL_RESULT = 1 << 16  # beyond, the time of the call itself does not matter
_MIN_CHANNELS_FOR_CHANNELS_LAST = 16
_aten = torch.ops.aten


class Programs:
    """The programs of one model's passes."""

    def __init__(self):
        self._calls: dict[Any, int] = {}
        self._written: dict[Any, _Program | None] = {}  # None: it cannot be written down

    def forget(self) -> None:
        """Drop all programs; passes are written down again."""
        self._calls = {}
        self._written = {}

    def run(self, kind: tuple, function: Callable, batch: Batch, args: tuple) -> Any:
        """function(batch, *args), as a program where that is possible.

        Arguments:
            kind: identifies the pass, together with the shapes of its inputs.
            function: the pass.
            batch, args: its arguments.
        """
        parts, build, structure = batch.to_tensors()
        if not all(isinstance(part, Tensor) for part in parts):
            return function(batch, *args)
        tensors, form = flatten(args)
        inputs = [*parts, *tensors]
        key = (kind, structure, form, *[(t.shape, t.stride(), t.dtype) for t in inputs])
        program = self._written.get(key)
        if program is not None and program.trusted:
            try:
                return program(inputs)
            except (RuntimeError, IndexError):
                return function(batch, *args)  # its own error message is clearer
        expected = function(batch, *args)
        if program is not None:
            self._written[key] = program if program.compare(expected, inputs) else None
        elif key not in self._written and len(self._written) < _MAX_PROGRAMS:
            self._calls[key] = self._calls.get(key, 0) + 1
            if self._calls[key] >= _CALLS_BEFORE_WRITING:
                count = len(parts)
                flat = lambda *t: function(build(t[:count]), *unflatten(t[count:], form))
                self._written[key] = _write_down(flat, inputs)
        return expected


class _Program:
    """A pass as straight code. Trusted once it has returned the same bits on other inputs."""

    def __init__(self, steps: Callable[..., list[Tensor]], form: tuple):
        self.steps = steps
        self.form = form
        self.trusted = False

    def __call__(self, inputs: list[Tensor]) -> tuple:
        with torch.no_grad():
            return unflatten(self.steps(*inputs), self.form)

    def compare(self, expected: Any, inputs: list[Tensor]) -> bool:
        """Whether the program may be kept: it returns the same bits on these inputs.

        Results that are not finite prove nothing: it is kept, and not yet trusted.
        """
        wanted, form = flatten(expected)
        if not all(bool(torch.isfinite(t).all()) for t in wanted):
            return True
        try:
            results, results_form = flatten(self(inputs))
        except (RuntimeError, IndexError):
            return False
        self.trusted = results_form == form and all(map(torch.equal, results, wanted))
        return self.trusted


def _write_down(function: Callable, inputs: list[Tensor]) -> _Program | None:
    """The program of a pass, or None if it cannot be written down."""
    notes = _Notes(inputs)
    try:
        with _NoPeeking(), notes:
            outputs, form = flatten(function(*inputs))
        names = [notes.names[id(t)] for t in outputs]
        notes.replace_slow_operators(inputs)
        return _Program(notes.as_function(names), form)
    except (RuntimeError, TypeError, ValueError, KeyError):  # a model may do anything
        return None


# the names under which Python looks into a tensor
_PEEKS = {"item", "tolist", "numpy", "is_nonzero", "equal", "allclose", "data_ptr"}
_PEEKS |= {"untyped_storage", "__array__", "__dlpack__"}
_PEEKS |= {"__bool__", "__int__", "__float__", "__index__", "__complex__"}


class _NoPeeking(TorchFunctionMode):
    """Inside, Python may not look into a tensor: a program would keep the value that it sees."""

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if getattr(func, "__name__", "") in _PEEKS:
            raise RuntimeError(f"{func.__name__} reads the value of a tensor")
        return func(*args, **(kwargs or {}))


@dataclass
class _Line:
    """One operation: `results = function(arguments)`. Everything is known by its name."""

    results: list[str]
    unpacked: bool  # the function returns several tensors
    function: str
    arguments: str
    uses: set[str]  # the tensors among the arguments
    mutates: bool  # it writes into a tensor, so it is needed even if its results are not used

    def __str__(self) -> str:
        comma = "," if self.unpacked else ""
        return f"{', '.join(self.results)}{comma} = {self.function}({self.arguments})"


class _Notes(TorchDispatchMode):
    """Notes down every operation, below autograd and torch.func, as a line of Python."""

    def __init__(self, inputs: Sequence[Tensor]):
        super().__init__()
        self.inputs = [f"a{k}" for k in range(len(inputs))]
        self.names = {id(t): name for t, name in zip(inputs, self.inputs)}
        self.lines: list[_Line] = []
        self.known: dict[str, Any] = {}  # functions and constants by their names
        self.held: list[Any] = list(inputs)  # keeps tensors alive, so that no id is used twice
        self.transposed: dict[str, str] = {}  # of which tensor each one is the transpose

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if _is_unpredictable(func, args):
            raise RuntimeError(f"{func} returns a different shape or value each time")
        result = func(*args, **kwargs)
        self.held.append(result)
        if (same := self._unchanged_input(func, args, result)) is not None:
            self.names[id(result)] = same
            return result
        uses: set[str] = set()
        arguments = [self._as_text(arg, uses) for arg in args]
        arguments += [f"{key}={self._as_text(value, uses)}" for key, value in kwargs.items()]
        several = isinstance(result, (tuple, list))
        results = [self._name_result(t) for t in (result if several else [result])]
        line = _Line(
            results,
            unpacked=several,
            function=self._name_constant("f", func),
            arguments=", ".join(arguments),
            uses=uses,
            mutates=func._schema.is_mutable,
        )
        self.lines.append(line)
        if func is _aten.t.default:
            self.transposed[results[0]] = arguments[0]
        return result

    def _unchanged_input(self, func: OpOverload, args: tuple, result: Any) -> str | None:
        """The name of the tensor that an operation returns just as it got it, if it does."""
        source = self.names.get(id(args[0])) if args else None
        if source is None:
            return None
        if func in (_aten.detach.default, _aten.alias.default):
            return source
        if func is _aten.t.default:
            return self.transposed.get(source)
        if func is _aten.view.default:
            before = args[0]
            same = before.shape == result.shape and before.stride() == result.stride()
            return source if same else None
        return None

    def _name_result(self, t: Any) -> str:
        """A new name. An operation that writes into a tensor returns that one, which has a name."""
        if id(t) not in self.names:
            self.names[id(t)] = f"v{len(self.names)}"
        return self.names[id(t)]

    def _as_text(self, value: Any, uses: set[str]) -> str:
        if isinstance(value, Tensor):
            # a tensor without a name is a frozen weight, which is read where it is
            name = self.names.get(id(value)) or self._name_constant("c", value)
            uses.add(name)
            return name
        if isinstance(value, (list, tuple)):
            inside = "".join(f"{self._as_text(one, uses)}, " for one in value)
            return f"({inside})" if isinstance(value, tuple) else f"[{inside}]"
        if value is None or isinstance(value, (bool, int)):
            return repr(value)
        return self._name_constant("c", value)

    def _name_constant(self, kind: str, value: Any) -> str:
        self.held.append(value)
        name = f"{kind}{len(self.known)}"
        self.known[name] = value
        if isinstance(value, Tensor):
            self.names[id(value)] = name
        return name

    def replace_slow_operators(self, inputs: Sequence[Tensor]) -> None:
        """Replace operators by functions that take less time to call.

        The lines are run once more, to try the functions on their arguments.
        """
        values = {**self.known, **dict(zip(self.inputs, inputs))}
        values["arguments"] = lambda *args, **kwargs: (args, kwargs)
        with torch.no_grad():
            for line in self.lines:
                operator = self.known[line.function]
                args, kwargs = eval(f"arguments({line.arguments})", values)
                result = operator(*args, **kwargs)
                if not line.mutates:
                    self.known[line.function] = _find_quicker(operator, args, kwargs, result)
                values.update(zip(line.results, result if line.unpacked else [result]))

    def as_function(self, outputs: list[str]) -> Callable[..., list[Tensor]]:
        """The lines that lead to these results; each tensor is deleted after its last use."""
        wanted = set(outputs)
        kept = []
        for line in reversed(self.lines):
            if line.mutates or wanted & set(line.results):
                spent = [name for name in {*line.uses, *line.results} - wanted if name[0] in "av"]
                kept.append((line, sorted(spent)))
                wanted |= line.uses
        text = [f"def program({', '.join(self.inputs)}):"]
        for line, spent in reversed(kept):
            text.append(f"    {line}")
            text += [f"    del {', '.join(spent)}"] if spent else []
        text.append(f"    return [{', '.join(outputs)}]")
        made: dict[str, Any] = dict(self.known)
        exec("\n".join(text), made)
        return made["program"]


_UNPREDICTABLE = {
    torch.Tag.dynamic_output_shape,
    torch.Tag.data_dependent_output,
    torch.Tag.nondeterministic_seeded,
}


def _is_unpredictable(operator: OpOverload, args: tuple) -> bool:
    """Whether the shape of its result depends on values, or it draws random numbers."""
    if operator is _aten.index.Tensor:  # a mask selects by values; numbers are a plain look-up
        masks = (torch.bool, torch.uint8)
        return any(index is not None and index.dtype in masks for index in args[1])
    return bool(_UNPREDICTABLE & set(operator.tags))


def _find_quicker(operator: OpOverload, args: tuple, kwargs: dict, result: Any) -> Callable:
    """A function that does the same as an operator in less time, or the operator itself.

    That is pooling with the channels last, or else torch's own function of the same name, which
    takes half as long to call.
    """
    if _pools_many_channels(operator, args):
        return _pool_channels_last
    if not isinstance(result, Tensor) or result.numel() > _MAX_NUMBERS_OF_SMALL_RESULT:
        return operator
    if result._is_zerotensor():  # it has no memory to compare
        return operator
    name = operator._schema.name.removeprefix("aten::").replace("_unsafe_view", "view")
    for place in (torch.Tensor, torch, torch._C._nn):  # type: ignore[attr-defined]
        function = getattr(place, name, None)
        if function is not None and _does_the_same(function, args, kwargs, result):
            return function
    return operator


def _pools_many_channels(operator: OpOverload, args: tuple) -> bool:
    if operator is not _aten.max_pool2d_with_indices.default:
        return False
    x = args[0]
    many = x.dim() == 4 and x.shape[1] >= _MIN_CHANNELS_FOR_CHANNELS_LAST
    return many and x.is_contiguous()


def _pool_channels_last(x: Tensor, *how: Any, **more: Any) -> tuple[Tensor, Tensor]:
    """Max pooling with the channels last, where a processor takes many at a time.

    The same numbers in half the time, conversion included.
    """
    channels_last = x.contiguous(memory_format=torch.channels_last)
    out, places = _aten.max_pool2d_with_indices.default(channels_last, *how, **more)
    # clone, because t.contiguous() leaves single pixels as they are
    plain = torch.contiguous_format
    return out.clone(memory_format=plain), places.clone(memory_format=plain)


def _does_the_same(function: Callable, args: tuple, kwargs: dict, result: Tensor) -> bool:
    try:
        other = function(*args, **kwargs)
        if not isinstance(other, Tensor) or other.dtype != result.dtype:
            return False
        return other.stride() == result.stride() and torch.equal(other, result)
    except (TypeError, RuntimeError, ValueError):  # other arguments, or it cannot be compared
        return False

"""Retraces over ranks: join them, and compute with parameters that are gathered where they are read.

    Gather   chunks -> whole parameters: an all-gather; its adjoint is Scatter
    Scatter  each rank's cotangents of whole parameters -> chunks of their sum: a reduce-scatter;
             its adjoint is Gather

A model's modules read their parameters through `Units.reading`, which gathers each module's own in
one message and differentiably. A pass keeps no whole parameter for its backward pass: where
autograd would save one, a `Saved` note is saved instead, and the parameter is gathered again when
it is needed. Both work when they are differentiated once more. So `ShardedObjective` is
`engine/objective.py` over gathered parameters, and a sharded recording is an ordinary one with that
objective, a tape that reads shards, and a `ShardReducer`.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, fields, replace
from typing import Any, Self
from weakref import ReferenceType, ref

import torch
from torch import Tensor, nn
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from ..data.batch import AnyBatch, Batch
from ..engine.autodiff import apply_model
from ..engine.conv import WIDE, convolutions
from ..engine.executor import Executor
from ..engine.objective import Buffers, Gradient, Objective, Vjp
from ..engine.state import Layout
from ..errors import InputChanged, InvalidInput, NotSupported
from ..replay.average import AVERAGE
from ..replay.recording import Recording
from .ranks import ALONE, RankReducer, Reducer
from .shards import ShardReducer, refuse_with_shards
from .tape import ShardTape


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered in one message: a module's own."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    chunks: tuple[int, ...]  # the length of a chunk of each, padding included
    sizes: tuple[int, ...]  # how many numbers of each this rank holds
    ranks: ShardReducer

    def gather(self, chunks: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """[n] of each parameter -> the whole parameters, each with its own memory."""
        message = chunks[0].new_zeros(sum(self.chunks))
        for part, chunk in zip(message.split(self.chunks), chunks):
            part[: len(chunk)] = chunk
        gathered = self.ranks.all_gather(message)  # [R, sum of chunks]
        whole = []
        for part, shape in zip(gathered.split(self.chunks, -1), self.shapes):
            flat = part.reshape(-1)[: shape.numel()]
            is_view = len(self.names) > 1 and flat.data_ptr() == part.data_ptr()
            whole.append((flat.clone() if is_view else flat).view(shape))
        return tuple(whole)

    def scatter(self, whole: Sequence[Tensor | None], like: Tensor) -> tuple[Tensor, ...]:
        """What each rank has of the whole parameters -> [n] each of the sum over the ranks.

        like: a tensor with the type and the device.
        """
        size = self.ranks.size
        message = like.new_zeros(size, sum(self.chunks))
        for part, chunk, t in zip(message.split(self.chunks, -1), self.chunks, whole):
            if t is not None and chunk:
                padding = size * chunk - t.numel()
                part.copy_(torch.nn.functional.pad(t.reshape(-1), (0, padding)).view(size, chunk))
        parts = self.ranks.reduce_scatter(message).split(self.chunks)
        return tuple(part[:n].contiguous() for part, n in zip(parts, self.sizes))


class Gather(torch.autograd.Function):
    """(unit, factor, *chunks) -> whole parameters. Cotangents are multiplied by `factor`."""

    @staticmethod
    def forward(unit: Unit, factor: float, *chunks: Tensor) -> tuple[Tensor, ...]:
        """All-gather."""
        return unit.gather(chunks)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        """Nothing of the tensors is kept."""
        ctx.unit = inputs[0]
        ctx.factor = inputs[1]
        ctx.dtype = output[0].dtype
        ctx.device = output[0].device
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *whole: Tensor | None) -> tuple:
        """Reduce-scatter."""
        _refuse_rows(whole)
        scaled = [None if t is None else t * ctx.factor for t in whole]
        like = torch.empty(0, dtype=ctx.dtype, device=ctx.device)
        return None, None, *Scatter.apply(ctx.unit, like, *scaled)


class Scatter(torch.autograd.Function):
    """(unit, like, *cotangents of whole parameters) -> chunks of their sum over the ranks."""

    @staticmethod
    def forward(unit: Unit, like: Tensor, *whole: Tensor | None) -> tuple[Tensor, ...]:
        """Reduce-scatter."""
        return unit.scatter(whole, like)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        """Nothing of the tensors is kept."""
        ctx.unit = inputs[0]
        ctx.like = inputs[1]
        ctx.present = [t is not None for t in inputs[2:]]
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *chunks: Tensor | None) -> tuple:
        """All-gather."""
        _refuse_rows(chunks)
        if all(chunk is None for chunk in chunks):
            return (None,) * (2 + len(chunks))
        sizes = ctx.unit.sizes
        filled = [ctx.like.new_zeros(n) if c is None else c for c, n in zip(chunks, sizes)]
        whole = Gather.apply(ctx.unit, 1.0, *filled)
        return None, None, *(t if here else None for t, here in zip(whole, ctx.present))


def _refuse_rows(cotangents: Sequence[Tensor | None]) -> None:
    """Let `batched_vjp` take many cotangents one by one: a message has no rule for vmap."""
    if any(t is not None and is_legacy_batchedtensor(t) for t in cotangents):
        raise RuntimeError("messages between ranks are not batched")


class GatheredParameters(Mapping[str, Tensor]):
    """The parameters of one pass by name: each is gathered when it is read.

    The unit that was read last is kept until another is, so that a weight and its bias are one
    message.
    """

    def __init__(self, units: Mapping[str, Unit], chunks: Mapping[str, Tensor], factor: float):
        """What a pass reads.

        Arguments:
            units: for each parameter the unit that it belongs to.
            chunks: this rank's chunk of each parameter, as functions of its shard of theta.
            factor: of cotangents. 1/R where every rank computes the same and none is to count
                more than once.
        """
        self.units = units
        self.chunks = chunks
        self.factor = factor
        self.order: list[tuple[str, ...]] = []  # the units in the order of their gathering
        self.used: set[str] = set()  # the parameters that were read
        self._last: tuple[Unit, tuple[Tensor, ...], bool] | None = None

    def __getitem__(self, name: str) -> Tensor:
        return self.read(self.units[name], name)

    def __iter__(self) -> Iterator[str]:
        return iter(self.chunks)

    def __len__(self) -> int:
        return len(self.chunks)

    def read(self, unit: Unit, name: str) -> Tensor:
        """A parameter of a unit, as a differentiable function of theta."""
        self.used.add(name)
        return self._gather(unit, True)[unit.names.index(name)]

    def read_detached(self, unit: Unit) -> tuple[Tensor, ...]:
        """The parameters of a unit once more, as constants."""
        with torch.no_grad():
            return self._gather(unit, False)

    def forget(self) -> None:
        """Let go of the unit that was read last."""
        self._last = None

    def _gather(self, unit: Unit, connected: bool) -> tuple[Tensor, ...]:
        if self._last is not None and self._last[0] is unit and self._last[2] >= connected:
            whole = self._last[1]
            return whole if connected else tuple(t.detach() for t in whole)
        self._last = None  # before the next one is made
        chunks = [self.chunks[name] for name in unit.names]
        if connected:
            self.order.append(unit.names)
            whole = Gather.apply(unit, self.factor, *chunks)
        else:
            whole = unit.gather([chunk.detach() for chunk in chunks])
        for k, t in enumerate(whole):
            _WHOLE.add(t, self, unit, k)
        self._last = (unit, whole, connected)
        return whole


# --- what autograd saves --------------------------------------------------------------------------


@dataclass(frozen=True)
class Saved:
    """What is saved instead of a view of a whole parameter."""

    parameters: GatheredParameters
    unit: Unit
    place: int  # in the unit
    size: torch.Size
    stride: tuple[int, ...]
    offset: int


class _WholeParameters:
    """Which memory holds a whole parameter at the moment."""

    def __init__(self):
        self._known: dict[int, tuple[StorageWeakRef, ReferenceType, Unit, int]] = {}

    def add(self, t: Tensor, owner: GatheredParameters, unit: Unit, place: int) -> None:
        """Note a parameter that has just been gathered."""
        self._known = {key: known for key, known in self._known.items() if not known[0].expired()}
        storage = StorageWeakRef(t.untyped_storage())
        self._known[storage.cdata] = (storage, ref(owner), unit, place)

    def find(self, t: Tensor) -> tuple[GatheredParameters, Unit, int] | None:
        """Whose memory this tensor looks at."""
        known = self._known.get(t.untyped_storage()._cdata)
        # an address cannot be used again while the weak reference is kept
        if known is None or known[0].expired():
            return None
        _, owner, unit, place = known
        parameters = owner()
        return None if parameters is None else (parameters, unit, place)


_WHOLE = _WholeParameters()


def saving_notes() -> saved_tensors_hooks:
    """Inside, passes save a `Saved` note where they would save a whole parameter."""

    def pack(t: Tensor) -> Tensor | Saved:
        source = _WHOLE.find(t)
        if source is None:
            return t.detach()  # an operation's own output would keep the operation alive
        parameters, unit, place = source
        return Saved(parameters, unit, place, t.size(), t.stride(), int(t.storage_offset()))

    def unpack(kept: Tensor | Saved) -> Tensor:
        if not isinstance(kept, Saved):
            return kept
        whole = kept.parameters.read_detached(kept.unit)[kept.place]
        return whole.as_strided(kept.size, kept.stride, kept.offset)

    return saved_tensors_hooks(pack, unpack)


Reader = Callable[[Unit, str], Tensor]


class _ReadThrough(dict):
    """The `_parameters` of a module while it runs: those in training are read from elsewhere.

    A module reads a parameter by its name, and gets what `read` returns for it. Code that iterates
    over all of its parameters sees the module's own, which have the right shapes and types.
    """

    def __init__(self, own: Mapping, unit: Unit, names: Mapping[str, str], read: Reader):
        super().__init__(own)
        self.unit = unit
        self.names = names
        self.read = read

    def __getitem__(self, key: str):
        name = self.names.get(key)
        return super().__getitem__(key) if name is None else self.read(self.unit, name)


class Units:
    """Which of a model's parameters are gathered together: those of the same module."""

    def __init__(self, model: nn.Module, ranks: ShardReducer):
        """Look through the modules.

        Raises:
            NotSupported: a module keeps its parameters somewhere else as well.
        """
        layout = ranks.layout
        numbers = {name: k for k, name in enumerate(layout.layout.names)}
        sizes = layout.sizes(ranks.rank)
        name_of = {id(p): name for name, p in model.named_parameters()}
        self.of: dict[str, Unit] = {}  # a unit that each parameter belongs to
        self._wrapped = [module for module in model.modules() if hasattr(module, "_get_fsdp_state")]
        self._modules: list[tuple[nn.Module, Unit, dict[str, str]]] = []
        for place, module in model.named_modules():
            held = {
                key: name_of[id(p)]
                for key, p in module._parameters.items()
                if p is not None and name_of.get(id(p)) in numbers
            }
            if not held:
                continue
            if isinstance(module, nn.RNNBase):
                raise NotSupported(
                    f"'{place}' is a {type(module).__name__}, which keeps a list of its weights "
                    "that cannot be gathered piece by piece. Retrace with group= and without "
                    "sharded=True."
                )
            names = tuple(dict.fromkeys(held.values()))
            places = [numbers[name] for name in names]
            unit = Unit(
                names,
                shapes=tuple(layout.layout.shapes[k] for k in places),
                chunks=tuple(layout.chunks[k] for k in places),
                sizes=tuple(sizes[k] for k in places),
                ranks=ranks,
            )
            self.of.update(dict.fromkeys(names, unit))
            self._modules.append((module, unit, held))

    @contextmanager
    def reading(self, read: Reader) -> Iterator[None]:
        """Inside, modules read their parameters in training by `read`, and are not wrapped."""
        with ExitStack() as stack:
            for module, unit, held in self._modules:
                own = module._parameters
                module.__dict__["_parameters"] = _ReadThrough(own, unit, held, read)
                stack.callback(module.__dict__.__setitem__, "_parameters", own)
            for module in self._wrapped:
                _leave_out_hooks(module, stack)
            yield


def _leave_out_hooks(module: nn.Module, stack: ExitStack) -> None:
    """Remove the hooks that `fully_shard` put on a module: they would gather by themselves."""
    for kind in ("_forward_pre_hooks", "_forward_hooks"):
        hooks = getattr(module, kind)
        own = {key: hook for key, hook in hooks.items() if not _is_of_fsdp(hook)}
        if len(own) < len(hooks):
            module.__dict__[kind] = type(hooks)(own)
            stack.callback(module.__dict__.__setitem__, kind, hooks)


def _is_of_fsdp(hook: Callable) -> bool:
    return (getattr(hook, "__module__", None) or "").startswith("torch.distributed.fsdp")


@dataclass(frozen=True)
class GatheringLayout(Layout):
    """A layout whose vectors over theta are this rank's shards."""

    units: Units | None = None
    ranks: ShardReducer | None = None
    _alike: list[bool] = field(default_factory=lambda: [False])  # see `ranks_compute_the_same`

    @classmethod
    def of(cls, whole: Layout, ranks: ShardReducer, units: Units | None = None) -> Self:
        """The shards of a layout. Without units, parameters cannot be read."""
        return cls(
            whole.names,
            whole.shapes,
            whole.group_sizes,
            whole.moving_buffers,
            units=units,
            ranks=ranks,
        )

    def views(self, theta: Tensor) -> Mapping[str, Tensor]:  # type: ignore[override]
        """The parameters by name, each gathered when it is read."""
        assert self.units is not None and self.ranks is not None
        sizes = self.ranks.layout.sizes(self.ranks.rank)
        chunks = dict(zip(self.names, theta.split(sizes, -1)))
        factor = 1 / self.ranks.size if self.is_alike else 1.0
        return GatheredParameters(self.units.of, chunks, factor)

    @property
    def is_alike(self) -> bool:
        """Whether every rank computes the same now, so that the sum over ranks counts it R times."""
        return self._alike[0]

    @contextmanager
    def ranks_compute_the_same(self) -> Iterator[None]:
        """Inside, `is_alike`."""
        before = self._alike[0]
        self._alike[0] = True
        try:
            yield
        finally:
            self._alike[0] = before


@dataclass(frozen=True)
class ShardedObjective(Objective):
    """Losses and their derivatives as functions of this rank's shard of theta, [p_r].

    Each rank has its own instances. Gradients and Hessian-vector products are its shard of the
    sums over all ranks; losses and terms are those of its own instances.
    """

    #: the units that the first training pass gathered, in their order
    order: list[tuple[str, ...]] = field(default_factory=list)

    @property
    def gathering(self) -> GatheringLayout:
        """The layout, which gathers."""
        assert isinstance(self.layout, GatheringLayout)
        return self.layout

    def call(self, parameters: Mapping[str, Tensor], buffers: Buffers, x: Any) -> Any:
        """The model's outputs; each module's parameters are gathered when it reads them.

        They are read in the order of the first pass: messages of ranks must not cross.
        """
        assert isinstance(parameters, GatheredParameters) and self.gathering.units is not None
        begin = len(parameters.order)
        expected = [] if self.gathering.is_alike else self.order

        def read(unit: Unit, name: str) -> Tensor:
            place = len(parameters.order) - begin
            repeated = place > 0 and parameters.order[-1] == unit.names
            if expected and not repeated and expected[place : place + 1] != [unit.names]:
                raise _other_order(expected[place] if place < len(expected) else None, unit.names)
            return parameters.read(unit, name)

        with self.gathering.units.reading(read):
            outputs = apply_model(self.model, x)
        parameters.forget()
        order = parameters.order[begin:]
        if expected and len(order) != len(expected):
            raise _other_order(expected[len(order)], None)
        if not self.gathering.is_alike and not self.order:
            if missing := [name for name in self.layout.names if name not in parameters.used]:
                raise NotSupported(
                    f"The model computes with '{missing[0]}' without reading it from its module, "
                    "so it cannot be gathered from the ranks. Retrace with group= and without "
                    "sharded=True."
                )
            self.order.extend(order)
        return outputs

    def gradient(self, theta: Tensor, buffers: Buffers, batch: Batch) -> Gradient:
        """This rank's shard of the gradient over all ranks [p_r], its own losses, no buffers."""
        theta = theta.detach().requires_grad_()
        with torch.enable_grad(), saving_notes():
            losses, moved = self.losses(theta, buffers, batch)
            weights = batch.c.to(losses.dtype)
            with self.precision.cast("backward"):
                (g,) = torch.autograd.grad(losses, theta, weights)
        return g, losses.detach(), moved

    def vjp_reverse(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: Batch,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool = True,
    ) -> Vjp:
        """`Objective.vjp_reverse`: the terms of this rank's instances, its shard of H a_g."""
        with saving_notes():
            return super().vjp_reverse(theta, buffers, batch, a_g, a_buffers, hessian)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, every rank computes the same: a query is evaluated whole by all of them."""
        with self.gathering.ranks_compute_the_same(), super().evaluating(), saving_notes():
            yield


class ShardedExecutor(Executor):
    """Runs the passes of a sharded objective as they stand.

    What an executor chooses by looking at a batch (programs, plans, how many queries at once) might
    be chosen differently on another rank, whose messages would then not match.
    """

    @property
    def may_reuse(self) -> bool:
        """False: a pass contains messages."""
        return False

    def gradient(self, theta: Tensor, buffers: Buffers, batch: AnyBatch) -> Gradient:
        """`ShardedObjective.gradient`."""
        return self.splitter.gradient(batch.load(), theta, buffers)

    def vjp(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: AnyBatch,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool = True,
    ) -> Vjp:
        """`ShardedObjective.vjp_reverse`."""
        with convolutions(batch.c.device, wide=WIDE):
            return self.objective.vjp_reverse(theta, buffers, batch.load(), a_g, a_buffers, hessian)


def shard_objective(
    objective: Objective, ranks: ShardReducer, layout: type[GatheringLayout] = GatheringLayout
) -> ShardedObjective:
    """The same losses as functions of this rank's shard."""
    known = {field.name: getattr(objective, field.name) for field in fields(objective)}
    units = Units(objective.model, ranks)
    return ShardedObjective(**{**known, "layout": layout.of(objective.layout, ranks, units)})


def _other_order(expected: tuple[str, ...] | None, found: tuple[str, ...] | None) -> NotSupported:
    show = lambda names: "nothing more" if names is None else f"'{names[0]}'"
    return NotSupported(
        f"The model read {show(found)} here, but {show(expected)} on its first batch, so which "
        "parameters it uses depends on the data. Ranks that hold shards must read the same "
        "parameters in the same order. Retrace with group= and without sharded=True."
    )


# --- retraces -------------------------------------------------------------------------------------


def join_ranks(
    recording: Recording,
    group: Any,
    question: dict[str, Any],
    *,
    sharded: bool,
    resumable: bool,
    show: bool,
) -> tuple[Recording, Reducer]:
    """The recording as this process holds it, and the ranks that it shares a retrace with.

    Arguments:
        recording: of any tape, of one process or of many.
        group: a torch.distributed group, all of whose ranks call this; None: this process alone.
        question: the arguments of the retrace, which must be the same on all ranks. `steps` are
            the first step that is retraced and the one after the last.
        sharded: whether each rank holds only a shard of every state.
        resumable: whether progress is kept.
        show: whether to show a bar while files are checked.

    Raises:
        InvalidInput: where there is no group to divide states between, or the ranks do not agree.
        NotSupported: where a run cannot be divided this way.
    """
    if sharded:
        refuse_with_shards(resume=resumable, average=question["weights"] == AVERAGE)
        recording = shard_recording(recording, group)
        ranks = recording.reducer
    else:
        ranks = ALONE if group is None else RankReducer(group, recording.device)
        ranks = ranks if ranks.size > 1 else ALONE
    _check_agreement(recording, ranks, question | {"sharded": sharded})
    if sharded:
        prepare_shards(recording, *question["steps"], show=show and ranks.rank == 0)
    return recording, ranks


def _check_agreement(recording: Recording, ranks: Reducer, question: dict[str, Any]) -> None:
    """Refuse ranks with different tapes or questions: they would add up unrelated numbers."""
    digests = "".join(entry.sha256 for entry in (*recording.tape.entries, recording.tape.end))
    own = {
        "tape": recording.tape.manifest.id,
        "steps of the tape": recording.tape.steps,
        "digest of the tape": hashlib.sha256(digests.encode()).hexdigest(),
        "number of instances": len(recording.instances),
        "dtype": str(recording.instances.dtype),
        **question,
    }
    first, *others = ranks.gather(own)
    for rank, other in enumerate(others, start=1):
        for what, value in first.items():
            if other[what] != value:
                kind = InputChanged if "tape" in what else InvalidInput
                raise kind(
                    f"The ranks do not agree: {what} is {value} on rank 0 and {other[what]} on "
                    f"rank {rank}. Every rank must open the same tape, with the same dataset, and "
                    "run the same query."
                )


def shard_recording(recording: Recording, group: Any) -> Recording:
    """The same recording, with states, slots and gradients as this rank's shards.

    Arguments:
        recording: of any tape, of one process or of many.
        group: a torch.distributed group; all of its ranks call this.

    Raises:
        InvalidInput: where there is no group.
        NotSupported: where a run cannot be divided this way.
    """
    if group is None:
        raise InvalidInput(
            "sharded=True divides states between ranks: pass their group, such as "
            "group=torch.distributed.group.WORLD."
        )
    _check_shardable(recording)
    ranks = ShardReducer(group, recording.device, recording.objective.layout)
    optimizer = replace(
        recording.optimizer, group_sizes=ranks.layout.group_sizes(ranks.rank), shapes=()
    )
    executor = ShardedExecutor(shard_objective(recording.objective, ranks))
    tape = ShardTape(recording.tape, ranks)
    return replace(recording, tape=tape, executor=executor, optimizer=optimizer, reducer=ranks)


def prepare_shards(recording: Recording, first: int, stop: int, *, show: bool) -> None:
    """Check the files of steps first..stop-1, and determine in which order parameters are gathered.

    All ranks run the same batch for that. From then on a pass that would gather in another order is
    refused, before its messages meet those of other ranks.
    """
    tape = recording.tape
    objective = recording.objective
    assert isinstance(tape, ShardTape) and isinstance(objective, ShardedObjective)
    tape.check_steps(first, stop, show=show)
    if stop == tape.first or objective.order:
        return
    _, segment = next(recording.segments_backward(stop - 1, stop))
    batches = recording.batches(segment.first, segment.steps[:1])[0]
    with recording.executor.training():
        for batch in batches[:1]:
            recording.executor.losses(segment.states[0].theta, {}, batch)


def _check_shardable(recording: Recording) -> None:
    objective = recording.objective
    optimizer = recording.optimizer
    reason = None
    if moving := objective.layout.moving_buffers:
        reason = f"its forward pass updates '{moving[0]}', and the ranks' batches differ"
    elif optimizer.rule is None:
        reason = f"{optimizer.name} needs unsharded parameters"
    elif objective.precision.narrow is torch.float16:
        reason = "in float16 each rank would scale its adjoint independently"
    if reason is not None:
        raise NotSupported(
            f"The states of this run cannot be sharded: {reason}. Retrace with group= and "
            "without sharded=True."
        )

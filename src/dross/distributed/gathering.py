"""Whole parameters for as long as they are used, differentiably, from the shards of all ranks.

    Gather   chunks -> whole parameters: an all-gather; its adjoint is Scatter
    Scatter  each rank's cotangents of whole parameters -> chunks of their sum: a reduce-scatter;
             its adjoint is Gather

A pass keeps no whole parameter for its backward pass: where autograd would save one, a `Saved`
note is saved instead, and the parameter is gathered again when it is needed. Both work when they
are differentiated once more.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import ReferenceType, ref

import torch
from torch import Tensor
from torch._C._functorch import is_legacy_batchedtensor
from torch.autograd.graph import saved_tensors_hooks
from torch.multiprocessing.reductions import StorageWeakRef

from .shard_ranks import ShardReducer


@dataclass(frozen=True)
class Unit:
    """Parameters that are gathered in one message: a module's own."""

    names: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    chunks: tuple[int, ...]  # the length of a chunk of each, padding included
    sizes: tuple[int, ...]  # how many numbers of each this rank holds
    ranks: ShardReducer

    def gather(self, chunks: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """[n] of each parameter -> the whole parameters, each with a memory of its own."""
        message = chunks[0].new_zeros(sum(self.chunks))
        for part, chunk in zip(message.split(self.chunks), chunks):
            part[: len(chunk)] = chunk
        found = self.ranks.all_gather(message)  # [R, sum of chunks]
        whole = []
        for part, shape in zip(found.split(self.chunks, -1), self.shapes):
            flat = part.reshape(-1)[: shape.numel()]
            own = len(self.names) == 1 or flat.data_ptr() != part.data_ptr()
            whole.append((flat if own else flat.clone()).view(shape))
        return tuple(whole)

    def scatter(self, whole: Sequence[Tensor | None], like: Tensor) -> tuple[Tensor, ...]:
        """What each rank has of the whole parameters -> [n] each of the sum over the ranks.

        like: gives the type and the device.
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
        ctx.unit, ctx.factor, ctx.dtype = inputs[0], inputs[1], output[0].dtype
        ctx.device = output[0].device
        ctx.set_materialize_grads(False)

    @staticmethod
    def backward(ctx: Any, *whole: Tensor | None) -> tuple:
        """Reduce-scatter."""
        _refuse_rows(whole)
        given = [None if t is None else t * ctx.factor for t in whole]
        like = torch.empty(0, dtype=ctx.dtype, device=ctx.device)
        return None, None, *Scatter.apply(ctx.unit, like, *given)


class Scatter(torch.autograd.Function):
    """(unit, like, *cotangents of whole parameters) -> chunks of their sum over the ranks."""

    @staticmethod
    def forward(unit: Unit, like: Tensor, *whole: Tensor | None) -> tuple[Tensor, ...]:
        """Reduce-scatter."""
        return unit.scatter(whole, like)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple, output: tuple) -> None:
        """Nothing of the tensors is kept."""
        ctx.unit, ctx.present = inputs[0], [t is not None for t in inputs[2:]]
        ctx.like = inputs[1]
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
    """Let engine/vjp.py take many cotangents one by one: a message has no rule for vmap."""
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
            units: for each parameter a unit of its own.
            chunks: this rank's chunk of each parameter, as functions of its shard of theta.
            factor: of cotangents. 1/R where every rank computes the same and none is to count
                more than once.
        """
        self.units, self.chunks, self.factor = units, chunks, factor
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

    def values_of(self, unit: Unit) -> tuple[Tensor, ...]:
        """The parameters of a unit once more, as numbers."""
        with torch.no_grad():
            return self._gather(unit, False)

    def forget(self) -> None:
        """Let go of the unit that was read last."""
        self._last = None

    def _gather(self, unit: Unit, connected: bool) -> tuple[Tensor, ...]:
        if self._last is not None and self._last[0] is unit and self._last[2] >= connected:
            found = self._last[1]
            return found if connected else tuple(t.detach() for t in found)
        self._last = None  # before the next one is made
        chunks = [self.chunks[name] for name in unit.names]
        if connected:
            self.order.append(unit.names)
            found = Gather.apply(unit, self.factor, *chunks)
        else:
            found = unit.gather([chunk.detach() for chunk in chunks])
        for k, t in enumerate(found):
            _WHOLE.add(t, self, unit, k)
        self._last = (unit, found, connected)
        return found


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
        found = self._known.get(t.untyped_storage()._cdata)
        # an address cannot be used again while the weak reference is kept
        if found is None or found[0].expired() or (owner := found[1]()) is None:
            return None
        return owner, found[2], found[3]

    def count_alive(self) -> int:
        """How many numbers they have."""
        alive = (known for known in self._known.values() if not known[0].expired())
        return sum(unit.shapes[place].numel() for _, _, unit, place in alive)


_WHOLE = _WholeParameters()


def count_gathered() -> int:
    """How many numbers of gathered parameters are in memory at the moment."""
    return _WHOLE.count_alive()


def saving_notes() -> saved_tensors_hooks:
    """Inside, passes save a `Saved` note where they would save a whole parameter."""

    def pack(t: Tensor) -> Tensor | Saved:
        if (found := _WHOLE.find(t)) is None:
            return t.detach()  # an operation's own output would keep the operation alive
        return Saved(*found, t.size(), t.stride(), int(t.storage_offset()))

    def unpack(kept: Tensor | Saved) -> Tensor:
        if not isinstance(kept, Saved):
            return kept
        whole = kept.parameters.values_of(kept.unit)[kept.place]
        return whole.as_strided(kept.size, kept.stride, kept.offset)

    return saved_tensors_hooks(pack, unpack)

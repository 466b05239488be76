"""The objective of a run whose ranks hold shards: `step/objective.py` over gathered parameters."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..data.batch import Batch
from ..data.lazy_batch import AnyBatch
from ..engine.autodiff import apply_model
from ..engine.conv import WIDE, convolutions
from ..engine.executor import Executor
from ..engine.objective import Buffers, Objective, Pulled
from ..engine.state import Layout
from ..errors import NotSupported
from .gathering import GatheredParameters, saving_notes
from .plain_modules import Units
from .shard_ranks import ShardReducer


@dataclass(frozen=True)
class GatheringLayout(Layout):
    """A layout whose vectors over theta are this rank's shards."""

    units: Units | None = None
    ranks: ShardReducer | None = None
    #: whether every rank computes the same, so that the sum over ranks counts it R times
    alike: list[bool] = field(default_factory=lambda: [False])

    def unflatten(self, theta: Tensor) -> Mapping[str, Tensor]:  # type: ignore[override]
        """The parameters by name, each gathered when it is read."""
        assert self.units is not None and self.ranks is not None
        sizes = self.ranks.layout.sizes(self.ranks.rank)
        chunks = dict(zip(self.names, theta.split(sizes, -1)))
        factor = 1 / self.ranks.size if self.alike[0] else 1.0
        return GatheredParameters(self.units.single, chunks, factor)


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
        """The model's outputs; each module's parameters are gathered when it reads them."""
        assert isinstance(parameters, GatheredParameters) and self.gathering.units is not None
        before = len(parameters.order)
        with self.gathering.units.reading(self._check_order(parameters)):
            outputs = apply_model(self.model, x)
        parameters.forget()
        if not self.gathering.alike[0]:
            found = parameters.order[before:]
            if not self.order:
                self._check_all_read(parameters.used)
                self.order.extend(found)
            elif len(found) != len(self.order):
                raise _other_order(self.order[len(found)], None)
        return outputs

    def _check_order(self, parameters: GatheredParameters):
        """Read parameters in the order of the first pass: messages of ranks must not cross."""
        begin = len(parameters.order)

        def read(unit, name: str) -> Tensor:
            place = len(parameters.order) - begin
            known = self.order if not self.gathering.alike[0] else []
            repeated = place > 0 and parameters.order[-1] == unit.names
            if known and not repeated and known[place : place + 1] != [unit.names]:
                raise _other_order(known[place] if place < len(known) else None, unit.names)
            return parameters.read(unit, name)

        return read

    def _check_all_read(self, read: set[str]) -> None:
        if missing := [name for name in self.layout.names if name not in read]:
            raise NotSupported(
                f"The model computes with '{missing[0]}' without reading it from its module, so it "
                "cannot be gathered from the ranks. Retrace with group= and without sharded=True."
            )

    def gradient(
        self, theta: Tensor, buffers: Buffers, batch: Batch, w: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Buffers]:
        """This rank's shard of the gradient over all ranks [p_r], its own losses, no buffers."""
        theta = theta.detach().requires_grad_()
        with torch.enable_grad(), saving_notes():
            losses, moved = self.losses(theta, buffers, batch)
            weights = (batch.c if w is None else batch.c * w).to(losses.dtype)
            with self.precision.cast("backward"):
                (g,) = torch.autograd.grad(losses, theta, weights)
        return g, losses.detach(), moved

    def pull_reverse(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: Batch,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool = True,
    ) -> Pulled:
        """`Objective.pull_reverse`: the terms of this rank's instances, its shard of H a_g."""
        with saving_notes():
            return super().pull_reverse(theta, buffers, batch, a_g, a_buffers, hessian)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside, every rank computes the same: a query is evaluated whole by all of them."""
        alike = self.gathering.alike
        before, alike[0] = alike[0], True
        try:
            with super().evaluating(), saving_notes():
                yield
        finally:
            alike[0] = before


class ShardedExecutor(Executor):
    """Runs the passes of a sharded objective as they stand.

    What an executor chooses by looking at a batch (programs, plans, how many queries at once) might
    be chosen differently on another rank, whose messages would then not match.
    """

    @property
    def cannot_reuse_passes(self) -> bool:
        """True: a pass contains messages."""
        return True

    def gradient(
        self, theta: Tensor, buffers: Buffers, batch: AnyBatch, w: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Buffers]:
        """`ShardedObjective.gradient`."""
        return self.plain_gradient(batch.load(), theta, buffers, w)

    def pull(
        self,
        theta: Tensor,
        buffers: Buffers,
        batch: AnyBatch,
        a_g: Tensor,
        a_buffers: Buffers,
        hessian: bool = True,
    ) -> Pulled:
        """`ShardedObjective.pull_reverse`."""
        given = (theta, buffers, batch.load(), a_g, a_buffers, hessian)
        with convolutions(batch.c.device, wide=WIDE):
            return self.objective.pull_reverse(*given)


def shard_objective(objective: Objective, ranks: ShardReducer) -> ShardedObjective:
    """The same losses as functions of this rank's shard."""
    whole = objective.layout
    given = (whole.names, whole.shapes, whole.group_sizes, whole.moving_buffers)
    layout = GatheringLayout(*given, Units(objective.model, ranks), ranks)
    fields = {**vars(objective), "layout": layout}
    known = ShardedObjective.__dataclass_fields__
    return ShardedObjective(**{name: value for name, value in fields.items() if name in known})


def _other_order(expected: tuple[str, ...] | None, found: tuple[str, ...] | None) -> NotSupported:
    show = lambda names: "nothing more" if names is None else f"'{names[0]}'"
    return NotSupported(
        f"The model read {show(found)} where its first batch read {show(expected)}: which "
        "parameters it uses depends on the data. Ranks that hold shards must read the same ones in "
        "the same order. Retrace with group= and without sharded=True."
    )

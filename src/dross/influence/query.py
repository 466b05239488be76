"""What is asked of a trained model, and its derivative: the seed of a retrace.

A query is a scalar or a vector function of (theta, buffers), evaluated in eval mode. It is given as pieces, so that a large
validation set is never in memory at once; the pieces are added up (a mean) or put one after the other (one query each).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.func import vmap
from torch.utils._pytree import tree_leaves

from ..autodiff import batchnorm
from ..autodiff.forward_rules import ElementaryNorms
from ..data.dataset import Instances
from ..errors import BadInput, NotFinite
from ..step.layout import State
from ..step.loss import check_labels, check_per_instance
from ..step.objective import Objective
from ..step.step import Derivative

Function = Callable[[Tensor, dict[str, Tensor]], Tensor]  # (theta [p], buffers) -> scalar or [q]
Piece = tuple[int, Function]  # how many instances it looks at, and what it computes
_CHUNK = 1024  # instances in memory at once
_AT_ONCE = 8192  # instances times models, when many models are asked
_ROWS = 16  # queries of one instance each: their seeds are backward passes over the whole chunk


@dataclass(frozen=True)
class Query:
    """Built by `mean_loss`, `losses`, `outputs` and `query`; understood by every method of a Run."""

    name: str
    pieces: Callable[[Objective], Iterator[Piece]]
    added: bool  # the pieces are added up to one scalar
    data: Any = None  # what it is about, where that is a data set

    def __repr__(self) -> str:
        return f"<query {self.name}>"

    def evaluate(self, objective: Objective, state: State) -> Tensor:
        """The query's value at one state: float64, scalar or [Q]."""
        with objective.evaluating(), torch.no_grad():
            values = [
                _at_most_a_vector(self._run(fn, state.theta, state.buffers), self.name).double()
                for _, fn in self.pieces(objective)
            ]
        return _gathered(values, self.added)

    def evaluate_many(self, objective: Objective, states: State) -> Tensor:
        """The query's values at K states, [K] or [Q, K]; all at once where the model allows it."""
        one_by_one = False

        def many(size: int, fn: Function) -> Tensor:
            nonlocal one_by_one
            if not one_by_one:
                try:
                    return vmap(fn, randomness="same", chunk_size=max(1, _AT_ONCE // size))(
                        states.theta, states.buffers
                    )
                except (RuntimeError, ValueError):
                    one_by_one = True
            return torch.stack([fn(*_nth(states, k)) for k in range(len(states.theta))])

        with objective.evaluating(), torch.no_grad():
            values = [self._run(many, size, fn).double() for size, fn in self.pieces(objective)]
        return _gathered([value.movedim(0, -1) for value in values], self.added)

    def seed(self, objective: Objective, state: State) -> tuple[Derivative, bool]:
        """d query / d s with a leading axis [Q], and whether the query is a scalar."""
        # by name: sums over them round by their order, and a file does not keep the order of its tensors
        floating = {name: b for name, b in sorted(state.buffers.items()) if b.is_floating_point()}
        rest = {name: b for name, b in state.buffers.items() if name not in floating}
        parts: list[list[Tensor]] = []
        scalar = self.added
        with objective.evaluating(), batchnorm.readable(objective.model), ElementaryNorms():
            for _, fn in self.pieces(objective):
                theta = state.theta.detach().requires_grad_()
                leaves = {name: b.detach().requires_grad_() for name, b in floating.items()}
                with torch.enable_grad():
                    value = _at_most_a_vector(self._run(fn, theta, {**rest, **leaves}), self.name)
                if not torch.isfinite(value).all():
                    raise NotFinite(f"The query {self.name} is not finite at the trained model.")
                scalar = scalar or value.dim() == 0
                parts.append(_rows(value.reshape(-1), [theta, *leaves.values()]))
        combine = (lambda rows: torch.stack(rows).sum(0)) if self.added else torch.cat
        a_theta, *a_buffers = [combine(rows) for rows in zip(*parts)]
        slots = {name: torch.zeros_like(a_theta) for name in state.slots}
        return Derivative(a_theta, slots, dict(zip(floating, a_buffers))), scalar

    def _run(self, fn: Callable, *arguments: Any) -> Tensor:
        try:
            value = fn(*arguments)
        except (RuntimeError, TypeError, IndexError, KeyError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise BadInput(
                f"The query {self.name} cannot be evaluated on this model: {error}"
            ) from error
        if not isinstance(value, Tensor):
            raise BadInput(f"The query {self.name} returned {type(value).__name__}, not a tensor.")
        return value


def _at_most_a_vector(value: Tensor, name: str) -> Tensor:
    if value.dim() > 1:
        raise BadInput(
            f"The query {name} returned shape {tuple(value.shape)}: a query is a number or a vector. Flatten it."
        )
    return value


def mean_loss(data: Any) -> Query:
    """The mean loss over `data` (a map-style data set or a pair of tensors), without the penalty."""
    source = _Source(data)

    def pieces(objective: Objective) -> Iterator[Piece]:
        total = len(source.on(objective))
        for x, y, size in source.chunks(objective, _CHUNK):
            yield (
                size,
                lambda theta, buffers, x=x, y=y: (
                    _losses(objective, theta, buffers, x, y).sum() / total
                ),
            )

    return Query("mean_loss", pieces, added=True, data=data)


def mean_losses(parts: Sequence[Any]) -> Query:
    """The mean loss over each of several data sets, without the penalty: one query each, retraced together."""
    sources = [_Source(data) for data in parts]

    def pieces(objective: Objective) -> Iterator[Piece]:
        for source in sources:
            x, y = (whole := source.on(objective))[np.arange(len(whole))]
            yield (
                len(whole),
                lambda theta, buffers, x=x, y=y: (
                    _losses(objective, theta, buffers, x, y).mean().reshape(1)
                ),
            )

    return Query("mean_losses", pieces, added=False)


def error_rate(data: Any) -> Query:
    """The share of `data` that the model's largest output gets wrong. To be evaluated; its derivative is 0."""
    source = _Source(data)

    def pieces(objective: Objective) -> Iterator[Piece]:
        total = len(source.on(objective))
        for x, y, size in source.chunks(objective, _CHUNK):
            yield (
                size,
                lambda theta, buffers, x=x, y=y: (
                    (objective.predict(theta, buffers, x).argmax(-1) != y).double().sum() / total
                ),
            )

    return Query("error_rate", pieces, added=True, data=data)


def losses(data: Any) -> Query:
    """One query per instance of `data`: its loss, without the penalty."""
    source = _Source(data)

    def pieces(objective: Objective) -> Iterator[Piece]:
        for x, y, size in source.chunks(objective, _ROWS):
            yield size, lambda theta, buffers, x=x, y=y: _losses(objective, theta, buffers, x, y)

    return Query("losses", pieces, added=False, data=data)


def outputs(data: Any, index: int | None = None) -> Query:
    """The model's outputs on the inputs of `data`: all of them, or only output number `index` of each instance.

    `data` may be a tensor of inputs alone. The queries are ordered by instance, then by output.
    """
    source = _Source((data, torch.zeros(len(data))) if isinstance(data, Tensor) else data)

    def pieces(objective: Objective) -> Iterator[Piece]:
        for x, _, size in source.chunks(objective, _ROWS):
            yield (
                size,
                lambda theta, buffers, x=x: _selected(objective.predict(theta, buffers, x), index),
            )

    return Query(
        "outputs" if index is None else f"outputs[{index}]", pieces, added=False, data=source.data
    )


def query(fn: Callable[[dict[str, Tensor], dict[str, Tensor]], Tensor]) -> Query:
    """Any differentiable function of the model: fn(params, buffers) -> scalar or vector, with dicts of name -> tensor."""

    def pieces(objective: Objective) -> Iterator[Piece]:
        constants, own_buffers = (
            objective.layout.constants(objective.model),
            dict(objective.model.named_buffers()),
        )
        frozen = {name: t for name, t in constants.items() if name not in own_buffers}
        fixed = {name: t for name, t in constants.items() if name in own_buffers}
        yield (
            1,
            lambda theta, buffers: fn(
                {**objective.layout.unflatten(theta), **frozen}, {**fixed, **buffers}
            ),
        )

    return Query(getattr(fn, "__name__", "query"), pieces, added=False)


def as_query(given: Any) -> Query:
    if not isinstance(given, Query):
        raise BadInput(
            "A query is built with dross.mean_loss, dross.losses, dross.outputs or dross.query(fn)."
        )
    return given


class _Source:
    """A query's data, read once per kind of model that asks."""

    def __init__(self, data: Any):
        self.data = data
        self.read: dict[tuple[torch.device, torch.dtype], Instances] = {}

    def on(self, objective: Objective) -> Instances:
        parameter = next(p for p in objective.model.parameters())
        key = (parameter.device, parameter.dtype)
        if key not in self.read:
            self.read[key] = Instances(self.data, *key)
        return self.read[key]

    def chunks(self, objective: Objective, size: int) -> Iterator[tuple[Any, Any, int]]:
        instances = self.on(objective)
        for start in range(0, len(instances), size):
            ids = np.arange(start, min(start + size, len(instances)))
            yield *instances[ids], len(ids)


def _losses(
    objective: Objective, theta: Tensor, buffers: dict[str, Tensor], x: Any, y: Any
) -> Tensor:
    predicted = objective.predict(theta, buffers, x)
    if not is_batchedtensor(predicted):
        check_labels(predicted, y, objective.loss_name)
    return check_per_instance(objective.loss(predicted, y), len(tree_leaves(x)[0]))


def _selected(outputs: Tensor, index: int | None) -> Tensor:
    if index is None:
        return outputs.reshape(-1)
    if outputs.dim() < 2 or not -outputs.shape[1] <= index < outputs.shape[1]:
        raise BadInput(
            f"The model's outputs have shape {tuple(outputs.shape)}: there is no output number {index}."
        )
    return outputs[:, index].reshape(-1)


def _nth(states: State, k: int) -> tuple[Tensor, dict[str, Tensor]]:
    return states.theta[k], {name: b[k] for name, b in states.buffers.items()}


def _gathered(values: list[Tensor], added: bool) -> Tensor:
    if added:
        return torch.stack(values).sum(0)
    return values[0] if len(values) == 1 else torch.cat(values)


def _rows(value: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """d value_q / d input for every q: [[Q, *input.shape], ...]. One backward pass per row, many rows at once."""
    if not value.requires_grad:
        return [torch.zeros(len(value), *i.shape, dtype=i.dtype, device=i.device) for i in inputs]
    if len(value) == 1:
        rows = torch.autograd.grad(value.sum(), inputs, allow_unused=True)
        rows = [None if row is None else row[None] for row in rows]
    else:
        eye = torch.eye(len(value), dtype=value.dtype, device=value.device)
        try:
            rows = torch.autograd.grad(
                value, inputs, eye, is_grads_batched=True, retain_graph=True, allow_unused=True
            )
        except RuntimeError:  # an operator without a batching rule
            one_by_one = [
                torch.autograd.grad(value[q], inputs, retain_graph=True, allow_unused=True)
                for q in range(len(value))
            ]
            rows = [
                None if column[0] is None else torch.stack(column) for column in zip(*one_by_one)
            ]
    empty = lambda i: torch.zeros(len(value), *i.shape, dtype=i.dtype, device=i.device)
    return [empty(i) if row is None else row.detach() for row, i in zip(rows, inputs)]

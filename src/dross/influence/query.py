"""What is asked of a trained model, and its derivative: the seed of a retrace.

A query is a scalar or a vector function of (theta, buffers), evaluated in eval mode. It consists of
parts, so that a large validation set is never in memory at once. The parts are added up (a mean) or
put one after the other (one query each). query_makers.py makes the usual ones.
"""

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import vmap

from ..engine.autodiff import batched_vjp, widen
from ..engine.moving_buffers import Gates, open_gates
from ..engine.norms import ElementaryNorms, differentiable_statistics
from ..engine.objective import Objective
from ..engine.state import Derivative, State
from ..errors import Diverged, InvalidInput

Buffers = dict[str, Tensor]
Function = Callable[[Tensor, Buffers], Tensor]  # (theta [p], buffers) -> scalar or [q]
QueryPart = tuple[int, Function]  # how many instances it looks at, and what it computes
_MAX_INSTANCES_TIMES_MODELS = 8192  # when many models are asked
_SKETCH_DIRECTIONS = 4
_MAX_SKETCHED = 1 << 20  # coordinates: a large derivative is sampled
_SKETCH_TOLERANCE = 1e-3  # of the derivative's length, in float32 on another device


@dataclass(frozen=True)
class Query:
    """What is asked of a model: Q numbers, or a single one.

    Made by `mean_loss`, `expected_error`, `losses`, `outputs` and `query`, and passed to
    `Run.influence`, `Run.evaluate`, `Run.leave_one_out` and `Run.verify`.
    """

    name: str
    parts: Callable[[Objective], Iterator[QueryPart]]
    added: bool  # the parts are added up, rather than put one after the other
    data: Any = None  # what it is about, where that is a data set

    def __repr__(self) -> str:
        return f"<query {self.name}>"

    def evaluate(self, objective: Objective, state: State) -> Tensor:
        """The query's value at one state.

        Arguments:
            objective: of the run.
            state: a state of the run.

        Returns:
            float64, a scalar or [Q].

        Raises:
            InvalidInput: where the query does not fit the model.
        """
        with objective.evaluating(), torch.no_grad():
            values = [
                self._check_shape(self._run(fn, state.theta, state.buffers)).double()
                for _, fn in self.parts(objective)
            ]
        return _combine(values, self.added)

    def evaluate_many(self, objective: Objective, states: State) -> Tensor:
        """The query's values at K states, all at once where the model allows it.

        Arguments:
            objective: of the run.
            states: a state with a leading axis [K].

        Returns:
            float64 [K] or [Q, K].

        Raises:
            InvalidInput: where the query does not fit the model.
        """
        one_by_one = False

        def ask_all(size: int, fn: Function) -> Tensor:
            nonlocal one_by_one
            if not one_by_one:
                chunk = max(1, _MAX_INSTANCES_TIMES_MODELS // size)
                try:
                    many = vmap(fn, randomness="same", chunk_size=chunk)
                    return many(states.theta, states.buffers)
                except torch.OutOfMemoryError:
                    raise
                except (RuntimeError, ValueError):
                    one_by_one = True
            return torch.stack([fn(*_nth(states, k)) for k in range(len(states.theta))])

        with objective.evaluating(), torch.no_grad():
            values = [self._run(ask_all, size, fn).double() for size, fn in self.parts(objective)]
        return _combine([value.movedim(0, -1) for value in values], self.added)

    def derivative(self, objective: Objective, state: State) -> tuple[Derivative, bool]:
        """The derivative of the query with respect to the state: the seed of a retrace.

        Arguments:
            objective: of the run.
            state: the state that is asked.

        Returns:
            d query / d state with a leading axis [Q], and whether the query is a scalar.

        Raises:
            InvalidInput: where the query does not fit the model.
            Diverged: where the query is not finite at this state.
        """
        # by name: sums round by their order, and a file does not keep the order of its tensors
        floating = {
            name: b
            for name, b in sorted(state.buffers.items())
            if b.is_floating_point() and name not in objective.held
        }
        rest = {name: b for name, b in state.buffers.items() if name not in floating}
        rows: list[list[Tensor]] = []
        scalar = False
        differentiable = differentiable_statistics(objective.model)
        # a model that moves buffers of its own may detach them where it reads them
        gates = Gates(()) if objective.followed else nullcontext()
        with objective.evaluating(), differentiable, ElementaryNorms(), gates, open_gates():
            for _, fn in self.parts(objective):
                theta = state.theta.detach().requires_grad_()
                leaves = {name: b.detach().requires_grad_() for name, b in floating.items()}
                with torch.enable_grad():
                    value = self._check_shape(self._run(fn, theta, {**rest, **leaves}))
                if not torch.isfinite(value).all():
                    raise Diverged(f"The query {self.name} is not finite at the trained model.")
                scalar = scalar or value.dim() == 0
                found = _derivatives(value.reshape(-1), [theta, *leaves.values()])
                if self.added and rows:  # at once: one part is as large as the parameters
                    found = [total + part for total, part in zip(rows.pop(), found)]
                rows.append(found)
        a_theta, *a_buffers = [widen(torch.cat(parts)) for parts in zip(*rows)]
        slots = {n: a_theta.new_zeros(len(a_theta), *s.shape) for n, s in state.slots.items()}
        return Derivative(a_theta, slots, dict(zip(floating, a_buffers))), scalar

    def _run(self, fn: Callable, *arguments: Any) -> Tensor:
        try:
            value = fn(*arguments)
        except (RuntimeError, TypeError, IndexError, KeyError) as error:
            if isinstance(error, torch.OutOfMemoryError):
                raise
            raise InvalidInput(
                f"The query {self.name} cannot be evaluated on this model: {error}"
            ) from error
        if not isinstance(value, Tensor):
            raise InvalidInput(
                f"The query {self.name} returned {type(value).__name__}, not a tensor."
            )
        return value

    def _check_shape(self, value: Tensor) -> Tensor:
        if value.dim() > 1:
            raise InvalidInput(
                f"The query {self.name} returned shape {tuple(value.shape)}: a query is a number "
                "or a vector. Flatten it."
            )
        return value


def as_query(given: Any) -> Query:
    """The query itself, or an error that says how to make one."""
    if not isinstance(given, Query):
        raise InvalidInput(
            "A query is built with dross.mean_loss, dross.expected_error, dross.losses, "
            "dross.outputs or dross.query(fn)."
        )
    return given


def _nth(states: State, k: int) -> tuple[Tensor, Buffers]:
    return states.theta[k], {name: b[k] for name, b in states.buffers.items()}


def _combine(values: list[Tensor], added: bool) -> Tensor:
    if added:
        return torch.stack(values).sum(0)
    return values[0] if len(values) == 1 else torch.cat(values)


def _derivatives(value: Tensor, inputs: list[Tensor]) -> list[Tensor]:
    """d value_q / d input for every q: [[Q, *input.shape], ...]."""
    eye = torch.eye(len(value), dtype=value.dtype, device=value.device)
    return batched_vjp([value], inputs, [eye], rows_at_once=len(value))


# --- what was asked -------------------------------------------------------------------------------
# All that a retrace uses of a query is its derivative at the model. Its length and a few
# projections tell two queries apart. On another machine they are the same up to rounding; a digest
# of the bits would not be.


def sketch_derivative(seed: Derivative) -> list[float]:
    """The length of a derivative [Q, p], and projections of it on fixed random directions."""
    flat = seed.theta.detach().reshape(-1)
    length = float(torch.linalg.vector_norm(flat, dtype=torch.float64))
    return project(length, flat[:: sampled_every(len(flat))].double().cpu())


def sampled_every(numbers: int) -> int:
    """n, where every n-th number of a derivative is sampled."""
    return 1 + numbers // _MAX_SKETCHED


def project(length: float, sample: Tensor) -> list[float]:
    """A sketch of a derivative of this length, with this sample of its numbers."""
    generator = torch.Generator().manual_seed(0)
    shape = (_SKETCH_DIRECTIONS, len(sample))
    directions = torch.randn(shape, generator=generator, dtype=torch.float64)
    return [length, *(directions @ sample).tolist()]


def same_question(one: list[float], other: list[float]) -> bool:
    """Whether two sketches are of the same query."""
    length = max(one[0], other[0])
    return bool(np.allclose(one, other, rtol=0, atol=_SKETCH_TOLERANCE * length))

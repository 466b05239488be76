"""A query of a trained model, and its derivative: the seed of a retrace.

A query is a scalar or a vector function of (theta, buffers), evaluated in eval mode. It consists of
parts, so that a large validation set is never in memory at once. The parts are added up (a mean) or
put one after the other (one query each).
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

from .._checks import check_number, check_signature
from ..data.dataset import Instances
from ..engine.autodiff import batched_vjp, refuse_inference_mode, widen
from ..engine.live import RefuseLive, depends_on
from ..engine.losses import bound_losses, check_labels, check_per_instance
from ..engine.norms import ElementaryNorms, differentiable_statistics
from ..engine.objective import Objective
from ..engine.state import Derivative, State
from ..errors import Diverged, DrossError, InvalidInput

Buffers = dict[str, Tensor]
Function = Callable[[Tensor, Buffers], Tensor]  # (theta [p], buffers) -> scalar or [q]
QueryPart = tuple[int, Function]  # how many instances it looks at, and what it computes

_FUNCTIONAL = (
    "Write fn(params, buffers), and call a model with torch.func.functional_call(model, "
    "(params, buffers), (x,)): model(x) uses the model's own weights, not those of the recorded run."
)
_CHUNK = 1024  # instances in memory at once
_QUERIES_IN_A_PART = 16  # of one instance each: a seed is a backward pass over the whole part
_MAX_INSTANCES_TIMES_MODELS = 8192  # when many models are queried


@dataclass(frozen=True)
class Query:
    """A function of a model: Q numbers, or a single one.

    Made by `mean_loss`, `expected_error`, `losses`, `outputs` and `query`, and passed to
    `Run.influence`, `Run.evaluate`, `Run.leave_one_out` and `Run.verify`.
    """

    name: str
    parts: Callable[[Objective], Iterator[QueryPart]]
    added: bool  # whether the parts are summed rather than concatenated
    data: Any = None  # the dataset on which the query is computed, if any
    #: parts with one number per instance of the data, to find those that are not finite
    by_instance: Callable[[Objective], Iterator[QueryPart]] | None = None

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
            InvalidInput: if the query does not fit the model.
        """
        with objective.evaluating(), torch.no_grad():
            values = [
                _check_value(self.name, self._run(fn, state.theta, state.buffers)).double()
                for _, fn in self.parts(objective)
            ]
        return _combine(values, self.added)

    def evaluate_many(self, objective: Objective, states: State) -> Tensor:
        """The query's values at K states, computed together if the model allows it.

        Arguments:
            objective: of the run.
            states: a state with a leading axis [K].

        Returns:
            float64 [K] or [Q, K].

        Raises:
            InvalidInput: if the query does not fit the model.
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
            each = [states.map(lambda t, k=k: t[k]) for k in range(len(states.theta))]
            return torch.stack([fn(state.theta, state.buffers) for state in each])

        with objective.evaluating(), torch.no_grad():
            values = [self._run(ask_all, size, fn).double() for size, fn in self.parts(objective)]
        return _combine([value.movedim(0, -1) for value in values], self.added)

    def derivative(self, objective: Objective, state: State) -> tuple[Derivative, Tensor]:
        """The derivative of the query with respect to the state, with which a retrace starts.

        Arguments:
            objective: of the run.
            state: the state at which it is taken.

        Returns:
            d query / d state with a leading axis [Q], and the value, as `evaluate` has it.

        Raises:
            InvalidInput: if the query does not fit the model.
            Diverged: if the state, the query or its derivative is not finite.
        """
        refuse_inference_mode()
        _check_state(objective, state)
        # by name: sums round by their order, and a file does not keep the order of its tensors
        floating = {
            name: b
            for name, b in sorted(state.buffers.items())
            if b.is_floating_point() and name not in objective.held
        }
        rest = {name: b for name, b in state.buffers.items() if name not in floating}
        rows: list[list[Tensor]] = []
        values: list[Tensor] = []
        differentiable = differentiable_statistics(objective.model)
        with objective.evaluating(), differentiable, ElementaryNorms():
            for _, fn in self.parts(objective):
                theta = state.theta.detach().requires_grad_()
                leaves = {name: b.detach().requires_grad_() for name, b in floating.items()}
                with torch.enable_grad():
                    value = _check_value(self.name, self._run(fn, theta, {**rest, **leaves}))
                    flat = value.reshape(-1)
                _check_gradient(self.name, value, [theta, *leaves.values()])
                if not torch.isfinite(value).all():
                    raise self._not_finite(objective, state)
                values.append(torch.tensor(value.tolist(), dtype=torch.float64))
                eye = torch.eye(len(flat), dtype=flat.dtype, device=flat.device)
                inputs = [theta, *leaves.values()]
                row = batched_vjp([flat], inputs, [eye], rows_at_once=len(flat))
                if not all(bool(torch.isfinite(part).all()) for part in row):
                    raise self._no_derivative(objective, row)
                if self.added and rows:  # at once: one part is as large as the parameters
                    row = [total + part for total, part in zip(rows.pop(), row)]
                rows.append(row)
        a_theta, *a_buffers = [widen(torch.cat(parts)) for parts in zip(*rows)]
        slots = {n: a_theta.new_zeros(len(a_theta), *s.shape) for n, s in state.slots.items()}
        adjoint = Derivative(a_theta, slots, dict(zip(floating, a_buffers)))
        return adjoint, _combine(values, self.added)

    def _run(self, fn: Callable, *arguments: Any) -> Tensor:
        try:
            value = fn(*arguments)
        except (DrossError, torch.OutOfMemoryError):
            raise
        except (RuntimeError, TypeError, LookupError, AttributeError, ValueError) as error:
            raise InvalidInput(
                f"The query {self.name} cannot be evaluated on this model: {error}"
            ) from error
        if not isinstance(value, Tensor):
            raise InvalidInput(
                f"The query {self.name} returned {type(value).__name__}, not a tensor."
            )
        return value

    def _not_finite(self, objective: Objective, state: State) -> Diverged:
        """The error for a query without a value. The model itself is finite."""
        bad: list[int] = []
        start = 0
        with torch.no_grad():
            for size, fn in () if self.by_instance is None else self.by_instance(objective):
                rows = fn(state.theta, state.buffers).reshape(size, -1)
                bad += (start + (~torch.isfinite(rows).all(1)).nonzero().flatten()).tolist()
                start += size
        where = "Check its formula."
        if bad:
            names = ", ".join(map(str, bad[:5])) + (", ..." if len(bad) > 5 else "")
            of = "instance" if len(bad) == 1 else "instances"
            where = f"It is inf or nan for {of} {names} of its data: check these."
        return Diverged(
            f"The query {self.name} is not finite at the recorded model, although the model's "
            f"parameters are. {where}"
        )

    def _no_derivative(self, objective: Objective, row: list[Tensor]) -> Diverged:
        """The error for a query with a value and no derivative."""
        by_name = objective.layout.unflatten(row[0])
        bad = [name for name, part in by_name.items() if not bool(torch.isfinite(part).all())]
        to = f" with respect to '{bad[0]}'" if bad else ""
        return Diverged(
            f"The query {self.name} has a finite value at the recorded model, but its derivative{to} "
            "is not finite. Its formula is not differentiable there (for example, sqrt is not "
            "differentiable at 0): add a small number to the argument of the root, or leave out "
            "values that are exactly 0. The parameters of the recorded model are finite."
        )


def _check_value(name: str, value: Tensor) -> Tensor:
    """Refuse what is neither a real number nor a vector of them."""
    if value.dim() > 1:
        raise InvalidInput(
            f"The query {name} returned shape {tuple(value.shape)}: a query must return a scalar "
            "or a vector. Flatten the result."
        )
    if value.numel() == 0:
        raise InvalidInput(
            f"The query {name} returned an empty vector: it must return at least one number."
        )
    if value.is_complex():
        raise InvalidInput(f"The query {name} returned complex numbers: its result must be real.")
    return value


def _check_gradient(name: str, value: Tensor, inputs: Sequence[Tensor]) -> None:
    """Refuse a value without a derivative with respect to these leaves."""
    if not value.requires_grad:
        raise InvalidInput(
            f"The query {name} does not depend on the model's parameters: its result does not "
            "require a gradient. Compute it from `params`, without detach(), item(), argmax or "
            "torch.no_grad()."
        )
    if not depends_on(value, inputs):
        raise InvalidInput(
            f"The query {name} does not depend on the parameters that it is passed. {_FUNCTIONAL}"
        )


def _check_state(objective: Objective, state: State) -> None:
    """Refuse a model that is not finite: nothing can be derived there."""
    if all(bool(torch.isfinite(t).all()) for t in (state.theta, *state.buffers.values())):
        return
    named = objective.layout.unflatten(state.theta) | state.buffers
    bad = [name for name, t in named.items() if not bool(torch.isfinite(t).all())]
    raise Diverged(
        f"The recorded model has non-finite parameters: '{bad[0]}' contains inf or nan, so the "
        "training diverged. Record it again with a smaller learning rate, or query an earlier "
        "model: step=..."
    )


def as_query(query: Any) -> Query:
    """The query itself, or an error that explains how to make one."""
    if not isinstance(query, Query):
        raise InvalidInput(
            "A query is built with dross.mean_loss, dross.expected_error, dross.losses, "
            "dross.outputs or dross.query(fn)."
        )
    return query


def query_of_file(name: str) -> Query:
    """The query of scores that were loaded: a file contains its name, and not its data."""

    def parts(objective: Objective) -> Iterator[QueryPart]:
        raise InvalidInput(
            f"A score file does not contain the data of its query, {name}: pass the query to "
            "Scores.load(path, query)."
        )

    return Query(name, parts, added=True)


def _combine(values: list[Tensor], added: bool) -> Tensor:
    if added:
        return torch.stack(values).sum(0)
    return values[0] if len(values) == 1 else torch.cat(values)


# --- the queries that dross makes -----------------------------------------------------------------


def mean_loss(data: Any) -> Query:
    """The mean loss over a dataset, without the penalty.

        scores = run.influence(dross.mean_loss((X_val, y_val)))

    Arguments:
        data: a map-style dataset of (x, y), or a pair of tensors X [M, ...], Y [M, ...].

    Returns:
        A query of one number.

    Raises:
        InvalidInput: if the data cannot be used, once the query is evaluated.
    """
    return mean_over("mean_loss", data, _losses)


def expected_error(data: Any, *, scale: float = 1.0) -> Query:
    """The mean of 1 - exp(-loss / scale) over a dataset, without the penalty.

        scores = run.influence(dross.expected_error((X_val, y_val)))

    With cross entropy and scale 1 this is the mean of 1 - p(label): how often a guess that is drawn
    from the model's probabilities is wrong. With squared errors it is Welsch's bounded loss. No
    instance counts more than 1, so that wrong labels among the data do not drown the others
    (docs/derivations.md).

    Arguments:
        data: a map-style dataset of (x, y), or a pair of tensors X [M, ...], Y [M, ...].
        scale: the loss at which an instance counts 0.63. For squared errors, take about twice the
            variance of the usual error.

    Returns:
        A query of one number.

    Raises:
        InvalidInput: if the scale is not above 0, or, once the query is evaluated, if the data
            cannot be used.
    """
    scale = check_number(scale, "scale")
    if not 0 < scale < float("inf"):
        raise InvalidInput(
            f"scale must be above 0 and finite, not {scale:g}: losses are divided by it."
        )

    def bounded(objective: Objective, theta: Tensor, buffers: Buffers, x: Any, y: Any) -> Tensor:
        return bound_losses(_losses(objective, theta, buffers, x, y), scale)

    name = "expected_error" if scale == 1 else f"expected_error(scale={scale:g})"
    return mean_over(name, data, bounded)


def losses(data: Any) -> Query:
    """The loss of each instance of a dataset, without the penalty: one query per instance.

        scores = run.influence(dross.losses((X_val, y_val)))      # scores.values is [M, N]

    Arguments:
        data: a map-style dataset of (x, y), or a pair of tensors X [M, ...], Y [M, ...].

    Returns:
        A query of M numbers.

    Raises:
        InvalidInput: if the data cannot be used, once the query is evaluated.
    """
    return _each("losses", data, _losses)


def outputs(data: Any, index: int | None = None) -> Query:
    """The model's outputs on the inputs of a dataset.

        scores = run.influence(dross.outputs(X_test[:1], index=3))      # one class of one image

    Arguments:
        data: a dataset, a pair of tensors (X, Y), or a tensor of inputs X [M, ...] alone.
        index: only output number `index` of each instance.

    Returns:
        A query of one number per instance and output, by instance, then by output: M numbers with
        `index`, M times the number of outputs without it.

    Raises:
        InvalidInput: if there is no output `index`, once the query is evaluated.
    """

    def predict(objective: Objective, theta: Tensor, buffers: Buffers, x: Any, y: Any) -> Tensor:
        predicted = widen(objective.predict(theta, buffers, x))
        if index is None:
            return predicted.reshape(-1)
        if predicted.dim() < 2 or not -predicted.shape[1] <= index < predicted.shape[1]:
            raise InvalidInput(
                f"The model's outputs have shape {tuple(predicted.shape)}: there is no output "
                f"number {index}."
            )
        return predicted[:, index].reshape(-1)

    pairs = (data, torch.zeros(len(data))) if isinstance(data, Tensor) else data
    return _each("outputs" if index is None else f"outputs[{index}]", pairs, predict)


def query(fn: Callable[[dict[str, Tensor], dict[str, Tensor]], Tensor]) -> Query:
    """Any differentiable function of the model.

        def confidence(params, buffers):
            outputs = torch.func.functional_call(model, (params, buffers), (x,))
            return outputs.softmax(1)[:, 3].mean()

        scores = run.influence(dross.query(confidence))

    Arguments:
        fn: fn(params, buffers) -> a scalar or a vector [Q]; both arguments are dicts of
            name -> tensor. The model is in eval mode. fn must not use the model's own parameters;
            clone those that it needs as constants beforehand.

    Returns:
        A query of as many numbers as fn returns.

    Raises:
        InvalidInput: if fn does not take (params, buffers), or, once the query is evaluated, if it
            fails, returns something else, or uses the model's own weights.
    """
    name = getattr(fn, "__name__", "query")

    def parts(objective: Objective) -> Iterator[QueryPart]:
        constants = objective.layout.constants(objective.model)
        all_buffers = dict(objective.model.named_buffers())
        frozen = {key: t for key, t in constants.items() if key not in all_buffers}
        fixed = {key: t for key, t in constants.items() if key in all_buffers}

        by_name = dict(objective.model.named_parameters())
        live = [by_name[key] for key in objective.layout.names]
        refuse_live = RefuseLive(live, f"The query {name} uses the live model. {_FUNCTIONAL}")

        def ask(theta: Tensor, buffers: Buffers) -> Tensor:
            params = {**objective.layout.unflatten(theta), **frozen}
            with refuse_live:
                return fn(params, {**fixed, **buffers})

        yield 1, ask

    if not callable(fn):
        raise InvalidInput(f"fn must be a function fn(params, buffers), not {fn!r}.")
    check_signature(fn, "fn(params, buffers)", "two dicts of name -> tensor")
    return Query(name, parts, added=False)


OfInstances = Callable[[Objective, Tensor, Buffers, Any, Any], Tensor]


def mean_over(name: str, data: Any, of_each: OfInstances) -> Query:
    """The mean of of_each(objective, theta, buffers, x, y), one number per instance."""
    read = _Source(data)

    def parts(objective: Objective) -> Iterator[QueryPart]:
        total = len(read.instances(objective))

        def share(*arguments: Any) -> Tensor:
            return of_each(*arguments).sum() / total

        yield from read.parts(objective, _CHUNK, share)

    def by_instance(objective: Objective) -> Iterator[QueryPart]:
        return read.parts(objective, _CHUNK, of_each)

    return Query(name, parts, added=True, data=data, by_instance=by_instance)


def _each(name: str, data: Any, of_each: OfInstances) -> Query:
    """of_each(objective, theta, buffers, x, y), one query for each of its numbers."""
    read = _Source(data)

    def parts(objective: Objective) -> Iterator[QueryPart]:
        yield from read.parts(objective, _QUERIES_IN_A_PART, of_each)

    return Query(name, parts, added=False, data=data, by_instance=parts)


class _Source:
    """A query's data, read once per device and type of the models that are queried."""

    def __init__(self, data: Any):
        self.data = data
        self.read: dict[tuple[torch.device, torch.dtype], Instances] = {}

    def instances(self, objective: Objective) -> Instances:
        parameter = next(objective.model.parameters())
        on_meta = parameter.device.type == "meta"  # it has no weights of its own
        device = torch.get_default_device() if on_meta else parameter.device
        key = (device, parameter.dtype)
        if key not in self.read:
            self.read[key] = Instances(self.data, *key)
        return self.read[key]

    def parts(self, objective: Objective, size: int, compute: OfInstances) -> Iterator[QueryPart]:
        """Compute something of the data, `size` instances at a time."""
        instances = self.instances(objective)
        for start in range(0, len(instances), size):
            ids = np.arange(start, min(start + size, len(instances)))
            x, y = instances[ids]
            yield (
                len(ids),
                lambda theta, buffers, x=x, y=y: compute(objective, theta, buffers, x, y),
            )


def _losses(objective: Objective, theta: Tensor, buffers: Buffers, x: Any, y: Any) -> Tensor:
    predicted = objective.predict(theta, buffers, x)
    if isinstance(predicted, Tensor) and not is_batchedtensor(predicted):
        check_labels(predicted, y, objective.loss_name)
    losses = check_per_instance(objective.apply_loss(predicted, y), len(tree_leaves(x)[0]))
    return widen(losses)  # before they are added up

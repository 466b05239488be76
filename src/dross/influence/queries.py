"""The queries that dross makes: of losses, of outputs, of anything that a function computes."""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch._C._functorch import is_batchedtensor
from torch.utils._pytree import tree_leaves

from ..data.dataset import Instances
from ..engine.autodiff import widen
from ..engine.losses import bound_losses, check_labels, check_per_instance
from ..engine.objective import Objective
from ..errors import InvalidInput
from ..support.arguments import check_number
from .query import Buffers, Query, QueryPart

_CHUNK = 1024  # instances in memory at once
_QUERIES_IN_A_PART = 16  # of one instance each: a seed is a backward pass over the whole part


def mean_loss(data: Any) -> Query:
    """The mean loss over a data set, without the penalty.

        scores = run.influence(dross.mean_loss((X_val, y_val)))

    Arguments:
        data: a map-style data set of (x, y), or a pair of tensors X [M, ...], Y [M, ...].

    Returns:
        A query of one number.

    Raises:
        InvalidInput: where the data cannot be used, once the query is asked.
    """
    return _average("mean_loss", data, _losses)


def expected_error(data: Any, *, scale: float = 1.0) -> Query:
    """The mean of 1 - exp(-loss / scale) over a data set, without the penalty.

        scores = run.influence(dross.expected_error((X_val, y_val)))

    With cross entropy and scale 1 this is the mean of 1 - p(label): how often a guess that is drawn
    from the model's probabilities is wrong. With squared errors it is Welsch's bounded loss. No
    instance counts more than 1, so that wrong labels among the data do not drown the others
    (docs/derivations.md).

    Arguments:
        data: a map-style data set of (x, y), or a pair of tensors X [M, ...], Y [M, ...].
        scale: the loss at which an instance counts 0.63. For squared errors, take about twice the
            variance of the usual error.

    Returns:
        A query of one number.

    Raises:
        InvalidInput: where the scale is not above 0, and where the data cannot be used, once the query
            is asked.
    """
    scale = _check_scale(scale)

    def bounded(*asked: Any) -> Tensor:
        return bound_losses(_losses(*asked), scale)

    return _average(_name_scaled("expected_error", scale), data, bounded)


def error_rate(data: Any) -> Query:
    """The share of a data set that the model's largest output gets wrong.

    For `evaluate` only: its derivative is 0.
    """

    def wrong(objective: Objective, theta: Tensor, buffers: Buffers, x: Any, y: Any) -> Tensor:
        return (objective.predict(theta, buffers, x).argmax(-1) != y).double()

    return _average("error_rate", data, wrong)


def losses(data: Any) -> Query:
    """The loss of each instance of a data set, without the penalty: one query per instance.

        scores = run.influence(dross.losses((X_val, y_val)))      # scores.values is [M, N]

    Arguments:
        data: a map-style data set of (x, y), or a pair of tensors X [M, ...], Y [M, ...].

    Returns:
        A query of M numbers.

    Raises:
        InvalidInput: where the data cannot be used, once the query is asked.
    """
    source = _Source(data)

    def parts(objective: Objective) -> Iterator[QueryPart]:
        def each(theta: Tensor, buffers: Buffers, x: Any, y: Any) -> Tensor:
            return _losses(objective, theta, buffers, x, y)

        yield from source.parts(objective, _QUERIES_IN_A_PART, each)

    return Query("losses", parts, added=False, data=data)


def outputs(data: Any, index: int | None = None) -> Query:
    """The model's outputs on the inputs of a data set.

        scores = run.influence(dross.outputs(X_test[:1], index=3))      # one class of one image

    Arguments:
        data: a data set, a pair of tensors (X, Y), or a tensor of inputs X [M, ...] alone.
        index: only output number `index` of each instance.

    Returns:
        A query of one number per instance and output, by instance, then by output: M numbers with
        `index`, M times the number of outputs without it.

    Raises:
        InvalidInput: where there is no output `index`, once the query is asked.
    """
    source = _Source((data, torch.zeros(len(data))) if isinstance(data, Tensor) else data)

    def parts(objective: Objective) -> Iterator[QueryPart]:
        def each(theta: Tensor, buffers: Buffers, x: Any, y: Any) -> Tensor:
            return _select(widen(objective.predict(theta, buffers, x)), index)

        yield from source.parts(objective, _QUERIES_IN_A_PART, each)

    name = "outputs" if index is None else f"outputs[{index}]"
    return Query(name, parts, added=False, data=source.data)


def query(fn: Callable[[dict[str, Tensor], dict[str, Tensor]], Tensor]) -> Query:
    """Any differentiable function of the model.

        dross.query(lambda params, buffers: sum(p.square().sum() for p in params.values()))

    Arguments:
        fn: fn(params, buffers) -> a scalar or a vector [Q]; both arguments are dicts of
            name -> tensor. The model is in eval mode.

    Returns:
        A query of as many numbers as fn returns.

    Raises:
        InvalidInput: where fn fails or returns something else, once the query is asked.
    """

    def parts(objective: Objective) -> Iterator[QueryPart]:
        constants = objective.layout.constants(objective.model)
        own_buffers = dict(objective.model.named_buffers())
        frozen = {name: t for name, t in constants.items() if name not in own_buffers}
        fixed = {name: t for name, t in constants.items() if name in own_buffers}

        def ask(theta: Tensor, buffers: Buffers) -> Tensor:
            params = {**objective.layout.unflatten(theta), **frozen}
            return fn(params, {**fixed, **buffers})

        yield 1, ask

    return Query(getattr(fn, "__name__", "query"), parts, added=False)


def _average(name: str, data: Any, of_each: Callable[..., Tensor]) -> Query:
    """The mean of of_each(objective, theta, buffers, x, y), one number per instance."""
    source = _Source(data)

    def parts(objective: Objective) -> Iterator[QueryPart]:
        total = len(source.instances(objective))

        def share(theta: Tensor, buffers: Buffers, x: Any, y: Any) -> Tensor:
            return of_each(objective, theta, buffers, x, y).sum() / total

        yield from source.parts(objective, _CHUNK, share)

    return Query(name, parts, added=True, data=data)


class _Source:
    """A query's data, read once per device and type of the models that are asked."""

    def __init__(self, data: Any):
        self.data = data
        self.read: dict[tuple[torch.device, torch.dtype], Instances] = {}

    def instances(self, objective: Objective) -> Instances:
        parameter = next(p for p in objective.model.parameters())
        on_meta = parameter.device.type == "meta"  # it has no weights of its own
        device = torch.get_default_device() if on_meta else parameter.device
        key = (device, parameter.dtype)
        if key not in self.read:
            self.read[key] = Instances(self.data, *key)
        return self.read[key]

    def parts(
        self, objective: Objective, size: int, fn: Callable[[Tensor, Buffers, Any, Any], Tensor]
    ) -> Iterator[QueryPart]:
        """fn(theta, buffers, x, y) over chunks of the data."""
        instances = self.instances(objective)
        for start in range(0, len(instances), size):
            ids = np.arange(start, min(start + size, len(instances)))
            x, y = instances[ids]
            yield len(ids), lambda theta, buffers, x=x, y=y: fn(theta, buffers, x, y)


def _check_scale(scale: Any) -> float:
    scale = check_number(scale, "scale")
    if not 0 < scale < float("inf"):
        raise InvalidInput(
            f"scale must be above 0 and finite, not {scale:g}: losses are divided by it."
        )
    return scale


def _name_scaled(name: str, scale: float) -> str:
    return name if scale == 1 else f"{name}(scale={scale:g})"


def _losses(objective: Objective, theta: Tensor, buffers: Buffers, x: Any, y: Any) -> Tensor:
    predicted = objective.predict(theta, buffers, x)
    if isinstance(predicted, Tensor) and not is_batchedtensor(predicted):
        check_labels(predicted, y, objective.loss_name)
    losses = check_per_instance(objective.apply_loss(predicted, y), len(tree_leaves(x)[0]))
    return widen(losses)  # before they are added up


def _select(outputs: Tensor, index: int | None) -> Tensor:
    if index is None:
        return outputs.reshape(-1)
    if outputs.dim() < 2 or not -outputs.shape[1] <= index < outputs.shape[1]:
        raise InvalidInput(
            f"The model's outputs have shape {tuple(outputs.shape)}: there is no output number "
            f"{index}."
        )
    return outputs[:, index].reshape(-1)

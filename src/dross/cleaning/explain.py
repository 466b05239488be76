"""Why an instance is suggested, and how its cells are shown."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.neighbors import NearestNeighbors
from torch import Tensor
from torch.func import grad, vmap

from ..engine.autodiff import call_model
from ..engine.objective import Objective
from ..engine.state import State
from ..influence.run import Run
from .modality import Frame, PreparedData, Series
from .scoring import RetrainingCheck, RunPart
from .tables import Column, TableEncoder
from .task import CLASSIFICATION, REGRESSION, parse_finite
from .text import TextEncoder
from .training import Recipe

_LONG = re.compile(r"[+-]?\d+\.\d{5,}(e[+-]?\d+)?", re.ASCII | re.IGNORECASE)
_WHOLE = re.compile(r"[+-]?\d{1,15}\.0", re.ASCII)
_RARE_SHARE = 0.01
_FAR = 3  # deviations
_DEVIATION_PER_DISTANCE = 1.4826  # of normal numbers: their deviation over the median distance
_MAX_HURT = 3  # held-out instances
_MAX_SIMILAR = 4  # training instances
_MAX_WORDS = 10
_MAX_COLUMNS = 10
_MAX_REPLACED = 100  # columns of a row that are tried, the most telling to first order
_MAX_GRADIENT_NUMBERS = 60_000_000  # held at once


def format_cell(value: Any) -> str | None:
    """Return a cell as text, or None if it is missing; whole numbers are 63, not 63.0.

    Tables with gaps store whole numbers as floats, and write them with one zero. 63.00 has two
    because someone wanted them, and stays.
    """
    if value is None or value != value:
        return None
    text = str(value)
    return text[:-2] if _WHOLE.fullmatch(text) else text


def show_cell(value: Any) -> str | None:
    """Return a cell as `format_cell` does; a number with many decimals is rounded for people."""
    text = format_cell(value)
    if text is None or not _LONG.fullmatch(text):
        return text
    number = float(text)
    return f"{number:.1f}" if abs(number) >= 10_000 else f"{number:.5g}"


def order_columns(
    names: Iterable[Any], weights: Iterable[tuple[str, float]], unusual: Iterable[str]
) -> list[str]:
    """Return the columns of a row, those that matter most for it first.

    Arguments:
        names: All columns of the row.
        weights: (column, how much it speaks for the label), if known.
        unusual: Columns whose cells are unusual; they come next.
    """
    known = dict.fromkeys(str(name) for name in names)
    heavy = [str(name) for name, _ in sorted(weights, key=lambda entry: -abs(entry[1]))]
    first = [name for name in [*heavy, *unusual] if name in known]
    return list(dict.fromkeys([*first, *known]))


# --- unusual cells --------------------------------------------------------------------------------

_Describe = Callable[[Any], str]  # "" for a usual cell


class UnusualCells:
    """What is usual in each column of a table, computed once.

    Arguments:
        content: The table.
        columns: What its columns are; kinds other than numbers and categories are skipped.
    """

    def __init__(self, content: Frame, columns: Sequence[Column]):
        makers = {"number": _judge_number, "category": _judge_category}
        self._describe: dict[str, _Describe] = {
            column.name: _with_gaps(content[column.name], makers[column.kind])
            for column in columns
            if column.kind in makers and column.name in content.columns
        }

    def __call__(self, row: Mapping[Any, Any]) -> dict[str, str]:
        """Return what is unusual in a row: {column: in words}."""
        found = {name: describe(row[name]) for name, describe in self._describe.items()}
        return {name: words for name, words in found.items() if words}


def _with_gaps(cells: Series, make: Callable[[Series], _Describe]) -> _Describe:
    """The rule of a column, and that of its gaps."""
    gaps = float(cells.isna().mean())
    words = f"missing: only {_percent(gaps)} of rows have no value here"
    about_gap = words if gaps < _RARE_SHARE else ""
    describe = make(cells.dropna())
    return lambda value: about_gap if value is None or value != value else describe(value)


def _judge_number(cells: Series) -> _Describe:
    numbers = np.sort(parse_finite(cells).dropna().to_numpy(float))
    if len(numbers) == 0:
        return lambda value: ""
    median = float(np.median(numbers))
    distance = _FAR * _DEVIATION_PER_DISTANCE * float(np.median(np.abs(numbers - median)))
    low, high = np.quantile(numbers, [_RARE_SHARE, 1 - _RARE_SHARE])

    def describe(value: Any) -> str:
        number = _to_number(value)
        if not low <= number <= high and abs(number - median) > distance:
            is_high = number > high
            place = np.searchsorted(numbers, number, "left" if is_high else "right")
            as_far = len(numbers) - place if is_high else place
            share = max(as_far, 1) / len(numbers)
            word = "high" if is_high else "low"
            return f"unusually {word}: only {_percent(share)} of rows are this {word}"
        return ""

    return describe


def _to_number(value: Any) -> float:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return np.nan
    return number if np.isfinite(number) else np.nan


def _judge_category(cells: Series) -> _Describe:
    shares: dict[Any, float] = cells.value_counts(normalize=True).to_dict()
    rarest = 1 / max(len(cells), 1)

    def describe(value: Any) -> str:
        share = shares.get(value, 0.0)
        rare = share < _RARE_SHARE and rarest < _RARE_SHARE
        return f"rare: only {_percent(max(share, rarest))} of rows have it" if rare else ""

    return describe


def _percent(share: float) -> str:
    percent = 100 * share
    return "0.1\u00a0%" if 0 < percent < 0.1 else f"{percent:.1f}\u00a0%"


# --- reasons --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Hurt:
    """A held-out instance whose loss a training instance raises."""

    id: int  # in the validation set, or in the training set if there is none
    change: float | None = None  # of its loss without the training instance, where that is known
    measured: bool = False  # by retraining


@dataclass
class Reasons:
    """Why an instance is suggested; what was not computed is empty."""

    hurts: list[Hurt] = field(default_factory=list)
    similar: list[int] = field(default_factory=list)  # ids of training instances
    unusual: dict[str, str] = field(default_factory=dict)  # {column: in words}
    # a word or a column, and how much it speaks for the given label
    words: list[tuple[str, float]] = field(default_factory=list)
    columns: list[tuple[str, float]] = field(default_factory=list)


def find_reasons(
    data: PreparedData,
    run: Run,
    recipe: Recipe,
    part: RunPart,
    check: RetrainingCheck,
    ids: np.ndarray,
) -> dict[int, Reasons]:
    """What speaks against some training instances.

    Arguments:
        data: The dataset.
        run: A recorded run.
        recipe: How it was trained.
        part: What it was trained on, and what it held out.
        check: What retraining showed, which is used in place of estimates.
        ids: The training instances to explain.

    Returns:
        The reasons by id.
    """
    trained = _TrainedModel(run.recording.objective, run.recording.state_at(run.steps))
    reasons = {k: Reasons() for k in ids.tolist()}
    hurts = _estimate_hurt(data, trained, recipe, part, ids) | _measured_hurt(check, part)
    similar = _find_similar(data.x["train"], ids)
    for place, (k, why) in enumerate(reasons.items()):
        why.hurts = hurts.get(k, [])
        why.similar = similar[place]
    if data.columns:
        content = data.part("train").content
        unusual = UnusualCells(content, data.columns)
        for why, row in zip(reasons.values(), _list_rows(content.iloc[ids])):
            why.unusual = unusual(row)
        for k, weights in zip(reasons, _find_telling_columns(data, trained, ids)):
            reasons[k].columns = weights
    if isinstance(data.encoder, TextEncoder):
        words = data.encoder.words
        for k, weights in zip(reasons, _find_telling_words(data, trained, ids, words)):
            reasons[k].words = weights
    return reasons


def _list_rows(content: Frame) -> list[dict[Any, Any]]:
    """Each row by the names of its columns. Taken one by one, wide rows are slow."""
    cells = [content[name].tolist() for name in content.columns]
    return [dict(zip(content.columns, row)) for row in zip(*cells)]


class _TrainedModel(NamedTuple):
    objective: Objective
    state: State


def _find_similar(x: Tensor, ids: np.ndarray) -> list[list[int]]:
    """The nearest other training instances of each."""
    flat = x.reshape(len(x), -1).numpy()
    neighbors = NearestNeighbors(n_neighbors=min(_MAX_SIMILAR + 1, len(flat))).fit(flat)
    places = neighbors.kneighbors(flat[ids], return_distance=False)
    others = [[int(other) for other in row if other != k] for k, row in zip(ids, places)]
    return [row[:_MAX_SIMILAR] for row in others]


def _measured_hurt(check: RetrainingCheck, part: RunPart) -> dict[int, list[Hurt]]:
    """The held-out instances whose loss fell the most in a real run without the instance."""
    hurt = {}
    for place, k in enumerate(part.learned[check.verification.instances].tolist()):
        change = check.changes[:, place]
        lowest = np.argsort(change)[:_MAX_HURT]
        hurt[k] = [
            Hurt(int(check.queries[v]), float(change[v]), measured=True)
            for v in lowest
            if change[v] < 0
        ]
    return hurt


def _estimate_hurt(
    data: PreparedData, trained: _TrainedModel, recipe: Recipe, part: RunPart, ids: np.ndarray
) -> dict[int, list[Hurt]]:
    """The held-out instances whose loss the instance raises the most.

    Estimated by the product of their gradients at the trained model, which tells a direction
    without a size. Nothing for models that are too large, or that have buffers.
    """
    objective, state = trained
    loss = recipe.loss_function
    size = len(state.theta)
    ids = ids[np.isin(ids, part.learned)]
    if size * len(ids) > _MAX_GRADIENT_NUMBERS or state.buffers or not len(ids):
        return {}

    def loss_of_one(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        outputs = call_model(objective.model, objective.layout.unflatten(theta), x[None])
        return loss(outputs, y[None]).sum()

    gradients = vmap(grad(loss_of_one), in_dims=(None, 0, 0), randomness="same")
    chunk = max(1, _MAX_GRADIENT_NUMBERS // 4 // size)
    device = state.theta.device
    held_out = zip(*(tensor.split(chunk) for tensor in part.held_out_pair(data)))
    with objective.evaluating():
        suspects = (tensor[ids].to(device) for tensor in data.pair("train"))
        harmful = gradients(state.theta, *suspects)  # [K, p]
        parts = [
            harmful @ gradients(state.theta, x.to(device), y.to(device)).T for x, y in held_out
        ]
    products = torch.cat(parts, dim=1)  # [K, held out]
    low = products.topk(min(_MAX_HURT, products.shape[1]), largest=False)
    return {
        int(k): [Hurt(int(part.held_out[v])) for v, product in zip(places, values) if product < 0]
        for k, places, values in zip(ids, low.indices.tolist(), low.values.tolist())
    }


def _find_telling_words(
    data: PreparedData, trained: _TrainedModel, ids: np.ndarray, words: np.ndarray
) -> list[list[tuple[str, float]]]:
    """The words that speak most for or against the given label, with their weights.

    A weight is the gradient of the label's output times the input.
    """
    objective, state = trained
    x = data.x["train"][ids].to(state.theta.device, copy=True).requires_grad_()
    with objective.evaluating():
        outputs = objective.predict(state.theta, state.buffers, x)
    if data.source.task is CLASSIFICATION:
        outputs = outputs.gather(1, data.y["train"][ids][:, None].to(x.device))
    (g,) = torch.autograd.grad(outputs.sum(), x)
    weights = (g * x).detach().cpu()[:, : len(words)]  # features of the whole text come after them
    return _strongest(weights, words.tolist(), _MAX_WORDS)


def _strongest(weights: Tensor, names: list[str], count: int) -> list[list[tuple[str, float]]]:
    """The names with the largest weights of each row, weights [K, names]."""
    largest = weights.abs().topk(min(count, weights.shape[1]))
    return [
        [(names[place], round(float(row[place]), 4)) for place in places if row[place] != 0]
        for row, places in zip(weights, largest.indices.tolist())
    ]


def _find_telling_columns(
    data: PreparedData, trained: _TrainedModel, ids: np.ndarray
) -> list[list[tuple[str, float]]]:
    """The columns that speak most for or against the given label, with their weights.

    A weight is what the model's answer loses when the cell is replaced by a usual one of its
    column, the median or the most frequent: log p(label) of classes, the prediction of numbers.
    Nothing if the model was not trained on the columns.
    """
    encoder = data.encoder
    train = data.part("train").content
    if not isinstance(encoder, TableEncoder):
        return []
    rows = train.iloc[ids]
    x = encoder(rows)
    if x.shape[1:] != data.x["train"].shape[1:]:
        return []
    objective, state = trained

    y = data.y["train"][ids]

    def answer(x: Tensor, y: Tensor) -> Tensor:
        outputs = objective.predict(state.theta, state.buffers, x.to(state.theta)).cpu()
        if data.source.task is REGRESSION:
            return outputs[:, 0]
        return outputs.log_softmax(1).gather(1, y[:, None])[:, 0]

    usual = rows.head(1).copy()
    for column in encoder.columns:
        cells = train[column.name]
        is_number = column.kind == "number"
        usual[column.name] = parse_finite(cells).median() if is_number else cells.mode().iloc[0]
    replaced = encoder(usual)
    column_of_input = torch.from_numpy(encoder.column_of_input)
    names = [column.name for column in encoder.columns]
    with objective.evaluating():
        if len(names) <= _MAX_REPLACED:
            tried = torch.arange(len(names)).expand(len(ids), -1)
        else:
            changes = _estimate_changes(answer, x, y, replaced, column_of_input, len(names))
            tried = changes.abs().topk(_MAX_REPLACED).indices
        with torch.no_grad():
            as_is = answer(x, y)
            lost = as_is.new_zeros(len(ids), len(names))
            for places in tried.T:  # one column of each row
                is_replaced = column_of_input == places[:, None]
                change = as_is - answer(torch.where(is_replaced, replaced, x), y)
                lost[range(len(ids)), places] = change
    return _strongest(lost, names, _MAX_COLUMNS)


def _estimate_changes(
    answer: Callable[[Tensor, Tensor], Tensor],
    x: Tensor,
    y: Tensor,
    replaced: Tensor,
    column_of_input: Tensor,
    columns: int,
) -> Tensor:
    """What the answers lose when cells become usual ones, to first order: [K, columns]."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(answer(x, y).sum(), x)
    change = (slope * (x - replaced)).detach()
    return torch.zeros(len(x), columns).index_add_(1, column_of_input, change)

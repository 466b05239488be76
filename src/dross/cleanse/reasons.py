"""Why an instance is suggested, for those that a person will look at first."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from ..autodiff.functional import called
from ..influence.run import Run
from ..step.loss import resolve
from .inputs import tables
from .inputs.load import Prepared
from .inputs.texts import TextEncoder
from .score import Checked
from .train_many import Recipe

_HURTS, _SIMILAR, _WORDS = 3, 4, 10
_MOST_NUMBERS = 60_000_000  # of gradients held at once


def explained(
    prepared: Prepared, run: Run, recipe: Recipe, checked: Checked | None, ids: np.ndarray
) -> dict[str, dict[str, Any]]:
    """{id: what `Project.why` promises}"""
    found: dict[int, dict[str, Any]] = {int(k): {} for k in ids}
    for k, similar in zip(ids, _similar(prepared.x["train"], ids)):
        found[int(k)]["similar"] = similar
    for k, hurt in _hurt(prepared, run, recipe, ids).items():
        found[k]["hurts"] = hurt
    if checked is not None:
        for place, k in enumerate(checked.verification.instances.tolist()):
            if k in found:  # what a real run without it showed replaces the estimate
                change = checked.changes[:, place]
                found[k]["hurts"] = [
                    [int(checked.asked[v]), float(change[v]), True]
                    for v in np.argsort(change)[:_HURTS]
                    if change[v] < 0
                ]
    if prepared.source.kind == "table":
        for k, words in zip(
            ids, tables.unusual(prepared.part("train").content, ids, prepared.columns)
        ):
            found[int(k)]["unusual"] = words
    if isinstance(prepared.encoder, TextEncoder):
        for k, words in zip(ids, _telling_words(prepared, run, ids, prepared.encoder.words)):
            found[int(k)]["words"] = words
    return {str(k): entry for k, entry in found.items()}


def _similar(x: Tensor, ids: np.ndarray) -> list[list[int]]:
    from sklearn.neighbors import NearestNeighbors

    flat = x.reshape(len(x), -1).numpy()
    near = NearestNeighbors(n_neighbors=min(_SIMILAR + 1, len(flat))).fit(flat)
    places = near.kneighbors(flat[ids], return_distance=False)
    return [[int(other) for other in row if other != k][:_SIMILAR] for k, row in zip(ids, places)]


def _hurt(prepared: Prepared, run: Run, recipe: Recipe, ids: np.ndarray) -> dict[int, list]:
    """The validation instances whose loss the instance raises the most, by the product of their gradients at the trained model: an estimate of
    the direction, without a size."""
    objective, state = run.recording.objective, run.recording.state_at(run.steps)
    loss, size = resolve(recipe.loss)[1], len(state.theta)
    if size * len(ids) > _MOST_NUMBERS or state.buffers:
        return {}

    def one(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return loss(
            called(objective.model, objective.layout.unflatten(theta), x[None]), y[None]
        ).sum()

    gradients = vmap(grad(one), in_dims=(None, 0, 0), randomness="same")
    with objective.evaluating():
        own = gradients(state.theta, prepared.x["train"][ids], prepared.y["train"][ids])  # [K, p]
        chunk = max(1, _MOST_NUMBERS // 4 // size)
        products = torch.cat(
            [
                own @ gradients(state.theta, x, y).T
                for x, y in zip(
                    prepared.x["validation"].split(chunk), prepared.y["validation"].split(chunk)
                )
            ],
            dim=1,
        )  # [K, validation]
    low = products.topk(min(_HURTS, products.shape[1]), largest=False)
    return {
        int(k): [[int(v), None, False] for v, p in zip(row, value) if p < 0]
        for k, row, value in zip(ids, low.indices.tolist(), low.values.tolist())
    }


def _telling_words(prepared: Prepared, run: Run, ids: np.ndarray, words: np.ndarray) -> list[list]:
    """The words that speak most for or against the given label: gradient times input of its output."""
    objective, state = run.recording.objective, run.recording.state_at(run.steps)
    x = prepared.x["train"][ids].clone().requires_grad_()
    with objective.evaluating():
        said = objective.predict(state.theta, state.buffers, x)
    given = (
        said.gather(1, prepared.y["train"][ids][:, None]).sum()
        if prepared.source.task == "classification"
        else said.sum()
    )
    (g,) = torch.autograd.grad(given, x)
    weight = (g * x).detach()
    strongest = weight.abs().topk(min(_WORDS, weight.shape[1]))
    return [
        [[str(words[w]), round(float(row[w]), 4)] for w in places if row[w] != 0]
        for row, places in zip(weight, strongest.indices.tolist())
    ]
